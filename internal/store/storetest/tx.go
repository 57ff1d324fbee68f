package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

func key(id string) sojourn.Key {
	k := filled[sojourn.Key](len(id))
	k.ID, k.Project = sojourn.KeyID(id), sojourn.DefaultProject
	copy(k.Hash[:], id)
	return k
}

func testIsolation(t *testing.T, open Open) {
	s := open(t, nil)
	errMine := errors.New("my own mistake")
	const callers = 200
	var hooks atomic.Int64
	var g errgroup.Group
	for i := range callers {
		g.Go(func() error {
			err := s.Update(t.Context(), func(tx *store.Tx) error {
				tx.OnCommit(func() { hooks.Add(1) })
				if err := tx.PutKey(key(fmt.Sprintf("key-%03d", i))); err != nil {
					return err
				}
				switch i % 4 {
				case 1:
					return errMine
				case 2:
					panic("my own panic")
				case 3: // a mistake that only the database notices
					return tx.Apply(sojourn.Change{
						Session: sojourn.Session{ID: sojourn.SessionID(fmt.Sprint("s", i))}, Created: true,
						Turns: []sojourn.Turn{{ID: "t", Session: "nobody"}},
					})
				}
				return nil
			})
			switch {
			case i%4 == 0 && err != nil:
				return fmt.Errorf("caller %d: %w", i, err)
			case i%4 == 1 && !errors.Is(err, errMine):
				return fmt.Errorf("caller %d: %w, want its own error", i, err)
			case i%4 == 2 && (err == nil || !strings.Contains(err.Error(), "my own panic")):
				return fmt.Errorf("caller %d: %w, want its panic", i, err)
			case i%4 == 3 && !errors.Is(err, store.ErrConstraint):
				return fmt.Errorf("caller %d: %w, want ErrConstraint", i, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	keys := read(t, s, func(tx *store.Tx) ([]sojourn.Key, error) { return tx.Keys(sojourn.DefaultProject) })
	same(t, "keys", len(keys), callers/4)
	same(t, "hooks", hooks.Load(), int64(callers/4))
	for _, k := range keys {
		var i int
		fmt.Sscanf(string(k.ID), "key-%d", &i)
		if i%4 != 0 {
			t.Errorf("%s was undone, but is there", k.ID)
		}
	}
}

func testPanic(t *testing.T, open Open) {
	s := open(t, nil)
	for what, run := range map[string]func(context.Context, func(*store.Tx) error) error{"update": s.Update, "view": s.View} {
		err := run(t.Context(), func(*store.Tx) error { panic("oh") })
		if err == nil || !strings.Contains(err.Error(), "oh") {
			t.Errorf("%s: %v, want the panic", what, err)
		}
		if err := run(t.Context(), func(*store.Tx) error { return nil }); err != nil {
			t.Errorf("%s after a panic: %v", what, err)
		}
	}
	// A hook's panic is not the caller's failure, and stops nothing.
	update(t, s, func(tx *store.Tx) error {
		tx.OnCommit(func() { panic("hook") })
		return tx.PutKey(key("k"))
	})
	read(t, s, func(tx *store.Tx) (sojourn.Key, error) { return tx.Key("k") })
}

func testEndedContext(t *testing.T, open Open) {
	s := open(t, nil)
	cause := errors.New("the caller left")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	ran := false
	for what, run := range map[string]func(context.Context, func(*store.Tx) error) error{"update": s.Update, "view": s.View} {
		if err := run(ended, func(*store.Tx) error { ran = true; return nil }); !errors.Is(err, cause) {
			t.Errorf("%s: %v, want the cause", what, err)
		}
	}
	if ran {
		t.Error("a closure ran under a context that had ended")
	}

	// While another closure is being run, one that waits can still be abandoned;
	// the one that runs cannot, and tells its true outcome.
	running, release := make(chan struct{}), make(chan struct{})
	first, cancelFirst := context.WithCancel(t.Context())
	second, cancelSecond := context.WithCancel(t.Context())
	var outcome error
	var wg sync.WaitGroup
	wg.Go(func() {
		outcome = s.Update(first, func(tx *store.Tx) error {
			close(running)
			<-release // a closure must not wait; this test may
			return tx.PutKey(key("first"))
		})
	})
	<-running
	abandoned := make(chan error, 1)
	go func() {
		abandoned <- s.Update(second, func(tx *store.Tx) error { return tx.PutKey(key("second")) })
	}()
	cancelFirst()
	time.AfterFunc(5*time.Millisecond, cancelSecond)
	if err := <-abandoned; !errors.Is(err, context.Canceled) {
		t.Errorf("the one that waited: %v, want context.Canceled", err)
	}
	close(release)
	wg.Wait()
	if outcome != nil {
		t.Errorf("the one that ran: %v, want nil", outcome)
	}
	keys := read(t, s, func(tx *store.Tx) ([]sojourn.Key, error) { return tx.Keys(sojourn.DefaultProject) })
	same(t, "keys", keys, []sojourn.Key{key("first")})
}

func testViewCannotWrite(t *testing.T, open Open) {
	s := open(t, nil)
	if err := s.View(t.Context(), func(tx *store.Tx) error { return tx.PutKey(key("k")) }); err == nil {
		t.Error("a view wrote a key")
	}
	any := read(t, s, (*store.Tx).AnyKey)
	same(t, "any key", any, false)
}

func testReadYourWrites(t *testing.T, open Open) {
	s := open(t, nil)
	var g errgroup.Group
	for i := range 16 {
		g.Go(func() error {
			for j := range 20 {
				id := fmt.Sprintf("key-%d-%d", i, j)
				if err := s.Update(t.Context(), func(tx *store.Tx) error { return tx.PutKey(key(id)) }); err != nil {
					return err
				}
				if err := s.View(t.Context(), func(tx *store.Tx) error {
					_, err := tx.Key(sojourn.KeyID(id))
					return err
				}); err != nil {
					return fmt.Errorf("%s after its commit: %w", id, err)
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

func testClosed(t *testing.T, open Open) {
	s := open(t, nil)
	var g errgroup.Group
	for range 32 { // some are running, some are waiting, some are late
		g.Go(func() error {
			for {
				err := s.Update(t.Context(), func(tx *store.Tx) error { return tx.PutKey(key("k")) })
				if err == nil {
					err = s.View(t.Context(), func(tx *store.Tx) error { _, err := tx.AnyKey(); return err })
				}
				if sojourn.CodeOf(err) == sojourn.CodeUnavailable {
					return nil
				}
				if err != nil {
					return err
				}
			}
		})
	}
	time.Sleep(5 * time.Millisecond) // let them begin; any moment is right
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if err := g.Wait(); err != nil {
		t.Errorf("around close: %v, want unavailable", err)
	}
}
