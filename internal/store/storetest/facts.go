package storetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// whole is a change in which every field of every noun has a value.
func whole(id sojourn.SessionID) sojourn.Change {
	c := sojourn.Change{Created: true, Session: filled[sojourn.Session](100)}
	turn, run, lease := filled[sojourn.Turn](200), filled[sojourn.Run](300), filled[sojourn.Lease](400)
	question, checkpoint := filled[sojourn.Interaction](500), filled[sojourn.Checkpoint](600)
	c.Session.ID, turn.Session, run.Session, lease.Session, question.Session, checkpoint.Session = id, id, id, id, id, id
	run.Turn, run.State = turn.ID, sojourn.RunSealing
	lease.State, question.State, checkpoint.State = sojourn.LeaseHeld, sojourn.InteractionOpen, sojourn.CheckpointSealed
	question.Run, checkpoint.Run = run.ID, run.ID
	s := &c.Session
	s.LastSeq, s.LastEpoch, s.ActiveRun, s.LastRun, s.Head = 0, lease.Epoch, run.ID, run.ID, checkpoint.ID
	c.Turns, c.Runs, c.Leases = []sojourn.Turn{turn}, []sojourn.Run{run}, []sojourn.Lease{lease}
	c.Interactions, c.Checkpoints = []sojourn.Interaction{question}, []sojourn.Checkpoint{checkpoint}
	return c
}

func testEveryFieldIsKept(t *testing.T, open Open) {
	s := open(t, nil)
	c := whole("s")
	update(t, s, func(tx *store.Tx) error { return tx.Apply(c) })
	check := func(c sojourn.Change) {
		t.Helper()
		view(t, s, func(tx *store.Tx) error {
			f, err := tx.Facts("s")
			head := c.Checkpoints[0]
			head.Packs = nil
			same(t, "facts", f, sojourn.Facts{
				Session: c.Session, Lease: &c.Leases[0], Active: &c.Runs[0], Last: &c.Runs[0],
				Head: &head, Open: c.Interactions,
			})
			checkpoint, errCheckpoint := tx.Checkpoint(head.ID)
			same(t, "checkpoint", checkpoint, c.Checkpoints[0])
			turn, errTurn := tx.Turn(c.Turns[0].ID)
			same(t, "turn", turn, c.Turns[0])
			ofRun, errRun := tx.FactsOfRun(c.Runs[0].ID)
			same(t, "facts of run", ofRun, f)
			return errors.Join(err, errTurn, errRun, errCheckpoint)
		})
	}
	check(c)

	// Now every field that may change does.
	c.Created = false
	old := c.Session
	c.Session = filled[sojourn.Session](1100)
	c.Session.ID, c.Session.Project, c.Session.Contract, c.Session.CreatedAt = old.ID, old.Project, old.Contract, old.CreatedAt
	c.Session.LastSeq, c.Session.LastEpoch, c.Session.Head = old.LastSeq, old.LastEpoch, old.Head
	c.Session.ActiveRun, c.Session.LastRun = old.ActiveRun, old.LastRun
	run := c.Runs[0]
	c.Runs[0] = filled[sojourn.Run](1300)
	c.Runs[0].ID, c.Runs[0].Session, c.Runs[0].Turn, c.Runs[0].QueuedAt = run.ID, run.Session, run.Turn, run.QueuedAt
	c.Runs[0].State = sojourn.RunActive
	lease := c.Leases[0]
	c.Leases[0] = filled[sojourn.Lease](1400)
	c.Leases[0].Session, c.Leases[0].Epoch, c.Leases[0].RequestedAt = lease.Session, lease.Epoch, lease.RequestedAt
	c.Leases[0].State = sojourn.LeaseDraining
	c.Turns, c.Checkpoints, c.Interactions = nil, nil, nil
	update(t, s, func(tx *store.Tx) error { return tx.Apply(c) })
	whole := whole("s")
	c.Turns, c.Checkpoints, c.Interactions = whole.Turns, whole.Checkpoints, whole.Interactions
	check(c)
}

func testFactsFollowDecisions(t *testing.T, open Open) {
	s := open(t, nil)
	create(t, s, "s")
	_, run := submit(t, s, "s", 1)
	var want sojourn.Facts
	step := func(what string, fn func(*sojourn.Decision) error) {
		t.Helper()
		decide(t, s, "s", func(d *sojourn.Decision) error {
			err := fn(d)
			want = d.Facts()
			want.Session.LastSeq += int64(len(d.Change().Events))
			return err
		})
		got := read(t, s, func(tx *store.Tx) (sojourn.Facts, error) { return tx.Facts("s") })
		if want.Head != nil {
			want.Head.Packs = nil
		}
		if len(want.Open) == 0 {
			want.Open, got.Open = nil, nil
		}
		same(t, "facts after "+what, got, want)
	}
	step("start", func(d *sojourn.Decision) error { return d.StartRun(run) })
	step("lease", func(d *sojourn.Decision) error {
		l, err := d.RequestLease("fake", "none", sojourn.Terms{})
		return errors.Join(err, d.HoldLease(l.Epoch, []byte(`{"pid":1}`), ""))
	})
	step("activation", func(d *sojourn.Decision) error { return d.ActivateRun(run, 1) })
	step("question", func(d *sojourn.Decision) error {
		return d.Ask(sojourn.Interaction{ID: "i", Run: run, Kind: "question", Ref: "1", Request: []byte(`{}`)})
	})
	step("touch", func(d *sojourn.Decision) error { d.TouchLease(1); return nil })
	step("finish", func(d *sojourn.Decision) error { return d.FinishRun(run, sojourn.RunCompleted, "end_turn") })
	step("seal", func(d *sojourn.Decision) error {
		c, err := d.BeginCheckpoint("c", run, 1)
		c.Conversation, c.Workspace, c.Packs = sojourn.FidelityExact, sojourn.FidelityPortableTree, []string{"p1", "p2"}
		return errors.Join(err, d.Seal(c, sojourn.CaptureNotes{}))
	})
	step("archive", func(d *sojourn.Decision) error { return d.Archive() })
}

func testSessionsArePaged(t *testing.T, open Open) {
	s := open(t, nil)
	const n = 7
	for i := range n {
		id := sojourn.SessionID(fmt.Sprintf("s%d", i))
		create(t, s, id)
		if i%2 == 0 {
			decide(t, s, id, (*sojourn.Decision).Archive)
		}
	}
	list := func(q store.SessionQuery) (ids []sojourn.SessionID) {
		q.Limit = 2
		for {
			page := read(t, s, func(tx *store.Tx) ([]sojourn.Facts, error) { return tx.Sessions(q) })
			for _, f := range page {
				ids = append(ids, f.Session.ID)
				q.After = store.SessionCursor{CreatedAt: f.Session.CreatedAt, ID: f.Session.ID}
			}
			if len(page) < q.Limit {
				return ids
			}
		}
	}
	yes, no := true, false
	same(t, "all", list(store.SessionQuery{}), []sojourn.SessionID{"s6", "s5", "s4", "s3", "s2", "s1", "s0"})
	same(t, "archived", list(store.SessionQuery{Archived: &yes}), []sojourn.SessionID{"s6", "s4", "s2", "s0"})
	same(t, "not archived", list(store.SessionQuery{Archived: &no, Project: sojourn.DefaultProject}),
		[]sojourn.SessionID{"s5", "s3", "s1"})
	same(t, "of this contract", len(list(store.SessionQuery{Contract: sojourn.ContractCloud})), n)
	same(t, "of another contract", len(list(store.SessionQuery{Contract: sojourn.ContractExec})), 0)
	same(t, "of another project", len(list(store.SessionQuery{Project: "other"})), 0)
}

func testTurnsAndRunsArePaged(t *testing.T, open Open) {
	s := open(t, nil)
	create(t, s, "s")
	var turns []sojourn.TurnID
	var runs []sojourn.RunID
	for i := range 5 {
		turn, run := submit(t, s, "s", i)
		turns, runs = append(turns, turn), append(runs, run)
		decide(t, s, "s", func(d *sojourn.Decision) error { _, err := d.CancelRun(run); return err })
	}
	var gotTurns []sojourn.TurnID
	var gotRuns []sojourn.RunID
	view(t, s, func(tx *store.Tx) error {
		for after := int64(0); ; {
			page, err := tx.Turns("s", after, 2)
			for _, turn := range page {
				gotTurns, after = append(gotTurns, turn.ID), turn.Number
			}
			if err != nil || len(page) < 2 {
				return err
			}
		}
	})
	view(t, s, func(tx *store.Tx) error {
		for after := sojourn.RunID(""); ; {
			page, err := tx.Runs("s", after, 2)
			for _, run := range page {
				gotRuns, after = append(gotRuns, run.ID), run.ID
			}
			if err != nil || len(page) < 2 {
				return err
			}
		}
	})
	same(t, "turns", gotTurns, turns)
	same(t, "runs", gotRuns, runs)
	got := read(t, s, func(tx *store.Tx) (sojourn.Run, error) { return tx.RunOfTurn(turns[3]) })
	same(t, "run of turn", got.ID, runs[3])
}

func testMissingRowsAreNotFound(t *testing.T, open Open) {
	s := open(t, nil)
	view(t, s, func(tx *store.Tx) error {
		for what, err := range map[string]error{
			"facts":        second(tx.Facts("x")),
			"facts of run": second(tx.FactsOfRun("x")),
			"turn":         second(tx.Turn("x")),
			"run":          second(tx.Run("x")),
			"run of turn":  second(tx.RunOfTurn("x")),
			"runs after":   second(tx.Runs("x", "x", 1)),
			"interaction":  second(tx.Interaction("x")),
			"checkpoint":   second(tx.Checkpoint("x")),
			"lease":        second(tx.Lease("x", 1)),
			"last seq":     second(tx.LastSeq("x")),
			"key":          second(tx.Key("x")),
			"key by hash":  second(tx.KeyByHash([32]byte{1})),
			"work":         second(tx.Work("x", "x")),
		} {
			if code := sojourn.CodeOf(err); code != sojourn.CodeNotFound {
				t.Errorf("%s: code %q (%v), want not_found", what, code, err)
			}
		}
		events, err := tx.Events("x", 0, 0)
		if len(events) != 0 || err != nil {
			t.Errorf("events of nothing: %v, %v", events, err)
		}
		return nil
	})
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		if _, err := tx.AppendEvents("x", sojourn.EventDraft{}); sojourn.CodeOf(err) != sojourn.CodeNotFound {
			t.Errorf("append to nothing: %v, want not_found", err)
		}
		return tx.Apply(sojourn.Change{Session: sojourn.Session{ID: "x"}})
	})
	if code := sojourn.CodeOf(err); code != sojourn.CodeNotFound {
		t.Errorf("apply to nothing: code %q (%v), want not_found", code, err)
	}
}

func second[T any](_ T, err error) error { return err }
