package engine_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/servertest"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// crashStore lets the process "die" at a chosen commit: from then on nothing is
// written, as if the process were gone. The commit itself either happened or
// not, and nobody in the process learns which.
type crashStore struct {
	store.Store
	at    int  // the number of the commit, from 1
	after bool // the commit happens before the death
	death chan struct{}

	mu    sync.Mutex
	armed bool // commits count
	n     int
	dead  bool
}

func (c *crashStore) arm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = true
}

var errDead = errors.New("the process is gone")

func (c *crashStore) Update(ctx context.Context, fn func(*store.Tx) error) error {
	c.mu.Lock()
	if c.dead {
		c.mu.Unlock()
		return errDead
	}
	if c.armed {
		c.n++
	}
	dies := c.armed && c.n == c.at
	if dies {
		c.dead = true
		defer close(c.death)
	}
	c.mu.Unlock()
	if !dies {
		return c.Store.Update(ctx, fn)
	}
	if c.after {
		if err := c.Store.Update(ctx, fn); err != nil {
			return err
		}
	}
	return errDead
}

func (c *crashStore) commits() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// mortal is a server's store whose second start may die at a commit: the first one
// makes the session.
type mortal struct {
	at     int
	after  bool
	starts int
	crash  *crashStore // of the second start
}

func (m *mortal) wrap(inner store.Store) store.Store {
	m.starts++
	if m.starts != 2 {
		return inner
	}
	m.crash = &crashStore{Store: inner, at: m.at, after: m.after, death: make(chan struct{})}
	return m.crash
}

// crashEverywhere tells a story without a death, at commit 0, and then with one before
// and after each of its commits: one in step of them, or all in make chaos. tell returns
// how many commits there were.
func crashEverywhere(t *testing.T, step int, tell func(t *testing.T, at int, after bool) int) {
	plain := tell(t, 0, false)
	t.Logf("the story has %d commits", plain)
	if os.Getenv("SOJOURN_KILLS") != "" { // make chaos
		step = 1
	}
	first := 1 + rand.N(step) // every commit has its turn
	t.Logf("from commit %d on every %d", first, step)
	for at := first; at <= plain; at += step {
		for _, after := range []bool{false, true} {
			name := "before " + itoa(int64(at))
			if after {
				name = "after " + itoa(int64(at))
			}
			t.Run(name, func(t *testing.T) { tell(t, at, after) })
		}
	}
}

// TestCrashAtEveryCommit kills the server before and after every single commit
// in the life of two turns with the loss of a sandbox between them, starts it
// again, and wants the same story every time (G1, G2, G4, G5).
func TestCrashAtEveryCommit(t *testing.T) { crashTurns(t, loseASandbox) }

// crashTurns is crashEverywhere for the story of a session with an agent.
func crashTurns(t *testing.T, tell func(*story)) {
	crashEverywhere(t, 4, func(t *testing.T, at int, after bool) int { return tellCrashStory(t, tell, at, after) })
}

// tellCrashStory tells the story with a death at a commit, or without one for 0,
// and returns how many commits there were.
func tellCrashStory(t *testing.T, tell func(*story), at int, after bool) int {
	m := &mortal{at: at, after: after}
	s := begin(t, servertest.Config{WrapStore: m.wrap})
	s.Restart()
	crash := m.crash
	crash.arm()
	restarted := make(chan struct{})
	done := make(chan struct{})
	go func() { // the next process starts when the first one is dead
		defer close(restarted)
		select {
		case <-crash.death:
			s.Kill()
		case <-done:
		}
	}()
	tell(s)
	close(done)
	<-restarted

	s.oneEnd()
	s.until("one sandbox", func() bool { return s.sandboxes() == 1 })
	return crash.commits()
}

// loseASandbox is the life of two turns with the loss of a sandbox between them.
func loseASandbox(s *story) {
	first := s.insist("k1", "@remember harbour Vlissingen", "@run echo one >> log", "@say one", "@sha .")
	s.want("first run", s.outlived(first), "completed")
	s.Fake.Kill(s.id)
	s.until("the loss to show", func() bool { return s.peek().Workspace.State != "attached" })
	second := s.insist("k2", "@recall harbour", "@run echo two >> log", "@cat log")
	s.want("second run", s.outlived(second), "completed")
	s.want("first said", strings.Join(s.said(first)[:1], "|"), "one")
	s.want("second said", strings.Join(s.said(second), "|"), "Vlissingen|one\ntwo\n")
	s.want("turns", s.count("wamp.turn.submitted"), 2)
	s.want("prompts given", s.count("wamp.run.active"), 2)
	s.want("continuation", s.session().Continuation.State, "live")
}

// insist submits a turn until it is accepted, under one idempotency key: the
// client does not know either whether the dead server took it.
func (s *story) insist(key string, lines ...string) (runID string) {
	s.Helper()
	s.until("the turn to be accepted", func() bool {
		var out struct{ Run run }
		ok := s.Try(http.MethodPost, s.path("/turns"), key, map[string]any{"input": strings.Join(lines, "\n")}, &out)
		runID = out.Run.ID
		return ok
	})
	return runID
}

// outlived waits for a run's end across the death of the server.
func (s *story) outlived(id string) string {
	s.Helper()
	var out struct{ Run run }
	s.until("the end of run "+id, func() bool {
		ok := s.Try(http.MethodGet, s.path("/runs/"+id), "", nil, &out)
		return ok && slices.Contains([]string{"completed", "failed", "crashed", "cancelled"}, out.Run.State)
	})
	return out.Run.State
}

// peek reads the session across the death of the server.
func (s *story) peek() session {
	s.Helper()
	var out struct{ Session session }
	s.until("the session", func() bool { return s.Try(http.MethodGet, s.path(""), "", nil, &out) })
	return out.Session
}
