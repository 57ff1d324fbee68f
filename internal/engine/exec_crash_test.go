package engine_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/servertest"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// TestExecOutlivesTheServer: a program writes and reads on while the server is
// restarted; nothing is missing, nothing comes twice, and it is charged once.
func TestExecOutlivesTheServer(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{Rates: testRates}, sojourn.Limits{})
	in := sh(`i=0; while [ $i -lt 2000 ]; do echo "line $i"; i=$((i+1)); [ -e go ] || sleep 0.002; done; cat`)
	in.Spec.Stdin = sojourn.StdinStream
	x := s.start(in)
	s.writes(x, "line 10\n")
	for range 2 {
		s.Restart()
		s.writes(x, "line 20\n") // also what only the keeper has kept
	}
	if err := s.engine().WriteExec(s.patient(), s.ref, x.ID, "w", 0, []byte("typed\n"), false); err != nil {
		t.Fatal(err)
	}
	s.Restart()
	s.open("go")
	for range 2 { // the answer to the first one may have been lost
		if err := s.engine().WriteExec(s.patient(), s.ref, x.ID, "w", 0, []byte("typed\n"), true); err != nil {
			t.Fatal(err)
		}
	}
	x = s.wait(x)
	s.want("code", code(x), 0)
	lines := strings.Split(s.output(x, output.Stdout), "\n")
	if len(lines) != 2002 || lines[1999] != "line 1999" || lines[2000] != "typed" {
		t.Errorf("there are %d lines, the last ones %q", len(lines), lines[max(0, len(lines)-4):])
	}
	s.want("iterations", s.state().Budget.Usage.Iterations, int64(2))
	s.want("cost", x.Cost, x.Rate.Cost(x.Result.RunTime))
}

// TestTimeoutIsKeptWhileTheServerIsDown: nobody has to be there for it.
func TestTimeoutIsKeptWhileTheServerIsDown(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	in := sh("echo up; exec sleep 60")
	in.Spec.Timeout, in.Spec.Grace = 2*sojourn.MinExecTimeout, 0
	x := s.start(in)
	s.writes(x, "up")
	up := time.Now()
	s.Stop()
	time.Sleep(in.Spec.Timeout + time.Second) // it is the time that is tested
	away := time.Since(up)
	s.Start()
	x = s.wait(x)
	s.want("reason", x.Reason, sojourn.ExecTimeout)
	if x.Result.RunTime < in.Spec.Timeout || x.Result.RunTime >= away {
		t.Errorf("it ran for %v, and the server was away for %v", x.Result.RunTime, away)
	}
}

// TestLostExec: what is not known is said to be unknown, and what it had written is
// kept.
func TestLostExec(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{Rates: testRates}, sojourn.Limits{})
	x := s.start(sh("echo so far; exec sleep 60"))
	s.writes(x, "so far\n")
	s.want("killed", s.Fake.Kill(string(s.ref.ID)), 1)
	x = s.wait(x)
	s.want("state", x.State, sojourn.ExecLost)
	s.want("reason", x.Reason, sojourn.ExecSandboxLost)
	s.want("code", code(x), -1)
	s.want("output", s.output(x, output.Stdout), "so far\n")
	s.want("stdout bytes", x.Result.Stdout, int64(len("so far\n")))
	s.want("that there may be more", x.Result.KeptNote, string(output.CutLost))
	all, err := s.engine().Execs(s.patient(), s.ref, 0, 10)
	if err != nil || len(all) != 1 {
		t.Fatalf("the list: %v, %v", all, err)
	}
	s.want("bytes in the list", all[0].Result.Stdout, x.Result.Stdout)
	s.want("iterations", s.state().Budget.Usage.Iterations, int64(1))
}

// TestCutLinkEndsNoExec: the sandbox goes on, and so does what runs in it.
func TestCutLinkEndsNoExec(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	x := s.start(sh(`i=0; while [ $i -lt 300 ]; do echo $i; i=$((i+1)); sleep 0.001; done`))
	for range 5 {
		s.Fake.Cut(string(s.ref.ID))
		time.Sleep(20 * time.Millisecond)
	}
	x = s.wait(x)
	s.want("code", code(x), 0)
	s.want("lines", strings.Count(s.output(x, output.Stdout), "\n"), 300)
}

// failingStore fails commits while told to.
type failingStore struct {
	store.Store
	fails  atomic.Bool
	failed atomic.Int64
}

func (f *failingStore) Update(ctx context.Context, fn func(*store.Tx) error) error {
	if f.fails.Load() {
		f.failed.Add(1)
		return errors.New("the disk is full")
	}
	return f.Store.Update(ctx, fn)
}

// TestOutcomeIsWrittenWhenTheDiskHasRoomAgain: it is neither lost nor charged twice.
func TestOutcomeIsWrittenWhenTheDiskHasRoomAgain(t *testing.T) {
	t.Parallel()
	var full *failingStore
	s := beginExecs(t, servertest.Config{WrapStore: func(inner store.Store) store.Store {
		full = &failingStore{Store: inner}
		return full
	}}, sojourn.Limits{})
	gate := filepath.Join(t.TempDir(), "go")
	x := s.start(sh("echo up; until [ -e " + gate + " ]; do sleep 0.01; done; echo done; exit 3"))
	s.writes(x, "up")
	full.fails.Store(true)
	if err := os.WriteFile(gate, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.until("commits to fail", func() bool { return full.failed.Load() > 2 })
	full.fails.Store(false)
	x = s.wait(x)
	s.want("code", code(x), 3)
	s.want("output", s.output(x, output.Stdout), "up\ndone\n")
	s.want("iterations", s.state().Budget.Usage.Iterations, int64(1))
}

// TestCrashAtEveryCommitOfExecs kills the server before and after every commit in the
// life of a few execs, and wants the same story every time: each has run once, in
// order, with its whole output, and was charged once.
func TestCrashAtEveryCommitOfExecs(t *testing.T) {
	t.Parallel()
	crashEverywhere(t, 2, func(t *testing.T, at int, after bool) int {
		if at > 0 {
			t.Parallel()
		}
		return tellExecStory(t, at, after)
	})
}

// tellExecStory tells the story with a death at a commit, or without one for 0, and
// returns how many commits there were.
func tellExecStory(t *testing.T, at int, after bool) int {
	m := &mortal{at: at, after: after}
	s := beginExecs(t, servertest.Config{Rates: testRates, WrapStore: m.wrap}, sojourn.Limits{})
	s.Restart()
	crash := m.crash
	first := s.engine()
	crash.arm()
	var next atomic.Pointer[engine.Engine]
	next.Store(first)
	done := make(chan struct{})
	var dying sync.WaitGroup
	dying.Go(func() { // the next process starts when the first one is dead
		select {
		case <-crash.death:
			s.Kill()
			next.Store(s.engine())
		case <-done:
		}
	})
	insist := func(key, script string) (x sojourn.Exec) {
		in := sh(script)
		in.Idempotency = sojourn.Idempotency{Key: key}
		in.Spec.Detached = key == "beside"
		s.until("exec "+key, func() bool {
			_, got, err := next.Load().StartExec(s.patient(), s.ref, in)
			x = got
			return err == nil
		})
		return x
	}
	all := []sojourn.Exec{
		insist("one", "echo 1 >> log; echo one"), insist("two", "sleep 0.05; echo 2 >> log; exit 2"),
		insist("beside", "echo beside"), insist("three", "cat log"),
	}
	for i, x := range all {
		s.until("the end of an exec", func() bool {
			_, got, err := next.Load().WaitExec(s.patient(), s.ref, x.ID)
			all[i] = got
			return err == nil
		})
	}
	close(done)
	dying.Wait()
	var cost sojourn.Money
	for i, want := range []struct {
		code int
		out  string
	}{{0, "one\n"}, {2, ""}, {0, "beside\n"}, {0, "1\n2\n"}} {
		s.want("state", all[i].State, sojourn.ExecEnded)
		s.want("code", code(all[i]), want.code)
		s.want("output", s.output(all[i], output.Stdout), want.out)
		cost += all[i].Cost
	}
	u := s.state().Budget.Usage
	s.want("iterations", u.Iterations, int64(len(all)))
	s.want("cost", u.Cost, cost)
	return crash.commits()
}

// TestExecIsCarriedToTheNextSandbox: with its processes saved, a program goes on in
// the sandbox that replaces its own, and whoever follows it notices nothing.
func TestExecIsCarriedToTheNextSandbox(t *testing.T) {
	t.Parallel()
	s := beginExecsWith(t, servertest.Config{}, engine.Create{Rotation: sojourn.Rotation{Processes: true}})
	in := sh(`i=0; while [ $i -lt 400 ]; do echo $i; i=$((i+1)); sleep 0.001; done; cat`)
	in.Spec.Stdin, in.Spec.Detached = sojourn.StdinStream, true
	x := s.start(in)
	s.writes(x, "5\n")
	for n := range 2 {
		if _, err := s.engine().RotateSession(s.patient(), s.ref); err != nil {
			t.Fatal(err)
		}
		s.until("the rotation", func() bool { return s.state().Rotation.Count == int64(n)+1 })
	}
	if err := s.engine().WriteExec(s.patient(), s.ref, x.ID, "w", 0, []byte("typed\n"), true); err != nil {
		t.Fatal(err)
	}
	x = s.wait(x)
	s.want("state", x.State, sojourn.ExecEnded)
	s.want("code", code(x), 0)
	out := s.output(x, output.Stdout)
	s.want("lines", strings.Count(out, "\n"), 401)
	s.want("the last one", strings.HasSuffix(out, "399\ntyped\n"), true)
	s.want("sandboxes made", len(s.Fake.Created()), 3)
}

// TestLostWithItsServer: the sandbox dies while no server runs. What had come into
// files is read to its end, and the record says that there may be more.
func TestLostWithItsServer(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	x := s.start(sh("head -c 300000 /dev/zero; echo end; exec sleep 60"))
	s.writes(x, "end\n")
	s.Stop()
	s.want("killed", s.Fake.Kill(string(s.ref.ID)), 1)
	s.Start()
	x = s.wait(x)
	s.want("state", x.State, sojourn.ExecLost)
	kept := len(s.output(x, output.Stdout))
	if kept < 100_000 {
		t.Errorf("%d bytes are kept", kept)
	}
	s.want("stdout bytes", x.Result.Stdout, int64(kept))
	s.want("that there may be more", x.Result.KeptNote, string(output.CutLost))
}
