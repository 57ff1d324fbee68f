package harnesstest_test

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/gateway/modeltest"
	"github.com/sojourn-dev/sojourn/internal/harness/harnesstest"
	"github.com/sojourn-dev/sojourn/internal/harness/script"
	"github.com/sojourn-dev/sojourn/internal/keeper"
)

// drive starts a program and returns a bare client that drives it.
func drive(t *testing.T, program keeper.Program, env ...string) *harnesstest.Bare {
	t.Helper()
	dir := t.TempDir()
	in, stdin := io.Pipe()
	stdout, out := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- program(context.Background(), keeper.Proc{
			Stdin: in, Stdout: out, Stderr: io.Discard, Dir: dir, Env: append(env, "HOME="+dir),
			MapPath: func(p string) string { return p },
		})
	}()
	t.Cleanup(func() {
		stdin.Close()
		stdout.Close()
		if code := <-ended; code != 0 {
			t.Errorf("the agent ended with %d", code)
		}
	})
	bare, err := harnesstest.NewBare(stdin, stdout, dir)
	if err != nil {
		t.Fatal(err)
	}
	return bare
}

func TestBareClientGetsEveryUpdate(t *testing.T) {
	t.Parallel()
	bare := drive(t, script.Run)
	for range 2 {
		updates := 0
		if err := bare.Prompt("@flood 100 10", func(json.RawMessage) { updates++ }); err != nil || updates != 100 {
			t.Errorf("%d updates and %v, want 100", updates, err)
		}
	}
	if err := bare.Prompt("@error busy", nil); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Errorf("error %v, want that of the agent", err)
	}
	if err := bare.Prompt("@stop refusal", nil); err == nil || !strings.Contains(err.Error(), "refusal") {
		t.Errorf("error %v, want one that names the reason", err)
	}
}

func TestRelaySaysWhatItsModelSays(t *testing.T) {
	t.Parallel()
	mock := &modeltest.Server{Key: "key"}
	bare := drive(t, harnesstest.Relay, "RELAY_URL="+mock.Start(t)+"/v1", "RELAY_KEY=key", "RELAY_MODEL=mock-model")
	want := strings.Repeat("some words of a model ", 100)
	said, pieces, began := "", 0, time.Now()
	err := bare.Prompt("@mock say "+want, func(update json.RawMessage) {
		if at, ok := harnesstest.At(update); !ok || at.Before(began) || at.After(time.Now()) {
			t.Errorf("%s was written at %v", update, at)
		}
		var u struct{ Content struct{ Text string } }
		if err := json.Unmarshal(update, &u); err != nil {
			t.Fatal(err)
		}
		said += u.Content.Text
		pieces++
	})
	if err != nil || strings.TrimSpace(said) != strings.TrimSpace(want) || pieces < 50 {
		t.Errorf("said %q in %d pieces, %v", said, pieces, err)
	}
	failed := ""
	if err := bare.Prompt("@mock error 500", func(update json.RawMessage) { failed += string(update) }); err != nil || !strings.Contains(failed, "500") {
		t.Errorf("said %s, %v: want the failure in words and end_turn", failed, err)
	}
}
