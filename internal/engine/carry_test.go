package engine_test

import (
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/servertest"
	"github.com/sojourn-dev/sojourn/sandbox/fake"
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
		"deadline": {servertest.Config{TurnDeadline: 3 * time.Second}, []string{"@remember a b", "@ignore-cancel", "@sleep 300000"}, "crashed"},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, c.config)
			s.want("run", s.ended(s.submit(c.lines...)).State, c.state)
			s.want("continuation", s.session().Continuation.State, "live")
			s.want("reason", s.session().Continuation.Reason, "")
			s.Reconfigure(func(c *servertest.Config) { c.TurnDeadline = 0 }) // however slow the machine is
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
	s.damage()
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

// TestMissingConversationIsNotPromised: an agent whose conversation is not where
// its runtime says leaves nothing to capture, and that is not an exact copy (G5,
// G6).
func TestMissingConversationIsNotPromised(t *testing.T) {
	for name, how := range map[string]string{
		"elsewhere": `mv "$HOME/.script-agent" "$HOME/x" && ln -s x "$HOME/.script-agent"`,
		"emptied":   `for f in "$HOME"/.script-agent/*; do mv "$f" "$HOME/x" && ln -s ../x "$f"; done`,
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, servertest.Config{})
			s.completes("@write f text")
			s.completes("@run " + how)
			s.Fake.Kill(s.id)
			s.until("the loss to show", func() bool { return s.session().Workspace.State != "attached" })
			c := s.session().Continuation
			s.want("canContinue", c.CanContinue, false)
			s.want("reason", c.Reason, "conversation_not_restorable")
			_, code := s.refused()
			s.want("code", code, "cloud_resume_unavailable")
		})
	}
}

// damage changes every object of the blob store.
func (s *story) damage() {
	s.Helper()
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
		s.Fatal(err)
	}
}

// TestCaptureDoesWithoutADamagedParent: the sandbox has all that the parent had.
func TestCaptureDoesWithoutADamagedParent(t *testing.T) {
	s := begin(t, servertest.Config{})
	s.completes("@write f text")
	s.damage()
	s.completes("@write g more")
	s.want("sealed", s.count("wamp.checkpoint.sealed"), 2)
	s.Fake.Kill(s.id)
	s.until("the loss to show", func() bool { return s.session().Workspace.State != "attached" })
	said := s.said(s.completes("@cat f", "@cat g"))
	s.want("restored", strings.Join(said, ""), "text\nmore\n")
}

// TestArchiveWhileASandboxIsMade leaves none.
func TestArchiveWhileASandboxIsMade(t *testing.T) {
	s := begin(t, servertest.Config{})
	s.Fake.SetFaults(fake.Faults{CreateDelay: 300 * time.Millisecond})
	answered := make(chan string)
	go func() {
		_, code := s.Call(http.MethodPut, s.path("/workspace"), nil, nil)
		answered <- code
	}()
	s.until("the lease", func() bool { return s.lease() != nil })
	s.Must(http.MethodPost, s.path("/archive"), nil, nil)
	if code := <-answered; code == "" {
		t.Error("an archived session got a sandbox")
	}
	s.want("lease", s.lease().State, sojourn.LeaseReleased)
	s.until("the sandbox to be destroyed", func() bool { return s.sandboxes() == 0 })
}
