package sojourn

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"
)

// theRate is what execs cost in the model.
var theRate = ExecRate{Exec: 2, Second: 1}

// benchTerms are those of the leases of the model's bare sessions.
var benchTerms = Terms{Ceiling: 10 * time.Minute, Hold: 10 * time.Minute}

func newBareWorld(t *rapid.T) *world {
	return create(t, NewSession{
		ID: "s", Project: DefaultProject, Contract: ContractExec, Runtime: RuntimeNone, Limits: someLimits(t),
		Sandbox: SandboxSpec{Timeout: benchTerms.Ceiling},
		Rotation: Rotation{
			Buffer: rapid.SampledFrom([]time.Duration{0, time.Minute}).Draw(t, "buffer"), Processes: rapid.Bool().Draw(t, "processes"),
		},
		Presence: Presence{
			Client:    rapid.SampledFrom([]string{"", "ci"}).Draw(t, "client"),
			OnAbandon: rapid.SampledFrom([]AbandonMode{AbandonKeep, AbandonPause, AbandonStop}).Draw(t, "abandon"),
		},
	})
}

func someLimits(t *rapid.T) Limits {
	return Limits{
		Cost:       rapid.SampledFrom([]Money{0, 0, 20, 5000}).Draw(t, "cost"),
		Iterations: rapid.SampledFrom([]int64{0, 0, 3, 20}).Draw(t, "iterations"),
		Duration:   rapid.SampledFrom([]time.Duration{0, 0, 5 * time.Minute, 40 * time.Hour}).Draw(t, "duration"),
	}
}

// benchCommands are those on a bare session: its own, and of the others those that
// it has too, or must refuse.
func benchCommands() map[string]aCommand {
	all := maps.Clone(bareCommands)
	for _, name := range []string{
		"submit", "archive", "request lease", "hold", "touch", "visit", "end lease", "drain", "begin drain", "call off drain",
		"seal drain", "abandon", "resume processes", "lose processes", "note model call",
	} {
		all[name] = modelCommands[name]
	}
	return all
}

// simple is a command without arguments.
func simple(f func(*Decision) error) aCommand {
	return func(*rapid.T, *world) func(*Decision) error { return f }
}

// rarely is a command that would end most histories too soon.
func rarely(c aCommand) aCommand {
	return func(t *rapid.T, w *world) func(*Decision) error {
		if rapid.IntRange(0, 5).Draw(t, "really") > 0 {
			return func(*Decision) error { return nil }
		}
		return c(t, w)
	}
}

var bareCommands = map[string]aCommand{
	"start session": simple((*Decision).Start),
	"pause":         simple((*Decision).Pause),
	"resume":        simple((*Decision).Resume),
	"close": rarely(func(t *rapid.T, _ *world) func(*Decision) error {
		how := rapid.SampledFrom([]CloseReason{CloseCompleted, CloseFailed, CloseCancelled}).Draw(t, "how")
		return func(d *Decision) error { return d.Close(how, StopRequested, "the model says so") }
	}),
	"delete": rarely(simple((*Decision).Delete)),
	"execute": func(t *rapid.T, w *world) func(*Decision) error {
		in, open := w.anExec(t), w.countOpen()
		return func(d *Decision) error {
			was := d.Facts().clone()
			x, err := d.Execute(in, open, theRate)
			if err == nil && x.State == ExecRunning {
				w.mayStart(t, d, was, []Exec{x})
			}
			return err
		}
	},
	"start execs": func(t *rapid.T, w *world) func(*Decision) error {
		return func(d *Decision) error { w.startExecs(t, d); return nil }
	},
	"end exec": func(t *rapid.T, w *world) func(*Decision) error {
		x, r := w.anyExec(t), aResult(t)
		why := rapid.SampledFrom([]ExecReason{"", "", ExecTimeout, ExecOutOfMemory, ExecNotStarted}).Draw(t, "why")
		return func(d *Decision) error { d.EndExec(x.ID, r, why); return nil }
	},
	"cancel exec": func(t *rapid.T, w *world) func(*Decision) error {
		x, kill := w.anyExec(t), rapid.Bool().Draw(t, "kill")
		return func(d *Decision) error {
			if x = w.execSeen(d, x); d.CancelExec(x, ExecCancelled, kill) == (x.State.Terminal() || x.State == "") {
				t.Fatalf("whether an exec that is %q was cancelled is told wrong", x.State)
			}
			return nil
		}
	},
	"refuse exec": func(t *rapid.T, w *world) func(*Decision) error {
		x := w.anyExec(t)
		return func(d *Decision) error {
			x = w.execSeen(d, x)
			if d.RefuseExec(x, ExecBusy) != (x.State == ExecQueued || x.State == ExecParked) {
				t.Fatalf("whether an exec that is %q was refused is told wrong", x.State)
			}
			return nil
		}
	},
	"answer approval": func(t *rapid.T, w *world) func(*Decision) error {
		if len(w.interactions) == 0 {
			return func(*Decision) error { return nil }
		}
		id := rapid.SampledFrom(w.interactions).Draw(t, "interaction").ID
		a := rapid.SampledFrom([]Answer{{OptionID: OptionApprove}, {OptionID: OptionReject, Comment: "no"}, {OptionID: "maybe"}, {Text: "hm"}, {}}).Draw(t, "answer")
		return func(d *Decision) error { return d.Answer(w.interaction(d, id), a) }
	},
	"expire approval": func(t *rapid.T, w *world) func(*Decision) error {
		if len(w.interactions) == 0 {
			return func(*Decision) error { return nil }
		}
		i := rapid.SampledFrom(w.interactions).Draw(t, "interaction")
		x, _ := w.exec(i.Exec)
		return func(d *Decision) error { d.ExpireInteraction(w.interaction(d, i.ID), w.execSeen(d, x)); return nil }
	},
	"request rotation": simple((*Decision).RequestRotation),
	"begin rotation": func(t *rapid.T, _ *world) func(*Decision) error {
		why := rapid.SampledFrom([]RotationReason{RotatePlanned, RotateLost}).Draw(t, "why")
		return func(d *Decision) error { d.BeginRotation(why); return nil }
	},
	"fail rotation": rarely(simple(func(d *Decision) error { d.FailRotation("the model says so"); return nil })),
	"begin capture": func(t *rapid.T, w *world) func(*Decision) error {
		epoch := w.anEpoch(t)
		return func(d *Decision) error {
			_, err := d.BeginCapture(CheckpointID(w.id("checkpoint")), epoch)
			return err
		}
	},
	"seal capture": func(t *rapid.T, w *world) func(*Decision) error {
		c, ok := w.aCheckpoint(t)
		if !ok {
			return func(*Decision) error { return nil }
		}
		c.TreeDigest = rapid.SampledFrom([]string{"tree", "another"}).Draw(t, "tree")
		return func(d *Decision) error { return d.SealCapture(asSeen(d, c), CaptureNotes{}) }
	},
	"seen":           simple((*Decision).Seen),
	"reattach":       simple((*Decision).Reattach),
	"check presence": simple(func(d *Decision) error { _, err := d.CheckPresence(); return err }),
	"check clock":    simple(func(d *Decision) error { d.CheckClock(); return nil }),
	"overrun":        simple(func(d *Decision) error { d.Overrun(); return nil }),
	"set limits": func(t *rapid.T, _ *world) func(*Decision) error {
		l := someLimits(t)
		return func(d *Decision) error { return d.SetLimits(l) }
	},
	"update carryover": func(t *rapid.T, w *world) func(*Decision) error {
		value := json.RawMessage(rapid.SampledFrom([]string{`null`, `{"a":null,"b":[1]}`, `"x"`, `{`}).Draw(t, "value"))
		dir := rapid.SampledFrom([]string{"", "sub", "../out"}).Draw(t, "dir")
		return func(d *Decision) error {
			old := w.carryover
			if d.carryover != nil {
				old = *d.carryover
			}
			_, err := d.UpdateCarryover(old, CarryoverPatch{Dir: &dir, Custom: map[string]json.RawMessage{"k": value}})
			return err
		}
	},
	"register tool": func(t *rapid.T, w *world) func(*Decision) error {
		name := rapid.SampledFrom([]string{"lint", "deploy", "no name"}).Draw(t, "name")
		return func(d *Decision) error {
			_, err := d.RegisterTool(Tool{Name: name, Argv: []string{"true"}, Ask: name == "deploy"}, len(w.tools))
			return err
		}
	},
	"note files": simple(func(d *Decision) error { d.NoteFiles([]string{"a"}, 1); return nil }),
}

// startExecs starts what may start, and checks what started.
func (w *world) startExecs(t *rapid.T, d *Decision) {
	was := d.Facts().clone()
	started := d.StartExecs(theRate)
	w.mayStart(t, d, was, started)
	if f := d.Facts(); f.Session.State == SessionClosed && slices.ContainsFunc(f.Execs, func(x Exec) bool { return x.State != ExecRunning }) {
		t.Fatalf("a closed session still has execs that wait: %+v", f.Execs)
	}
}

// mayStart checks that what started, on the facts that were, was allowed to: it is
// under every limit with all that runs counted, it has a sandbox that is not about
// to be replaced, and no other was before it.
func (w *world) mayStart(t *rapid.T, d *Decision, was Facts, started []Exec) {
	if len(started) == 0 {
		return
	}
	used, limits := was.Session.BudgetAt(d.Now()).Usage, was.Session.Budget.Limits
	for _, x := range append(was.Running(), started...) {
		for _, over := range []bool{
			limits.Cost > 0 && used.Cost >= limits.Cost, limits.Iterations > 0 && used.Iterations >= limits.Iterations,
			limits.Duration > 0 && used.Duration >= limits.Duration,
		} {
			if over && x.StartedAt.Equal(d.Now()) && slices.ContainsFunc(started, func(o Exec) bool { return o.ID == x.ID }) {
				t.Fatalf("exec %s started with %+v of %+v used or in use", x.ID, used, limits)
			}
		}
		used.Cost += theRate.Cost(d.Now().Sub(x.StartedAt) - x.Result.Saved)
		if !x.Spec.Hook {
			used.Iterations++
		}
	}
	l, s := was.Lease, was.Session
	for _, x := range started {
		if l == nil || !l.Live(d.Now()) || s.State != SessionOpen || x.Epoch != l.Epoch || x.Rate != theRate {
			t.Fatalf("exec %+v started under lease %+v in a session that is %s", x, l, s.State)
		}
		if !x.Spec.Hook && (s.Rotating() || !d.Now().Before(was.RotateAt())) {
			t.Fatalf("exec %s started at %v, and the sandbox is to be replaced at %v", x.ID, d.Now(), was.RotateAt())
		}
		for _, o := range w.execsSeen(d) {
			if x.Foreground() && !x.Spec.Hook && o.State == ExecQueued && o.Foreground() && o.Number < x.Number {
				t.Fatalf("exec %d started before exec %d, which was there first", x.Number, o.Number)
			}
		}
	}
}

func (w *world) countOpen() (n int) {
	for _, x := range w.execs {
		if !x.State.Terminal() {
			n++
		}
	}
	return n
}

// anExec draws what is to be run.
func (w *world) anExec(t *rapid.T) NewExec {
	in := NewExec{
		ID: ExecID(w.id("exec")), Interaction: InteractionID(w.id("approval")), Request: map[string]any{},
		Spec: ExecSpec{Argv: []string{"true"}, Timeout: time.Minute},
	}
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0, 1, 2:
		in.Spec.Detached, in.Spec.Timeout = true, 0
	case 3:
		in.Spec.Ask = true
	case 4:
		in.Spec.Stdin, in.Input = StdinGiven, []byte("in")
	case 5:
		in.Spec.Timeout = 0 // for one that is waited for
	case 6:
		in.Spec.Hook = w.session.Rotating()
	}
	return in
}

// anyExec draws an exec: mostly one that is not over.
func (w *world) anyExec(t *rapid.T) Exec {
	all := append([]Exec{{ID: "no such exec"}}, w.execs...)
	open := slices.DeleteFunc(slices.Clone(w.execs), func(x Exec) bool { return x.State.Terminal() })
	if len(open) > 0 && rapid.IntRange(0, 3).Draw(t, "open") > 0 {
		all = open
	}
	return rapid.SampledFrom(all).Draw(t, "exec")
}

// execSeen is x as the decision d sees it.
func (w *world) execSeen(d *Decision, x Exec) Exec {
	for _, o := range w.execsSeen(d) {
		if o.ID == x.ID {
			return o
		}
	}
	return x
}

func aResult(t *rapid.T) ExecResult {
	r := ExecResult{RunTime: rapid.SampledFrom([]time.Duration{0, 1, time.Second, 90 * time.Second}).Draw(t, "run time")}
	switch rapid.IntRange(0, 2).Draw(t, "end") {
	case 0:
		r.Code = new(rapid.IntRange(0, 255).Draw(t, "code"))
	case 1:
		r.Signal = "SIGKILL"
	case 2:
		r.Failure = "it could not be started"
	}
	return r
}
