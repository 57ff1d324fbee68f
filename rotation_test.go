package sojourn

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestClockIsLookedAtWhenAThresholdIsReached: the moment that is ordered is the
// first at which a warning or the limit is due, for limits of any size.
func TestClockIsLookedAtWhenAThresholdIsReached(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := time.Duration(rapid.Int64Range(1, 250*365*24*int64(time.Hour)).Draw(t, "limit"))
		used := time.Duration(rapid.Int64Range(0, int64(limit)).Draw(t, "used"))
		s := Session{ClockAt: noon, Budget: Budget{Limits{Duration: limit}, Usage{Duration: used}}}
		rank := func(now time.Time) int { // rises at each threshold
			b := s.BudgetAt(now)
			if b.Exhausted() != "" {
				return 100
			}
			return b.Warning()
		}
		due := s.clockDue()
		if rank(noon) == 100 {
			if !due.Equal(noon) {
				t.Fatalf("%v of %v used: due at %v, want at once", used, limit, due)
			}
			return
		}
		if !due.After(noon) || rank(due) <= rank(noon) || rank(due.Add(-1)) != rank(noon) {
			t.Fatalf("%v of %v used: due in %v, where the threshold goes from %d to %d (%d just before)",
				used, limit, due.Sub(noon), rank(noon), rank(due), rank(due.Add(-1)))
		}
	})
}

func TestTheDurationLimitFiresWithNothingRunning(t *testing.T) {
	f := bareScene(t, SessionOpen, withLimits(Limits{Duration: 100 * time.Second}))
	start := f.Session.StartedAt
	var events []EventType
	for at := f.Session.clockDue(); !at.IsZero(); {
		d := f.Decide(at)
		again := d.CheckClock()
		for _, e := range d.Change().Events {
			events = append(events, e.Type)
		}
		f, at = d.Facts(), again
	}
	s := f.Session
	if s.State != SessionClosed || s.Ending.Limit != LimitDuration || s.Ending.At.Sub(start) != 100*time.Second {
		t.Errorf("the session is %s, ended %+v after %v", s.State, s.Ending, s.Ending.At.Sub(start))
	}
	want := []EventType{EventBudgetWarning, EventBudgetWarning, EventBudgetReached, EventSessionCompleted}
	if len(events) != len(want) {
		t.Fatalf("events %v, want %v", events, want)
	}
	for i := range want {
		if events[i] != want[i] {
			t.Errorf("events %v, want %v", events, want)
		}
	}
}

// TestTheDurationLimitFiresBesideAnother: while a foreground exec runs the cost
// limit waits for it, and the duration limit does not.
func TestTheDurationLimitFiresBesideAnother(t *testing.T) {
	f := bareScene(t, SessionOpen, withLimits(Limits{Cost: 10, Duration: 100 * time.Second}))
	now := noon.Add(10 * time.Second)
	f = execute(t, execute(t, f, now, run("a", "detached")), now, run("b", ""))
	f = must(t, f, now.Add(20*time.Second), func(d *Decision) error {
		d.EndExec("a", ExecResult{Code: new(0), RunTime: 20 * time.Second}, "")
		return nil
	})
	if f.Session.State != SessionOpen {
		t.Fatalf("the cost limit ended the session, which is %s, while a foreground exec runs", f.Session.State)
	}
	d := f.Decide(f.Session.StartedAt.Add(100 * time.Second))
	if again := d.CheckClock(); !again.IsZero() || d.Facts().Session.State != SessionClosed {
		t.Errorf("at the duration limit: again at %v, the session is %s", again, d.Facts().Session.State)
	}
}

func TestAPauseIsNotCharged(t *testing.T) {
	f := bareScene(t, SessionOpen, withLimits(Limits{Duration: time.Hour}))
	start := f.Session.StartedAt
	f = must(t, f, start.Add(time.Minute), (*Decision).Pause)
	f = must(t, f, start.Add(24*time.Hour), (*Decision).Resume)
	if got := f.Session.BudgetAt(start.Add(24*time.Hour + time.Minute)).Usage.Duration; got != 2*time.Minute {
		t.Errorf("charged %v, want the 2 minutes that it was open", got)
	}
}

func TestRotateAtLeavesTheBuffer(t *testing.T) {
	const second = time.Second
	for _, c := range []struct{ timeout, buffer, want time.Duration }{
		{300 * second, 60 * second, 240 * second},
		{300 * second, 0, 270 * second}, // the default
		{300 * second, 200 * second, 150 * second},
		{40 * second, 0, 20 * second},
		{2 * second, time.Hour, second},
	} {
		f := Facts{
			Session: Session{Rotation: Rotation{Buffer: c.buffer}},
			Lease:   &Lease{State: LeaseHeld, GrantedAt: noon, Ceiling: c.timeout},
		}
		if got := f.RotateAt().Sub(noon); got != c.want {
			t.Errorf("timeout %v, buffer %v: replaced after %v, want %v", c.timeout, c.buffer, got, c.want)
		}
		for _, state := range []LeaseState{LeaseRequested, LeaseDraining, LeaseLost} {
			f.Lease.State = state
			if at := f.RotateAt(); !at.IsZero() {
				t.Errorf("a %s lease is to be replaced at %v", state, at)
			}
		}
	}
}

// captured is f with a checkpoint of its sandbox taken at now; ends says that the
// capture ends the lease.
func captured(t *testing.T, f Facts, now time.Time, id CheckpointID, processes, ends bool) Facts {
	t.Helper()
	whole := func(c Checkpoint) Checkpoint {
		c.Conversation, c.Workspace, c.TreeDigest = FidelityExact, FidelityPortableTree, string(id)
		if processes {
			c.Processes = &ProcessState{Epoch: 1, Object: "object"}
		}
		return c
	}
	if !ends {
		return must(t, f, now, func(d *Decision) error {
			c, err := d.BeginCapture(id, f.Lease.Epoch)
			if err != nil {
				return err
			}
			return d.SealCapture(whole(c), CaptureNotes{})
		})
	}
	f = must(t, f, now, func(d *Decision) error { return d.DrainLease(f.Lease.Epoch, "rotation", processes) })
	return must(t, f, now.Add(time.Second), func(d *Decision) error {
		c, err := d.BeginDrain(id, f.Lease.Epoch)
		if err != nil {
			return err
		}
		return d.SealDrain(whole(c), CaptureNotes{}, LeaseReleased)
	})
}

// TestALossSaysSinceWhen: what a sandbox took with it is what was written after the
// last checkpoint, and nothing when nothing was.
func TestALossSaysSinceWhen(t *testing.T) {
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	ended := func(f Facts, s int) Facts {
		return must(t, f, at(s), func(d *Decision) error { d.EndExec("a", ExecResult{Code: new(0)}, ""); return nil })
	}
	idle := bareScene(t, SessionOpen)
	ran := ended(execute(t, idle, at(10), run("a", "")), 20)
	runs := execute(t, idle, at(10), run("a", "detached"))
	for _, c := range []struct {
		name  string
		facts Facts
		lost  bool
		since time.Time
	}{
		{"nothing ran", idle, false, time.Time{}},
		{"an exec ran, and no checkpoint is there", ran, true, idle.Session.StartedAt},
		{"a checkpoint followed it", captured(t, ran, at(30), "c", false, false), false, time.Time{}},
		{"another exec followed that", must(t, captured(t, ran, at(30), "c", false, false), at(40), func(d *Decision) error {
			_, err := d.Execute(run("b", ""), 0, theRate)
			return err
		}), true, at(30)},
		{"an exec runs that began before the checkpoint", captured(t, runs, at(30), "c", false, false), true, at(30)},
	} {
		f := must(t, c.facts, at(60), func(d *Decision) error { return d.EndLease(1, LeaseLost, "killed") })
		got := f.Session.Rotation.Lost
		if (got != nil) != c.lost {
			t.Errorf("%s: lost %+v, want %v", c.name, got, c.lost)
		} else if c.lost && (!got.Since.Equal(c.since) || got.Epoch != 1 || !got.At.Equal(at(60))) {
			t.Errorf("%s: lost %+v, want since %v", c.name, got, c.since)
		}
		if len(f.Running()) != 0 {
			t.Errorf("%s: %d execs run without a sandbox", c.name, len(f.Running()))
		}
	}
	f := captured(t, runs, at(30), "c", false, true)
	if f.Session.Rotation.Lost != nil || len(f.Running()) != 0 {
		t.Errorf("a planned end: lost %+v, %d run", f.Session.Rotation.Lost, len(f.Running()))
	}
}

// TestSavedProcessesOutliveALeaseThatNeverCameUp: a try to go on with them that
// fails takes nothing; the end of the session does.
func TestSavedProcessesOutliveALeaseThatNeverCameUp(t *testing.T) {
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	f := execute(t, bareScene(t, SessionOpen), at(10), run("a", "detached"))
	f = must(t, f, at(20), (*Decision).RequestRotation)
	f = captured(t, f, at(30), "c", true, true)
	f = must(t, f, at(40), func(d *Decision) error { _, err := d.RequestLease("fake", "none", benchTerms); return err })
	f = must(t, f, at(50), func(d *Decision) error { return d.EndLease(2, LeaseLost, "no room") })
	if len(f.Running()) != 1 {
		t.Fatalf("%d execs run after a failed try, want the saved one", len(f.Running()))
	}
	closed := must(t, f, at(60), func(d *Decision) error { return d.Close(CloseCancelled, StopCancelled, "") })
	if len(closed.Running()) != 0 || closed.Session.Budget.Usage.Iterations != 1 {
		t.Errorf("after the end %d execs run, and %+v was used", len(closed.Running()), closed.Session.Budget.Usage)
	}
	f = must(t, f, at(60), func(d *Decision) error { _, err := d.RequestLease("fake", "none", benchTerms); return err })
	f = must(t, f, at(70), func(d *Decision) error {
		if err := d.HoldLease(3, nil, "c"); err != nil {
			return err
		}
		return d.ResumeProcesses(3)
	})
	if f.Session.Rotating() || f.Session.Rotation.Count != 1 || len(f.Running()) != 1 || f.Lease.ProcessEpoch() != 1 {
		t.Errorf("after the second try: rotation %+v, %d run, processes of epoch %d", f.Session.Rotation, len(f.Running()), f.Lease.ProcessEpoch())
	}
}

func TestARotationFailsThreeTimesAndThenTheSession(t *testing.T) {
	f := must(t, bareScene(t, SessionOpen), noon.Add(time.Minute), (*Decision).RequestRotation)
	for try, want := range []bool{true, true, false} {
		f = must(t, f, noon.Add(2*time.Minute), func(d *Decision) error {
			if got := d.FailRotation("no room"); got != want {
				t.Errorf("after try %d another follows: %v, want %v", try+1, got, want)
			}
			return nil
		})
	}
	if s := f.Session; s.State != SessionClosed || s.CloseReason != CloseFailed || s.Ending.Reason != StopRotation || s.Ending.Text != "no room" {
		t.Errorf("the session is %s (%s): %+v", s.State, s.CloseReason, s.Ending)
	}
}

func TestAClientIsLostOnceAndComesBack(t *testing.T) {
	for mode, want := range map[AbandonMode]SessionState{AbandonKeep: SessionOpen, AbandonPause: SessionPaused, AbandonStop: SessionClosed} {
		f := bareScene(t, SessionOpen, func(in *NewSession) { in.Presence = Presence{Client: "ci", OnAbandon: mode} })
		f = must(t, f, noon.Add(time.Minute), (*Decision).Seen)
		lostAt := noon.Add(time.Minute + MissedHeartbeats*HeartbeatEvery)
		look := func(now time.Time) (again time.Time, events int) {
			d := f.Decide(now)
			again, err := d.CheckPresence()
			if err != nil {
				t.Fatal(err)
			}
			f = d.Facts()
			return again, len(d.Change().Events)
		}
		if again, n := look(lostAt.Add(-1)); !again.Equal(lostAt) || n != 0 || !f.Session.Presence.Attached(lostAt.Add(-1)) {
			t.Errorf("%q: just before, look again at %v, %d events", mode, again, n)
		}
		if again, n := look(lostAt); !again.IsZero() || n == 0 || f.Session.State != want || f.Session.Presence.Attached(lostAt) {
			t.Errorf("%q: the session is %s after %d events, want %s", mode, f.Session.State, n, want)
		}
		if _, n := look(lostAt.Add(time.Hour)); n != 0 {
			t.Errorf("%q: the client was lost again: %d events", mode, n)
		}
		d := f.Decide(lostAt.Add(2 * time.Hour))
		if err := d.Seen(); err != nil || d.Facts().Session.Presence.Attached(d.Now()) != (want != SessionClosed) {
			t.Errorf("%q: after it came back: %+v, %v", mode, d.Facts().Session.Presence, err)
		}
	}
}
