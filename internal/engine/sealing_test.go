package engine_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/servertest"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/sandbox/fake"
)

// sealingStore calls hook once, when a commit has left a run sealing. After die
// nothing is written any more, as if the process were gone.
type sealingStore struct {
	store.Store
	hook func(*sealingStore)
	once sync.Once

	mu   sync.Mutex
	dead bool
}

func (s *sealingStore) die() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = true
}

func (s *sealingStore) Update(ctx context.Context, fn func(*store.Tx) error) error {
	s.mu.Lock()
	dead := s.dead
	s.mu.Unlock()
	if dead {
		return errDead
	}
	sealing := false
	err := s.Store.Update(ctx, func(tx *store.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		runs, err := tx.SealingRuns()
		sealing = len(runs) > 0
		return err
	})
	if err == nil && sealing {
		s.once.Do(func() { s.hook(s) })
	}
	return err
}

// atSealing returns how to wrap the store of the first server of a test, so that
// hook is called when a run has begun to seal.
func atSealing(hook func(*sealingStore)) func(store.Store) store.Store {
	first := true
	return func(inner store.Store) store.Store {
		if !first {
			return inner
		}
		first = false
		return &sealingStore{Store: inner, hook: hook}
	}
}

// dyingAtSealing is a story whose server dies when its first run begins to seal.
func dyingAtSealing(t *testing.T, terms sojourn.Terms) (s *story, death <-chan struct{}) {
	dead := make(chan struct{})
	s = begin(t, servertest.Config{Terms: terms, WrapStore: atSealing(func(st *sealingStore) {
		st.die()
		close(dead)
	})})
	return s, dead
}

// sealed checks that the first run's work is in a checkpoint, and is carried.
func (s *story) sealed(id string) {
	s.Helper()
	s.want("run", s.ended(id).State, "completed")
	s.want("sealed", s.count("wamp.checkpoint.sealed"), 1)
	s.Fake.Kill(s.id)
	s.until("the loss to show", func() bool { return s.session().Workspace.State != "attached" })
	s.want("continuation", s.session().Continuation.State, "restorable")
	s.want("tree", s.said(s.completes("@cat f"))[0], "text\n")
	s.oneEnd()
}

// TestSealingOutlivesItsLease: the agent was done and its files are there, so a
// server that was down for longer than the hold still seals them (G5).
func TestSealingOutlivesItsLease(t *testing.T) {
	s, death := dyingAtSealing(t, sojourn.Terms{Hold: shortHold})
	id := s.submit("@write f text")
	<-death
	time.Sleep(shortHold + 100*time.Millisecond) // the hold lapses while nobody is there
	s.Kill()
	s.sealed(id)
	s.until("the sandbox to be destroyed", func() bool { return s.sandboxes() <= 1 })
}

// TestSealingWaitsForAnUnreachableSandbox: unreachable is not gone.
func TestSealingWaitsForAnUnreachableSandbox(t *testing.T) {
	s, death := dyingAtSealing(t, sojourn.Terms{})
	id := s.submit("@write f text")
	<-death
	s.Fake.SetFaults(fake.Faults{RecoverErr: errors.New("cannot tell now")})
	s.Kill()
	s.until("the run to be taken up", func() bool { return s.count("wamp.run.recovered") > 0 })
	time.Sleep(100 * time.Millisecond)
	s.Fake.SetFaults(fake.Faults{})
	s.sealed(id)
}

// TestRunWaitsForAnUnreachableSandbox: the agent works on in a sandbox that the
// next server cannot reach at once (RO-02).
func TestRunWaitsForAnUnreachableSandbox(t *testing.T) {
	s := begin(t, servertest.Config{})
	id := s.submit("@work 1000 50")
	s.speaks(id, "step 2 of 20")
	s.Stop()
	s.Fake.SetFaults(fake.Faults{RecoverErr: errors.New("cannot tell now")})
	s.Start()
	s.until("the run to be taken up", func() bool { return s.count("wamp.run.recovered") > 0 })
	time.Sleep(100 * time.Millisecond)
	s.Fake.SetFaults(fake.Faults{})
	s.want("run", s.ended(id).State, "completed")
	s.want("lines", len(s.said(id)), 20)
	s.want("sandboxes made", len(s.Fake.Created()), 1)
	s.oneEnd()
}

// TestWorkspaceIsNotReplacedWhileItIsSealed: the lease has ended, its sandbox
// holds files that no checkpoint has yet.
func TestWorkspaceIsNotReplacedWhileItIsSealed(t *testing.T) {
	silent := make(chan struct{})
	var s *story
	s = begin(t, servertest.Config{Terms: sojourn.Terms{Hold: shortHold}, WrapStore: atSealing(func(*sealingStore) {
		s.Fake.Freeze(s.id)
		close(silent)
	})})
	id := s.submit("@write f text")
	<-silent
	s.until("the hold to lapse", func() bool { return s.session().Workspace.State == "expired" })
	status, code := s.Call(http.MethodPut, s.path("/workspace"), nil, nil)
	s.want("status", status, http.StatusServiceUnavailable)
	s.want("code", code, "cloud_workspace_starting")
	s.Fake.Thaw(s.id)
	s.sealed(id)
}

// TestSealingIsATouch: a run that is being sealed has not ended, and keeps its
// lease.
func TestSealingIsATouch(t *testing.T) {
	row, _ := harness.RuntimeByID("script")
	row.Synced = false
	s := begin(t, servertest.Config{Runtimes: []harness.Runtime{row}, Terms: sojourn.Terms{Hold: 2 * time.Second}})
	id := s.submit("@say hi")
	s.speaks(id, "hi")
	noise := filepath.Join(s.Dir, "sandboxes", s.id+"-1", "home", ".script-agent", "noise")
	s.until("the seal", func() bool { // which waits for the conversation to rest, for three seconds
		if err := os.WriteFile(noise, []byte(time.Now().String()), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		return s.run(id).State == "completed"
	})
	s.want("expired", s.count("wamp.workspace.expired"), 0)
}
