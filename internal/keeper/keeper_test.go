package keeper_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// serve runs a keeper for the test and returns a way to connect to it.
func serve(t testing.TB, cfg keeper.Config) (*keeper.Keeper, func() *link.Client) {
	t.Helper()
	k := keeper.New(cfg)
	ln := listen(t)
	var served []chan struct{}
	t.Cleanup(func() {
		ln.Close()
		if err := k.Close(); err != nil {
			t.Errorf("close keeper: %v", err)
		}
		for _, done := range served {
			<-done
		}
	})
	return k, func() *link.Client {
		t.Helper()
		near, far := socketPair(t, ln)
		done := make(chan struct{})
		served = append(served, done)
		go func() {
			defer close(done)
			_ = k.Serve(context.Background(), link.Framed(far)) // its errors are the client's too
		}()
		c, err := link.Open(t.Context(), link.Framed(near), link.Options{Epoch: cfg.Epoch})
		if err != nil {
			t.Fatalf("open link: %v", err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func socketPair(t testing.TB, ln net.Listener) (near, far net.Conn) {
	t.Helper()
	near, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if far, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// env is the environment that test processes get.
func env() map[string]string { return map[string]string{"PATH": os.Getenv("PATH")} }

// outcome is all that a process did.
type outcome struct {
	link.ReadResult
	out     map[string][]byte // by stream
	exitIn  time.Duration     // from the start to the first read that said exited
	closeIn time.Duration
}

// reader is what follow needs of a client or a peer.
type reader interface {
	Read(ctx context.Context, p link.ReadParams) (link.ReadResult, error)
	Ack(ctx context.Context, processID string, seq int64) error
}

// follow reads a process to its end, acknowledging as it goes, and checks
// that the sequence has no gap.
func follow(t testing.TB, c reader, id string) outcome {
	t.Helper()
	began := time.Now()
	o := outcome{out: make(map[string][]byte)}
	after, offset := int64(0), int64(0)
	for {
		r, err := c.Read(t.Context(), link.ReadParams{ProcessID: id, AfterSeq: after, Wait: link.MaxWait})
		if err != nil {
			t.Fatalf("read %s: %v", id, err)
		}
		for _, ch := range r.Chunks {
			if ch.Offset != offset {
				t.Fatalf("chunk %d starts at %d, want %d", ch.Seq, ch.Offset, offset)
			}
			offset += int64(len(ch.Data))
			o.out[ch.Stream] = append(o.out[ch.Stream], ch.Data...)
		}
		after = r.NextSeq - 1
		if len(r.Chunks) > 0 {
			if err := c.Ack(t.Context(), id, after); err != nil {
				t.Fatalf("ack %s: %v", id, err)
			}
		}
		if r.Exited && o.exitIn == 0 {
			o.exitIn = time.Since(began)
		}
		if r.Closed {
			o.closeIn = time.Since(began)
			o.ReadResult = r
			return o
		}
	}
}

// run starts argv and follows it.
func run(t testing.TB, c *link.Client, p link.StartParams) outcome {
	t.Helper()
	start(t, c, p)
	return follow(t, c, p.ProcessID)
}

func start(t testing.TB, c *link.Client, p link.StartParams) {
	t.Helper()
	if p.Env == nil {
		p.Env = env()
	}
	if p.Cwd == "" {
		p.Cwd = "/"
	}
	if err := c.Start(t.Context(), p); err != nil {
		t.Fatalf("start %s: %v", p.ProcessID, err)
	}
}

func wantCode(t testing.TB, o outcome, code int) {
	t.Helper()
	if o.ExitCode == nil || *o.ExitCode != code || o.Signal != "" {
		t.Fatalf("exit = %v signal %q failure %q, want code %d", o.ExitCode, o.Signal, o.Failure, code)
	}
}

func TestOutputAndExitCode(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	o := run(t, dial(), link.StartParams{ProcessID: "p", Argv: []string{"sh", "-c", "printf out; printf err >&2; exit 3"}})
	wantCode(t, o, 3)
	if !bytes.Equal(o.out["stdout"], []byte("out")) || !bytes.Equal(o.out["stderr"], []byte("err")) {
		t.Fatalf("output = %q", o.out)
	}
}

func TestLeftoverDoesNotKeepProcessOpen(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	for _, script := range []string{"sleep 300 & echo started", "sleep 300 >/dev/null & echo started"} {
		o := run(t, c, link.StartParams{ProcessID: script, Argv: []string{"sh", "-c", script}})
		wantCode(t, o, 0)
		if got := string(o.out["stdout"]); got != "started\n" {
			t.Fatalf("stdout = %q, want started", got)
		}
		if o.exitIn >= o.closeIn || o.closeIn > 10*time.Second {
			t.Fatalf("exited after %v and closed after %v", o.exitIn, o.closeIn)
		}
	}
}

func TestStdinHalfClose(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{ProcessID: "p", Argv: []string{"sh", "-c", "cat; exit 9"}, PipeStdin: true})
	for range 2 {
		if err := c.Write(t.Context(), "p", "w1", []byte("hi")); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.CloseStdin(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	o := follow(t, c, "p")
	wantCode(t, o, 9)
	if got := string(o.out["stdout"]); got != "hi" {
		t.Fatalf("stdout = %q, want hi once", got)
	}
}

func TestTerminalHasSize(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	o := run(t, c, link.StartParams{ProcessID: "p", Argv: []string{"stty", "size"}, TTY: true, Rows: 33, Cols: 101})
	wantCode(t, o, 0)
	if got := string(o.out["pty"]); got != "33 101\r\n" {
		t.Fatalf("pty = %q", got)
	}
}
