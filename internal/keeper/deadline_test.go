package keeper_test

import (
	"context"
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

// told is a shell script's account of the signals that came, the same for a
// timeout and for a cancel.
const told = `for s in HUP INT TERM; do trap "echo $s; exit 5" $s; done; echo ready; while :; do sleep 0.01; done`

func TestTimeoutSendsTermAndGrantsGrace(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{})
	c := dial()
	o := run(t, c, link.StartParams{
		ProcessID: "timeout", Argv: []string{"sh", "-c", told}, Timeout: 3 * time.Second, Grace: time.Minute,
	})
	wantCode(t, o, 5)
	if !o.TimedOut || string(o.out["stdout"]) != "ready\nTERM\n" {
		t.Fatalf("timed out = %v, stdout = %q", o.TimedOut, o.out["stdout"])
	}
	start(t, c, link.StartParams{ProcessID: "cancel", Argv: []string{"sh", "-c", told}, Timeout: time.Hour})
	await(t, c, "cancel", "ready")
	if _, err := c.Terminate(t.Context(), "cancel", time.Minute); err != nil {
		t.Fatal(err)
	}
	o = follow(t, c, "cancel")
	wantCode(t, o, 5)
	if o.TimedOut || string(o.out["stdout"]) != "ready\nTERM\n" {
		t.Fatalf("timed out = %v, stdout = %q", o.TimedOut, o.out["stdout"])
	}
}

// TestTimeoutEndsTreeWithoutClient: nobody is connected when the time is up. All
// of the tree ignores TERM, one child has left the session and has no output of
// the process any more, and its parent is gone before the KILL.
func TestTimeoutEndsTreeWithoutClient(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{})
	c := dial()
	note := filepath.Join(t.TempDir(), "pids")
	script := `trap "" TERM; sleep 9999 & echo $! >"$0"
		setsid sh -c 'trap "" TERM; echo $$ >>"$0"; while :; do sleep 0.01; done' "$0" </dev/null >/dev/null 2>&1 &
		(trap - TERM; exec setsid sh -c '(trap "" TERM; echo $$; while :; do sleep 0.01; done) & echo $! >>"$0"; wait' "$0" </dev/null >/dev/null 2>&1) &
		echo $$; wait; wait; wait`
	start(t, c, link.StartParams{
		ProcessID: "p", Argv: []string{"sh", "-c", script, note}, Timeout: 4 * time.Second, Grace: 200 * time.Millisecond,
	})
	start(t, c, link.StartParams{ProcessID: "bystander", Argv: []string{"sleep", "300"}})
	all := pids(t, await(t, c, "p", "\n"))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); len(all) < 4; time.Sleep(5 * time.Millisecond) {
		if data, err := os.ReadFile(note); err == nil && strings.Count(string(data), "\n") == 3 {
			all = append(all, pids(t, data)...)
		}
		if time.Since(began) > time.Minute {
			t.Fatal("the children did not start")
		}
	}
	for _, pid := range all {
		untilDead(t, pid)
	}
	c = dial()
	o := follow(t, c, "p")
	if !o.TimedOut || o.Signal != "SIGKILL" || o.ExitCode != nil {
		t.Fatalf("timed out = %v, signal %q, code %v", o.TimedOut, o.Signal, o.ExitCode)
	}
	if o.RunTime < 4200*time.Millisecond {
		t.Fatalf("killed after %v, before its grace was over", o.RunTime)
	}
	if r, err := c.Read(t.Context(), link.ReadParams{ProcessID: "bystander"}); err != nil || r.Exited {
		t.Fatalf("the process beside it: %+v, %v", r, err)
	}
}

// TestTimeoutLeavesOthersAlone: a process that writes to the output of another
// is not part of its tree.
func TestTimeoutLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{ProcessID: "p", Argv: []string{"sh", "-c", "echo $$; sleep 300"}})
	pid := pids(t, await(t, c, "p", "\n"))[0]
	start(t, c, link.StartParams{ProcessID: "guest", Argv: []string{
		"sh", "-c", `exec >"/proc/$0/fd/1"; echo here; exec sleep 300`, strconv.Itoa(pid),
	}})
	await(t, c, "p", "here")
	if _, err := c.Terminate(t.Context(), "p", 0); err != nil {
		t.Fatal(err)
	}
	if o := follow(t, c, "p"); o.Signal != "SIGKILL" {
		t.Fatalf("signal %q", o.Signal)
	}
	if r, err := c.Read(t.Context(), link.ReadParams{ProcessID: "guest"}); err != nil || r.Exited {
		t.Fatalf("the process beside it: %+v, %v", r, err)
	}
}

func TestTimeoutWithoutGraceKills(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{})
	o := run(t, dial(), link.StartParams{
		ProcessID: "p", Argv: []string{"sh", "-c", "echo partial; " + told}, Timeout: 3 * time.Second,
	})
	if !o.TimedOut || o.Signal != "SIGKILL" || !strings.HasPrefix(string(o.out["stdout"]), "partial\n") ||
		strings.Contains(string(o.out["stdout"]), "TERM") {
		t.Fatalf("timed out = %v, signal %q, stdout %q", o.TimedOut, o.Signal, o.out["stdout"])
	}
}

// TestExitInTimeIsNoTimeout: what a program says itself is told apart from a kill.
func TestExitInTimeIsNoTimeout(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{})
	c := dial()
	o := run(t, c, link.StartParams{ProcessID: "p", Argv: []string{"sh", "-c", "exit 137"}, Timeout: time.Hour})
	wantCode(t, o, 137)
	if o.TimedOut {
		t.Fatal("timed out")
	}
	o = run(t, c, link.StartParams{ProcessID: "q", Argv: []string{"no-such-xyz"}, Timeout: time.Millisecond})
	if o.TimedOut || o.FailureKind != link.FailureProgram {
		t.Fatalf("timed out = %v, failure kind %q", o.TimedOut, o.FailureKind)
	}
	for _, bad := range []link.StartParams{{Timeout: 400 * 24 * time.Hour}, {Timeout: -1}, {Timeout: time.Second, Grace: 2 * time.Hour}} {
		bad.ProcessID, bad.Argv = "bad", []string{"true"}
		if err := c.Start(t.Context(), bad); err == nil {
			t.Errorf("timeout %v with grace %v was accepted", bad.Timeout, bad.Grace)
		}
	}
}

// TestTerminateOutranksTimeout: a process that is being terminated keeps its
// reason, and the timeout bounds what is left of the grace.
func TestTerminateOutranksTimeout(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{
		ProcessID: "p", Argv: []string{"sh", "-c", `trap "" TERM; echo ready; while :; do sleep 0.01; done`}, Timeout: 3 * time.Second,
	})
	await(t, c, "p", "ready")
	if _, err := c.Terminate(t.Context(), "p", time.Hour); err != nil {
		t.Fatal(err)
	}
	if o := follow(t, c, "p"); o.TimedOut || o.Signal != "SIGKILL" {
		t.Fatalf("timed out = %v, signal %q", o.TimedOut, o.Signal)
	}
}

func TestTimeoutEndsPrograms(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{Programs: map[string]keeper.Program{
		"wait": func(ctx context.Context, _ keeper.Proc) int { <-ctx.Done(); return 7 },
	}})
	o := run(t, dial(), link.StartParams{ProcessID: "p", Argv: []string{"wait"}, Timeout: 50 * time.Millisecond, Grace: time.Minute})
	wantCode(t, o, 7)
	if !o.TimedOut || o.RunTime < 50*time.Millisecond {
		t.Fatalf("timed out = %v after %v", o.TimedOut, o.RunTime)
	}
}

// TestEndingTellsTheTruth compares with what the process says of itself.
func TestEndingTellsTheTruth(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{})
	c := dial()
	began := time.Now()
	o := run(t, c, link.StartParams{ProcessID: "p", Argv: []string{
		"sh", "-c", `sleep 0.2; x=$(head -c 100000000 /dev/zero | tail -c 90000000 | wc -c); sh -c 'i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done'; sleep 300 &`,
	}})
	if most := time.Since(began); o.RunTime < 200*time.Millisecond || o.RunTime > most {
		t.Errorf("run time %v of %v", o.RunTime, most)
	}
	if o.CPUTime < 10*time.Millisecond || o.CPUTime > 2*o.RunTime+time.Second {
		t.Errorf("CPU time %v in %v", o.CPUTime, o.RunTime)
	}
	var own unix.Rusage // the keeper runs in this process
	if err := unix.Getrusage(unix.RUSAGE_SELF, &own); err != nil {
		t.Fatal(err)
	}
	unknown := o.MaxRSSBytes == 0 && own.Maxrss<<10 >= 90_000_000
	if !unknown && (o.MaxRSSBytes < 90_000_000 || o.MaxRSSBytes > 1<<30) {
		t.Errorf("most memory was %d bytes", o.MaxRSSBytes)
	}
	again, err := c.Read(t.Context(), link.ReadParams{ProcessID: "p"})
	if err != nil || again.Ending != o.Ending {
		t.Errorf("read again: %+v, %v; want %+v", again.Ending, err, o.Ending)
	}
	list, err := c.Processes(t.Context())
	if err != nil || len(list) != 1 || list[0].Ending() != o.Ending {
		t.Errorf("list = %+v, %v; want %+v", list, err, o.Ending)
	}
	if _, err := c.Terminate(t.Context(), "p", 0); err != nil { // the sleep it left
		t.Fatal(err)
	}
	// A small program is not charged with the memory of the keeper.
	if o := run(t, c, link.StartParams{ProcessID: "true", Argv: []string{"true"}}); o.MaxRSSBytes > 5<<20 {
		t.Errorf("true needed %d bytes", o.MaxRSSBytes)
	}
}

// TestCloseEndsTheGraceOfWhatWasRemoved: a process was ended and is forgotten, what it
// left behind has an hour to obey, and the keeper ends before that.
func TestCloseEndsTheGraceOfWhatWasRemoved(t *testing.T) {
	t.Parallel()
	k, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{ProcessID: "p", Argv: []string{
		"sh", "-c", `sh -c 'trap "" TERM; echo $$ ready; while :; do sleep 0.01; done' & wait`,
	}})
	left := pids(t, await(t, c, "p", "ready"))
	if _, err := c.Terminate(t.Context(), "p", time.Hour); err != nil {
		t.Fatal(err)
	}
	if o := follow(t, c, "p"); o.Signal != "SIGTERM" {
		t.Fatalf("signal %q", o.Signal)
	}
	if err := c.Remove(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 || !alive(left[0]) {
		t.Fatalf("left behind are %v, want one that is alive", left)
	}
	closed := make(chan error)
	go func() { closed <- k.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the keeper waits for the grace to end")
	}
	untilDead(t, left[0])
}
