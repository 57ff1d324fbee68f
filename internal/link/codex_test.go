package link_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sojourn-dev/sojourn/internal/link"
)

// codexVersion is the release that the test installs.
const codexVersion = "0.166.0"

// codexServer installs the stock server if need be, starts it and returns its
// address.
func codexServer(t *testing.T) string {
	t.Helper()
	if os.Getenv("SOJOURN_TEST_CODEX") != "1" {
		t.Skip("SKIPPED: the stock exec-server is only tried with SOJOURN_TEST_CODEX=1, because npm has to fetch it")
	}
	dir := filepath.Join(os.TempDir(), "sojourn-test-codex-"+codexVersion)
	bin := filepath.Join(dir, "node_modules", ".bin", "codex")
	if _, err := os.Stat(bin); err != nil {
		out, err := exec.Command("npm", "install", "--no-audit", "--no-fund", "--prefix", dir, "@openai/codex@"+codexVersion).CombinedOutput()
		if err != nil {
			t.Skipf("SKIPPED: npm cannot have @openai/codex: %v\n%s", err, out)
		}
	}
	cmd := exec.Command(bin, "exec-server", "--listen", "ws://127.0.0.1:0", "--concurrent-requests", "16")
	cmd.Env = append(os.Environ(), "CODEX_HOME="+t.TempDir())
	var log bytes.Buffer
	cmd.Stderr = &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the program is a wrapper around another
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // we have just killed it
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("read address: %v\n%s", err, log.Bytes())
	}
	return strings.TrimSpace(line)
}

func dialCodex(url string) func(context.Context) (link.Transport, error) {
	return func(ctx context.Context) (link.Transport, error) {
		c, _, err := websocket.Dial(ctx, url, nil)
		if err != nil {
			return nil, err
		}
		return link.WebSocket(c), nil
	}
}

// TestStockExecServer drives a stock exec-server with the client, unchanged.
func TestStockExecServer(t *testing.T) {
	url := codexServer(t)
	ctx := t.Context()
	tr, err := dialCodex(url)(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c, err := link.Open(ctx, tr, link.Options{Epoch: 7})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	t.Run("info", func(t *testing.T) {
		info, err := c.Info(ctx)
		if err != nil || info.Shell.Path == "" || !strings.HasPrefix(info.Cwd, "/") {
			t.Fatalf("info = %+v, %v", info, err)
		}
	})
	t.Run("process", func(t *testing.T) { codexProcess(t, c) })
	t.Run("large output", func(t *testing.T) {
		out, r := codexRun(t, c, link.StartParams{ProcessID: "seq", Argv: []string{"seq", "1", "100000"}})
		if len(out) != 588895 || r.ExitCode == nil || *r.ExitCode != 0 {
			t.Fatalf("%d bytes, exit %v; want 588895 and 0", len(out), r.ExitCode)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		out, _ := codexRun(t, c, link.StartParams{ProcessID: "tty", Argv: []string{"sh", "-c", "test -t 0 && echo yes"}, TTY: true})
		if string(out) != "yes\r\n" {
			t.Fatalf("output = %q", out)
		}
	})
	t.Run("long poll blocks nothing", func(t *testing.T) {
		codexStart(t, c, link.StartParams{ProcessID: "quiet", Argv: []string{"sleep", "20"}})
		polled := make(chan error, 1)
		go func() {
			_, err := c.Read(ctx, link.ReadParams{ProcessID: "quiet", Wait: link.MaxWait})
			polled <- err
		}()
		if _, err := c.Info(ctx); err != nil {
			t.Fatal(err)
		}
		if running, err := c.Terminate(ctx, "quiet", 0); err != nil || !running {
			t.Fatalf("terminate = %v, %v", running, err)
		}
		if err := <-polled; err != nil {
			t.Fatal(err)
		}
	})
	t.Run("files", func(t *testing.T) { codexFiles(t, c) })
	t.Run("not its own", func(t *testing.T) {
		if _, err := c.Stats(ctx); !errors.Is(err, link.ErrUnsupported) {
			t.Fatalf("stats = %v, want ErrUnsupported", err)
		}
	})
}

func codexStart(t *testing.T, c *link.Client, p link.StartParams) {
	t.Helper()
	p.Env = map[string]string{"PATH": os.Getenv("PATH")}
	if err := c.Start(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

func codexRun(t *testing.T, c *link.Client, p link.StartParams) ([]byte, link.ReadResult) {
	t.Helper()
	codexStart(t, c, p)
	return readAll(t, c, p.ProcessID)
}

// readAll reads a process to its end.
func readAll(t *testing.T, c interface {
	Read(context.Context, link.ReadParams) (link.ReadResult, error)
}, id string,
) ([]byte, link.ReadResult) {
	t.Helper()
	var out []byte
	after := int64(0)
	for {
		r, err := c.Read(t.Context(), link.ReadParams{ProcessID: id, AfterSeq: after, Wait: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for _, ch := range r.Chunks {
			out = append(out, ch.Data...)
		}
		after = r.NextSeq - 1
		if r.Closed {
			return out, r
		}
	}
}

func codexProcess(t *testing.T, c *link.Client) {
	ctx := t.Context()
	codexStart(t, c, link.StartParams{ProcessID: "cat", Argv: []string{"sh", "-c", "head -c 3; exit 3"}, PipeStdin: true})
	if err := c.Start(ctx, link.StartParams{ProcessID: "cat", Argv: []string{"true"}}); !errors.Is(err, link.ErrProcessExists) {
		t.Fatalf("second start = %v, want ErrProcessExists", err)
	}
	for range 2 {
		if err := c.Write(ctx, "cat", "w1", []byte("ab")); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Write(ctx, "cat", "w2", []byte("c")); err != nil {
		t.Fatal(err)
	}
	out, r := readAll(t, c, "cat")
	if string(out) != "abc" || r.ExitCode == nil || *r.ExitCode != 3 {
		t.Fatalf("output %q, exit %v", out, r.ExitCode)
	}
	if _, err := c.Read(ctx, link.ReadParams{ProcessID: "nobody"}); !errors.Is(err, link.ErrUnknownProcess) {
		t.Fatalf("read = %v, want ErrUnknownProcess", err)
	}
	if err := c.Write(ctx, "nobody", "w", nil); !errors.Is(err, link.ErrUnknownProcess) {
		t.Fatalf("write = %v, want ErrUnknownProcess", err)
	}
	codexStart(t, c, link.StartParams{ProcessID: "int", Argv: []string{"sleep", "20"}})
	if err := c.Signal(ctx, "int", "SIGINT", ""); err != nil {
		t.Fatal(err)
	}
	if _, r := readAll(t, c, "int"); r.ExitCode == nil || *r.ExitCode != 130 {
		t.Fatalf("exit after SIGINT = %v, want 130", r.ExitCode)
	}
}

func codexFiles(t *testing.T, c *link.Client) {
	ctx := t.Context()
	dir := filepath.Join(t.TempDir(), "a b#?%41é")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.CreateDirectory(ctx, filepath.Join(dir, "sub"), true))
	odd := filepath.Join(dir, "sub", "f\xff")
	data := []byte{0, 0xff, 'x'}
	must(c.WriteFile(ctx, odd, data))
	if disk, err := os.ReadFile(odd); err != nil || !bytes.Equal(disk, data) {
		t.Fatalf("on disk: %q, %v", disk, err)
	}
	got, err := c.ReadFile(ctx, odd)
	must(err)
	if !bytes.Equal(got, data) {
		t.Fatalf("read %q, want %q", got, data)
	}
	must(c.CopyPath(ctx, odd, filepath.Join(dir, "copy"), false))
	m, err := c.GetMetadata(ctx, filepath.Join(dir, "copy"))
	must(err)
	if !m.IsFile || m.Size != 3 {
		t.Fatalf("metadata = %+v", m)
	}
	must(c.RemovePath(ctx, odd, false, false))
	if _, err := c.ReadFile(ctx, odd); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("read removed file = %v, want fs.ErrNotExist", err)
	}
	entries, err := c.Walk(ctx, dir)
	must(err)
	if len(entries) != 2 {
		t.Fatalf("walk = %+v", entries)
	}
	real, err := c.Canonicalize(ctx, filepath.Join(dir, "sub", ".."))
	must(err)
	if real != dir {
		t.Fatalf("canonical = %q, want %q", real, dir)
	}
}

// TestStockExecServerResumes cuts the connection under a Peer: the session and
// its process must be there on the next one.
func TestStockExecServerResumes(t *testing.T) {
	url := codexServer(t)
	var last link.Transport
	p := link.NewPeer(func(ctx context.Context) (link.Transport, error) {
		tr, err := dialCodex(url)(ctx)
		last = tr
		return tr, err
	}, link.Options{})
	defer p.Close()
	err := p.Start(t.Context(), link.StartParams{
		ProcessID: "p", Argv: []string{"sh", "-c", "echo one; read x; echo $x"}, PipeStdin: true,
		Env: map[string]string{"PATH": os.Getenv("PATH")},
	})
	if err != nil {
		t.Fatal(err)
	}
	last.Close()
	if err := p.Write(t.Context(), "p", "w", []byte("two\n")); err != nil {
		t.Fatal(err)
	}
	out, r := readAll(t, p, "p")
	if string(out) != "one\ntwo\n" || r.ExitCode == nil || *r.ExitCode != 0 {
		t.Fatalf("output %q, exit %v", out, r.ExitCode)
	}
}
