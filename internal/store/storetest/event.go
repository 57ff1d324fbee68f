package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// note appends n events to a session.
func note(ctx context.Context, s store.Store, id sojourn.SessionID, n int, data json.RawMessage) error {
	return s.Update(ctx, func(tx *store.Tx) error {
		f, err := tx.Facts(id)
		if err != nil {
			return err
		}
		d := f.Decide(tx.Now())
		for range n {
			d.Note(sojourn.EventDraft{Type: sojourn.EventAgentUpdate, Data: data})
		}
		return tx.Apply(d.Change())
	})
}

// log returns all events of a session, page by page.
func log(t testing.TB, s store.Store, id sojourn.SessionID, limit int) (all []sojourn.Event) {
	t.Helper()
	for after := int64(0); ; {
		page := read(t, s, func(tx *store.Tx) ([]sojourn.Event, error) { return tx.Events(id, after, limit) })
		if len(page) == 0 {
			return all
		}
		all, after = append(all, page...), page[len(page)-1].Seq
	}
}

func testEventsUnderContention(t *testing.T, open Open) {
	s := open(t, nil)
	const sessions, writers, rounds = 5, 64, 6
	for i := range sessions {
		create(t, s, sojourn.SessionID(fmt.Sprint("s", i)))
	}
	g, ctx := errgroup.WithContext(t.Context())
	for w := range writers {
		g.Go(func() error {
			for i := range rounds {
				id := sojourn.SessionID(fmt.Sprint("s", (w+i)%sessions))
				if err := note(ctx, s, id, 1+i%3, nil); err != nil {
					return err
				}
				if err := s.Update(ctx, func(tx *store.Tx) error { // the short way mixes with the long one
					last, err := tx.AppendEvents(id, make([]sojourn.EventDraft, 2)...)
					if got, _ := tx.LastSeq(id); got != last {
						return fmt.Errorf("last seq %d, appended up to %d", got, last)
					}
					return err
				}); err != nil {
					return err
				}
				s.Update(ctx, func(tx *store.Tx) error { // some fail, and leave no gap
					f, err := tx.Facts(id)
					if err != nil {
						return err
					}
					d := f.Decide(tx.Now())
					d.Note(sojourn.EventDraft{Type: sojourn.EventAgentLog})
					tx.Apply(d.Change())
					return fmt.Errorf("writer %d changed its mind", w)
				})
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	total := 0
	for i := range sessions {
		id := sojourn.SessionID(fmt.Sprint("s", i))
		events := log(t, s, id, 50)
		for i, e := range events {
			if e.Seq != int64(i+1) || e.Session != id {
				t.Fatalf("event %d of %s has seq %d of %s", i+1, id, e.Seq, e.Session)
			}
			if e.Type == sojourn.EventAgentLog {
				t.Errorf("event %d of %s was undone, but is there", i+1, id)
			}
		}
		last := read(t, s, func(tx *store.Tx) (int64, error) { return tx.LastSeq(id) })
		same(t, "last seq", last, int64(len(events)))
		total += len(events) - 1 // session.created
	}
	same(t, "events", total, writers*rounds*4)
}

func testEventPages(t *testing.T, open Open) {
	s := open(t, nil)
	create(t, s, "s")
	small := json.RawMessage(`{"text":"` + strings.Repeat("x", 100) + `"}`)
	large := json.RawMessage(`{"text":"` + strings.Repeat("y", 3<<20) + `"}`)
	huge := json.RawMessage(`{"text":"` + strings.Repeat("z", 9<<20) + `"}`)
	for _, batch := range []struct {
		n    int
		data json.RawMessage
	}{{5, small}, {2, large}, {1, huge}, {3, small}} {
		if err := note(t.Context(), s, "s", batch.n, batch.data); err != nil {
			t.Fatal(err)
		}
	}
	page := func(after int64, limit int) (seqs []int64) {
		for _, e := range read(t, s, func(tx *store.Tx) ([]sojourn.Event, error) { return tx.Events("s", after, limit) }) {
			seqs = append(seqs, e.Seq)
		}
		return seqs
	}
	same(t, "a page of three", page(1, 3), []int64{2, 3, 4})
	same(t, "a page up to the bytes", page(3, 0), []int64{4, 5, 6, 7})
	same(t, "one that is too large with its neighbour", page(7, 0), []int64{8})
	same(t, "one that is too large alone", page(8, 0), []int64{9})
	same(t, "the rest", page(9, 0), []int64{10, 11, 12})
	same(t, "behind the end", page(12, 0), []int64(nil))
	same(t, "far behind the end", page(1<<60, 0), []int64(nil))
	all := log(t, s, "s", 0)
	same(t, "the huge event", string(all[8].Data), string(huge))
	same(t, "no data", string(log(t, s, "s", 0)[0].Data[:1]), "{")
}

func testPublishing(t *testing.T, open Open) {
	var mu sync.Mutex
	published := map[sojourn.SessionID][]sojourn.Event{}
	s := open(t, func(id sojourn.SessionID, events []sojourn.Event) {
		mu.Lock()
		defer mu.Unlock()
		published[id] = append(published[id], events...)
	})
	const sessions, writers, rounds = 3, 16, 10
	for i := range sessions {
		create(t, s, sojourn.SessionID(fmt.Sprint("s", i)))
	}
	g, ctx := errgroup.WithContext(t.Context())
	for w := range writers {
		g.Go(func() error {
			for i := range rounds {
				if err := note(ctx, s, sojourn.SessionID(fmt.Sprint("s", (w+i)%sessions)), 2, json.RawMessage(`{"a":1}`)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for i := range sessions {
		id := sojourn.SessionID(fmt.Sprint("s", i))
		same(t, "what was published of "+string(id), published[id], log(t, s, id, 0))
	}
}
