package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sleeper starts a process that is ended with the test at the latest.
func sleeper(t *testing.T, args ...string) (*exec.Cmd, Process) {
	t.Helper()
	cmd := exec.Command("sleep", append(args, "600")...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the test may have reaped it
	})
	p, err := FindProcess(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, p
}

func TestProcessIsKnownByItsStart(t *testing.T) {
	_, p := sleeper(t)
	if !p.Alive() {
		t.Error("a process that runs is not alive")
	}
	for name, other := range map[string]Process{
		"earlier process": {PID: p.PID, Start: p.Start - 1, Boot: p.Boot},
		"earlier boot":    {PID: p.PID, Start: p.Start, Boot: "another"},
		"no process":      {},
	} {
		if other.Alive() {
			t.Errorf("%s with the same id is alive", name)
		}
		if err := other.Kill(); err != nil {
			t.Errorf("Kill of %s = %v", name, err)
		}
		if err := other.Wait(t.Context()); err != nil {
			t.Errorf("Wait for %s = %v", name, err)
		}
	}
	if !p.Alive() {
		t.Error("Kill reached another process")
	}
}

func TestWaitSeesTheEnd(t *testing.T) {
	_, p := sleeper(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Wait for a process that runs = %v, want a deadline", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Wait(context.Background()) }()
	if err := p.Kill(); err != nil {
		t.Fatalf("Kill = %v", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("Wait = %v", err)
	}
	if p.Alive() {
		t.Error("a process that has ended is alive")
	}
	if _, err := FindProcess(p.PID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("FindProcess = %v, want ErrNotExist", err)
	}
}

func TestWaitPollsOnOldKernels(t *testing.T) {
	_, p := sleeper(t)
	ended := make(chan error, 1)
	go func() { ended <- p.waitPolling(context.Background()) }()
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("waitPolling = %v", err)
	}
}

// TestZombieIsDead keeps a child unreaped, as a server that is process 1 of a container
// does for a while.
func TestZombieIsDead(t *testing.T) {
	cmd, p := sleeper(t)
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.waitPIDFD(t.Context()); err != nil { // does not reap
		t.Fatal(err)
	}
	if p.Alive() {
		t.Error("a zombie is alive")
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the child ended well")
	}
}

// headless makes this binary a process whose first thread has ended.
const headless = "LOCAL_TEST_HEADLESS"

func init() {
	if os.Getenv(headless) == "" {
		return
	}
	go func() {
		time.Sleep(10 * time.Minute) // the test ends it before
		os.Exit(1)
	}()
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // init runs on the first thread; no return
}

// TestFirstThreadIsNotTheProcess: what a server waits for is the end of all threads.
func TestFirstThreadIsNotTheProcess(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.Env = append(os.Environ(), headless+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	stat := "/proc/" + strconv.Itoa(cmd.Process.Pid) + "/stat"
	for {
		b, err := os.ReadFile(stat)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), ") Z ") {
			break
		}
		time.Sleep(time.Millisecond)
	}
	p, err := FindProcess(cmd.Process.Pid)
	if err != nil || !p.Alive() {
		t.Fatalf("FindProcess of a process with a thread that runs = %v, alive %v", err, p.Alive())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait = %v, want a deadline", err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.waitPIDFD(t.Context()); err != nil || p.Alive() {
		t.Errorf("after Kill Wait = %v, alive %v", err, p.Alive())
	}
}

func TestKillNamingEndsAllThatNameIt(t *testing.T) {
	id := NewToken()
	script := exec.Command("sh", "-c", "sleep 600 & sleep 600 & wait", id)
	if err := script.Start(); err != nil {
		t.Fatal(err)
	}
	_, other := sleeper(t)
	if err := KillNaming(t.Context(), id); err != nil {
		t.Fatalf("KillNaming = %v", err)
	}
	if ps, err := ProcessesNaming(id); err != nil || len(ps) != 0 {
		t.Errorf("ProcessesNaming = %v, %v, want none", ps, err)
	}
	if !other.Alive() {
		t.Error("another process was killed")
	}
	_ = script.Wait()
	ps, err := ProcessesNaming(os.Args[0]) // whoever has started the test may name it, too
	if err != nil || slices.ContainsFunc(ps, func(p Process) bool { return p.PID == os.Getpid() }) {
		t.Errorf("a process found itself: %v, %v", ps, err)
	}
}
