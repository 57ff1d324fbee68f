package sojourn

import (
	"time"

	"pgregory.net/rapid"
)

// serve takes the one step that a well-behaved engine would take next for a bare
// session, so that random histories also get to their ends.
func (w *world) serve(t *rapid.T) {
	if w.timers(t) {
		return
	}
	f := w.facts()
	var step func(*Decision) error
	switch s := f.Session; {
	case s.State == SessionNew:
		step = (*Decision).Start
	case s.State == SessionOpen && s.Rotating():
		step = w.rotate(t, f)
	case s.State == SessionOpen:
		step = w.bench(t, f)
	default:
		step = w.wind(t, f)
	}
	if err := w.decide(t, step); err != nil {
		t.Fatalf("a well-behaved step for a session that is %s was refused: %v", f.Session.State, err)
	}
}

// timers does what is due, and reports whether something was.
func (w *world) timers(t *rapid.T) bool {
	for _, timer := range []struct {
		key   string
		check func(*Decision) (time.Time, error)
	}{
		{WorkClock + " s", func(d *Decision) (time.Time, error) { return d.CheckClock(), nil }},
		{WorkPresence + " s", (*Decision).CheckPresence},
	} {
		due, ok := w.work[timer.key]
		if !ok || due.After(w.now) {
			continue
		}
		var again time.Time
		if err := w.decide(t, func(d *Decision) (err error) { again, err = timer.check(d); return err }); err != nil {
			t.Fatalf("%s: %v", timer.key, err)
		}
		if again.IsZero() {
			delete(w.work, timer.key)
			return true
		}
		if !again.After(w.now) {
			t.Fatalf("%s at %v is to be looked at again at %v: without end", timer.key, w.now, again)
		}
		w.work[timer.key] = again
		return true
	}
	for _, i := range w.interactions {
		due, ok := w.work[WorkInteraction+" "+string(i.ID)]
		if !ok || due.After(w.now) {
			continue
		}
		x, _ := w.exec(i.Exec)
		_ = w.decide(t, func(d *Decision) error { d.ExpireInteraction(i, x); return nil })
		return true
	}
	return false
}

// end ends the first exec that runs.
func (w *world) end(t *rapid.T, f Facts, why ExecReason) func(*Decision) error {
	x, r := f.Running()[0], aResult(t)
	return func(d *Decision) error { d.EndExec(x.ID, r, why); return nil }
}

// bench serves an open session that does not rotate.
func (w *world) bench(t *rapid.T, f Facts) func(*Decision) error {
	l := f.Lease
	switch {
	case l == nil || l.State.Terminal() && l.GrantedAt.IsZero():
		return w.lease
	case l.State.Terminal():
		return func(d *Decision) error { d.BeginRotation(RotateLost); return nil }
	case l.State != LeaseHeld:
		return w.tend(t, f)
	case !l.Live(w.now):
		return func(d *Decision) error { return d.EndLease(l.Epoch, LeaseExpired, "the deadline passed") }
	case !w.now.Before(f.RotateAt()):
		return func(d *Decision) error { d.BeginRotation(RotatePlanned); return nil }
	}
	switch rapid.IntRange(0, 7).Draw(t, "bench") {
	case 0, 1:
		return func(d *Decision) error { w.startExecs(t, d); return nil }
	case 2:
		if len(f.Running()) > 0 {
			return w.end(t, f, "")
		}
	case 3:
		return func(d *Decision) error {
			c, err := d.BeginCapture(CheckpointID(w.id("checkpoint")), l.Epoch)
			if err != nil {
				return err
			}
			c.Conversation, c.Workspace, c.TreeDigest = FidelityExact, FidelityPortableTree, w.id("tree")
			return d.SealCapture(c, CaptureNotes{})
		}
	case 4:
		for _, i := range f.Open {
			return func(d *Decision) error { return d.Answer(i, Answer{OptionID: OptionApprove}) }
		}
	case 5:
		return (*Decision).Seen
	}
	execute := bareCommands["execute"](t, w)
	return func(d *Decision) error { _ = execute(d); return nil } // it may be refused: the argument, the budget
}

func (w *world) lease(d *Decision) error {
	_, err := d.RequestLease("fake", "none", benchTerms)
	return err
}

// tend takes a lease that is requested or draining on to its next state.
func (w *world) tend(t *rapid.T, f Facts) func(*Decision) error {
	l := f.Lease
	switch {
	case l.State == LeaseDraining:
		return func(d *Decision) error {
			c, err := d.BeginDrain(CheckpointID(w.id("checkpoint")), l.Epoch)
			if err != nil {
				return err
			}
			c.Conversation, c.Workspace = FidelityExact, FidelityPortableTree
			if l.SaveProcesses {
				c.Processes = &ProcessState{Epoch: l.ProcessEpoch(), Object: "object", Snapshot: []byte("{}")}
			}
			return d.SealDrain(c, CaptureNotes{}, LeaseReleased)
		}
	case f.Session.State != SessionOpen || f.Head != nil && !f.Head.Restorable(f.Session.Base) || rapid.IntRange(0, 4).Draw(t, "comes up") == 0:
		return func(d *Decision) error {
			d.FailRotation("no sandbox came up")
			return d.EndLease(l.Epoch, LeaseLost, "it never came up")
		}
	}
	cold := rapid.Bool().Draw(t, "cold")
	return func(d *Decision) error {
		err := d.HoldLease(l.Epoch, []byte(`{}`), f.Session.Head)
		switch {
		case err != nil || len(f.Running()) == 0:
		case cold:
			d.LoseProcesses(l.Epoch, "they could not go on")
		default:
			err = d.ResumeProcesses(l.Epoch)
		}
		return err
	}
}

// rotate takes a rotation one step further.
func (w *world) rotate(t *rapid.T, f Facts) func(*Decision) error {
	l, r := f.Lease, f.Session.Rotation
	switch {
	case l.State.Terminal():
		return w.lease
	case l.State != LeaseHeld:
		return w.tend(t, f)
	case !l.Live(w.now):
		return func(d *Decision) error { return d.EndLease(l.Epoch, LeaseExpired, "the deadline passed") }
	case len(f.Running()) > 0 && !r.Processes:
		return w.end(t, f, ExecRotated)
	case rapid.IntRange(0, 3).Draw(t, "hook") == 0:
		in := w.anExec(t)
		in.Spec = ExecSpec{Argv: []string{"true"}, Timeout: time.Minute, Hook: true}
		return func(d *Decision) error { _, _ = d.Execute(in, w.countOpen(), theRate); return nil }
	}
	return func(d *Decision) error { return d.DrainLease(l.Epoch, "rotation", r.Processes) }
}

// wind brings a session to rest that is paused or closed, and lets a paused one go
// on.
func (w *world) wind(t *rapid.T, f Facts) func(*Decision) error {
	s, l := f.Session, f.Lease
	waiting := false
	for _, x := range f.Execs {
		waiting = waiting || x.State == ExecQueued || x.State == ExecParked && s.State == SessionClosed
	}
	keep := s.State == SessionPaused && s.Rotation.Processes
	switch {
	case waiting:
		return func(d *Decision) error { w.startExecs(t, d); return nil }
	case l != nil && !l.State.Terminal() && l.State != LeaseHeld:
		return w.tend(t, f)
	case l != nil && l.State == LeaseHeld && len(f.Running()) > 0 && !keep:
		return w.end(t, f, closedReason(s))
	case l != nil && l.State == LeaseHeld:
		return func(d *Decision) error { return d.DrainLease(l.Epoch, "suspended", keep) }
	case s.State == SessionPaused && s.Budget.Exhausted() == "":
		return (*Decision).Resume
	case s.State == SessionPaused:
		return func(d *Decision) error { return d.Close(CloseCompleted, StopRequested, "") }
	case rapid.IntRange(0, 9).Draw(t, "delete") == 0:
		return (*Decision).Delete
	}
	return func(*Decision) error { return nil }
}
