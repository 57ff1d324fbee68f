package engine_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// TestCrashAtEveryCommitOfALife kills the server before and after the commits in the
// life of a bare session that is rotated, paused and resumed, and wants the same story
// every time: each exec has run once, no file is lost, one sandbox at a time, no step
// is told twice.
func TestCrashAtEveryCommitOfALife(t *testing.T) {
	t.Parallel()
	crashEverywhere(t, 8, func(t *testing.T, at int, after bool) int {
		if at > 0 {
			t.Parallel()
		}
		return tellLife(t, at, after)
	})
}

// tellLife tells the story with a death at a commit, or without one for 0, and returns
// how many commits there were.
func tellLife(t *testing.T, at int, after bool) int {
	m := &mortal{at: at, after: after}
	s := serveBare(t, servertest.Config{WrapStore: m.wrap})
	s.ref = s.createBare(engine.Create{Rotation: sojourn.Rotation{Hook: []string{"/bin/sh", "-c", "echo hook >> log"}}})
	s.Restart()
	crash := m.crash
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
		in.Idempotency = sojourn.Idempotency{Key: key}
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
