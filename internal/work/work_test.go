package work_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/store/sqlite"
	"github.com/sojourn-dev/sojourn/internal/work"
)

// open opens a real database. In a bubble it must be closed there.
func open(t testing.TB) *sqlite.DB {
	t.Helper()
	db, err := sqlite.Open(t.Context(), sqlite.Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// start runs an engine, and returns what stops it and waits for it.
func start(t testing.TB, s store.Store, c work.Config) (stop func()) {
	t.Helper()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- work.New(s, c).Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v, want context.Canceled", err)
		}
	})
}

func only(kind string, h work.HandlerFunc, p work.Policy) map[string]work.HandlerPolicy {
	return map[string]work.HandlerPolicy{kind: {Handler: h, Policy: p}}
}

func schedule(t testing.TB, s store.Store, kind, id string, in time.Duration, payload any) {
	t.Helper()
	if err := s.Update(t.Context(), func(tx *store.Tx) error {
		return work.Schedule(tx, work.Key{Kind: kind, ID: id}, tx.Now().Add(in), payload)
	}); err != nil {
		t.Fatal(err)
	}
}

// gone reports whether there is no such work.
func row(t testing.TB, s store.Store, kind, id string) (w store.Work, there bool) {
	t.Helper()
	err := s.View(t.Context(), func(tx *store.Tx) (err error) {
		w, err = tx.Work(kind, id)
		return err
	})
	return w, err == nil
}

// recorder notes when its handler ran.
type recorder struct {
	mu   sync.Mutex
	runs []time.Duration
	from time.Time
}

func (r *recorder) note() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs = append(r.runs, time.Since(r.from))
	return len(r.runs)
}

func (r *recorder) times() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprint(r.runs)
}

func TestTimerRunsWhenDueAndNotBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t)
		defer db.Close()
		r := &recorder{from: time.Now()}
		stop := start(t, db, work.Config{Handlers: only("timer", func(_ context.Context, c work.Claim) (work.Next, error) {
			r.note()
			if string(c.Payload) != `{"n":7}` {
				t.Errorf("payload %s", c.Payload)
			}
			return work.Done(), nil
		}, work.Policy{})})
		defer stop()
		schedule(t, db, "timer", "1", 25*time.Minute, map[string]int{"n": 7})
		time.Sleep(10 * time.Minute)
		schedule(t, db, "timer", "1", 25*time.Minute, map[string]int{"n": 7}) // moved, as a touch does
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if got, want := r.times(), "[35m0s]"; got != want {
			t.Errorf("ran at %s, want %s", got, want)
		}
		if w, there := row(t, db, "timer", "1"); there {
			t.Errorf("the work is still there: %+v", w)
		}
	})
}

func TestSleepingEngineIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t)
		defer db.Close()
		r := &recorder{from: time.Now()}
		stop := start(t, db, work.Config{Poll: time.Hour, Handlers: only("job", func(context.Context, work.Claim) (work.Next, error) {
			r.note()
			return work.Done(), nil
		}, work.Policy{})})
		defer stop()
		time.Sleep(7 * time.Second)
		schedule(t, db, "job", "later", 2*time.Hour, nil) // nothing to wake for
		schedule(t, db, "job", "soon", time.Second, nil)
		schedule(t, db, "job", "now", 0, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got, want := r.times(), "[7s 8s]"; got != want {
			t.Errorf("ran at %s, want %s", got, want)
		}
	})
}

func TestFailedWorkBacksOffAndIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t)
		defer db.Close()
		r := &recorder{from: time.Now()}
		stop := start(t, db, work.Config{Handlers: only("job", func(_ context.Context, c work.Claim) (work.Next, error) {
			if n := r.note(); n != c.Attempt {
				t.Errorf("attempt %d in run %d", c.Attempt, n)
			}
			if c.Attempt == 2 {
				panic("poison")
			}
			return work.Done(), errors.New("no luck")
		}, work.Policy{MaxAttempts: 3, Backoff: func(attempt int) time.Duration { return time.Duration(attempt) * time.Minute }})})
		defer stop()
		schedule(t, db, "job", "1", 0, nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		if got, want := r.times(), "[0s 1m0s 3m0s]"; got != want {
			t.Errorf("ran at %s, want %s", got, want)
		}
		if w, there := row(t, db, "job", "1"); !there || w.DeadAt.IsZero() || w.LastError != "no luck" {
			t.Errorf("the work: %+v, %t; want it dead", w, there)
		}
	})
}

func TestWorkRunsAgainWhenItSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t)
		defer db.Close()
		r := &recorder{from: time.Now()}
		stop := start(t, db, work.Config{Handlers: only("gc", func(_ context.Context, c work.Claim) (work.Next, error) {
			r.note()
			if c.Attempt != 1 {
				t.Errorf("attempt %d", c.Attempt)
			}
			return work.Again(time.Now().Add(time.Hour)), nil
		}, work.Policy{})})
		defer stop()
		schedule(t, db, "gc", "global", 0, nil)
		time.Sleep(150 * time.Minute)
		synctest.Wait()
		if got, want := r.times(), "[0s 1h0m0s 2h0m0s]"; got != want {
			t.Errorf("ran at %s, want %s", got, want)
		}
	})
}

func TestLongWorkKeepsItsClaimAndBlocksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t)
		defer db.Close()
		r := &recorder{from: time.Now()}
		var running, most atomic.Int64
		handlers := only("run", func(ctx context.Context, c work.Claim) (work.Next, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(90 * time.Minute)
			return work.Done(), context.Cause(ctx)
		}, work.Policy{Lease: 15 * time.Second})
		handlers["timer"] = work.HandlerPolicy{Handler: work.HandlerFunc(func(context.Context, work.Claim) (work.Next, error) {
			r.note()
			return work.Done(), nil
		})}
		stop := start(t, db, work.Config{Handlers: handlers})
		defer stop()
		for i := range 50 {
			schedule(t, db, "run", fmt.Sprint(i), 0, nil)
		}
		time.Sleep(time.Minute)
		schedule(t, db, "timer", "1", time.Minute, nil)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if got, want := r.times(), "[2m0s]"; got != want {
			t.Errorf("the timer ran at %s, want %s", got, want)
		}
		if most.Load() != 50 || running.Load() != 0 {
			t.Errorf("%d ran at once, %d still run", most.Load(), running.Load())
		}
		for i := range 50 {
			if w, there := row(t, db, "run", fmt.Sprint(i)); there {
				t.Errorf("the work is still there: %+v", w)
			}
		}
	})
}

func TestConcurrencyIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t)
		defer db.Close()
		var running, most, total atomic.Int64
		stop := start(t, db, work.Config{Handlers: only("job", func(context.Context, work.Claim) (work.Next, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(time.Second)
			total.Add(1)
			return work.Done(), nil
		}, work.Policy{Concurrency: 3})})
		defer stop()
		for i := range 10 {
			schedule(t, db, "job", fmt.Sprint(i), 0, nil)
		}
		time.Sleep(4*time.Second + time.Millisecond) // 3 + 3 + 3 + 1
		synctest.Wait()
		if most.Load() != 3 || total.Load() != 10 {
			t.Errorf("%d at once, %d in all; want 3 and 10 after 4 s", most.Load(), total.Load())
		}
	})
}

func TestScheduleDuringWorkRunsItAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t)
		defer db.Close()
		r := &recorder{from: time.Now()}
		stop := start(t, db, work.Config{Handlers: only("lease", func(ctx context.Context, c work.Claim) (work.Next, error) {
			if r.note() > 1 {
				return work.Done(), nil
			}
			err := c.Commit(ctx, db, func(tx *store.Tx) error {
				return work.Schedule(tx, c.Key, tx.Now().Add(10*time.Minute), nil)
			})
			return work.Done(), err
		}, work.Policy{})})
		defer stop()
		schedule(t, db, "lease", "1", 0, nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		if got, want := r.times(), "[0s 10m0s]"; got != want {
			t.Errorf("ran at %s, want %s", got, want)
		}
	})
}

func TestCancelEndsTheHandlerAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t)
		defer db.Close()
		r := &recorder{from: time.Now()}
		var cause, commit error
		stop := start(t, db, work.Config{Handlers: only("run", func(ctx context.Context, c work.Claim) (work.Next, error) {
			<-ctx.Done()
			cause = context.Cause(ctx)
			commit = c.Commit(context.WithoutCancel(ctx), db, func(*store.Tx) error { t.Error("written without the fence"); return nil })
			r.note()
			return work.Done(), cause
		}, work.Policy{})})
		defer stop()
		schedule(t, db, "run", "1", 0, nil)
		time.Sleep(time.Second)
		if err := db.Update(t.Context(), func(tx *store.Tx) error { return work.Cancel(tx, work.Key{Kind: "run", ID: "1"}) }); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got, want := r.times(), "[1s]"; got != want {
			t.Errorf("ended at %s, want %s", got, want)
		}
		if !errors.Is(cause, work.ErrLost) || !errors.Is(commit, work.ErrLost) {
			t.Errorf("cause %v, commit %v; want ErrLost", cause, commit)
		}
	})
}

func TestHandlerMayCancelItsOwnWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t)
		defer db.Close()
		var after error
		finished := false
		stop := start(t, db, work.Config{Handlers: only("run", func(ctx context.Context, c work.Claim) (work.Next, error) {
			err := c.Commit(ctx, db, func(tx *store.Tx) error { return tx.CancelWork(c.Kind, c.ID) })
			if err != nil {
				t.Errorf("commit: %v", err)
			}
			time.Sleep(time.Hour) // cleaning up takes longer than any claim
			after, finished = context.Cause(ctx), true
			return work.Done(), nil
		}, work.Policy{})})
		defer stop()
		schedule(t, db, "run", "1", 0, nil)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if after != nil || !finished {
			t.Errorf("finished %t with %v, want its context to go on", finished, after)
		}
	})
}

// failing is a store whose updates fail while it is told to.
type failing struct {
	store.Store
	broken atomic.Bool
}

var errBroken = errors.New("the disk is full")

func (f *failing) Update(ctx context.Context, fn func(*store.Tx) error) error {
	if f.broken.Load() {
		return errBroken
	}
	return f.Store.Update(ctx, fn)
}

func TestHandlerEndsBeforeItsClaimLapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t)
		defer db.Close()
		f := &failing{Store: db}
		const lease = 15 * time.Second
		var ended time.Duration
		var cause error
		r := &recorder{from: time.Now()}
		stop := start(t, f, work.Config{Handlers: only("run", func(ctx context.Context, c work.Claim) (work.Next, error) {
			if r.note() > 1 {
				return work.Done(), nil
			}
			<-ctx.Done()
			ended, cause = time.Since(r.from), context.Cause(ctx)
			return work.Done(), cause
		}, work.Policy{Lease: lease})})
		defer stop()
		schedule(t, db, "run", "1", 0, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if ended != 0 {
			t.Fatalf("ended after %v while heartbeats got through: %v", ended, cause)
		}
		f.broken.Store(true)
		before, _ := row(t, db, "run", "1")
		time.Sleep(time.Minute)
		synctest.Wait()
		lapse := before.DueAt.Sub(r.from)
		if !errors.Is(cause, work.ErrLost) || ended >= lapse || ended < time.Minute {
			t.Errorf("ended after %v with %v, want before %v with ErrLost", ended, cause, lapse)
		}
		f.broken.Store(false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if w, there := row(t, db, "run", "1"); there {
			t.Errorf("it was not taken up again: %+v, ran at %s", w, r.times())
		}
	})
}

func TestStoppingGivesWorkBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t)
		defer db.Close()
		stop := start(t, db, work.Config{Handlers: only("run", func(ctx context.Context, c work.Claim) (work.Next, error) {
			<-ctx.Done()
			return work.Done(), context.Cause(ctx)
		}, work.Policy{MaxAttempts: 1})})
		schedule(t, db, "run", "1", 0, nil)
		time.Sleep(time.Second)
		stop()
		w, there := row(t, db, "run", "1")
		if !there || w.Owner != "" || w.Attempt != 0 || w.DueAt.After(time.Now()) || !w.DeadAt.IsZero() {
			t.Errorf("the work: %+v, %t; want it due, with no attempt counted", w, there)
		}
	})
}

func TestOrphanedWorkIsTakenUpAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t)
		defer db.Close()
		schedule(t, db, "run", "1", 0, nil)
		schedule(t, db, "poison", "1", 0, nil)
		for range 2 { // a process that was killed twice, say
			if err := db.Update(t.Context(), func(tx *store.Tx) error {
				_, err := tx.ReleaseOrphanedClaims("new")
				_, err1 := tx.ClaimWork("run", "old", time.Hour, 1)
				_, err2 := tx.ClaimWork("poison", "old", time.Hour, 1)
				return errors.Join(err, err1, err2)
			}); err != nil {
				t.Fatal(err)
			}
		}
		r := &recorder{from: time.Now()}
		handlers := only("run", func(_ context.Context, c work.Claim) (work.Next, error) {
			r.note()
			return work.Done(), nil
		}, work.Policy{})
		handlers["poison"] = work.HandlerPolicy{Policy: work.Policy{MaxAttempts: 2}, Handler: work.HandlerFunc(
			func(context.Context, work.Claim) (work.Next, error) {
				t.Error("the poison was run: it would kill this process too")
				return work.Done(), nil
			})}
		stop := start(t, db, work.Config{Handlers: handlers})
		defer stop()
		synctest.Wait()
		if got, want := r.times(), "[0s]"; got != want {
			t.Errorf("ran at %s, want %s", got, want)
		}
		if w, _ := row(t, db, "poison", "1"); w.DeadAt.IsZero() {
			t.Errorf("the poison was not given up: %+v", w)
		}
	})
}

func TestOneHandlerPerKeyInAProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t)
		defer db.Close()
		var running, most, total atomic.Int64
		stop := start(t, db, work.Config{Handlers: only("run", func(ctx context.Context, c work.Claim) (work.Next, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			total.Add(1)
			time.Sleep(10 * time.Minute) // deaf to its context
			return work.Done(), nil
		}, work.Policy{})})
		defer stop()
		for range 3 {
			schedule(t, db, "run", "1", 0, nil)
			time.Sleep(time.Minute)
			if err := db.Update(t.Context(), func(tx *store.Tx) error { return tx.CancelWork("run", "1") }); err != nil {
				t.Fatal(err)
			}
		}
		schedule(t, db, "run", "1", 0, nil)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if most.Load() != 1 || running.Load() != 0 || total.Load() != 2 {
			t.Errorf("%d at once, %d still running, %d in all; want 1, 0, 2", most.Load(), running.Load(), total.Load())
		}
	})
}
