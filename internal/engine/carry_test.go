package engine_test

import (
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
