package engine_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/servertest"
	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/fake"
)

func TestRunSurvivesRestarts(t *testing.T) {
	s := begin(t, servertest.Config{})
	id := s.submit("@work 5000 250", "@write done here")
	s.speaks(id, "step 2 of 20")
	for range 4 {
		s.Restart()
		time.Sleep(150 * time.Millisecond)
	}
	s.want("run", s.ended(id).State, "completed")
	for i, line := range s.said(id) {
		if want := fmt.Sprintf("step %d of 20", i+1); line != want {
			t.Fatalf("line %d is %q, want %q", i, line, want)
		}
	}
	s.want("lines", len(s.said(id)), 20)
	s.want("sandboxes made", len(s.Fake.Created()), 1)
	if s.count("wamp.run.recovered") == 0 {
		t.Error("nothing says that the run was taken up")
	}
	s.oneEnd()
}

func TestSandboxLostWhileTheServerIsDown(t *testing.T) {
	s := begin(t, servertest.Config{})
	boundary := s.completes("@remember a b")
	id := s.submit("@say working", "@sleep 60000")
	s.speaks(id, "working")
	s.Stop()
	s.Fake.Kill(s.id)
	s.Start()
	r := s.ended(id)
	s.want("run", r.State, "crashed")
	s.want("stopReason", r.StopReason, "workspace_lost")
	s.want("boundary", s.session().Continuation.BoundaryRunID, boundary)
	s.want("recalled", s.said(s.completes("@recall a"))[0], "b")
	s.oneEnd()
}

func TestUnreachableIsNotGone(t *testing.T) { // RO-02
	s := begin(t, servertest.Config{})
	s.completes("@remember a b")
	s.Stop()
	s.Fake.SetFaults(fake.Faults{RecoverErr: fmt.Errorf("cannot tell now")})
	s.Start()
	s.want("workspace", s.session().Workspace.State, "attached")
	_, code := s.Call(http.MethodPut, s.path("/workspace"), nil, nil)
	s.want("code", code, "cloud_workspace_unavailable")
	s.Fake.SetFaults(fake.Faults{})
	s.want("recalled", s.said(s.completes("@recall a"))[0], "b")
	s.want("sandboxes made", len(s.Fake.Created()), 1)
}

func TestOrphansAreRemoved(t *testing.T) { // G7
	s := begin(t, servertest.Config{})
	if _, err := s.Fake.Create(t.Context(), sandbox.Spec{Session: "nobody", Epoch: 7}); err != nil {
		t.Fatal(err)
	}
	s.completes("@say hi")
	s.until("the orphan to be removed", func() bool { return s.sandboxes() == 1 })
}

// TestQuestionSurvivesARestart is AG-18: one answer reaches the agent.
func TestQuestionSurvivesARestart(t *testing.T) {
	s := begin(t, servertest.Config{})
	id := s.submit("@ask may I?")
	question := s.asked()
	s.want("run", s.run(id).State, "awaiting_interaction")
	s.Restart()
	s.want("questions", len(s.interactions()), 1)
	s.want("question", s.asked(), question)
	option := s.options(question)[0]
	var wg sync.WaitGroup
	var mu sync.Mutex
	codes := map[int]int{}
	for i := range 8 {
		wg.Go(func() {
			status, _ := s.answer(question, s.options(question)[i%2])
			mu.Lock()
			codes[status]++
			mu.Unlock()
		})
	}
	wg.Wait()
	_ = option
	if codes[http.StatusOK] != 4 || codes[http.StatusConflict] != 4 {
		t.Errorf("answers got %v, want four accepted and four refused", codes)
	}
	s.want("run", s.ended(id).State, "completed")
	s.want("questions", len(s.interactions()), 1)
	s.want("state", s.interactions()[0].State, "answered")
	s.oneEnd()
}

// options lists the ids of what an interaction offers.
func (s *story) options(id string) []string {
	s.Helper()
	var out struct {
		Interactions []struct {
			ID      string
			Options []struct{ OptionID string }
		}
	}
	s.Must(http.MethodGet, s.path("/interactions"), nil, &out)
	var ids []string
	for _, i := range out.Interactions {
		for _, o := range i.Options {
			if i.ID == id {
				ids = append(ids, o.OptionID)
			}
		}
	}
	return ids
}

func (s *story) cancel(id string) {
	s.Helper()
	s.Must(http.MethodPost, s.path("/runs/"+id+"/cancel"), nil, nil)
}

func TestCancel(t *testing.T) {
	for name, lines := range map[string][]string{
		"while it works":         {"@say working", "@sleep 60000"},
		"while it asks":          {"@say working", "@ask may I?"}, // AG-11
		"while it ignores":       {"@ignore-cancel", "@say working", "@sleep 60000"},
		"while a command runs":   {"@say working", "@run sleep 60"},
		"while a command forked": {"@say working", "@run sleep 60 & sleep 60"},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, servertest.Config{})
			id := s.submit(lines...)
			s.speaks(id, "working")
			s.cancel(id)
			r := s.ended(id)
			s.want("run", r.State, "cancelled")
			s.want("stopReason", r.StopReason, "cancelled")
			s.cancel(id) // again changes nothing
			for _, i := range s.interactions() {
				s.want("interaction", i.State, "expired")
				status, _ := s.answer(i.ID, "allow")
				s.want("late answer", status, http.StatusConflict)
			}
			s.completes("@say next")
			s.oneEnd()
		})
	}
}

func TestCancelBeforeTheAgentRuns(t *testing.T) {
	s := begin(t, servertest.Config{})
	s.Fake.SetFaults(fake.Faults{CreateDelay: 2 * time.Second})
	id := s.submit("@say hi")
	s.until("the start", func() bool { return s.run(id).State == "provisioning" })
	s.cancel(id)
	s.want("run", s.ended(id).State, "cancelled")
	s.want("continuation", s.session().Continuation.State, "fresh")
}

// TestCancelRacesTheEnd is AG-14: one end per run, whoever wins.
func TestCancelRacesTheEnd(t *testing.T) {
	s := begin(t, servertest.Config{})
	n := 60
	if testing.Short() {
		n = 15
	}
	for range n {
		id := s.submit("@sleep 5", "@say done")
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
		s.cancel(id)
		if r := s.ended(id); r.State != "completed" && r.State != "cancelled" {
			t.Fatalf("run is %s", r.State)
		}
	}
	s.oneEnd()
}

func TestTurnDeadline(t *testing.T) {
	s := begin(t, servertest.Config{TurnDeadline: 3 * time.Second})
	id := s.submit("@say working", "@ignore-cancel", "@sleep 300000")
	r := s.ended(id)
	s.want("run", r.State, "crashed")
	s.want("stopReason", r.StopReason, "turn_deadline")
	s.Reconfigure(func(c *servertest.Config) { c.TurnDeadline = 0 }) // however slow the machine is
	s.completes("@say next")
}

func TestCheckpointCaps(t *testing.T) {
	t.Run("workspace", func(t *testing.T) {
		s := begin(t, servertest.Config{WorkspaceMaxBytes: 1000})
		id := s.completes("@run head -c 5000 /dev/urandom > big")
		s.want("failed", s.count("wamp.checkpoint.failed"), 1)
		s.want("live", s.session().Continuation.State, "live")
		s.Fake.Kill(s.id)
		s.until("the loss to show", func() bool { return s.session().Workspace.State != "attached" })
		c := s.session().Continuation
		s.want("reason", c.Reason, "workspace_not_restorable")
		s.want("conversation", c.Conversation.Fidelity, "exact")
		s.want("workspace", c.Workspace.Fidelity, "none")
		s.want("boundary", c.BoundaryRunID, id)
	})
	t.Run("conversation", func(t *testing.T) {
		s := begin(t, servertest.Config{ConversationMaxBytes: 1000})
		s.completes("@say " + strings.Repeat("x", 5000))
		s.Fake.Kill(s.id)
		s.until("the loss to show", func() bool { return s.session().Workspace.State != "attached" })
		c := s.session().Continuation
		s.want("reason", c.Reason, "conversation_not_restorable")
		s.want("conversation", c.Conversation.Fidelity, "result_only")
		_, code := s.refused()
		s.want("code", code, "cloud_resume_unavailable")
	})
}

// TestChaos restarts the server and kills sandboxes at random moments of many
// sessions, and checks the guarantees G1 to G4, G6 and G7 at the end.
func TestChaos(t *testing.T) {
	s := begin(t, servertest.Config{})
	const sessions = 6
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	all := make([]*story, sessions)
	runs := map[string][]string{}
	for i := range all {
		all[i] = &story{T: t, Server: s.Server, id: s.create()}
	}
	for range rounds {
		for _, one := range all {
			var out struct{ Run run }
			status, code := one.Call(http.MethodPost, one.path("/turns"), map[string]any{
				"input": "@run echo x >> log\n@work 300 30\n@sha .",
			}, &out)
			switch {
			case status/100 == 2:
				runs[one.id] = append(runs[one.id], out.Run.ID)
			case !slices.Contains([]string{"cloud_run_active", "cloud_resume_unavailable"}, code):
				t.Fatalf("submit: %d %s", status, code)
			}
		}
		time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
		if rng.IntN(2) == 0 {
			s.Fake.Kill(all[rng.IntN(sessions)].id)
		}
		if rng.IntN(2) == 0 {
			s.Restart()
		}
	}
	for _, one := range all {
		for _, id := range runs[one.id] {
			one.ended(id)
		}
		one.oneEnd()
		one.carries()
	}
}

// carries checks G6: the reason is absent if and only if the next turn carries
// the previous work.
func (s *story) carries() {
	s.Helper()
	c := s.session().Continuation
	if c.CanContinue != (c.Reason == "") {
		s.Errorf("continuation is %+v", c)
		return
	}
	if !c.CanContinue {
		_, code := s.refused()
		s.want("code", code, "cloud_resume_unavailable")
		return
	}
	s.completes("@cat log")
}

// TestCheckpointSaysWhatItLeftOut is CP-06 and CP-10: what is skipped is counted,
// and what stood in the way is named.
func TestCheckpointSaysWhatItLeftOut(t *testing.T) {
	s := begin(t, servertest.Config{WorkspaceMaxBytes: 1000})
	s.completes("@run mkfifo pipe && mkfifo other && echo small > file")
	s.completes("@run head -c 5000 /dev/urandom > big")
	var sealed struct{ Skipped map[string]int64 }
	var failed map[string]any
	for _, e := range s.events() {
		switch e.Type {
		case "wamp.checkpoint.sealed":
			if err := json.Unmarshal(e.Data, &sealed); err != nil {
				t.Fatal(err)
			}
		case "wamp.checkpoint.failed":
			if err := json.Unmarshal(e.Data, &failed); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.want("fifos skipped", sealed.Skipped["fifo"], int64(2))
	s.want("reason", failed["workspaceReason"], "too_large")
	if detail, _ := failed["workspaceDetail"].(string); detail == "" {
		t.Errorf("the event does not say what was too large: %v", failed)
	}
	if _, ok := failed["conversationReason"]; ok {
		t.Errorf("the event has an empty reason: %v", failed)
	}
}
