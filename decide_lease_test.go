package sojourn

import (
	"testing"
	"time"
)

func TestEpochsGrowWithEachLease(t *testing.T) {
	f := scene(t, "", "")
	for want := int64(1); want <= 3; want++ {
		d := f.Decide(noon.Add(time.Duration(want) * time.Hour))
		l, err := d.RequestLease("fake", "none", Terms{})
		if err != nil {
			t.Fatal(err)
		}
		if l.Epoch != want || d.Facts().Session.LastEpoch != want {
			t.Fatalf("epoch %d, session's last %d, want %d", l.Epoch, d.Facts().Session.LastEpoch, want)
		}
		if l.Ceiling != DefaultCeiling || l.Hold != DefaultHold {
			t.Errorf("bounds %v and %v, want the defaults", l.Ceiling, l.Hold)
		}
		f = must(t, d.Facts(), noon.Add(5*time.Hour), func(d *Decision) error { return d.EndLease(want, LeaseLost, "never came up") })
	}
	l, err := f.Decide(noon).RequestLease("fake", "none", Terms{Ceiling: time.Minute, Hold: time.Second})
	if err != nil || l.Ceiling != time.Minute || l.Hold != time.Second {
		t.Errorf("with terms: %+v, %v", l, err)
	}
}

// TestAnOldEpochChangesNothing is guarantee G3.
func TestAnOldEpochChangesNothing(t *testing.T) {
	f := scene(t, "", LeaseLost)
	f = must(t, f, noon.Add(time.Minute), func(d *Decision) error { _, err := d.RequestLease("fake", "none", Terms{}); return err })
	requested := f
	held := must(t, f, noon.Add(time.Minute), func(d *Decision) error { return d.HoldLease(2, nil, "") })
	for _, epoch := range []int64{0, 1, 3} {
		d := requested.Decide(noon.Add(2 * time.Minute))
		refused(t, "hold", d.HoldLease(epoch, nil, ""), CodeWorkspaceExpired)
		d = held.Decide(noon.Add(2 * time.Minute))
		refused(t, "set the conversation", d.SetConversation(epoch, "x"), CodeWorkspaceExpired)
		if d.TouchLease(epoch) {
			t.Errorf("epoch %d: the touch says that the lease is live", epoch)
		}
		if err := d.EndLease(epoch, LeaseReleased, "late"); err != nil {
			t.Errorf("epoch %d: ending an ended lease: %v", epoch, err)
		}
		if c := d.Change(); len(c.Leases)+len(c.Events)+len(c.Work) != 0 {
			t.Errorf("epoch %d wrote %v", epoch, effects(c))
		}
	}
}

func TestHoldSaysWhatItStartedFrom(t *testing.T) {
	f := scene(t, RunCompleted, LeaseReleased)
	f = must(t, f, noon.Add(time.Minute), func(d *Decision) error { _, err := d.RequestLease("fake", "wall", Terms{}); return err })
	d := decideOn(t, f, func(d *Decision) error { return d.HoldLease(2, []byte(`{"pid":1}`), "checkpoint-1") })
	events := d.Change().Events
	if len(events) != 2 || events[0].Type != EventWorkspaceRestored || events[1].Type != EventWorkspaceAttached {
		t.Fatalf("events %+v, want restored, then attached", events)
	}
	if p := payload(t, events[0]); p["boundaryRunId"] != string(theRun) || p["checkpointId"] != "checkpoint-1" {
		t.Errorf("restored says %v", p)
	}
	p := payload(t, events[1])
	if want := d.Facts().Lease.Deadline().Format("2006-01-02T15:04:05.000Z"); p["expiresAt"] != want || p["isolation"] != "wall" {
		t.Errorf("attached says %v, want expiresAt %s", p, want)
	}
	l := d.Facts().Lease
	if !l.GrantedAt.Equal(d.Now()) || !l.TouchedAt.Equal(d.Now()) || l.Restored != "checkpoint-1" {
		t.Errorf("the lease is %+v", l)
	}
	if w := d.Change().Work; len(w) != 1 || !w[0].Due.Equal(l.Deadline()) || w[0].Key != "s" {
		t.Errorf("work %+v, want the end of the lease at its deadline", w)
	}
}

func TestTouchMovesTheEndThatIsOrdered(t *testing.T) {
	f := scene(t, "", LeaseHeld)
	d := f.Decide(f.Lease.Deadline().Add(-1))
	if !d.TouchLease(1) {
		t.Fatal("the touch says that a live lease is over")
	}
	l := d.Facts().Lease
	if want := d.Now().Add(DefaultHold); !l.Deadline().Equal(want) {
		t.Errorf("the deadline is %v, want %v", l.Deadline(), want)
	}
	if w := d.Change().Work; len(w) != 1 || !w[0].Due.Equal(l.Deadline()) {
		t.Errorf("work %+v, want the end at the new deadline", w)
	}
	late := f.Decide(f.Lease.Deadline())
	if late.TouchLease(1) || len(late.Change().Leases) != 0 {
		t.Error("a touch at the deadline revived the lease")
	}
}

func TestAnEndedLeaseSaysSoOnce(t *testing.T) {
	for state, event := range map[LeaseState]EventType{
		LeaseReleased: EventWorkspaceReleased, LeaseExpired: EventWorkspaceExpired, LeaseLost: EventWorkspaceLost,
	} {
		d := decideOn(t, scene(t, "", LeaseHeld), func(d *Decision) error { return d.EndLease(1, state, "why") })
		c := d.Change()
		if len(c.Events) != 1 || c.Events[0].Type != event || payload(t, c.Events[0])["reason"] != "why" {
			t.Errorf("%s: events %+v", state, c.Events)
		}
		if len(c.Work) != 1 || !c.Work[0].Due.Equal(d.Now()) {
			t.Errorf("%s: work %+v, want the sandbox destroyed at once", state, c.Work)
		}
		again := decideOn(t, d.Facts(), func(d *Decision) error { return d.EndLease(1, LeaseLost, "again") })
		if len(effects(again.Change())) != 0 {
			t.Errorf("%s: ending again wrote %v", state, effects(again.Change()))
		}
	}
}

// TestSilenceIsToldOfAnOpenLease, with for how long, and of no other.
func TestSilenceIsToldOfAnOpenLease(t *testing.T) {
	silent := func(epoch int64) func(*Decision) error {
		return func(d *Decision) error { d.NoteSilence(epoch, time.Minute); return nil }
	}
	c := decideOn(t, scene(t, RunActive, LeaseHeld), silent(1)).Change()
	if len(c.Events) != 1 || c.Events[0].Type != EventWorkspaceSilent || c.Events[0].Run != theRun || payload(t, c.Events[0])["silentMs"] != 60000.0 {
		t.Errorf("events %+v", c.Events)
	}
	for _, d := range []*Decision{decideOn(t, scene(t, "", LeaseHeld), silent(0)), decideOn(t, scene(t, "", LeaseLost), silent(1))} {
		if events := d.Change().Events; len(events) != 0 {
			t.Errorf("told of a lease that is over: %+v", events)
		}
	}
}

// TestNoSandboxPassesForAResume is guarantee G5: an empty tree, or an old one,
// is never presented as restored.
func TestNoSandboxPassesForAResume(t *testing.T) {
	request := func(f Facts) Facts {
		return must(t, f, noon.Add(time.Minute), func(d *Decision) error { _, err := d.RequestLease("fake", "none", Terms{}); return err })
	}
	lost := must(t, scene(t, RunActive, LeaseLost), noon.Add(time.Minute), func(d *Decision) error {
		return d.EndRun(theRun, RunCrashed, StopWorkspaceLost, nil)
	})
	refusedHead := must(t, scene(t, RunCompleted, LeaseLost), noon.Add(time.Minute), func(d *Decision) error { return d.RefuseHead("checkpoint-2") })
	for _, c := range []struct {
		name     string
		facts    Facts
		restored CheckpointID
		want     Code
	}{
		{"a fresh session with an empty sandbox", scene(t, "", LeaseLost), "", ""},
		{"a fresh session with a restored one", scene(t, "", LeaseLost), "checkpoint-1", CodeResumeUnavailable},
		{"a session that worked with its head", scene(t, RunCompleted, LeaseLost), "checkpoint-1", ""},
		{"a session that worked with an empty sandbox", scene(t, RunCompleted, LeaseLost), "", CodeResumeUnavailable},
		{"a session that worked with another checkpoint", scene(t, RunCompleted, LeaseLost), "checkpoint-0", CodeResumeUnavailable},
		{"work that was never sealed", lost, "", CodeResumeUnavailable},
		{"a head that cannot be restored", refusedHead, "checkpoint-2", CodeResumeUnavailable},
	} {
		refused(t, c.name, request(c.facts).Decide(noon.Add(time.Minute)).HoldLease(2, nil, c.restored), c.want)
	}
}

// TestNoLeaseFencesASealOff: while a run is sealing, a new epoch would refuse
// the checkpoint that is being made of the old one.
func TestNoLeaseFencesASealOff(t *testing.T) {
	f := scene(t, RunSealing, LeaseExpired)
	_, err := f.Decide(noon.Add(time.Minute)).RequestLease("fake", "none", Terms{})
	if e := refused(t, "a lease while a run is sealing", err, CodeWorkspaceStarting); e.RetryAfter <= 0 {
		t.Errorf("retry after %v, want a hint", e.RetryAfter)
	}
	f = must(t, f, noon.Add(time.Minute), func(d *Decision) error {
		return d.Seal(capture(f, FidelityExact, FidelityPortableTree), CaptureNotes{})
	})
	_, err = f.Decide(noon.Add(time.Minute)).RequestLease("fake", "none", Terms{})
	refused(t, "a lease once it is sealed", err, "")
}
