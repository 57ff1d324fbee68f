package keeper_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// TestProgramsEndBeforeTheKeeper: when memory runs out the kernel looks at the score.
func TestProgramsEndBeforeTheKeeper(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	_, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{ProcessID: "p", Argv: []string{"sh", "-c", "read line; cat /proc/self/oom_score_adj"}, Env: env(), PipeStdin: true})
	// The score is there when start has been answered.
	if err := c.Write(t.Context(), "p", "w", []byte("go\n")); err != nil {
		t.Fatal(err)
	}
	got := strings.TrimSpace(string(follow(t, c, "p").out[link.Stdout]))
	if want := strconv.Itoa(min(own+500, 1000)); got != want {
		t.Errorf("beside a keeper with %d a program has the score %q, want %s", own, got, want)
	}
}
