package storetest

import (
	"errors"
	"testing"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

func testChangeIsAllOrNone(t *testing.T, open Open) {
	s := open(t, nil)
	create(t, s, "s")
	before := read(t, s, func(tx *store.Tx) (sojourn.Facts, error) { return tx.Facts("s") })
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		f, err := tx.Facts("s")
		if err != nil {
			return err
		}
		d := f.Decide(tx.Now())
		if err := d.Submit("t", "r", []sojourn.Part{{Type: "text", Text: "x"}}); err != nil {
			return err
		}
		c := d.Change()
		c.Checkpoints = []sojourn.Checkpoint{{ID: "c", Session: "nobody", Run: "r"}} // no such session
		return tx.Apply(c)
	})
	if !errors.Is(err, store.ErrConstraint) {
		t.Errorf("a broken change: %v, want ErrConstraint", err)
	}
	view(t, s, func(tx *store.Tx) error {
		f, err := tx.Facts("s")
		same(t, "facts", f, before)
		events, _ := tx.Events("s", 0, 0)
		same(t, "events", len(events), 1)
		_, due, _ := tx.NextWork(sojourn.WorkRun)
		same(t, "work is due", due, false)
		return err
	})
}

func testStaleChangeIsRefused(t *testing.T, open Open) {
	s := open(t, nil)
	create(t, s, "s")
	stale := read(t, s, func(tx *store.Tx) (sojourn.Facts, error) { return tx.Facts("s") })
	submit(t, s, "s", 1)
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		d := stale.Decide(tx.Now())
		d.Note(sojourn.EventDraft{Type: sojourn.EventAgentLog})
		return tx.Apply(d.Change())
	})
	if !errors.Is(err, store.ErrStale) {
		t.Errorf("a change of old facts: %v, want ErrStale", err)
	}
}

// refused fails the test unless the change breaks a constraint.
func refused(t *testing.T, s store.Store, what string, c sojourn.Change) {
	t.Helper()
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		f, err := tx.Facts(c.Session.ID)
		if err != nil {
			return err
		}
		c.Session = f.Session
		return tx.Apply(c)
	})
	if !errors.Is(err, store.ErrConstraint) {
		t.Errorf("%s: %v, want ErrConstraint", what, err)
	}
}

func testOneActiveRun(t *testing.T, open Open) {
	s := open(t, nil)
	c := whole("s")
	update(t, s, func(tx *store.Tx) error { return tx.Apply(c) })
	for _, state := range []sojourn.RunState{
		sojourn.RunQueued, sojourn.RunStarting, sojourn.RunActive, sojourn.RunSealing,
		sojourn.RunCompleted, sojourn.RunFailed, sojourn.RunCrashed, sojourn.RunCancelled,
	} {
		r := filled[sojourn.Run](700)
		r.Session, r.Turn, r.State = "s", c.Turns[0].ID, state
		r.ID = sojourn.RunID("another-" + state)
		change := sojourn.Change{Session: c.Session, Runs: []sojourn.Run{r}}
		if !state.Terminal() {
			refused(t, s, "a second run that is "+string(state), change)
			continue
		}
		update(t, s, func(tx *store.Tx) error { return tx.Apply(change) })
	}
	active := read(t, s, (*store.Tx).ActiveRuns)
	same(t, "active runs", active, c.Runs)
}

func testOneOpenLease(t *testing.T, open Open) {
	s := open(t, nil)
	c := whole("s")
	update(t, s, func(tx *store.Tx) error { return tx.Apply(c) })
	for i, state := range []sojourn.LeaseState{
		sojourn.LeaseRequested, sojourn.LeaseHeld, sojourn.LeaseDraining,
		sojourn.LeaseReleased, sojourn.LeaseExpired, sojourn.LeaseLost,
	} {
		l := filled[sojourn.Lease](800)
		l.Session, l.Epoch, l.State = "s", int64(1000+i), state
		change := sojourn.Change{Session: c.Session, Leases: []sojourn.Lease{l}}
		if !state.Terminal() {
			refused(t, s, "a second lease that is "+string(state), change)
			continue
		}
		update(t, s, func(tx *store.Tx) error { return tx.Apply(change) })
	}
	same(t, "open leases", read(t, s, (*store.Tx).OpenLeases), c.Leases)

	// One change may end a lease and grant the next, in any order.
	ended, next := c.Leases[0], filled[sojourn.Lease](900)
	ended.State = sojourn.LeaseLost
	next.Session, next.State = "s", sojourn.LeaseRequested
	update(t, s, func(tx *store.Tx) error {
		return tx.Apply(sojourn.Change{Session: c.Session, Leases: []sojourn.Lease{next, ended}})
	})
	same(t, "open leases", read(t, s, (*store.Tx).OpenLeases), []sojourn.Lease{next})
}

func testOpenQuestionIsAskedOnce(t *testing.T, open Open) {
	s := open(t, nil)
	c := whole("s")
	update(t, s, func(tx *store.Tx) error { return tx.Apply(c) })
	again := c.Interactions[0]
	again.ID = "again"
	refused(t, s, "the same question", sojourn.Change{Session: c.Session, Interactions: []sojourn.Interaction{again}})
	answered := c.Interactions[0]
	answered.State, answered.Reason = sojourn.InteractionAnswered, "because"
	update(t, s, func(tx *store.Tx) error {
		return tx.Apply(sojourn.Change{Session: c.Session, Interactions: []sojourn.Interaction{answered}})
	})
	update(t, s, func(tx *store.Tx) error {
		return tx.Apply(sojourn.Change{Session: c.Session, Interactions: []sojourn.Interaction{again}})
	})
	view(t, s, func(tx *store.Tx) error {
		all, err := tx.Interactions("s", "")
		same(t, "interactions", len(all), 2)
		some, errSome := tx.Interactions("s", sojourn.InteractionAnswered)
		same(t, "answered", some, []sojourn.Interaction{answered})
		one, errOne := tx.Interaction("again")
		same(t, "interaction", one, again)
		latest, errLatest := tx.InteractionOf("s", again.Run, again.Ref)
		if latest.ID != again.ID && latest.ID != answered.ID {
			t.Errorf("question by its ref: %+v", latest)
		}
		return errors.Join(err, errSome, errOne, errLatest)
	})
}

func testCheckpointChain(t *testing.T, open Open) {
	s := open(t, nil)
	c := whole("s")
	first := c.Checkpoints[0]
	update(t, s, func(tx *store.Tx) error { return tx.Apply(c) })
	apply := func(cp sojourn.Checkpoint) {
		t.Helper()
		update(t, s, func(tx *store.Tx) error {
			return tx.Apply(sojourn.Change{Session: c.Session, Checkpoints: []sojourn.Checkpoint{cp}})
		})
	}
	rival := first
	rival.ID = "rival"
	refused(t, s, "a second successor", sojourn.Change{Session: c.Session, Checkpoints: []sojourn.Checkpoint{rival}})
	changed := first
	changed.Root = "another"
	refused(t, s, "a change of a sealed one", sojourn.Change{Session: c.Session, Checkpoints: []sojourn.Checkpoint{changed}})

	next := filled[sojourn.Checkpoint](950)
	next.Session, next.Run, next.Parent, next.State = "s", first.Run, first.ID, sojourn.CheckpointCapturing
	apply(next)
	sealed := filled[sojourn.Checkpoint](2950)
	sealed.ID, sealed.Session, sealed.Run, sealed.Epoch = next.ID, next.Session, next.Run, next.Epoch
	sealed.Parent, sealed.CapturingAt, sealed.State = next.Parent, next.CapturingAt, sojourn.CheckpointSealed
	apply(sealed)
	all := read(t, s, func(tx *store.Tx) ([]sojourn.Checkpoint, error) { return tx.Checkpoints("s") })
	same(t, "checkpoints", all, []sojourn.Checkpoint{first, sealed})
}

func testUndestroyedLeases(t *testing.T, open Open) {
	s := open(t, nil)
	create(t, s, "s")
	for range 2 {
		decide(t, s, "s", func(d *sojourn.Decision) error {
			l, err := d.RequestLease("fake", "none", sojourn.Terms{})
			return errors.Join(err, d.HoldLease(l.Epoch, nil, ""), d.EndLease(l.Epoch, sojourn.LeaseLost, "test"))
		})
	}
	decide(t, s, "s", func(d *sojourn.Decision) error {
		_, err := d.RequestLease("fake", "none", sojourn.Terms{})
		return err
	})
	epochs := func() (all []int64) {
		for _, l := range read(t, s, (*store.Tx).UndestroyedLeases) {
			all = append(all, l.Epoch)
		}
		return all
	}
	same(t, "undestroyed", epochs(), []int64{1, 2})
	update(t, s, func(tx *store.Tx) error {
		return errors.Join(tx.MarkDestroyed("s", 1), tx.MarkDestroyed("s", 1), tx.MarkDestroyed("s", 3))
	})
	same(t, "undestroyed", epochs(), []int64{2})
	decide(t, s, "s", func(d *sojourn.Decision) error { return d.EndLease(3, sojourn.LeaseReleased, "test") })
	same(t, "undestroyed", epochs(), []int64{2, 3})
	of := read(t, s, func(tx *store.Tx) ([]sojourn.Lease, error) { return tx.UndestroyedLeasesOf("s") })
	same(t, "undestroyed of the session", of, read(t, s, (*store.Tx).UndestroyedLeases))
}

func testLeaseState(t *testing.T, open Open) {
	s := open(t, nil)
	create(t, s, "s")
	decide(t, s, "s", func(d *sojourn.Decision) error {
		_, err := d.RequestLease("fake", "none", sojourn.Terms{})
		return err
	})
	state := func() []byte {
		return read(t, s, func(tx *store.Tx) ([]byte, error) { return tx.LeaseState("s", 1) })
	}
	same(t, "state before", state(), []byte(nil))
	for _, want := range [][]byte{{0, 1, 255}, {}, []byte("again")} {
		update(t, s, func(tx *store.Tx) error { return tx.PutLeaseState("s", 1, want) })
		if got := state(); string(got) != string(want) {
			t.Errorf("state %q, want %q", got, want)
		}
	}
	decide(t, s, "s", func(d *sojourn.Decision) error { return d.EndLease(1, sojourn.LeaseReleased, "test") })
	same(t, "state after the end", state(), []byte(nil))
	err := s.Update(t.Context(), func(tx *store.Tx) error { return tx.PutLeaseState("s", 1, []byte("late")) })
	if code := sojourn.CodeOf(err); code != sojourn.CodeWorkspaceExpired {
		t.Errorf("late state: code %q (%v), want workspace_expired", code, err)
	}
}

func testLeaseWorked(t *testing.T, open Open) {
	s := open(t, nil)
	create(t, s, "s")
	_, run := submit(t, s, "s", 1)
	worked := func(epoch int64) bool {
		return read(t, s, func(tx *store.Tx) (bool, error) { return tx.LeaseWorked("s", epoch) })
	}
	decide(t, s, "s", func(d *sojourn.Decision) error {
		l, err := d.RequestLease("fake", "none", sojourn.Terms{})
		return errors.Join(err, d.HoldLease(l.Epoch, nil, ""), d.StartRun(run))
	})
	same(t, "worked before the prompt", worked(1), false)
	decide(t, s, "s", func(d *sojourn.Decision) error { return d.ActivateRun(run, 1) })
	same(t, "worked after the prompt", worked(1), true)
	same(t, "another lease worked", worked(2), false)
	same(t, "sealing runs", len(read(t, s, (*store.Tx).SealingRuns)), 0)
	decide(t, s, "s", func(d *sojourn.Decision) error { return d.FinishRun(run, sojourn.RunCompleted, "end_turn") })
	same(t, "sealing runs", read(t, s, (*store.Tx).SealingRuns)[0].ID, run)
}
