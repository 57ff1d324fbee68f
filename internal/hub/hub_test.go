package hub_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/hub"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/store/sqlite"
)

const session sojourn.SessionID = "s"

// bench is a store whose events reach a hub, unless they are to be lost.
type bench struct {
	db    *sqlite.DB
	hub   *hub.Hub
	lose  atomic.Bool
	views atomic.Int64
}

// counting counts what the hub reads.
type counting struct {
	store.Store
	views *atomic.Int64
}

// View counts the call.
func (c counting) View(ctx context.Context, fn func(*store.Tx) error) error {
	c.views.Add(1)
	return c.Store.View(ctx, fn)
}

func open(t testing.TB, c hub.Config) *bench {
	t.Helper()
	b := &bench{}
	var err error
	b.db, err = sqlite.Open(t.Context(), sqlite.Config{
		Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
		OnEvents: func(id sojourn.SessionID, events []sojourn.Event) {
			if !b.lose.Load() {
				b.hub.Publish(id, events)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Store = counting{b.db, &b.views}
	b.hub = hub.New(c)
	err = b.db.Update(t.Context(), func(tx *store.Tx) error {
		d, err := sojourn.Create(tx.Now(), sojourn.NewSession{ID: session}) // event 1
		if err != nil {
			return err
		}
		return tx.Apply(d.Change())
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// append appends n events.
func (b *bench) append(ctx context.Context, n int, data json.RawMessage) error {
	return b.db.Update(ctx, func(tx *store.Tx) error {
		f, err := tx.Facts(session)
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

// follow reads until seq last, and fails on a gap or a repetition.
func (b *bench) follow(ctx context.Context, after, last int64) error {
	c := b.hub.Subscribe(session, after)
	defer c.Close()
	for after < last {
		frames, err := c.Next(ctx)
		if err != nil {
			return err
		}
		for _, f := range frames {
			if f.Event.Seq != after+1 {
				return fmt.Errorf("event %d after %d", f.Event.Seq, after)
			}
			after++
		}
		if c.After() != after {
			return fmt.Errorf("cursor says %d, want %d", c.After(), after)
		}
	}
	return nil
}

// TestReadersAreIndependentAndComplete is case EV-08, with EV-01: readers come
// and go at any place while events are appended.
func TestReadersAreIndependentAndComplete(t *testing.T) {
	for _, ringBytes := range []int{1, 2000, 0} {
		t.Run(fmt.Sprint(ringBytes), func(t *testing.T) {
			b := open(t, hub.Config{RingBytes: ringBytes, PageSize: 7})
			defer b.db.Close()
			const last = 1 + 300
			var g errgroup.Group
			for range 20 {
				g.Go(func() error {
					for after := int64(0); after < last; { // cut off at random, resumed where it was
						until := min(last, after+1+rand.Int64N(120))
						if err := b.follow(t.Context(), after, until); err != nil {
							return err
						}
						after = until
					}
					return nil
				})
			}
			for n := 1; n < last; n += 3 {
				if err := b.append(t.Context(), 3, nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := g.Wait(); err != nil {
				t.Error(err)
			}
			if n := b.hub.Readers(); n != 0 {
				t.Errorf("%d readers are left", n)
			}
		})
	}
}

// TestStalledReaderDelaysNobody is case EV-11: the one that does not read costs
// neither time nor memory, and reads everything when it goes on.
func TestStalledReaderDelaysNobody(t *testing.T) {
	b := open(t, hub.Config{RingBytes: 16 << 10})
	defer b.db.Close()
	stalled := b.hub.Subscribe(session, 0)
	defer stalled.Close()
	const last = 1 + 2000
	done := make(chan error, 1)
	go func() { done <- b.follow(t.Context(), 0, last) }()
	for n := 1; n < last; n += 100 {
		if err := b.append(t.Context(), 100, json.RawMessage(`{"text":"`+strings.Repeat("x", 200)+`"}`)); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	for after := int64(0); after < last; {
		frames, err := stalled.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range frames {
			if after++; f.Event.Seq != after {
				t.Fatalf("the stalled reader got %d, want %d", f.Event.Seq, after)
			}
		}
	}
}

func TestReadersAtTheHeadDoNotReadTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, hub.Config{Poll: time.Hour})
		defer b.db.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		for range 50 {
			g.Go(func() error { return b.follow(ctx, 1, 101) })
		}
		synctest.Wait()
		before := b.views.Load()
		for range 100 {
			if err := b.append(ctx, 1, nil); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		cancel()
		if n := b.views.Load() - before; n != 0 {
			t.Errorf("%d reads of the store for what the ring held", n)
		}
	})
}

func TestLostPublishIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, hub.Config{})
		defer b.db.Close()
		c := b.hub.Subscribe(session, 0)
		defer c.Close()
		next := func(want ...int64) {
			t.Helper()
			var got []int64
			for len(got) < len(want) {
				frames, err := c.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range frames {
					got = append(got, f.Event.Seq)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("got %v, want %v", got, want)
			}
		}
		add := func(lose bool) {
			t.Helper()
			b.lose.Store(lose)
			if err := b.append(t.Context(), 1, nil); err != nil {
				t.Fatal(err)
			}
		}
		begun := time.Now()
		next(1)
		if took := time.Since(begun); took != 0 {
			t.Errorf("what was there came after %v", took)
		}
		add(true) // 2 is lost; the poll finds it
		next(2)
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("noticed after %v, want 2s at most", took)
		}
		add(true)
		add(false) // 3 is lost; 4 tells
		begun = time.Now()
		next(3, 4)
		if took := time.Since(begun); took != 0 {
			t.Errorf("noticed after %v, want at once", took)
		}
		add(false)
		next(5)
		add(true)
		add(false) // 6 is lost, and would leave a gap in the ring
		begun = time.Now()
		next(6, 7)
		if took := time.Since(begun); took != 0 {
			t.Errorf("noticed after %v, want at once", took)
		}
	})
}

func TestWaitingReadersPollOncePerSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, hub.Config{Poll: 2 * time.Second})
		defer b.db.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		for range 100 {
			g.Go(func() error { return b.follow(ctx, 1, 100) })
		}
		synctest.Wait()
		before := b.views.Load()
		time.Sleep(time.Minute)
		if n := b.views.Load() - before; n < 28 || n > 31 {
			t.Errorf("%d reads in a minute by 100 waiting readers, want 30", n)
		}
		cancel()
		if err := g.Wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("Next = %v, want context.Canceled", err)
		}
	})
}

func TestCursorBehindTheHeadWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, hub.Config{})
		defer b.db.Close()
		done := make(chan error, 1)
		go func() { done <- b.follow(t.Context(), 3, 4) }() // the head is 1
		synctest.Wait()
		if err := b.append(t.Context(), 2, nil); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("ended early: %v", err)
		default:
		}
		if err := b.append(t.Context(), 1, nil); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestHugeEventArrivesWhole(t *testing.T) {
	b := open(t, hub.Config{})
	defer b.db.Close()
	done := make(chan error, 1)
	go func() { done <- b.follow(t.Context(), 0, 4) }()
	for _, size := range []int{65_537, 6 << 20, 10} {
		if err := b.append(t.Context(), 1, json.RawMessage(`{"text":"`+strings.Repeat("x", size)+`"}`)); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestReadersShareEncodedForms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, hub.Config{})
		defer b.db.Close()
		var made atomic.Int64
		var g errgroup.Group
		for range 100 {
			g.Go(func() error {
				c := b.hub.Subscribe(session, 1)
				defer c.Close()
				frames, err := c.Next(t.Context())
				if err != nil {
					return err
				}
				for _, name := range []string{"json", "sse", "json", "text"} {
					got := string(frames[0].Encoded(name, func(e sojourn.Event) []byte {
						made.Add(1)
						return fmt.Append(nil, name, e.Seq)
					}))
					if want := name + "2"; got != want {
						return fmt.Errorf("encoded %q, want %q", got, want)
					}
				}
				return nil
			})
		}
		synctest.Wait()
		if err := b.append(t.Context(), 1, nil); err != nil {
			t.Error(err)
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		if n := made.Load(); n != 3 {
			t.Errorf("%d encodings of one event in 3 forms", n)
		}
	})
}

func TestFailingStoreIsReportedAndSurvived(t *testing.T) {
	b := open(t, hub.Config{})
	c := b.hub.Subscribe(session, 0)
	defer c.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Next(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Next = %v, want context.Canceled", err)
	}
	if frames, err := c.Next(t.Context()); err != nil || len(frames) != 1 {
		t.Errorf("Next after that: %v, %v", frames, err)
	}
	if err := b.db.Close(); err != nil {
		t.Fatal(err)
	}
	late := b.hub.Subscribe(session, 0)
	defer late.Close()
	if _, err := late.Next(t.Context()); sojourn.CodeOf(err) != sojourn.CodeUnavailable {
		t.Errorf("Next of a closed store = %v, want unavailable", err)
	}
	late.Close()
	late.Close()
}
