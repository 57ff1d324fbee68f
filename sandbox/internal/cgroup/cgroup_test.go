package cgroup

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// The first arguments with which tests start this binary again.
const (
	commandSpin = "cgroup-spin"
	commandHog  = "cgroup-hog"
	commandFork = "cgroup-fork"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case commandSpin:
			for {
				runtime.Gosched() // it is there to use the processor
			}
		case commandHog:
			var held [][]byte
			for range 1 << 10 {
				b := make([]byte, 1<<20)
				for i := range b {
					b[i] = 1
				}
				held = append(held, b)
			}
			fmt.Println(len(held))
			os.Exit(0)
		case commandFork:
			for range 64 {
				if err := exec.Command("/bin/sleep", "60").Start(); err != nil {
					os.Exit(7)
				}
			}
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

// openReal opens a tree of this machine, or skips the test.
func openReal(t testing.TB) *Tree {
	t.Helper()
	tree := Open(Config{Owner: "test" + strings.ToLower(rand.Text())})
	t.Cleanup(tree.Close)
	if s := tree.Support(); !s.Memory || !s.Processes || !s.CPU {
		t.Skipf("SKIPPED: no control groups for this process: %s", s.Missing)
	}
	return tree
}

func mustMake(t testing.TB, tree *Tree, l Limits) *Group {
	t.Helper()
	g, err := tree.Make("g"+strings.ToLower(rand.Text()), l)
	if err != nil {
		t.Fatalf("Make = %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := g.Remove(ctx); err != nil {
			t.Errorf("Remove = %v", err)
		}
	})
	return g
}

func self(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command(exe, args...)
}

func TestMemberIsBornInItsGroupAndEndsWithIt(t *testing.T) {
	t.Parallel()
	tree := openReal(t)
	g := mustMake(t, tree, Limits{MemoryBytes: 64 << 20})
	cat := exec.Command("/bin/cat", "/proc/self/cgroup")
	var out strings.Builder
	cat.Stdout = &out
	if err := g.Start(cat); err != nil {
		t.Fatalf("Start = %v", err)
	}
	if err := cat.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), g.name); n < len(tree.h.dirs(g.name)) {
		t.Errorf("a member's groups are\n%s, want %s in %d of them", out.String(), g.name, len(tree.h.dirs(g.name)))
	}
	if own, err := os.ReadFile("/proc/self/cgroup"); err != nil || strings.Contains(string(own), g.name) {
		t.Errorf("this process's groups are\n%s%v, want none of its child's", own, err)
	}

	sleep := exec.Command("/bin/sleep", "600")
	if err := g.Start(sleep); err != nil {
		t.Fatalf("Start = %v", err)
	}
	if err := g.Remove(t.Context()); err != nil {
		t.Fatalf("Remove = %v", err)
	}
	if err := sleep.Wait(); err == nil || sleep.ProcessState.Exited() {
		t.Errorf("the member's end = %v, want killed with its group", sleep.ProcessState)
	}
	if g.Exists() {
		t.Error("the group is still there")
	}
	if err := g.Remove(t.Context()); err != nil {
		t.Errorf("Remove again = %v", err)
	}
}

func TestMemoryLimitKillsAndCounts(t *testing.T) {
	t.Parallel()
	g := mustMake(t, openReal(t), Limits{MemoryBytes: 32 << 20})
	hog := self(t, commandHog)
	if err := g.Start(hog); err != nil {
		t.Fatalf("Start = %v", err)
	}
	if err := hog.Wait(); err == nil || hog.ProcessState.Exited() {
		t.Errorf("the hog's end = %v, want killed", hog.ProcessState)
	}
	s, err := g.Stat()
	if err != nil || s.MemoryKills < 1 || s.MemoryLimitBytes != 32<<20 || s.MemoryPeakBytes < 16<<20 || s.MemoryPeakBytes > 33<<20 { // the kernel counts in batches
		t.Errorf("Stat = %+v, %v, want a kill and a peak near the limit", s, err)
	}
}

func TestProcessLimitRefusesAndCounts(t *testing.T) {
	t.Parallel()
	g := mustMake(t, openReal(t), Limits{Processes: 20})
	bomb := self(t, commandFork)
	if err := g.Start(bomb); err != nil {
		t.Fatalf("Start = %v", err)
	}
	if err := bomb.Wait(); bomb.ProcessState.ExitCode() != 7 && !strings.Contains(err.Error(), "exit status 2") { // a thread may be refused first
		t.Errorf("the bomb's end = %v, want refused", err)
	}
	s, err := g.Stat()
	if err != nil || s.ProcessDenied < 1 || s.Processes < 5 || s.Processes > 20 {
		t.Errorf("Stat = %+v, %v, want refusals and at most 20 processes", s, err)
	}
}

func TestProcessorLimitThrottles(t *testing.T) {
	t.Parallel()
	g := mustMake(t, openReal(t), Limits{MilliCPUs: 50})
	spin := self(t, commandSpin)
	if err := g.Start(spin); err != nil {
		t.Fatalf("Start = %v", err)
	}
	defer func() { _ = spin.Process.Kill(); _ = spin.Wait() }()
	deadline := time.Now().Add(30 * time.Second)
	for {
		s, err := g.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if s.CPUThrottled > 0 && s.CPU > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("Stat = %+v after 30 s, want it throttled", s)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestListShowsOwnGroupsOnly(t *testing.T) {
	t.Parallel()
	one, two := openReal(t), openReal(t)
	g := mustMake(t, one, Limits{})
	if names, err := one.List(); err != nil || !slices.Equal(names, []string{g.name}) {
		t.Errorf("List = %v, %v, want %s", names, err, g.name)
	}
	if names, err := two.List(); err != nil || len(names) != 0 {
		t.Errorf("List of another owner = %v, %v, want none", names, err)
	}
}

func TestNilGroupIsAProcessWithoutOne(t *testing.T) {
	t.Parallel()
	tree := Open(Config{Owner: "none", Mounts: os.DevNull, Self: os.DevNull})
	if s := tree.Support(); s.Memory || s.Processes || s.CPU || s.Missing == "" {
		t.Errorf("Support without mounts = %+v, want none and why", s)
	}
	if _, err := tree.Make("g", Limits{}); err == nil {
		t.Error("Make without mounts succeeded")
	}
	g := tree.Group("g")
	if err := g.Start(exec.Command("/bin/true")); err != nil {
		t.Errorf("Start = %v", err)
	}
	if s, err := g.Stat(); err != nil || s != (Stat{}) {
		t.Errorf("Stat = %+v, %v", s, err)
	}
	if err := g.Remove(t.Context()); err != nil || g.Exists() {
		t.Errorf("Remove = %v", err)
	}
	if names, err := tree.List(); err != nil || names != nil {
		t.Errorf("List = %v, %v", names, err)
	}
	tree.Close()
}

// TestRemoveSparesTheServer removes groups at the moment when threads of this process
// have just been in them.
func TestRemoveSparesTheServer(t *testing.T) {
	t.Parallel()
	tree := openReal(t)
	for range 30 {
		g := mustMake(t, tree, Limits{})
		cmd := exec.Command("/bin/true")
		if err := g.Start(cmd); err != nil {
			t.Fatalf("Start = %v", err)
		}
		if err := g.Remove(t.Context()); err != nil { // or this process is gone
			t.Fatalf("Remove = %v", err)
		}
		_ = cmd.Wait()
	}
}

func TestStatOfNoGroup(t *testing.T) {
	t.Parallel()
	if _, err := openReal(t).Group("nosuch").Stat(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat = %v, want ErrNotExist", err)
	}
}

// BenchmarkGroup measures what a group adds to the start of a process.
func BenchmarkGroup(b *testing.B) {
	tree := openReal(b)
	var with, without time.Duration
	for b.Loop() {
		began := time.Now()
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
		without += time.Since(began)

		began = time.Now()
		g, err := tree.Make("bench", Limits{MemoryBytes: 1 << 30, Processes: 100, MilliCPUs: 1000})
		if err != nil {
			b.Fatal(err)
		}
		cmd := exec.Command("/bin/true")
		if err := g.Start(cmd); err != nil {
			b.Fatal(err)
		}
		_ = cmd.Wait()
		if err := g.Remove(b.Context()); err != nil {
			b.Fatal(err)
		}
		with += time.Since(began)
	}
	b.ReportMetric(float64(with)/float64(without), "x-plain-start")
}
