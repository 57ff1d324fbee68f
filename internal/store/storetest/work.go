package storetest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sojourn-dev/sojourn/internal/store"
)

// claim takes work of a kind.
func claim(t testing.TB, s store.Store, kind string, lease time.Duration, limit int) (claims []store.Work) {
	t.Helper()
	update(t, s, func(tx *store.Tx) (err error) {
		claims, err = tx.ClaimWork(kind, "me", lease, limit)
		return err
	})
	return claims
}

// claimOne takes the one piece of work that is due.
func claimOne(t testing.TB, s store.Store, kind string, lease time.Duration) store.Work {
	t.Helper()
	claims := claim(t, s, kind, lease, 10)
	if len(claims) != 1 {
		t.Fatalf("%d claims, want 1", len(claims))
	}
	return claims[0]
}

func schedule(t testing.TB, s store.Store, kind, id string, in time.Duration, payload string) {
	t.Helper()
	update(t, s, func(tx *store.Tx) error {
		return tx.ScheduleWork(kind, id, tx.Now().Add(in), []byte(payload))
	})
}

func testWorkIsClaimedOnce(t *testing.T, open Open) {
	s := open(t, nil)
	const n = 100
	update(t, s, func(tx *store.Tx) error {
		for i := range n {
			if err := tx.ScheduleWork("a", fmt.Sprint(i), tx.Now().Add(-time.Duration(1+i)*time.Second), []byte(`{"n":1}`)); err != nil {
				return err
			}
		}
		return errors.Join(
			tx.ScheduleWork("a", "later", tx.Now().Add(time.Hour), nil),
			tx.ScheduleWork("b", "other kind", tx.Now(), nil))
	})
	first := claim(t, s, "a", time.Hour, 2)
	same(t, "the longest due", []string{first[0].ID, first[1].ID}, []string{"99", "98"})
	same(t, "payload", string(first[0].Payload), `{"n":1}`)
	same(t, "attempt", first[0].Attempt, 1)
	var claimed atomic.Int64
	var g errgroup.Group
	for range 16 {
		g.Go(func() error {
			for {
				var got []store.Work
				err := s.Update(t.Context(), func(tx *store.Tx) (err error) {
					got, err = tx.ClaimWork("a", "me", time.Hour, 3)
					return err
				})
				if err != nil || len(got) == 0 {
					return err
				}
				claimed.Add(int64(len(got)))
			}
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	same(t, "claims", claimed.Load(), int64(n-2))
	next, any := time.Time{}, false
	view(t, s, func(tx *store.Tx) (err error) {
		next, any, err = tx.NextWork("a")
		return err
	})
	if !any || time.Until(next) < 50*time.Minute {
		t.Errorf("next work at %v (%t), want in about an hour", next, any)
	}
}

func testFences(t *testing.T, open Open) {
	s := open(t, nil)
	schedule(t, s, "a", "1", 0, "")
	stale := claimOne(t, s, "a", -time.Second) // lapses at once
	fresh := claimOne(t, s, "a", time.Hour)
	if fresh.Fence <= stale.Fence || fresh.Attempt != 2 {
		t.Errorf("fence %d and attempt %d after fence %d", fresh.Fence, fresh.Attempt, stale.Fence)
	}
	every := func(what string, w store.Work, want error) {
		t.Helper()
		for name, do := range map[string]func(*store.Tx) error{
			"check":     func(tx *store.Tx) error { return tx.CheckFence(w.Kind, w.ID, w.Fence) },
			"heartbeat": func(tx *store.Tx) error { return tx.HeartbeatWork(w.Kind, w.ID, w.Fence, time.Hour) },
			"complete":  func(tx *store.Tx) error { return tx.CompleteWork(w) },
			"again":     func(tx *store.Tx) error { return tx.AgainWork(w, tx.Now()) },
			"release":   func(tx *store.Tx) error { return tx.ReleaseWork(w, tx.Now(), "", true) },
			"bury":      func(tx *store.Tx) error { return tx.BuryWork(w, "") },
		} {
			undo := errors.New("undone")
			err := s.Update(t.Context(), func(tx *store.Tx) error {
				if err := do(tx); err != nil {
					return err
				}
				return undo
			})
			if want == nil {
				want = undo
			}
			if !errors.Is(err, want) {
				t.Errorf("%s of %s: %v, want %v", name, what, err, want)
			}
			if want == undo {
				want = nil
			}
		}
	}
	every("the stale claim", stale, store.ErrLost)
	every("the fresh claim", fresh, nil)

	// A row that is made anew does not honour claims of its predecessor.
	update(t, s, func(tx *store.Tx) error { return tx.CompleteWork(fresh) })
	schedule(t, s, "a", "1", 0, "")
	every("a claim of the past, unclaimed", fresh, store.ErrLost)
	newest := claimOne(t, s, "a", time.Hour)
	every("a claim of the past, claimed", fresh, store.ErrLost)
	if newest.Fence <= fresh.Fence {
		t.Errorf("fence %d after %d", newest.Fence, fresh.Fence)
	}
	update(t, s, func(tx *store.Tx) error {
		err := tx.CancelWork("a", "1")
		same(t, "cancelled here", tx.WorkCancelled("a", "1"), true)
		return err
	})
	every("a cancelled claim", newest, store.ErrLost)
}

func testScheduleDuringWork(t *testing.T, open Open) {
	s := open(t, nil)
	for _, end := range []struct {
		name string
		do   func(tx *store.Tx, w store.Work) error
	}{
		{"complete", func(tx *store.Tx, w store.Work) error { return tx.CompleteWork(w) }},
		{"again", func(tx *store.Tx, w store.Work) error { return tx.AgainWork(w, tx.Now().Add(time.Hour)) }},
	} {
		schedule(t, s, end.name, "1", 0, `"first"`)
		w := claimOne(t, s, end.name, time.Hour)
		schedule(t, s, end.name, "1", -time.Second, `"second"`)
		if more := claim(t, s, end.name, time.Hour, 10); len(more) != 0 {
			t.Errorf("%s: work was claimed while it was being done", end.name)
		}
		update(t, s, func(tx *store.Tx) error { return end.do(tx, w) })
		again := claimOne(t, s, end.name, time.Hour)
		same(t, end.name+": payload", string(again.Payload), `"second"`)
		same(t, end.name+": attempt", again.Attempt, 1)
		update(t, s, func(tx *store.Tx) error { return end.do(tx, again) })
		same(t, end.name+": due once more", len(claim(t, s, end.name, time.Hour, 10)), 0)
	}
}

func testWorkRetries(t *testing.T, open Open) {
	s := open(t, nil)
	schedule(t, s, "a", "1", 0, "")
	for attempt := 1; attempt <= 3; attempt++ {
		w := claimOne(t, s, "a", time.Hour)
		same(t, "attempt", w.Attempt, attempt)
		update(t, s, func(tx *store.Tx) error { return tx.ReleaseWork(w, tx.Now(), fmt.Sprint("failure ", attempt), true) })
	}
	w := claimOne(t, s, "a", time.Hour)
	same(t, "last error", w.LastError, "failure 3")
	update(t, s, func(tx *store.Tx) error { return tx.ReleaseWork(w, tx.Now(), w.LastError, false) })
	w = claimOne(t, s, "a", time.Hour)
	same(t, "attempt after one that does not count", w.Attempt, 4)
	update(t, s, func(tx *store.Tx) error { return tx.BuryWork(w, "enough") })
	same(t, "due when dead", len(claim(t, s, "a", time.Hour, 10)), 0)
	dead := read(t, s, func(tx *store.Tx) ([]store.Work, error) { return tx.DeadWork(0) })
	if len(dead) != 1 || dead[0].ID != "1" || dead[0].LastError != "enough" || dead[0].DeadAt.IsZero() {
		t.Errorf("dead work %+v", dead)
	}
	view(t, s, func(tx *store.Tx) error {
		_, any, err := tx.NextWork("a")
		same(t, "dead work is due some time", any, false)
		return err
	})
	schedule(t, s, "a", "1", 0, "")
	w = claimOne(t, s, "a", time.Hour)
	same(t, "attempt after revival", w.Attempt, 1)
	same(t, "dead after revival", w.DeadAt, time.Time{})
}

func testOrphans(t *testing.T, open Open) {
	s := open(t, nil)
	schedule(t, s, "a", "orphan", 0, "")
	orphan := claimOne(t, s, "a", time.Hour)
	var released int64
	release := func(owner string) {
		update(t, s, func(tx *store.Tx) (err error) {
			released, err = tx.ReleaseOrphanedClaims(owner)
			return err
		})
	}
	if release("me"); released != 0 {
		t.Errorf("%d of our own claims were released", released)
	}
	release("its heir")
	if released == 0 {
		return // the store is shared: claims lapse instead
	}
	again := claimOne(t, s, "a", time.Hour)
	if again.Fence <= orphan.Fence || again.Attempt != 2 {
		t.Errorf("fence %d, attempt %d after fence %d", again.Fence, again.Attempt, orphan.Fence)
	}
}
