package keeper_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// await reads a process until its output holds text.
func await(t *testing.T, c *link.Client, id, text string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out []byte
	var after int64
	for !bytes.Contains(out, []byte(text)) {
		r, err := c.Read(ctx, link.ReadParams{ProcessID: id, AfterSeq: after, Wait: link.MaxWait})
		if err != nil {
			t.Fatalf("wait for %q: %v (so far %q)", text, err, out)
		}
		for _, ch := range r.Chunks {
			out = append(out, ch.Data...)
		}
		if r.Closed && len(r.Chunks) == 0 {
			t.Fatalf("output ended without %q: %q", text, out)
		}
		after = r.NextSeq - 1
	}
	return out
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	return len(rest) > 0 && rest[0] != 'Z' && rest[0] != 'X'
}

func stopped(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && bytes.Contains(stat, []byte(") T "))
}

func untilDead(t *testing.T, pid int) {
	t.Helper()
	for began := time.Now(); alive(pid); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("process %d is still there", pid)
		}
	}
}

// pids reads the numbers that a script printed.
func pids(t *testing.T, out []byte) []int {
	t.Helper()
	var all []int
	for _, f := range strings.Fields(string(out)) {
		if n, err := strconv.Atoi(f); err == nil {
			all = append(all, n)
		}
	}
	return all
}

// TestTerminateEndsTree: the child in the background, and the one that left
// the session and lost its parent, go with the main process.
func TestTerminateEndsTree(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{ProcessID: "p", Argv: []string{
		"sh", "-c", `sleep 9999 & echo $!; (setsid sh -c 'echo $$; exec sleep 8888' &) ; sleep 0.1; echo ready; wait`,
	}})
	all := pids(t, await(t, c, "p", "ready"))
	if len(all) != 2 {
		t.Fatalf("pids = %v", all)
	}
	running, err := c.Terminate(t.Context(), "p", 0)
	if err != nil || !running {
		t.Fatalf("terminate = %v, %v", running, err)
	}
	o := follow(t, c, "p")
	if o.Signal != "SIGKILL" || o.ExitCode != nil {
		t.Fatalf("exit = %v, signal %q", o.ExitCode, o.Signal)
	}
	for _, pid := range all {
		untilDead(t, pid)
	}
}

// TestTerminateSaysWhatItDoesNotKnow: nothing is ended, and whoever is about to start
// the process has to ask again.
func TestTerminateSaysWhatItDoesNotKnow(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	if running, err := dial().Terminate(t.Context(), "nobody", 0); running || !errors.Is(err, link.ErrUnknownProcess) {
		t.Fatalf("terminate = %v, %v, want ErrUnknownProcess", running, err)
	}
}

// TestTerminateReachesLeftovers: the main process has ended already.
func TestTerminateReachesLeftovers(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	o := run(t, c, link.StartParams{ProcessID: "p", Argv: []string{"sh", "-c", "sleep 9999 & echo $!"}})
	pid := pids(t, o.out["stdout"])[0]
	if !alive(pid) {
		t.Fatal("the leftover was not kept")
	}
	running, err := c.Terminate(t.Context(), "p", time.Second)
	if err != nil || running {
		t.Fatalf("terminate = %v, %v; want not running", running, err)
	}
	untilDead(t, pid)
}

// TestCloseWaitsForNoLeftover: a child that was left behind holds the pipe of
// a process that has been removed.
func TestCloseWaitsForNoLeftover(t *testing.T) {
	k, dial := serve(t, keeper.Config{})
	c := dial()
	o := run(t, c, link.StartParams{ProcessID: "p", Argv: []string{"sh", "-c", "sleep 30 & echo $!"}})
	if err := c.Remove(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pids(t, o.out["stdout"])[0], unix.SIGKILL); err != nil {
		t.Fatalf("the leftover was not kept: %v", err)
	}
}

func TestGraceIsGranted(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{ProcessID: "p", Argv: []string{
		"sh", "-c", `trap 'echo TERM; sleep 0.3; echo clean; exit 5' TERM; echo ready; while :; do sleep 0.01; done`,
	}})
	await(t, c, "p", "ready")
	if _, err := c.Terminate(t.Context(), "p", 30*time.Second); err != nil {
		t.Fatal(err)
	}
	o := follow(t, c, "p")
	wantCode(t, o, 5)
	if got := string(o.out["stdout"]); got != "ready\nTERM\nclean\n" {
		t.Fatalf("stdout = %q", got)
	}
}

func TestStubbornProcessIsKilledAfterGrace(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{ProcessID: "p", Argv: []string{
		"sh", "-c", `trap 'echo TERM' TERM; trap '' INT; echo ready; while :; do sleep 0.01; done`,
	}})
	await(t, c, "p", "ready")
	began := time.Now()
	if _, err := c.Terminate(t.Context(), "p", time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Terminate(t.Context(), "p", 200*time.Millisecond); err != nil { // the shorter grace counts
		t.Fatal(err)
	}
	o := follow(t, c, "p")
	if d := time.Since(began); o.Signal != "SIGKILL" || d < 200*time.Millisecond || d > 30*time.Second {
		t.Fatalf("signal %q after %v", o.Signal, d)
	}
	if got := string(o.out["stdout"]); !strings.Contains(got, "TERM") {
		t.Fatalf("stdout = %q: TERM was not sent first", got)
	}
}

func TestSignalTargets(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	script := `trap 'echo main' USR1
		sh -c 'trap "echo child" USR1; echo ready; while :; do sleep 0.01; done' &
		while :; do sleep 0.01; done`
	for _, tt := range []struct{ target, want string }{
		{link.TargetProcess, "main"}, {link.TargetGroup, "child"}, {"", "child"}, {link.TargetTree, "child"},
	} {
		id := "to " + tt.target
		start(t, c, link.StartParams{ProcessID: id, Argv: []string{"sh", "-c", script}})
		await(t, c, id, "ready")
		if err := c.Signal(t.Context(), id, "SIGUSR1", tt.target); err != nil {
			t.Fatal(err)
		}
		await(t, c, id, tt.want)
		if err := c.Signal(t.Context(), id, "KILL", link.TargetTree); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range [][2]string{{"SIGNOPE", ""}, {"SIGTERM", "everyone"}, {"SIGTERM", link.TargetAll}} {
		start(t, c, link.StartParams{ProcessID: "s" + bad[1] + bad[0], Argv: []string{"sleep", "300"}})
		if err := c.Signal(t.Context(), "s"+bad[1]+bad[0], bad[0], bad[1]); err == nil {
			t.Errorf("signal %q to %q succeeded", bad[0], bad[1])
		}
	}
}

func TestInterruptReachesForeground(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{ProcessID: "p", TTY: true, Argv: []string{
		"sh", "-c", `set -m; trap : INT; sh -c 'trap "echo got it; exit 3" INT; echo ready; while :; do sleep 0.01; done'; echo code $?`,
	}})
	await(t, c, "p", "ready")
	if err := c.Signal(t.Context(), "p", "interrupt", ""); err != nil {
		t.Fatal(err)
	}
	await(t, c, "p", "code 3")
}

func TestTerminalEndOfFileAndResize(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{ProcessID: "p", TTY: true, Argv: []string{
		"sh", "-c", `trap 'stty size' WINCH; echo ready; cat; while :; do sleep 0.01; done`,
	}})
	await(t, c, "p", "ready")
	if err := c.Resize(t.Context(), "p", 50, 120); err != nil {
		t.Fatal(err)
	}
	if err := c.Write(t.Context(), "p", "w", []byte("typed\n")); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseStdin(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	await(t, c, "p", "50 120")
	if _, err := c.Terminate(t.Context(), "p", 0); err != nil {
		t.Fatal(err)
	}
	follow(t, c, "p")
}

// TestFreezeStopsEverything: nothing of the keeper's processes moves, those
// stopped before stay stopped, and starts wait.
func TestFreezeStopsEverything(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	file := filepath.Join(t.TempDir(), "ticks")
	start(t, c, link.StartParams{ProcessID: "p", Argv: []string{
		"sh", "-c", `(while :; do echo x >>"` + file + `"; sleep 0.002; done) & sleep 300 & echo $!; kill -STOP $!; echo ready; wait`,
	}})
	asleep := pids(t, await(t, c, "p", "ready"))[0]
	for !stopped(asleep) {
		time.Sleep(time.Millisecond) // a signal takes effect when its target runs next
	}
	n, err := c.Freeze(t.Context())
	if err != nil || n < 2 {
		t.Fatalf("freeze stopped %d, %v", n, err)
	}
	size := func() int64 {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	before := size()
	started := make(chan error, 1)
	go func() {
		started <- c.Start(context.Background(), link.StartParams{ProcessID: "q", Argv: []string{"true"}, Env: env(), Cwd: "/"})
	}()
	time.Sleep(50 * time.Millisecond) // time in which a free process would write
	if after := size(); after != before {
		t.Fatalf("file grew from %d to %d during a freeze", before, after)
	}
	if s, err := c.Stats(t.Context()); err != nil || !s.Frozen || s.Processes != 1 {
		t.Fatalf("stats = %+v, %v", s, err)
	}
	if err := c.Thaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); size() == before; time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("nothing moves after the thaw")
		}
	}
	if !stopped(asleep) {
		t.Fatal("the process that was stopped before goes on")
	}
	if err := unix.Kill(asleep, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
}
