package acp_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness/acp"
	"github.com/sojourn-dev/sojourn/internal/harness/harnesstest"
)

func TestHugeUpdateArrivesWhole(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	const size = 20 << 20
	b.Completed(t, "r1", "@say one\n@big 20971520\n@say two")
	got := b.Ledger.Texts("r1")
	if len(got) != 3 || len(got[1]) != size || strings.Trim(got[1], "x") != "" {
		t.Fatalf("%d chunks, want 3 with %d bytes in the second", len(got), size)
	}
}

func TestHugeUpdateSurvivesACrashInItsMiddle(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	b.Completed(t, "r0", "@say warm")
	// The third commit is the first with the line's other part still unread.
	b.Port.DieAfter = 2
	prompt := "@say one\n@stderr loud\n@raw " + strings.Repeat("#", 1<<20) + "\n@big 3000000\n@say two"
	if _, err := b.Drive(t, "r1", prompt); err == nil {
		t.Fatal("the drive survived its server")
	}
	b.Port = harnesstest.Port{}
	b.Completed(t, "r1", prompt)
	got := b.Ledger.Texts("r1")
	if len(got) != 3 || len(got[1]) != 3000000 {
		t.Fatalf("%d chunks, want 3 with 3000000 bytes in the second", len(got))
	}
	if logs := b.Ledger.Logs("r1"); len(logs) != 2 {
		t.Errorf("%d lines logged, want 2", len(logs))
	}
}

func TestLineWithoutEndEndsTheRun(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	b.Harness = &acp.Harness{MaxLineBytes: 1 << 20, KillAfter: 100 * time.Millisecond}
	out := b.Turn(t, "r1", "@say one\n@big 30000000")
	wantCode(t, out, sojourn.RunFailed, acp.CodeAgentProtocol)
	if !out.Killed || !strings.Contains(out.Error.Message, "1048576 bytes") {
		t.Errorf("outcome %s, want killed and the limit named", harnesstest.Describe(out))
	}
	b.Completed(t, "r2", "@say again")
}

func TestUnfinishedLineDoesNotStopTheAgent(t *testing.T) {
	t.Parallel()
	// Standard error goes on for longer than the spool holds while a line of
	// standard output has no end.
	b := realProcess(t, "printf 'Loading'")
	b.Harness = &acp.Harness{MaxLineBytes: 1 << 20, KillAfter: 100 * time.Millisecond}
	b.Runtime.Command[2] = "printf 'Loading' ; head -c 20000000 /dev/zero | tr '\\0' 'e' >&2\n" + b.Runtime.Command[2]
	b.Completed(t, "r1", "@say one")
	wantTexts(t, b, "r1", "one")
}

func TestHugePromptReachesTheAgent(t *testing.T) {
	t.Parallel()
	b := realProcess(t, "")
	prompt := "@say one\n" + strings.Repeat("# padding that no instruction reads\n", 200_000) + "@say two"
	b.Completed(t, "r1", prompt)
	wantTexts(t, b, "r1", "one", "two")
}

func TestManyRequestsAreAllAnswered(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	b.Completed(t, "r1", strings.Repeat("@request some/thing\n", 600))
	got := b.Ledger.Texts("r1")
	if len(got) != 600 || got[599] != "refused: -32601" {
		t.Errorf("%d answers, want 600 refusals", len(got))
	}
}

func BenchmarkUpdate(b *testing.B) {
	bench := inProcess(b)
	bench.Completed(b, "warm", "@say warm")
	b.ResetTimer()
	bench.Completed(b, "r1", fmt.Sprintf("@flood %d 100", b.N))
}

func BenchmarkTurn(b *testing.B) {
	bench := inProcess(b)
	for i := 0; b.Loop(); i++ {
		bench.Completed(b, sojourn.RunID(fmt.Sprintf("r%d", i)), "@say hello")
	}
}
