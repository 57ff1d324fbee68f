package sandboxtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// testKill ends sandboxes from outside, whatever state their processes are in. Their
// files stay.
func testKill(t *testing.T, s *Suite) {
	t.Run("running", func(t *testing.T) {
		t.Parallel()
		dir := s.newDir(t)
		d := s.open(t, dir)
		c := startWorking(t, d)
		kill(t, s, d, dir, c)
	})
	t.Run("stopped", func(t *testing.T) {
		if s.InProcess {
			t.Skip("SKIPPED: the sandboxes of this driver are part of this process")
		}
		t.Parallel()
		dir := s.newDir(t)
		d := s.open(t, dir)
		c := startWorking(t, d)
		stopProcesses(t, dir)
		askUsage(t, c)
		kill(t, s, d, dir, c)
	})
	t.Run("recovered", func(t *testing.T) {
		t.Parallel()
		dir := s.newDir(t)
		first := s.open(t, dir)
		c := startWorking(t, first)
		if err := first.Close(); err != nil {
			t.Fatalf("Close = %v", err)
		}
		second := s.open(t, dir)
		again, err := second.Recover(within(t), stored(t, c.Handle()))
		if err != nil {
			t.Fatalf("Recover = %v", err)
		}
		kill(t, s, second, dir, again)
	})
	t.Run("ended", func(t *testing.T) {
		t.Parallel()
		c := start(t, s.open(t, s.newDir(t)), "ended", 1)
		if err := c.client.Shutdown(within(t), 0); err != nil {
			t.Fatalf("shut the keeper down: %v", err)
		}
		ended(t, c)
		if err := c.Kill(within(t)); err != nil {
			t.Errorf("Kill of a sandbox that has ended = %v", err)
		}
		if why := sandbox.ReasonOf(c.Err()); why != sandbox.EndExited {
			t.Errorf("it ended for the reason %q, want %q", why, sandbox.EndExited)
		}
	})
}

// askUsage asks a sandbox that does not answer for its usage, for a moment.
func askUsage(t *testing.T, sb sandbox.Sandbox) {
	t.Helper()
	m, ok := sb.(sandbox.Meter)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		u, err := m.Usage(ctx)
		t.Logf("Usage = %+v, %v", u, err)
	}()
	select {
	case <-done:
	case <-within(t).Done():
		t.Error("Usage has outlasted its context by far")
	}
}

// startWorking makes a sandbox with a file in it, a process, and one that has lost its
// parent.
func startWorking(t *testing.T, d sandbox.Driver) sandbox.Sandbox {
	t.Helper()
	c := start(t, d, "killed", 1)
	if err := c.client.WriteFile(within(t), sandbox.WorkspacePath+"/work", []byte("not saved yet")); err != nil {
		t.Fatal(err)
	}
	if d.Capabilities().Isolation == sandbox.IsolationNone {
		c.launch("sleeper", "sleep", "9999")
	} else {
		c.launch("sleeper", "sh", "-c", `trap "" TERM; (setsid sleep 8888 &); echo up; sleep 9999`)
	}
	if !c.alive("sleeper") {
		t.Fatal("the process has ended")
	}
	return c.Sandbox
}

// kill ends a sandbox by two calls at once and looks at what is left.
func kill(t *testing.T, s *Suite, d sandbox.Driver, dir string, sb sandbox.Sandbox) {
	t.Helper()
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if err := sb.Kill(within(t)); err != nil {
				t.Errorf("Kill = %v", err)
			}
		})
	}
	both.Wait()
	select {
	case <-sb.Done():
	default:
		t.Error("Done is open after Kill")
	}
	ended(t, sb)
	if err := sb.Kill(within(t)); err != nil {
		t.Errorf("Kill of a killed sandbox = %v", err)
	}
	if why := sandbox.ReasonOf(sb.Err()); why != sandbox.EndKilled {
		t.Errorf("it ended for the reason %q, want %q", why, sandbox.EndKilled)
	}
	if ps := processesOf(t, dir); len(ps) != 0 && !s.Pool && !s.InProcess {
		t.Errorf("processes left after Kill: %q", ps)
	}
	drivers := []sandbox.Driver{d}
	if !s.InProcess {
		drivers = append(drivers, s.open(t, dir)) // after a restart
	}
	for _, d := range drivers {
		h := stored(t, sb.Handle())
		dirs, err := d.Remains(within(t), h)
		if err != nil {
			t.Fatalf("Remains of a killed sandbox = %v", err)
		}
		if b, err := os.ReadFile(filepath.Join(dirs.Workspace, "work")); err != nil || string(b) != "not saved yet" {
			t.Errorf("what is left in the workspace = %q, %v", b, err)
		}
		if _, err := d.Recover(within(t), h); !errors.Is(err, sandbox.ErrGone) {
			t.Errorf("Recover of a killed sandbox = %v, want ErrGone", err)
		}
	}
	if err := sb.Destroy(within(t)); err != nil {
		t.Errorf("Destroy of a killed sandbox = %v", err)
	}
	if _, err := d.Remains(within(t), sb.Handle()); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Remains after Destroy = %v, want ErrGone", err)
	}
}

// stopProcesses stops all processes of a driver's directory, as a debugger on the host
// would: from then on nothing in its sandboxes answers.
func stopProcesses(t *testing.T, dir string) {
	t.Helper()
	stopped := 0
	for _, proc := range procsOf(t, dir) {
		pid, err := strconv.Atoi(filepath.Base(proc))
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(pid, unix.SIGSTOP); err == nil { // else it has ended
			stopped++
		}
	}
	if stopped == 0 {
		t.Fatal("no process of the sandbox was found")
	}
}
