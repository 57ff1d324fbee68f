package engine_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// TestFirstConversationIsCarriedAfterAFailure: a live sandbox whose first turn
// did not end in order says that it carries the work (G6), so the next turn goes
// on with the conversation of that turn, not with a new one.
func TestFirstConversationIsCarriedAfterAFailure(t *testing.T) {
	for name, c := range map[string]struct {
		config servertest.Config
		lines  []string
		state  string
	}{
		"error":    {lines: []string{"@remember a b", "@error the model is busy"}, state: "failed"},
		"exit":     {lines: []string{"@remember a b", "@exit 3"}, state: "crashed"},
		"deadline": {servertest.Config{TurnDeadline: time.Second}, []string{"@remember a b", "@ignore-cancel", "@sleep 60000"}, "crashed"},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, c.config)
			s.want("run", s.ended(s.submit(c.lines...)).State, c.state)
			s.want("continuation", s.session().Continuation.State, "live")
			s.want("reason", s.session().Continuation.Reason, "")
			s.want("recalled", s.said(s.completes("@recall a"))[0], "b")
			s.Fake.Kill(s.id)
			s.until("the loss to show", func() bool { return s.session().Workspace.State != "attached" })
			s.want("recalled", s.said(s.completes("@recall a"))[0], "b")
		})
	}
}

// TestDamagedCheckpointIsNotPromised: what could not be restored, because the
// blob store has other bytes than were sealed, is not said to carry (G5, G6).
func TestDamagedCheckpointIsNotPromised(t *testing.T) {
	s := begin(t, servertest.Config{})
	s.completes("@write f text")
	s.Fake.Kill(s.id)
	s.until("the loss to show", func() bool { return s.session().Workspace.State != "attached" })
	s.want("continuation", s.session().Continuation.State, "restorable")
	err := filepath.WalkDir(filepath.Join(s.Dir, "blobs"), func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		b[len(b)/2] ^= 1
		return os.WriteFile(name, b, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	r := s.ended(s.submit("@cat f"))
	s.want("run", r.State, "failed")
	s.want("code", r.LastError.Code, "resume_unavailable")
	c := s.session().Continuation
	s.want("canContinue", c.CanContinue, false)
	s.want("reason", c.Reason, "conversation_not_restorable")
	_, code := s.refused()
	s.want("code", code, "cloud_resume_unavailable")
	s.until("the sandbox to be destroyed", func() bool { return s.sandboxes() == 0 })
}
