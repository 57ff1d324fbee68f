package engine_test

import (
	"testing"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// TestModelCallsAreInTheLogAndTheirFailuresAtTheEnd: the agent ends its turn as if all
// were well, and the run says that it was not.
func TestModelCallsAreInTheLogAndTheirFailuresAtTheEnd(t *testing.T) {
	s := begin(t, servertest.Config{})
	id := sojourn.SessionID(s.id)
	engine := s.Server.Server.Engine
	if err := engine.AdmitModelCall(t.Context(), id, 1); sojourn.CodeOf(err) != sojourn.CodeWorkspaceExpired {
		t.Errorf("without a sandbox: %v, want workspace_expired", err)
	}
	run := s.submit("@ask may I?")
	question := s.asked()
	epoch := s.facts().Session.Lease.Epoch
	if err := engine.AdmitModelCall(t.Context(), id, epoch); err != nil {
		t.Error(err)
	}
	if err := engine.AdmitModelCall(t.Context(), id, epoch+1); sojourn.CodeOf(err) != sojourn.CodeWorkspaceExpired {
		t.Errorf("under another epoch: %v, want workspace_expired", err)
	}
	failed := sojourn.ModelCall{API: "openai", Model: "best", Provider: "p", Status: 429, Failure: sojourn.ModelStatus, Error: "slow down", InputTokens: 7, CostMicroCents: 9}
	if err := engine.NoteModelCall(t.Context(), id, epoch, failed); err != nil {
		t.Fatal(err)
	}
	s.Restart() // what the run remembers is in the database
	s.answer(question, s.options(question)[0])
	if r := s.ended(run); r.State != "completed" || r.StopReason != "end_turn" {
		t.Fatalf("the run is %+v, want it completed", r)
	}

	called := s.data("wamp.model.called")
	s.want("tokens", called["inputTokens"], 7.0)
	s.want("cost", called["costMicroCents"], 9.0)
	s.want("provider", called["provider"], nil)
	why, _ := s.data("wamp.run.completed")["modelError"].(map[string]any)
	s.want("status", why["status"], 429.0)
	s.want("message", why["message"], "slow down")
}
