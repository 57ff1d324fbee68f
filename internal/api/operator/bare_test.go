package operator

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
)

func TestContractAndRuntimeSayTheSame(t *testing.T) {
	for _, c := range []struct {
		in                CreateSessionBody
		contract, runtime string // "" when it is refused
	}{
		{CreateSessionBody{}, "cloud", ""},
		{CreateSessionBody{Runtime: "codex"}, "cloud", "codex"},
		{CreateSessionBody{Contract: "exec"}, "exec", "none"},
		{CreateSessionBody{Runtime: "none"}, "exec", "none"},
		{CreateSessionBody{Contract: "exec", Runtime: "none", ClientID: "c"}, "exec", "none"},
	} {
		got := c.in
		if err := got.complete(); err != nil || got.Contract != c.contract || got.Runtime != c.runtime {
			t.Errorf("%s: %q, %q, %v", asJSON(t, c.in), got.Contract, got.Runtime, err)
		}
	}
	for _, in := range []CreateSessionBody{
		{Contract: "cloud", Runtime: "none"},
		{Contract: "exec", Runtime: "codex"},
		{Contract: "exec", Model: "m"},
		{Contract: "exec", InitialTurn: &InitialTurn{}},
		{ClientID: "c"},
		{OnAbandon: "stop"},
		{Rotation: &RotationTerms{}},
		{Context: &CarryoverPatch{}},
		{Sandbox: &Sandbox{Timeout: 3}},
	} {
		if err := in.complete(); sojourn.CodeOf(err) != sojourn.CodeInvalid {
			t.Errorf("%s: %v", asJSON(t, in), err)
		}
	}
}

func TestStatusIsAFunctionOfTheFacts(t *testing.T) {
	rotating := sojourn.Rotation{BegunAt: now}
	for want, s := range map[string]sojourn.Session{
		"pending":   {State: sojourn.SessionNew},
		"running":   {State: sojourn.SessionOpen},
		"rotating":  {State: sojourn.SessionOpen, Rotation: rotating},
		"paused":    {State: sojourn.SessionPaused},
		"completed": {State: sojourn.SessionClosed, CloseReason: sojourn.CloseCompleted, Rotation: rotating},
		"failed":    {State: sojourn.SessionClosed, CloseReason: sojourn.CloseFailed},
		"cancelled": {State: sojourn.SessionClosed, CloseReason: sojourn.CloseCancelled},
	} {
		s.Runtime = sojourn.RuntimeNone
		if got := session(sojourn.Facts{Session: s}, now); got.Status != want || got.Rotation == nil {
			t.Errorf("status %q, want %q", got.Status, want)
		}
		s.Runtime = "codex"
		if got := session(sojourn.Facts{Session: s}, now); got.Status != "" || got.Rotation != nil {
			t.Errorf("a session with an agent has the status %q", got.Status)
		}
	}
}

func TestBudgetCountsTheClockThatRuns(t *testing.T) {
	s := sojourn.Session{ClockAt: now.Add(-90 * time.Second), Budget: sojourn.Budget{
		Limits: sojourn.Limits{Cost: 5, Iterations: 3, Duration: time.Minute},
		Usage:  sojourn.Usage{Cost: 7, Iterations: 1, Duration: time.Second},
	}}
	want := `{"limits":{"costMicroCents":5,"iterations":3,"durationSeconds":60},"costMicroCents":7,"iterations":1,"durationSeconds":91,` +
		`"remaining":{"costMicroCents":0,"iterations":2,"durationSeconds":0},"clockRunning":true,"reached":"cost"}`
	if got := asJSON(t, budgetOf(sojourn.Facts{Session: s}, now)); got != want {
		t.Errorf("budget %s\nwant   %s", got, want)
	}
	if got := budgetOf(sojourn.Facts{}, now); got != nil {
		t.Errorf("a session without a budget shows %s", asJSON(t, got))
	}
}

func TestChangeLeavesTheOtherLimits(t *testing.T) {
	before := sojourn.Limits{Cost: 5, Iterations: 3, Duration: time.Minute}
	got := ChangeBudgetBody{BudgetLimits: BudgetLimits{Iterations: 9}, Unlimited: []string{"duration"}}.over(before)
	if want := (sojourn.Limits{Cost: 5, Iterations: 9}); got != want {
		t.Errorf("limits %+v, want %+v", got, want)
	}
	if got := (ChangeBudgetBody{BudgetLimits: BudgetLimits{DurationSeconds: 1e300}}).over(before).Duration; got <= 0 {
		t.Errorf("an endless duration is %v", got)
	}
}

func TestExecutionTellsTheOutcomeAndNoValues(t *testing.T) {
	spec := sojourn.ExecSpec{Argv: []string{"a", ""}, Env: map[string]string{"TOKEN": "hidden", "A": "b"}, Timeout: time.Second}
	for want, x := range map[string]sojourn.Exec{
		"":            {State: sojourn.ExecRunning},
		"exit":        {State: sojourn.ExecEnded, Result: sojourn.ExecResult{Code: new(0)}},
		"signal":      {State: sojourn.ExecEnded, Result: sojourn.ExecResult{Signal: "SIGKILL"}},
		"not_started": {State: sojourn.ExecEnded, Result: sojourn.ExecResult{Code: new(127), Failure: "no such program"}},
		"unknown":     {State: sojourn.ExecLost},
	} {
		x.Spec = spec
		got := execution(x)
		if got.Outcome != want {
			t.Errorf("%s: outcome %q, want %q", x.State, got.Outcome, want)
		}
		if v := got.Variables; len(v) != 2 || v[0] != "A" || v[1] != "TOKEN" || len(got.Command) != 2 {
			t.Errorf("%s", asJSON(t, got))
		}
	}
	refused := execution(sojourn.Exec{State: sojourn.ExecRefused, Reason: sojourn.ExecBudget})
	if refused.Outcome != "not_started" || refused.Error == "" || refused.Reason != "budget" {
		t.Errorf("refused: %s", asJSON(t, refused))
	}
}

func TestRequestOfAnExecution(t *testing.T) {
	got, err := StartExecutionBody{Command: []string{"true"}}.request()
	if err != nil || got.Spec.Timeout != time.Minute || got.Spec.Grace != 2*time.Second || got.Spec.Stdin != sojourn.StdinNone {
		t.Errorf("the least: %+v, %v", got, err)
	}
	got, err = StartExecutionBody{Command: []string{"true"}, Detached: true, GraceMs: new(int64(0)), StdinData: []byte("x")}.request()
	if err != nil || got.Spec.Timeout != 0 || got.Spec.Grace != 0 || got.Spec.Stdin != sojourn.StdinGiven {
		t.Errorf("detached: %+v, %v", got, err)
	}
	got, err = StartExecutionBody{Command: []string{"true"}, TimeoutMs: 1 << 62}.request()
	if err != nil || got.Spec.Timeout <= sojourn.MaxExecTimeout {
		t.Errorf("an endless timeout is %v, %v", got.Spec.Timeout, err)
	}
	for _, b := range []StartExecutionBody{
		{}, {Command: []string{"a"}, Tool: "t"}, {Command: []string{"a"}, Stdin: "stream", StdinData: []byte("x")},
	} {
		if _, err := b.request(); sojourn.CodeOf(err) != sojourn.CodeInvalid {
			t.Errorf("%s: %v", asJSON(t, b), err)
		}
	}
}

func TestContextPatchSetsAndForgets(t *testing.T) {
	p := (&CarryoverPatch{Env: map[string]string{"A": "1", "B": "2"}, UnsetEnv: []string{"C"}, Custom: map[string]json.RawMessage{"k": json.RawMessage("null")}}).patch()
	if len(p.Env) != 3 || *p.Env["A"] != "1" || *p.Env["B"] != "2" || p.Env["C"] != nil || string(p.Custom["k"]) != "null" {
		t.Errorf("patch %+v", p)
	}
}
