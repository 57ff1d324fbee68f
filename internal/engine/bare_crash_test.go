package engine_test

import (
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/servertest"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// TestCrashAtEveryCommitOfALife kills the server before and after the commits in the
// life of a bare session that is rotated, paused and resumed, and wants the same story
// every time: each exec has run once, no file is lost, one sandbox at a time, no step
// is told twice.
func TestCrashAtEveryCommitOfALife(t *testing.T) {
	t.Parallel()
	plain := tellLife(t, 0, false)
	t.Logf("the story has %d commits", plain)
	step := 8
	if os.Getenv("SOJOURN_KILLS") != "" { // make chaos
		step = 1
	}
	for at := 1 + rand.N(step); at <= plain; at += step {
		for _, after := range []bool{false, true} {
			name := "before " + itoa(int64(at))
			if after {
				name = "after " + itoa(int64(at))
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				tellLife(t, at, after)
			})
		}
	}
}

// tellLife tells the story with a death at a commit, or without one for 0, and returns
// how many commits there were.
func tellLife(t *testing.T, at int, after bool) int {
	var crash *crashStore
	starts := 0
	s := serveBare(t, servertest.Config{WrapStore: func(inner store.Store) store.Store {
		starts++
		if starts != 2 { // the first start makes the session
			return inner
		}
		crash = &crashStore{Store: inner, at: at, after: after, death: make(chan struct{})}
		return crash
	}})
	s.ref = s.createBare(engine.Create{Rotation: sojourn.Rotation{Hook: []string{"/bin/sh", "-c", "echo hook >> log"}}})
	s.Restart()
	crash.arm()
	var now atomic.Pointer[engine.Engine]
	now.Store(s.engine())
	done := make(chan struct{})
	var dying sync.WaitGroup
	dying.Go(func() { // the next process starts when the first one is dead
		select {
		case <-crash.death:
			s.Kill()
			now.Store(s.engine())
		case <-done:
		}
	})
	facts := func() (f sojourn.Facts) {
		s.until("the session to be read", func() bool {
			var err error
			f, err = now.Load().Session(s.patient(), s.ref)
			return err == nil
		})
		return f
	}
	// A command whose answer was lost is given again, unless it was obeyed.
	insist := func(what string, obeyed func(sojourn.Session) bool, command func(*engine.Engine) error) {
		s.until(what, func() bool { return obeyed(facts().Session) || command(now.Load()) == nil })
		s.until("the end of "+what, func() bool { return obeyed(facts().Session) })
	}
	is := func(state sojourn.SessionState) func(sojourn.Session) bool {
		return func(x sojourn.Session) bool { return x.State == state }
	}
	run := func(key, script, want string) {
		in := sh(script)
		in.Idempotency = engine.Idempotency{Key: key}
		var x sojourn.Exec
		s.until("exec "+key, func() bool {
			_, got, err := now.Load().StartExec(s.patient(), s.ref, in)
			x = got
			return err == nil
		})
		s.until("the end of exec "+key, func() bool {
			got, err := now.Load().ExecByID(s.patient(), s.ref, x.ID)
			if err == nil {
				x = got
			}
			return err == nil && x.State.Terminal()
		})
		s.want("exec "+key, x.State, sojourn.ExecEnded)
		s.want("its code", code(x), 0)
		s.until("its output", func() bool {
			r, err := now.Load().ExecOutput(s.patient(), s.ref, x.ID)
			if err != nil {
				return false
			}
			return r.Close() == nil
		})
		if at == 0 {
			s.want("its output", s.output(x, output.Stdout), want)
		}
	}

	insist("start", is(sojourn.SessionOpen), func(e *engine.Engine) error {
		_, err := e.StartSession(s.patient(), s.ref, 0)
		return err
	})
	run("one", "echo 1 >> log", "")
	insist("a rotation", func(x sojourn.Session) bool { return x.Rotation.Count == 1 }, func(e *engine.Engine) error {
		if facts().Session.Rotating() {
			return nil
		}
		_, err := e.RotateSession(s.patient(), s.ref)
		return err
	})
	run("two", "echo 2 >> log", "")
	insist("a pause", is(sojourn.SessionPaused), func(e *engine.Engine) error {
		_, err := e.PauseSession(s.patient(), s.ref)
		return err
	})
	s.until("the sandbox to be given back", func() bool { return s.boxes() == 0 })
	insist("the end of the pause", is(sojourn.SessionOpen), func(e *engine.Engine) error {
		_, err := e.ResumeSession(s.patient(), s.ref, 0)
		return err
	})
	run("three", `[ "$(echo $(cat log))" = "1 hook 2" ] && cat log`, "1\nhook\n2\n")
	insist("a stop", is(sojourn.SessionClosed), func(e *engine.Engine) error {
		_, err := e.StopSession(s.patient(), s.ref, "")
		return err
	})
	s.until("the sandbox to be gone", func() bool { return s.boxes() == 0 && facts().Lease.State.Terminal() })
	close(done)
	dying.Wait()
	s.want("iterations", facts().Session.Budget.Usage.Iterations, int64(3))
	s.want("sandboxes made", len(s.Fake.Created()) >= 3, true)
	for _, once := range []sojourn.EventType{
		sojourn.EventSessionStarted, sojourn.EventRotationStarted, sojourn.EventRotationCompleted,
		sojourn.EventSessionPaused, sojourn.EventSessionResumed, sojourn.EventSessionCompleted,
	} {
		s.want(string(once)+" told", len(s.told(once)), 1)
	}
	s.want("execs told", len(s.told(sojourn.EventExecCompleted)), 4)
	return crash.commits()
}
