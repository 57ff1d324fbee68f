package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// step is one call on the work table: what, on which piece of work, with which
// of the claims made so far, and when.
type step struct {
	Do    string
	ID    int
	Claim int
	In    time.Duration
}

var calls = []string{
	"schedule", "schedule", "cancel", "claim", "claim", "complete", "again", "release", "bury", "heartbeat", "check",
}

func drawSteps(rt *rapid.T) []step {
	one := rapid.Custom(func(rt *rapid.T) step {
		return step{
			Do:    rapid.SampledFrom(calls).Draw(rt, "do"),
			ID:    rapid.IntRange(0, 2).Draw(rt, "id"),
			Claim: rapid.IntRange(0, 5).Draw(rt, "claim"),
			In:    rapid.SampledFrom([]time.Duration{-time.Hour, -time.Minute, 0, time.Minute}).Draw(rt, "in"),
		}
	})
	return rapid.SliceOfN(one, 1, 40).Draw(rt, "steps")
}

// workModel is what the work table must hold, kept in the plainest way.
type workModel struct {
	kind   string
	now    time.Time
	rows   map[string]*modelRow
	claims []store.Work // all that were ever made, the latest last
	fence  int64
}

type modelRow struct {
	due, wanted time.Time
	attempt     int
	fence, rev  int64
	held, dead  bool
}

func testWorkModel(t *testing.T, open Open) {
	s := open(t, nil)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		steps := drawSteps(rt)
		n++
		kind := fmt.Sprint("kind", n)
		// One transaction for all steps: its closure is pure, and now stands still.
		err := s.Update(t.Context(), func(tx *store.Tx) error {
			m := &workModel{kind: kind, now: tx.Now(), rows: map[string]*modelRow{}}
			for i, st := range steps {
				if err := m.step(tx, st); err != nil {
					return fmt.Errorf("step %d %+v: %w", i, st, err)
				}
				if err := m.compare(tx); err != nil {
					return fmt.Errorf("after step %d %+v: %w", i, st, err)
				}
			}
			return nil
		})
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// step calls the store and the model, and compares the outcomes.
func (m *workModel) step(tx *store.Tx, st step) error {
	id, at := fmt.Sprint(st.ID), m.now.Add(st.In)
	switch st.Do {
	case "schedule":
		m.schedule(id, at)
		return tx.ScheduleWork(m.kind, id, at, nil)
	case "cancel":
		delete(m.rows, id)
		return tx.CancelWork(m.kind, id)
	case "claim":
		return m.claim(tx, st.In)
	}
	if len(m.claims) == 0 {
		return nil
	}
	w := m.claims[max(0, len(m.claims)-1-st.Claim)]
	row := m.rows[w.ID]
	holds := row != nil && row.held && row.fence == w.Fence
	var err error
	switch st.Do {
	case "complete":
		err = tx.CompleteWork(w)
	case "again":
		err = tx.AgainWork(w, at)
	case "release":
		err = tx.ReleaseWork(w, at, "why", true)
	case "bury":
		err = tx.BuryWork(w, "why")
	case "heartbeat":
		err = tx.HeartbeatWork(w.Kind, w.ID, w.Fence, st.In)
	case "check":
		err = tx.CheckFence(w.Kind, w.ID, w.Fence)
	}
	if !holds {
		if !errors.Is(err, store.ErrLost) {
			return fmt.Errorf("got %w, want ErrLost", err)
		}
		return nil
	}
	m.end(st.Do, w, row, at)
	return err
}

func (m *workModel) schedule(id string, at time.Time) {
	row := m.rows[id]
	if row == nil {
		row = &modelRow{}
		m.rows[id] = row
	}
	row.rev++
	row.wanted, row.dead = at, false
	if !row.held {
		row.due, row.attempt = at, 0
	}
}

func (m *workModel) claim(tx *store.Tx, lease time.Duration) error {
	got, err := tx.ClaimWork(m.kind, "me", lease, 2)
	if err != nil {
		return err
	}
	due := 0
	for _, row := range m.rows {
		if !row.dead && !row.due.After(m.now) {
			due++
		}
	}
	if len(got) != min(due, 2) {
		return fmt.Errorf("%d claims of %d that are due", len(got), due)
	}
	for _, w := range got {
		row := m.rows[w.ID]
		if row == nil || row.dead || row.due.After(m.now) {
			return fmt.Errorf("claimed %+v, which is not due", w)
		}
		if w.Fence <= m.fence {
			return fmt.Errorf("fence %d after %d", w.Fence, m.fence)
		}
		row.held, row.fence, row.due = true, w.Fence, m.now.Add(lease)
		row.attempt++
	}
	if len(got) > 0 {
		m.fence = got[0].Fence
	}
	m.claims = append(m.claims, got...)
	return nil
}

// end applies a call with a claim that holds.
func (m *workModel) end(do string, w store.Work, row *modelRow, at time.Time) {
	same := row.rev == w.Rev
	switch do {
	case "complete":
		if same {
			delete(m.rows, w.ID)
			return
		}
		row.held, row.attempt, row.due = false, 0, row.wanted
	case "again":
		row.held, row.attempt, row.due = false, 0, at
		if !same && row.wanted.Before(at) {
			row.due = row.wanted
		}
	case "release":
		row.held, row.attempt, row.due = false, w.Attempt, at
	case "bury":
		row.held, row.dead = false, true
	case "heartbeat":
		row.due = at
	}
}

// compare reads every row and returns how it differs from the model.
func (m *workModel) compare(tx *store.Tx) error {
	var earliest []time.Time
	for i := range 3 {
		id := fmt.Sprint(i)
		w, err := tx.Work(m.kind, id)
		row := m.rows[id]
		if row == nil {
			if sojourn.CodeOf(err) != sojourn.CodeNotFound {
				return fmt.Errorf("work %s is there: %+v, %w", id, w, err)
			}
			continue
		}
		if err != nil {
			return err
		}
		if !row.dead {
			earliest = append(earliest, row.due)
		}
		got := modelRow{w.DueAt, row.wanted, w.Attempt, row.fence, w.Rev, w.Owner != "", !w.DeadAt.IsZero()}
		if row.dead {
			got.due = row.due
		}
		if got != *row {
			return fmt.Errorf("work %s:\n got %+v\nwant %+v", id, got, *row)
		}
		if row.held && w.Fence != row.fence {
			return fmt.Errorf("work %s has fence %d, want %d", id, w.Fence, row.fence)
		}
	}
	next, any, err := tx.NextWork(m.kind)
	if err != nil || any != (len(earliest) > 0) {
		return fmt.Errorf("next work: %t, %w; %d rows", any, err, len(earliest))
	}
	if any && !next.Equal(slices.MinFunc(earliest, time.Time.Compare)) {
		return fmt.Errorf("next work at %v of %v", next, earliest)
	}
	return nil
}
