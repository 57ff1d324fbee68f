package sojourn

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// bareScene returns the facts of a session without an agent, led there by
// decisions one second apart: it is in the given state, and its first lease, of ten
// minutes, is held unless it is new or closed. Change may alter what it starts from.
func bareScene(t *testing.T, state SessionState, change ...func(*NewSession)) Facts {
	t.Helper()
	in := NewSession{ID: "s", Project: DefaultProject, Contract: ContractExec, Runtime: RuntimeNone}
	for _, c := range change {
		c(&in)
	}
	d, err := Create(noon, in)
	if err != nil {
		t.Fatal(err)
	}
	f, now := d.Facts(), noon
	step := func(decide func(*Decision) error) {
		t.Helper()
		now = now.Add(time.Second)
		f = must(t, f, now, decide)
	}
	if state == SessionNew {
		return f
	}
	step((*Decision).Start)
	step(func(d *Decision) error { _, err := d.RequestLease("fake", "none", benchTerms); return err })
	step(func(d *Decision) error { return d.HoldLease(1, []byte(`{}`), "") })
	switch state {
	case SessionPaused:
		step((*Decision).Pause)
	case SessionClosed:
		step(func(d *Decision) error { return d.EndLease(1, LeaseReleased, "the test says so") })
		step(func(d *Decision) error { return d.Close(CloseCompleted, StopRequested, "") })
	}
	return f
}

func withLimits(l Limits) func(*NewSession) { return func(in *NewSession) { in.Limits = l } }

// run is an exec of the given kind: foreground, detached, parked or hook.
func run(id ExecID, kind string) NewExec {
	x := NewExec{ID: id, Spec: ExecSpec{Argv: []string{"true"}, Timeout: time.Minute}, Interaction: InteractionID("approval-" + id)}
	x.Spec.Detached, x.Spec.Ask, x.Spec.Hook = kind == "detached", kind == "parked", kind == "hook"
	return x
}

// execute has one exec accepted.
func execute(t *testing.T, f Facts, now time.Time, in NewExec) Facts {
	t.Helper()
	return must(t, f, now, func(d *Decision) error { _, err := d.Execute(in, len(f.Execs), theRate); return err })
}

func bareTable() []command {
	exec := func(kind string) func(*Decision) error {
		return func(d *Decision) error { _, err := d.Execute(run("exec-9", kind), 0, theRate); return err }
	}
	with := func(id ExecID, do func(*Decision, Exec)) func(*Decision) error {
		return func(d *Decision) error {
			if x, ok := d.Facts().execAt(id); ok {
				do(d, x)
			}
			return nil
		}
	}
	return []command{
		{"Submit", "", func(d *Decision) error { return d.Submit(theTurn, theRun, hello) }},
		{"Start", "", (*Decision).Start},
		{"Pause", "paused", (*Decision).Pause},
		{"Resume", "", (*Decision).Resume},
		{"Close as completed", "", func(d *Decision) error { return d.Close(CloseCompleted, StopRequested, "") }},
		{"Close as cancelled", "", func(d *Decision) error { return d.Close(CloseCancelled, StopCancelled, "") }},
		{"Delete", "", (*Decision).Delete},
		{"Archive", "", (*Decision).Archive},
		{"Execute", "", exec("foreground")},
		{"Execute detached", "", exec("detached")},
		{"Execute to be approved", "", exec("parked")},
		{"Execute a hook", "", exec("hook")},
		{"StartExecs", "", func(d *Decision) error { d.StartExecs(theRate); return nil }},
		{"EndExec", "", func(d *Decision) error { d.EndExec("exec-1", ExecResult{Code: new(0)}, ""); return nil }},
		{"CancelExec that runs", "", with("exec-1", func(d *Decision, x Exec) { d.CancelExec(x, ExecCancelled, false) })},
		{"CancelExec that waits", "", with("exec-2", func(d *Decision, x Exec) { d.CancelExec(x, ExecCancelled, false) })},
		{"CancelExec that is parked", "", with("exec-3", func(d *Decision, x Exec) { d.CancelExec(x, ExecCancelled, false) })},
		{"Answer with approve", "", answerFirst(OptionApprove)},
		{"Answer with reject", "", answerFirst(OptionReject)},
		{"RequestRotation", "", (*Decision).RequestRotation},
		{"BeginRotation", "", func(d *Decision) error { d.BeginRotation(RotatePlanned); return nil }},
		{"FailRotation", "", func(d *Decision) error { d.FailRotation("no room"); return nil }},
		{"RequestLease", "", func(d *Decision) error { _, err := d.RequestLease("fake", "none", benchTerms); return err }},
		{"EndLease as lost", "", func(d *Decision) error { return d.EndLease(1, LeaseLost, "killed") }},
		{"BeginCapture", "", func(d *Decision) error { _, err := d.BeginCapture("checkpoint-1", 1); return err }},
		{"SetLimits below", "", func(d *Decision) error { return d.SetLimits(Limits{Duration: time.Second}) }},
		{"UpdateCarryover", "", func(d *Decision) error {
			_, err := d.UpdateCarryover(Carryover{}, CarryoverPatch{Dir: new("src")})
			return err
		}},
		{"Seen", "", (*Decision).Seen},
		{"Reattach", "", (*Decision).Reattach},
	}
}

func answerFirst(option string) func(*Decision) error {
	return func(d *Decision) error {
		for _, i := range d.Facts().Open {
			return d.Answer(i, Answer{OptionID: option})
		}
		return nil
	}
}

// TestBareDecisionsTable is the table of a session without an agent: what each
// command does in each state, when an exec runs, one waits and one is parked.
func TestBareDecisionsTable(t *testing.T) {
	open := bareScene(t, SessionOpen)
	for i, kind := range []string{"foreground", "foreground", "parked"} {
		open = execute(t, open, noon.Add(10*time.Second), run(ExecID(fmt.Sprint("exec-", i+1)), kind))
	}
	at := noon.Add(20 * time.Second)
	rotating := must(t, open, at, (*Decision).RequestRotation)
	paused := must(t, open, at, (*Decision).Pause)
	closed := must(t, open, at, func(d *Decision) error { return d.Close(CloseFailed, StopRotation, "no room") })
	var all sections
	for _, s := range []struct {
		name  string
		facts Facts
	}{{"new", bareScene(t, SessionNew)}, {"open", open}, {"open, rotating", rotating}, {"paused", paused}, {"closed", closed}} {
		var b strings.Builder
		for _, c := range bareTable() {
			_ = writeCell(&b, s.facts, c)
		}
		all.add(s.name, b.String())
	}
	checkGolden(t, "bare.golden", "# What each command does to a session without an agent. Written by TestBareDecisionsTable.\n"+
		all.text("session"))
}

func TestBareSessionsKeepTheirBounds(t *testing.T) {
	for _, c := range []struct {
		name string
		in   func(*NewSession)
		want Code
	}{
		{"nothing said", func(*NewSession) {}, ""},
		{"the shortest timeout", func(in *NewSession) { in.Sandbox.Timeout = MinSandboxTimeout }, ""},
		{"a shorter one", func(in *NewSession) { in.Sandbox.Timeout = MinSandboxTimeout - 1 }, CodeInvalid},
		{"the longest timeout", func(in *NewSession) { in.Sandbox.Timeout = MaxSandboxTimeout }, ""},
		{"a longer one", func(in *NewSession) { in.Sandbox.Timeout = MaxSandboxTimeout + 1 }, CodeInvalid},
		{"a negative buffer", func(in *NewSession) { in.Rotation.Buffer = -1 }, CodeInvalid},
		{"the longest buffer", func(in *NewSession) { in.Rotation.Buffer = MaxRotationBuffer }, ""},
		{"a longer one", func(in *NewSession) { in.Rotation.Buffer = MaxRotationBuffer + 1 }, CodeInvalid},
		{"a buffer of half the timeout", func(in *NewSession) { in.Sandbox.Timeout, in.Rotation.Buffer = time.Minute, 30*time.Second }, ""},
		{"a longer one", func(in *NewSession) { in.Sandbox.Timeout, in.Rotation.Buffer = time.Minute, 30*time.Second+1 }, CodeInvalid},
		{"too frequent checkpoints", func(in *NewSession) { in.Rotation.Checkpoint = MinCheckpointEvery - 1 }, CodeInvalid},
		{"frequent ones", func(in *NewSession) { in.Rotation.Checkpoint = MinCheckpointEvery }, ""},
		{"a hook without a program", func(in *NewSession) { in.Rotation.Hook = []string{""} }, CodeInvalid},
		{"a client with a line break", func(in *NewSession) { in.Presence.Client = "a\nb" }, CodeInvalid},
		{"the longest client", func(in *NewSession) { in.Presence.Client = strings.Repeat("c", MaxClientBytes) }, ""},
		{"a byte more", func(in *NewSession) { in.Presence.Client = strings.Repeat("c", MaxClientBytes+1) }, CodeInvalid},
		{"another way to abandon", func(in *NewSession) { in.Presence.OnAbandon = "kill" }, CodeInvalid},
		{"a negative limit", func(in *NewSession) { in.Limits.Iterations = -1 }, CodeInvalid},
		{"a context outside", func(in *NewSession) { in.Carryover.Dir = new("/etc") }, CodeInvalid},
	} {
		in := NewSession{ID: "s", Runtime: RuntimeNone}
		c.in(&in)
		_, err := Create(noon, in)
		refused(t, c.name, err, c.want)
	}
}

// TestCreateTakesTermsAndNoFacts: what a session has been through is never what a
// caller says.
func TestCreateTakesTermsAndNoFacts(t *testing.T) {
	in := NewSession{
		ID: "s", Runtime: RuntimeNone, Rotation: Rotation{Buffer: time.Second, Count: 7, BegunAt: noon, Lost: &Loss{}},
		Presence: Presence{Client: "ci", SeenAt: noon, LostAt: noon}, Carryover: CarryoverPatch{Dir: new("src")},
	}
	d, err := Create(noon, in)
	if err != nil {
		t.Fatal(err)
	}
	s, c := d.Facts().Session, d.Change()
	if s.Rotation.Count != 0 || s.Rotating() || s.Rotation.Lost != nil || s.Rotation.Buffer != time.Second {
		t.Errorf("rotation %+v, want the buffer and no facts", s.Rotation)
	}
	if s.Presence != (Presence{Client: "ci"}) {
		t.Errorf("presence %+v, want the client", s.Presence)
	}
	if c.Carryover == nil || c.Carryover.Dir != "/workspace/src" || c.Carryover.Session != "s" {
		t.Errorf("carryover %+v", c.Carryover)
	}
	in.Runtime = "script"
	if d, err = Create(noon, in); err != nil || d.Facts().Session.Presence.Client != "" {
		t.Errorf("a session with an agent has the client %q, %v", d.Facts().Session.Presence.Client, err)
	}
}
