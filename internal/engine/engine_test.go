package engine_test

import (
	"errors"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/servertest"
	"github.com/sojourn-dev/sojourn/sandbox/fake"
)

func TestSessionSurvivesItsSandbox(t *testing.T) {
	s := begin(t, servertest.Config{})
	first := s.completes("@remember harbour Vlissingen", "@write notes/plan.md sail", "@sha .")
	s.want("continuation", s.session().Continuation.State, "live")
	s.want("sandboxes killed", s.Fake.Kill(s.id), 1)
	s.until("the loss to show", func() bool { return s.session().Workspace.State != "attached" })

	c := s.session().Continuation
	s.want("workspace", s.session().Workspace.State, "expired")
	s.want("continuation", c.State, "restorable")
	s.want("canContinue", c.CanContinue, true)
	s.want("reason", c.Reason, "")
	s.want("conversation", c.Conversation.Fidelity, "exact")
	s.want("workspace", c.Workspace.Fidelity, "portable_tree")
	s.want("boundary", c.BoundaryRunID, first)

	second := s.completes("@recall harbour", "@cat notes/plan.md", "@sha .")
	said := s.said(second)
	s.want("recalled", said[0], "Vlissingen")
	s.want("tree", said[len(said)-1], s.said(first)[0])
	s.want("restores", s.count("wamp.workspace.restored"), 1)
	s.want("sandboxes made", len(s.Fake.Created()), 2)
	s.oneEnd()
}

// TestEditsSurviveManyRestores is CP-01: each capture builds on the last
// restored state, deletions included.
func TestEditsSurviveManyRestores(t *testing.T) {
	s := begin(t, servertest.Config{})
	s.completes("@write f0 zero")
	for range 4 {
		want := s.said(s.completes("@run date +%N > g; rm -f f0; echo more >> log; mkdir -p a/b; touch a/b/$(wc -l < log)", "@sha ."))
		s.Fake.Kill(s.id)
		s.until("the loss to show", func() bool { return s.session().Workspace.State != "attached" })
		got := s.said(s.completes("@sha ."))
		if !slices.Equal(got, want) {
			t.Fatalf("tree after restore is %q, want %q", got, want)
		}
	}
}

func TestTurnsShareOneSandboxWithinTheHold(t *testing.T) { // RO-04
	s := begin(t, servertest.Config{})
	for range 5 {
		s.completes("@say hi")
	}
	s.want("sandboxes made", len(s.Fake.Created()), 1)
	s.want("attached", s.count("wamp.workspace.attached"), 1)
	s.want("restored", s.count("wamp.workspace.restored"), 0)
}

// TestLossInMidRun is the seed's section "When compute disappears mid-run".
func TestLossInMidRun(t *testing.T) {
	s := begin(t, servertest.Config{})
	boundary := s.completes("@say done")
	id := s.submit("@say working", "@ask may I?", "@say after")
	question := s.asked()
	before := s.events()
	s.Fake.Kill(s.id)

	r := s.ended(id)
	s.want("run", r.State, "crashed")
	s.want("stopReason", r.StopReason, "workspace_lost")
	i := s.interactions()[0]
	s.want("interaction", i.State, "expired")
	s.want("reason", i.Reason, "workspace_lost")
	status, code := s.answer(question, "allow")
	s.want("late answer", status, http.StatusConflict)
	s.want("late answer", code, "cloud_interaction_expired")
	after := s.events()
	for n, e := range before {
		if string(after[n].Data) != string(e.Data) || after[n].Type != e.Type {
			t.Errorf("event %d changed from %s to %s", e.Sequence, e.Data, after[n].Data)
		}
	}
	s.want("boundary", s.session().Continuation.BoundaryRunID, boundary)
	s.want("continuation", s.session().Continuation.State, "restorable")
	s.completes("@history")
	s.oneEnd()
}

func TestLossOfTheFirstRunLeavesNothingToCarry(t *testing.T) {
	s := begin(t, servertest.Config{})
	id := s.submit("@say working", "@sleep 60000")
	s.speaks(id, "working")
	s.Fake.Kill(s.id)
	s.want("run", s.ended(id).State, "crashed")
	c := s.session().Continuation
	s.want("continuation", c.State, "unavailable")
	s.want("reason", c.Reason, "checkpoint_unavailable")
	s.want("canContinue", c.CanContinue, false)
	status, code := s.refused()
	s.want("status", status, http.StatusConflict)
	s.want("code", code, "cloud_resume_unavailable")
	status, code = s.Call(http.MethodPut, s.path("/workspace"), nil, nil)
	s.want("status", status, http.StatusConflict)
	s.want("code", code, "cloud_resume_unavailable")
}

func TestSandboxLostWhileTheAgentStartsIsReplaced(t *testing.T) {
	s := begin(t, servertest.Config{Env: map[string]string{"SCRIPT_AGENT_HANG": "session/new"}})
	id := s.submit("@say hi")
	s.until("a sandbox", func() bool { return s.session().Workspace.State == "attached" })
	s.want("run", s.run(id).State, "provisioning")
	s.Reconfigure(func(c *servertest.Config) { c.Env = nil }) // the hanging agent is met again
	s.Fake.Kill(s.id)
	s.want("run", s.ended(id).State, "completed")
	s.want("sandboxes made", len(s.Fake.Created()), 2)
	s.oneEnd()
}

func TestAgentThatDiesLeavesItsSandbox(t *testing.T) { // AG-17
	s := begin(t, servertest.Config{})
	s.completes("@remember a b")
	id := s.submit("@write kept here", "@say one", "@stderr last words", "@exit 3")
	r := s.ended(id)
	s.want("run", r.State, "crashed")
	s.want("code", r.LastError.Code, "agent_exited")
	s.want("continuation", s.session().Continuation.State, "live")
	s.want("said", s.said(id)[0], "one")
	next := s.completes("@recall a", "@cat kept")
	s.want("recalled", s.said(next)[0], "b")
	s.want("sandboxes made", len(s.Fake.Created()), 1)
}

func TestAgentThatNeverStartedLeavesTheSessionFresh(t *testing.T) { // AG-05
	for _, where := range []string{"initialize", "new", "after-new"} {
		t.Run(where, func(t *testing.T) {
			s := begin(t, servertest.Config{Env: map[string]string{"SCRIPT_AGENT_CRASH": where}})
			r := s.ended(s.submit("@say hi"))
			if r.State != "failed" && r.State != "crashed" {
				t.Fatalf("run is %s", r.State)
			}
			if where != "after-new" { // there the prompt may have reached it
				s.want("continuation", s.session().Continuation.State, "fresh")
			}
			s.Reconfigure(func(c *servertest.Config) { c.Env = nil })
			s.completes("@say hi")
		})
	}
}

// TestConversationThatCannotBeLoaded is AG-06: never silently fresh.
func TestConversationThatCannotBeLoaded(t *testing.T) {
	for _, what := range []string{"notfound", "error"} {
		t.Run(what, func(t *testing.T) {
			s := begin(t, servertest.Config{})
			s.completes("@remember a b")
			s.Fake.Kill(s.id)
			s.until("the loss to show", func() bool { return s.session().Workspace.State != "attached" })
			s.Reconfigure(func(c *servertest.Config) { c.Env = map[string]string{"SCRIPT_AGENT_LOAD": what} })
			r := s.ended(s.submit("@recall a"))
			s.want("run", r.State, "failed")
			s.want("code", r.LastError.Code, "conversation_not_restorable")
			c := s.session().Continuation
			s.want("continuation", c.State, "unavailable")
			s.want("reason", c.Reason, "conversation_not_restorable")
			s.want("conversation", c.Conversation.Fidelity, "result_only")
			_, code := s.refused()
			s.want("code", code, "cloud_resume_unavailable")
		})
	}
}

func TestIdleLeaseExpires(t *testing.T) {
	s := begin(t, servertest.Config{Terms: sojourn.Terms{Hold: shortHold}})
	s.completes("@say hi")
	s.want("workspace", s.session().Workspace.State, "attached")
	s.until("the hold to lapse", func() bool { return s.session().Workspace.State == "expired" }) // reading does not touch (LE-02)
	s.until("the event", func() bool { return s.count("wamp.workspace.expired") == 1 })
	s.want("continuation", s.session().Continuation.State, "restorable")
	s.until("the sandbox to be destroyed", func() bool { return s.sandboxes() == 0 })
	s.completes("@say again")
}

// sandboxes counts what the driver still has.
func (s *story) sandboxes() int {
	s.Helper()
	list, err := s.Fake.List(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return len(list)
}

func TestLiveRunIsATouch(t *testing.T) { // LE-01
	s := begin(t, servertest.Config{Terms: sojourn.Terms{Hold: shortHold}})
	id := s.submit("@sleep 4500", "@write late here")
	s.until("a sandbox", func() bool { return s.session().Workspace.State == "attached" })
	first := s.session().Workspace.ExpiresAt
	s.want("run", s.ended(id).State, "completed")
	if last := s.session().Workspace.ExpiresAt; !last.After(first) {
		t.Errorf("expiresAt stayed at %v", first)
	}
}

func TestSilentSandboxEndsWithItsHold(t *testing.T) {
	s := begin(t, servertest.Config{Terms: sojourn.Terms{Hold: shortHold}})
	id := s.submit("@say working", "@sleep 300000")
	s.speaks(id, "working")
	s.Fake.Freeze(s.id)
	r := s.ended(id)
	s.want("run", r.State, "crashed")
	s.want("stopReason", r.StopReason, "execution_deadline")
	s.until("the sandbox to be destroyed", func() bool { return s.sandboxes() == 0 })
}

func TestCeilingEndsARun(t *testing.T) {
	s := begin(t, servertest.Config{Terms: sojourn.Terms{Ceiling: 3 * time.Second}})
	id := s.submit("@say working", "@sleep 300000")
	r := s.ended(id)
	s.want("run", r.State, "crashed")
	s.want("stopReason", r.StopReason, "execution_deadline")
	s.until("the sandbox to be destroyed", func() bool { return s.sandboxes() == 0 })
}

func TestWorkIsRefusedCloseToTheCeiling(t *testing.T) { // LE-05
	s := begin(t, servertest.Config{Terms: sojourn.Terms{Ceiling: 61 * time.Second}})
	s.completes("@say hi")
	s.until("the last minute", func() bool {
		status, code := s.refused()
		if status/100 == 2 {
			s.ended(s.session().LastRun.ID)
		}
		return code == "cloud_workspace_expiring"
	})
}

func TestOneFlightForAll(t *testing.T) {
	s := begin(t, servertest.Config{})
	s.Fake.SetFaults(fake.Faults{CreateDelay: 200 * time.Millisecond})
	id := s.submit("@say hi")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { s.Must(http.MethodPut, s.path("/workspace"), nil, nil) })
	}
	wg.Wait()
	s.want("run", s.ended(id).State, "completed")
	s.want("sandboxes made", len(s.Fake.Created()), 1)
}

func TestSandboxThatDoesNotComeUp(t *testing.T) {
	s := begin(t, servertest.Config{})
	s.Fake.SetFaults(fake.Faults{CreateErr: errors.New("no room"), CreateHalf: true})
	r := s.ended(s.submit("@say hi"))
	s.want("run", r.State, "failed")
	s.want("code", r.LastError.Code, "workspace_unavailable")
	s.want("message", r.LastError.Message, "No sandbox could be provided.") // the driver's own words are in the log
	status, code := s.Call(http.MethodPut, s.path("/workspace"), nil, nil)
	s.want("status", status, http.StatusServiceUnavailable)
	s.want("code", code, "cloud_workspace_unavailable")
	s.Fake.SetFaults(fake.Faults{})
	s.until("what is left to be removed", func() bool { return s.sandboxes() == 0 })
	s.want("continuation", s.session().Continuation.State, "fresh")
	s.completes("@say hi")
}

func TestNoCompute(t *testing.T) {
	s := begin(t, servertest.Config{NoCompute: true})
	r := s.ended(s.submit("@say hi"))
	s.want("run", r.State, "failed")
	s.want("code", r.LastError.Code, "compute_not_configured")
}

func TestArchiveGivesTheSandboxBack(t *testing.T) {
	s := begin(t, servertest.Config{})
	s.completes("@say hi")
	s.Must(http.MethodPost, s.path("/archive"), nil, nil)
	s.until("the sandbox to be destroyed", func() bool { return s.sandboxes() == 0 })
	c := s.session().Continuation
	s.want("reason", c.Reason, "session_archived")
	s.want("conversation", c.Conversation.Fidelity, "exact")
	_, code := s.refused()
	s.want("code", code, "cloud_session_archived")
}

func TestDestructionIsTriedAgain(t *testing.T) {
	s := begin(t, servertest.Config{})
	s.completes("@say hi")
	s.Fake.SetFaults(fake.Faults{DestroyFailures: 2, DestroyErr: errors.New("busy")})
	s.Must(http.MethodPost, s.path("/archive"), nil, nil)
	s.until("the sandbox to be destroyed", func() bool { return s.sandboxes() == 0 })
}
