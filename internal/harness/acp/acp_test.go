package acp_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/harness/acp"
	"github.com/sojourn-dev/sojourn/internal/harness/harnesstest"
	"github.com/sojourn-dev/sojourn/internal/harness/script"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// TestMain lets the test's own program be the agent, as the product's is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "script-agent" {
		os.Exit(script.Main(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// scriptRow is the runtime of the script agent, with faults from its
// environment given as "NAME=value".
func scriptRow(env ...string) harness.Runtime {
	r, _ := harness.RuntimeByID("script")
	r.Env = map[string]string{}
	for _, e := range env {
		k, v, _ := strings.Cut(e, "=")
		r.Env["SCRIPT_AGENT_"+k] = v
	}
	return r
}

// inProcess is a bench whose agent runs inside the test.
func inProcess(t testing.TB, env ...string) *harnesstest.Bench {
	t.Helper()
	b := harnesstest.NewBench(t, &acp.Harness{BatchEvery: 5 * time.Millisecond, KillAfter: 200 * time.Millisecond},
		scriptRow(env...), harnesstest.Programs{sandbox.KeeperPath: script.Run})
	b.Grace = 20 * time.Second // more than any stall of a busy disk
	return b
}

// realProcess is a bench whose agent is a process, started by a shell line that
// prelude may begin.
func realProcess(t testing.TB, prelude string, env ...string) *harnesstest.Bench {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := harnesstest.NewBench(t, &acp.Harness{BatchEvery: 5 * time.Millisecond, KillAfter: 200 * time.Millisecond},
		scriptRow(env...), nil)
	b.Grace = 20 * time.Second // more than any stall of a busy disk
	b.Runtime.Command = []string{"/bin/sh", "-c", fmt.Sprintf("%s\nSCRIPT_AGENT_ROOT=$(cd .. && pwd) exec %s script-agent", prelude, self)}
	return b
}

func wantTexts(t *testing.T, b *harnesstest.Bench, run sojourn.RunID, want ...string) {
	t.Helper()
	if got := b.Ledger.Texts(run); !slices.Equal(got, want) {
		t.Errorf("run %s said %q, want %q", run, got, want)
	}
}

func TestTurnCompletes(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	out := b.Completed(t, "r1", "@say hello\n@think hm\n@usage 5 100")
	if out.StopReason != "end_turn" || out.Agent != "script-agent 1" {
		t.Errorf("outcome %s by %q, want end_turn by script-agent 1", harnesstest.Describe(out), out.Agent)
	}
	wantTexts(t, b, "r1", "hello")
	if n := len(b.Ledger.Run("r1").Events); n != 3 {
		t.Errorf("%d events, want 3", n)
	}
	b.Completed(t, "r2", "@history")
	wantTexts(t, b, "r2", `["@say hello\n@think hm\n@usage 5 100","@history"]`)
}

func TestSuite(t *testing.T) {
	t.Run("InProcess", func(t *testing.T) {
		harnesstest.Run(t, harnesstest.Target{Bench: func(t *testing.T) *harnesstest.Bench { return inProcess(t) }})
	})
	t.Run("Process", func(t *testing.T) {
		harnesstest.Run(t, harnesstest.Target{
			Bench: func(t *testing.T) *harnesstest.Bench { return realProcess(t, "") }, Brief: true,
		})
	})
}
