package sandboxtest

import (
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// timedTree ignores TERM in three processes: itself, a child, and a grandchild that
// has left the session and lost its parent. It notes their numbers and waits.
const timedTree = `trap "" TERM
sleep 9999 & child=$!
(setsid sh -c 'trap "" TERM; echo $$ >left; exec sleep 8888' &)
until [ -s left ]; do sleep 0.05; done
echo $$ $child $(cat left) >noted
wait`

// testTimeout lets a process run out of time while nobody is connected. It goes
// with all that it started, beside a process that stays, and its ending says why.
func testTimeout(t *testing.T, s *Suite) {
	d := s.open(t, s.newDir(t))
	if d.Capabilities().Isolation == sandbox.IsolationNone {
		t.Skip("SKIPPED: the programs of this driver start no processes")
	}
	c := start(t, d, "timed", 1)
	c.launch("beside", "sleep", "9999")
	const timeout, grace = 5 * time.Second, 300 * time.Millisecond
	err := c.client.Start(within(t), link.StartParams{
		ProcessID: "timed", Argv: []string{"sh", "-c", timedTree}, Cwd: sandbox.WorkspacePath, Env: env,
		Timeout: timeout, Grace: grace,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.client.Close(); err != nil {
		t.Fatal(err)
	}
	c = connect(t, c.Sandbox)
	r := link.ReadResult{NextSeq: 1}
	for err == nil && !r.Closed {
		r, err = c.client.Read(within(t), link.ReadParams{ProcessID: "timed", AfterSeq: r.NextSeq - 1, Wait: link.MaxWait})
	}
	if err != nil || !r.TimedOut || r.Signal != "SIGKILL" || r.ExitCode != nil {
		t.Fatalf("ended as %+v, %v; want a timeout by SIGKILL", r, err)
	}
	if r.RunTime < timeout+grace || r.CPUTime < 0 || r.MaxRSSBytes < 0 {
		t.Errorf("ending = %+v, with a timeout of %v and a grace of %v", r.Ending, timeout, grace)
	}
	pids := strings.Fields(c.sh("cat noted"))
	if len(pids) != 3 {
		t.Fatalf("noted %q", pids)
	}
	for _, pid := range pids {
		gone := func() bool { _, code := c.run("sh", "-c", `kill -0 "$1"`, "sh", pid); return code != 0 }
		for began := time.Now(); !gone(); {
			if time.Since(began) > patience {
				t.Fatalf("process %s of %q outlived its timeout", pid, pids)
			}
		}
	}
	if !c.alive("beside") {
		t.Error("the process beside it was ended, too")
	}
}
