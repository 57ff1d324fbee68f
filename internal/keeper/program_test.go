package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
)

var programs = map[string]keeper.Program{
	"echo": func(_ context.Context, p keeper.Proc) int {
		fmt.Fprintln(p.Stdout, strings.Join(p.Args[1:], " "))
		fmt.Fprintln(p.Stderr, p.Dir, p.Env)
		return 0
	},
	"cat": func(_ context.Context, p keeper.Proc) int {
		if _, err := io.Copy(p.Stdout, p.Stdin); err != nil {
			return 1
		}
		return 9
	},
	"sleep": func(ctx context.Context, p keeper.Proc) int {
		fmt.Fprint(p.Stdout, "ready")
		select {
		case <-ctx.Done():
			fmt.Fprint(p.Stdout, "bye")
			return 143
		case <-time.After(time.Hour):
			return 0
		}
	},
	"stubborn": func(_ context.Context, p keeper.Proc) int {
		for { // only a kill ends it, by failing its writes
			if _, err := fmt.Fprint(p.Stdout, "x"); err != nil {
				return 0
			}
			time.Sleep(time.Second)
		}
	},
	"flood": func(_ context.Context, p keeper.Proc) int {
		n, err := p.Stdout.Write(make([]byte, 10<<20))
		if err != nil || n != 10<<20 {
			return 1
		}
		return 0
	},
	"panic": func(context.Context, keeper.Proc) int { panic("oops") },
	"pwd": func(_ context.Context, p keeper.Proc) int {
		data, err := os.ReadFile(p.MapPath(filepath.Join(p.Dir, "f")))
		if err != nil {
			return 1
		}
		p.Stdout.Write(data)
		return 0
	},
}

// inBubble runs a test with a keeper of programs in a synctest bubble.
func inBubble(t *testing.T, cfg keeper.Config, f func(t *testing.T, c *link.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg.Programs = programs
		k := keeper.New(cfg)
		near, far := net.Pipe()
		served := make(chan error, 1)
		go func() { served <- k.Serve(context.Background(), link.Framed(far)) }()
		c, err := link.Open(t.Context(), link.Framed(near), link.Options{})
		if err != nil {
			t.Fatal(err)
		}
		f(t, c)
		c.Close()
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
		<-served
	})
}

func TestProgramRuns(t *testing.T) {
	inBubble(t, keeper.Config{}, func(t *testing.T, c *link.Client) {
		o := run(t, c, link.StartParams{ProcessID: "p", Argv: []string{"echo", "a", "b"}, Env: map[string]string{"A": "1"}})
		wantCode(t, o, 0)
		if string(o.out["stdout"]) != "a b\n" || string(o.out["stderr"]) != "/ [A=1]\n" {
			t.Fatalf("output = %q", o.out)
		}
		o = run(t, c, link.StartParams{ProcessID: "q", Argv: []string{"sh"}})
		wantCode(t, o, 127)
		o = run(t, c, link.StartParams{ProcessID: "r", Argv: []string{"echo"}, Cwd: "/no/such/dir"})
		if o.FailureKind != link.FailureCwd || o.ExitCode != nil {
			t.Fatalf("missing directory: %+v", o.ReadResult)
		}
		o = run(t, c, link.StartParams{ProcessID: "s", Argv: []string{"panic"}})
		if !strings.Contains(o.Failure, "oops") {
			t.Fatalf("panic: %+v", o.ReadResult)
		}
	})
}

func TestProgramReadsStdin(t *testing.T) {
	inBubble(t, keeper.Config{}, func(t *testing.T, c *link.Client) {
		wantCode(t, run(t, c, link.StartParams{ProcessID: "empty", Argv: []string{"cat"}}), 9)
		start(t, c, link.StartParams{ProcessID: "p", Argv: []string{"cat"}, PipeStdin: true})
		for i := range 10 {
			if err := c.Write(t.Context(), "p", fmt.Sprint(i), []byte{byte('0' + i)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.CloseStdin(t.Context(), "p"); err != nil {
			t.Fatal(err)
		}
		o := follow(t, c, "p")
		wantCode(t, o, 9)
		if got := string(o.out["stdout"]); got != "0123456789" {
			t.Fatalf("stdout = %q", got)
		}
		if err := c.Write(t.Context(), "p", "late", []byte("x")); !errors.Is(err, link.ErrStdinClosed) {
			t.Fatalf("late write = %v, want ErrStdinClosed", err)
		}
	})
}

func TestProgramEndsWithItsContext(t *testing.T) {
	inBubble(t, keeper.Config{}, func(t *testing.T, c *link.Client) {
		start(t, c, link.StartParams{ProcessID: "p", Argv: []string{"sleep"}})
		await(t, c, "p", "ready")
		began := time.Now()
		if _, err := c.Terminate(t.Context(), "p", time.Minute); err != nil {
			t.Fatal(err)
		}
		o := follow(t, c, "p")
		wantCode(t, o, 143)
		if time.Since(began) != 0 || string(o.out["stdout"]) != "readybye" {
			t.Fatalf("after %v: %q", time.Since(began), o.out)
		}
		start(t, c, link.StartParams{ProcessID: "q", Argv: []string{"sleep"}})
		await(t, c, "q", "ready")
		if err := c.Signal(t.Context(), "q", "SIGKILL", ""); err != nil {
			t.Fatal(err)
		}
		if o := follow(t, c, "q"); o.Signal != "SIGKILL" {
			t.Fatalf("killed program: %+v", o.ReadResult)
		}
	})
}

func TestStubbornProgramIsCutOff(t *testing.T) {
	inBubble(t, keeper.Config{}, func(t *testing.T, c *link.Client) {
		start(t, c, link.StartParams{ProcessID: "p", Argv: []string{"stubborn"}})
		began := time.Now()
		if _, err := c.Terminate(t.Context(), "p", 10*time.Second); err != nil {
			t.Fatal(err)
		}
		o := follow(t, c, "p")
		if o.Signal != "SIGKILL" || time.Since(began) != 10*time.Second {
			t.Fatalf("after %v: %+v", time.Since(began), o.ReadResult)
		}
	})
}

func TestProgramWaitsForAcks(t *testing.T) {
	inBubble(t, keeper.Config{}, func(t *testing.T, c *link.Client) {
		start(t, c, link.StartParams{ProcessID: "p", Argv: []string{"flood"}, Retain: link.RetainAck, SpoolBytes: 1 << 20})
		synctest.Wait()
		if p := held(t, c, "p"); p.Exited || p.HeldBytes < 1<<20-64<<10 || p.HeldBytes > 1<<20+64<<10 {
			t.Fatalf("held %d bytes, exited %v", p.HeldBytes, p.Exited)
		}
		o := follow(t, c, "p")
		wantCode(t, o, 0)
		if got := len(o.out["stdout"]); got != 10<<20 {
			t.Fatalf("%d bytes arrived", got)
		}
	})
}

func TestLongPollWaitsItsTime(t *testing.T) {
	inBubble(t, keeper.Config{}, func(t *testing.T, c *link.Client) {
		start(t, c, link.StartParams{ProcessID: "p", Argv: []string{"sleep"}})
		await(t, c, "p", "ready")
		began := time.Now()
		r, err := c.Read(t.Context(), link.ReadParams{ProcessID: "p", AfterSeq: 1, Wait: time.Hour})
		if err != nil || len(r.Chunks) != 0 || r.Exited || r.NextSeq != 2 || time.Since(began) != link.MaxWait {
			t.Fatalf("after %v: %+v, %v", time.Since(began), r, err)
		}
	})
}

func TestFreezeUndoesItself(t *testing.T) {
	inBubble(t, keeper.Config{}, func(t *testing.T, c *link.Client) {
		if _, err := c.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		start(t, c, link.StartParams{ProcessID: "p", Argv: []string{"echo"}}) // waits
		if d := time.Since(began); d != time.Minute {
			t.Fatalf("a start waited %v, want a minute", d)
		}
	})
}

// TestPathsAreOfTheSandbox: with MapPath every path, also the target of a
// link, is one of the sandbox, and nothing leads out of it.
func TestPathsAreOfTheSandbox(t *testing.T) {
	root := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret")
	for name, content := range map[string]string{outside: "secret", filepath.Join(root, "workspace", "f"): "inside"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"abs": "/workspace/f", "out": outside, "up": strings.Repeat("../", 30) + strings.TrimPrefix(outside, "/"), "loop": "loop", "dir": "/workspace",
	} {
		if err := os.Symlink(target, filepath.Join(root, "workspace", name)); err != nil {
			t.Fatal(err)
		}
	}
	inBubble(t, keeper.Config{MapPath: func(p string) string { return filepath.Join(root, p) }}, func(t *testing.T, c *link.Client) {
		o := run(t, c, link.StartParams{ProcessID: "p", Argv: []string{"pwd"}, Cwd: "/workspace"})
		wantCode(t, o, 0)
		for _, name := range []string{"/workspace/f", "/workspace/abs", "/workspace/dir/abs", "/workspace/dir/dir/f", "/../workspace/f"} {
			if data, err := c.ReadFile(t.Context(), name); err != nil || string(data) != "inside" {
				t.Errorf("%s: %q, %v", name, data, err)
			}
		}
		for _, name := range []string{"/workspace/out", "/workspace/up", "/workspace/loop"} {
			if data, err := c.ReadFile(t.Context(), name); err == nil {
				t.Errorf("%s: read %q", name, data)
			}
		}
		if p, err := c.Canonicalize(t.Context(), "/workspace/dir/abs"); err != nil || p != "/workspace/f" {
			t.Errorf("canonical = %q, %v", p, err)
		}
		if err := c.WriteFile(t.Context(), "/workspace/up", []byte("x")); err == nil {
			t.Error("wrote through a link that leads out")
		}
		if err := c.RemovePath(t.Context(), "/workspace/abs", false, false); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(root, "workspace", "f")); err != nil {
			t.Error("removing a link removed its target")
		}
	})
	if data, err := os.ReadFile(outside); err != nil || string(data) != "secret" {
		t.Fatalf("the file outside is %q, %v", data, err)
	}
}
