package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// testCrash kills servers that are busy making and destroying sandboxes, and looks at
// what they leave.
func testCrash(t *testing.T, s *Suite) {
	if s.InProcess {
		t.Skip("SKIPPED: sandboxes of this driver die with the server's process")
	}
	dir := s.newDir(t)
	rounds := 5
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		delay := time.Duration(20+rand.IntN(400)) * time.Millisecond
		crash(t, commandCrash, dir, delay)
		d := s.open(t, dir)
		left := list(t, d)
		t.Logf("killed after %v, left %d sandboxes", delay, len(left))
		checkLeft(t, s, d, dir, left)
	}
}

// checkLeft looks at the sandboxes that a killed server left: each runs and answers, or it
// has ended; all can be removed, and nothing remains. It returns how many run.
func checkLeft(t *testing.T, s *Suite, d sandbox.Driver, dir string, left []sandbox.Handle) (running int) {
	t.Helper()
	for _, h := range left {
		sb, err := d.Recover(within(t), h)
		switch {
		case err == nil:
			running++
			connect(t, sb).must("echo")
		case !errors.Is(err, sandbox.ErrGone):
			t.Errorf("Recover of what a crash left = %v", err)
		}
	}
	for _, h := range left {
		if err := d.Remove(within(t), h); err != nil {
			t.Errorf("Remove of what a crash left = %v", err)
		}
	}
	if hs := list(t, d); len(hs) != 0 {
		t.Errorf("List after Remove = %+v, want none", hs)
	}
	if s.Pool { // it has made others ready meanwhile
		if err := d.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	}
	if ps := processesOf(t, dir); len(ps) != 0 {
		t.Errorf("processes left after Remove: %q", ps)
	}
	return running
}

// crash runs a command of Main's that makes sandboxes and kills it after delay from its
// first sign of life.
func crash(t *testing.T, command, dir string, delay time.Duration) {
	t.Helper()
	crashAt(t, 'x', delay, command, dir)
}

// crashAt runs a command of Main's and kills it after delay from when it prints a stage.
func crashAt(t *testing.T, stage byte, delay time.Duration, args ...string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for b := []byte{0}; b[0] != stage; {
		if _, err := io.ReadFull(out, b); err != nil {
			t.Fatalf("a server that is to be killed never came to stage %q: %v", stage, err)
		}
	}
	time.Sleep(delay) // the moment of the crash is what is tried
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
}

// createForever is the server that is killed: it makes sandboxes and destroys every
// other one.
func createForever(open Open, dir string) int {
	d, err := open(dir)
	if err != nil {
		return 1
	}
	os.Stdout.WriteString("x")
	for i := range int64(1 << 20) {
		sb, err := d.Create(context.Background(), sandbox.Spec{Session: "crash", Epoch: i})
		if err != nil {
			return 1
		}
		if i%2 == 0 {
			if err := sb.Destroy(context.Background()); err != nil {
				return 1
			}
		}
	}
	return 0
}

// processesOf returns the commands of processes that have to do with a driver's
// directory.
func processesOf(t testing.TB, dir string) []string {
	t.Helper()
	var found []string
	for _, proc := range procsOf(t, dir) {
		line, _ := os.ReadFile(filepath.Join(proc, "cmdline")) // it may be gone
		found = append(found, string(line))
	}
	return found
}

// procsOf returns the directories in /proc of processes that have to do with a driver's
// directory: it is among their arguments, or mounted for them.
func procsOf(t testing.TB, dir string) []string {
	t.Helper()
	var found []string
	for _, proc := range glob(t, "/proc/[0-9]*") {
		if filepath.Base(proc) == strconv.Itoa(os.Getpid()) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
		mounts, _ := os.ReadFile(filepath.Join(proc, "mountinfo")) // unreadable: not ours, or gone
		if bytes.Contains(line, []byte(dir)) || bytes.Contains(mounts, []byte(dir)) {
			found = append(found, proc)
		}
	}
	return found
}
