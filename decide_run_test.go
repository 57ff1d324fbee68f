package sojourn

import (
	"encoding/json"
	"testing"
	"time"
)

// decideOn makes one decision on a scene and returns the decision.
func decideOn(t *testing.T, f Facts, decide func(*Decision) error) *Decision {
	t.Helper()
	d := f.Decide(noon.Add(time.Minute))
	if err := decide(d); err != nil {
		t.Fatal(err)
	}
	return d
}

func payload(t *testing.T, e EventDraft) map[string]any {
	t.Helper()
	m := map[string]any{}
	if len(e.Data) > 0 {
		if err := json.Unmarshal(e.Data, &m); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func TestARunCountsAsWorkFromItsPromptOn(t *testing.T) {
	before := scene(t, RunStarting, LeaseHeld)
	if before.Session.Worked || before.Active.Worked() {
		t.Error("a starting run counts as work")
	}
	d := decideOn(t, before, func(d *Decision) error { return d.ActivateRun(theRun, 1) })
	after := d.Facts()
	if !after.Session.Worked || !after.Active.Worked() || after.Active.Epoch != 1 || !after.Active.ActiveAt.Equal(d.Now()) {
		t.Errorf("the active run is %+v, worked %v", after.Active, after.Session.Worked)
	}
}

func TestActivateNeedsTheLeaseThatIsHeld(t *testing.T) {
	for lease, want := range map[LeaseState]Code{
		"": CodeWorkspaceExpired, LeaseRequested: CodeWorkspaceExpired, LeaseHeld: "", LeaseDraining: CodeWorkspaceExpired,
		LeaseReleased: CodeWorkspaceExpired, LeaseExpired: CodeWorkspaceExpired, LeaseLost: CodeWorkspaceExpired,
	} {
		f := scene(t, RunStarting, lease)
		refused(t, "under a lease that is "+orNone(string(lease)), f.Decide(noon.Add(time.Minute)).ActivateRun(theRun, 1), want)
	}
	f := scene(t, RunStarting, LeaseLost)
	f = must(t, f, noon.Add(time.Minute), func(d *Decision) error { _, err := d.RequestLease("fake", "none", Terms{}); return err })
	f = must(t, f, noon.Add(time.Minute), func(d *Decision) error { return d.HoldLease(2, nil, "") })
	refused(t, "under the epoch before", f.Decide(noon.Add(time.Minute)).ActivateRun(theRun, 1), CodeWorkspaceExpired)
	refused(t, "under an epoch to come", f.Decide(noon.Add(time.Minute)).ActivateRun(theRun, 3), CodeWorkspaceExpired)
	refused(t, "under the epoch", f.Decide(noon.Add(time.Minute)).ActivateRun(theRun, 2), "")
}

func TestEveryEndIsOneEventThatSaysWhy(t *testing.T) {
	why := &RunError{Code: "setup_failed", Message: "exit status 1"}
	for state, event := range map[RunState]EventType{
		RunFailed: EventRunFailed, RunCrashed: EventRunCrashed, RunCancelled: EventRunCancelled,
	} {
		d := decideOn(t, scene(t, RunStarting, LeaseHeld), func(d *Decision) error {
			return d.EndRun(theRun, state, StopTurnDeadline, why)
		})
		events := d.Change().Events
		if len(events) != 1 || events[0].Type != event || events[0].Turn != theTurn || events[0].Run != theRun {
			t.Fatalf("%s: events %+v, want one %s", state, events, event)
		}
		p := payload(t, events[0])
		if p["stopReason"] != StopTurnDeadline || p["code"] != why.Code {
			t.Errorf("%s: payload %v, want the stop reason and the code", state, p)
		}
		if f := d.Facts(); f.Active != nil || f.Session.ActiveRun != "" || f.Last.Error != why || f.Last.EndedAt.IsZero() {
			t.Errorf("%s: facts %+v still show the run as active", state, f)
		}
	}
}

// TestOpenQuestionsExpireWithTheirRun: "Any open interaction expires with
// wamp.interaction.expired and reason: workspace_lost", when compute disappears.
func TestOpenQuestionsExpireWithTheirRun(t *testing.T) {
	for stop, want := range map[string]string{
		StopWorkspaceLost: ReasonWorkspaceLost, StopExecutionDeadline: ReasonWorkspaceLost,
		StopAgentExited: ReasonRunEnded, StopTurnDeadline: ReasonRunEnded, StopCancelled: ReasonRunEnded, "": ReasonRunEnded,
	} {
		d := decideOn(t, scene(t, RunActive, LeaseHeld), func(d *Decision) error {
			return d.EndRun(theRun, RunCrashed, stop, nil)
		})
		c := d.Change()
		if len(c.Interactions) != 1 || c.Interactions[0].State != InteractionExpired || c.Interactions[0].Reason != want {
			t.Errorf("stopped by %q: interactions %+v, want one expired with %s", stop, c.Interactions, want)
		}
		if e := c.Events[0]; e.Type != EventInteractionExpired || e.Turn != theTurn || payload(t, e)["reason"] != want {
			t.Errorf("stopped by %q: the first event is %+v, want interaction.expired with %s", stop, e, want)
		}
		refused(t, "an answer after that", d.Facts().Decide(noon.Add(time.Hour)).Answer(c.Interactions[0], Answer{OptionID: "yes"}), CodeInteractionExpired)
	}
}

func TestAQuestionIsAskedOnce(t *testing.T) {
	f := scene(t, RunActive, LeaseHeld)
	d := decideOn(t, f, func(d *Decision) error {
		return d.Ask(Interaction{ID: "another id", Run: theRun, Kind: "permission", Ref: "ref-1"})
	})
	if c := d.Change(); len(c.Events)+len(c.Interactions) != 0 {
		t.Errorf("asking again wrote %+v", c)
	}
}

func TestAnswers(t *testing.T) {
	f := scene(t, RunActive, LeaseHeld)
	open := f.Open[0]
	question := open
	question.Kind = "question"
	answered := open
	answered.State, answered.Answer = InteractionAnswered, &Answer{OptionID: "yes"}
	withdrawn := open
	withdrawn.State = InteractionWithdrawn
	for _, c := range []struct {
		name   string
		to     Interaction
		answer Answer
		want   Code
	}{
		{"an offered option", open, Answer{OptionID: "no"}, ""},
		{"an option that was not offered", open, Answer{OptionID: "maybe"}, CodeInvalid},
		{"a text for a permission", open, Answer{Text: "yes"}, CodeInvalid},
		{"a text for a question", question, Answer{Text: "the blue one"}, ""},
		{"nothing", question, Answer{}, CodeInvalid},
		{"both", question, Answer{OptionID: "yes", Text: "yes"}, CodeInvalid},
		{"the same answer again", answered, Answer{OptionID: "yes"}, ""},
		{"another answer", answered, Answer{OptionID: "no"}, CodeInteractionAnswered},
		{"a question that was taken back", withdrawn, Answer{OptionID: "yes"}, CodeInteractionExpired},
	} {
		d := f.Decide(noon.Add(time.Minute))
		err := d.Answer(c.to, c.answer)
		refused(t, c.name, err, c.want)
		events := len(d.Change().Events)
		if wrote := c.want == "" && c.to.State == InteractionOpen; (events == 1) != wrote {
			t.Errorf("%s: %d events", c.name, events)
		}
		if err == nil && c.to.State == InteractionOpen && len(d.Facts().Open) != 0 {
			t.Errorf("%s: the question is still open", c.name)
		}
	}
}

func TestWithdrawEndsTheQuestionNamed(t *testing.T) {
	f := scene(t, RunActive, LeaseHeld)
	for _, c := range []struct {
		run  RunID
		ref  string
		left int
	}{{theRun, "ref-1", 0}, {theRun, "ref-2", 1}, {"run-2", "ref-1", 1}} {
		d := f.Decide(noon.Add(time.Minute))
		d.Withdraw(c.run, c.ref)
		if got := len(d.Facts().Open); got != c.left {
			t.Errorf("withdrawing %s of %s leaves %d open, want %d", c.ref, c.run, got, c.left)
		}
	}
}

func TestCancelAsksOnceAndEndsOnlyWhatHasNotStarted(t *testing.T) {
	for _, state := range []RunState{RunStarting, RunActive} {
		d := decideOn(t, scene(t, state, LeaseHeld), func(d *Decision) error { _, err := d.CancelRun(theRun); return err })
		f := d.Facts()
		if f.Active == nil || f.Active.State != state || !f.Active.CancelAt.Equal(d.Now()) {
			t.Errorf("a %s run is %+v after the cancel", state, f.Active)
		}
		again := decideOn(t, f, func(d *Decision) error { _, err := d.CancelRun(theRun); return err })
		if len(again.Change().Events) != 0 {
			t.Errorf("cancelling a %s run again: events %+v, want none", state, again.Change().Events)
		}
	}
	for state, want := range map[RunState]bool{RunQueued: true, RunSealing: true, RunCompleted: false, RunFailed: false} {
		known, err := scene(t, state, LeaseHeld).Decide(noon.Add(time.Minute)).CancelRun(theRun)
		if known != want || err != nil {
			t.Errorf("cancelling a %s run: %v, %v, want %v", state, known, err, want)
		}
	}
}

func TestFinishDecidesWhatASealingRunBecomes(t *testing.T) {
	for final := range runMoves {
		d := scene(t, RunActive, LeaseHeld).Decide(noon.Add(time.Minute))
		err := d.FinishRun(theRun, final, "end_turn")
		if final != RunCompleted && final != RunCancelled {
			refused(t, "finish as "+string(final), err, CodeInternal)
			continue
		}
		if err != nil || d.Facts().Active.Final != final || d.Facts().Active.StopReason != "end_turn" {
			t.Errorf("finish as %s: %v, %+v", final, err, d.Facts().Active)
		}
	}
}
