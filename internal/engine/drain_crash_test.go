package engine_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/servertest"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// TestCrashAtEveryCommitOfADrain kills the server before and after every single
// commit while a session is suspended, goes on, and is rotated with its
// processes. Whatever dies, files and conversation are carried; processes are,
// or the log says that they were not (G1, G2, G3, G6, G7).
func TestCrashAtEveryCommitOfADrain(t *testing.T) { crashTurns(t, suspendAndRotate) }

func suspendAndRotate(s *story) {
	first := s.insist("k1", "@remember harbour Veere", "@run echo one >> log")
	s.want("first run", s.outlived(first), "completed")
	s.insistOn("/suspend", nil)
	s.until("the sandbox to be given back", func() bool { return s.sandboxes() == 0 })
	second := s.insist("k2", "@recall harbour", "@run echo two >> log")
	s.want("second run", s.outlived(second), "completed")
	s.insistOn("/rotate", map[string]any{"processes": true})
	third := s.insist("k3", "@recall harbour", "@cat log")
	s.want("third run", s.outlived(third), "completed")

	s.want("second said", s.said(second)[0], "Veere")
	s.want("third said", strings.Join(s.said(third), "|"), "Veere|one\ntwo\n")
	s.want("turns", s.count("wamp.turn.submitted"), 3)
	s.want("prompts given", s.count("wamp.run.active"), 3)
	s.want("continuation", s.session().Continuation.State, "live")
	s.want("reason", s.session().Continuation.Reason, "")
	s.until("the place of snapshots to be empty", func() bool {
		left, err := os.ReadDir(filepath.Join(s.Dir, "snapshots"))
		return err == nil && len(left) == 0 || os.IsNotExist(err)
	})
}

// insistOn repeats a command on the session until it is accepted.
func (s *story) insistOn(command string, body any) {
	s.Helper()
	s.until(command+" to be accepted", func() bool {
		return s.Try(http.MethodPost, s.operator(command), "", body, new(facts))
	})
}

// doubtStore dies with the commit that binds a sandbox with saved processes to its
// lease: that happens, and who asked for it learns of an error. dead is closed when
// something else is asked of the store after that.
type doubtStore struct {
	store.Store
	dead chan struct{}

	mu   sync.Mutex
	held bool
	once sync.Once
}

func (c *doubtStore) Update(ctx context.Context, fn func(*store.Tx) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held {
		c.once.Do(func() { close(c.dead) })
		return errDead
	}
	if err := c.Store.Update(ctx, fn); err != nil {
		return err
	}
	err := c.View(ctx, func(tx *store.Tx) error {
		open, err := tx.OpenLeases()
		for _, l := range open {
			c.held = c.held || l.Resumed != 0
		}
		return err
	})
	if c.held {
		return errDead
	}
	return err
}

// TestNoSandboxIsReplacedOnceItMayBeHeld: the lease may say that its sandbox is the
// one in which the processes go on, even if the commit that says so has failed. A
// server that made another one in its place and died before it was restored would
// leave an empty sandbox that passes for the resumed one (G5).
func TestNoSandboxIsReplacedOnceItMayBeHeld(t *testing.T) {
	doubt := &doubtStore{dead: make(chan struct{})}
	starts := 0
	s := begin(t, servertest.Config{WrapStore: func(inner store.Store) store.Store {
		if starts++; starts != 1 {
			return inner
		}
		doubt.Store = inner
		return doubt
	}})
	s.completes("@remember harbour Veere", "@write log one")
	s.Must(http.MethodPost, s.operator("/suspend"), nil, nil)
	second := s.submit("@recall harbour", "@cat log")
	<-doubt.dead // what the flight does when it has failed has begun
	s.Kill()

	s.want("second run", s.outlived(second), "completed")
	s.want("said", strings.Join(s.said(second), "|"), "Veere|one\n")
	s.want("sandboxes made", len(s.Fake.Created()), 2)
	s.want("agents started", s.starts(), 1)
	s.oneEnd()
}
