package client_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// archive makes a tar archive of names and contents.
func archive(t testing.TB, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		if err := w.WriteHeader(&tar.Header{Name: files[i], Mode: 0o644, Size: int64(len(files[i+1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// contents reads an archive.
func contents(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	got := map[string]string{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return got
		}
		if err != nil {
			t.Fatalf("read the archive: %v", err)
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			t.Fatalf("read %q: %v", h.Name, err)
		}
		got[h.Name] = string(data)
	}
}

func wantCode(t *testing.T, what string, err error, code string) {
	t.Helper()
	if refused, ok := errors.AsType[*client.Error](err); !ok || refused.Code != code {
		t.Errorf("%s: %v, want the code %s", what, err, code)
	}
}

func TestFilesGoInAndComeOut(t *testing.T) {
	t.Parallel()
	_, c, id := shellServer(t, servertest.Config{})
	ctx := t.Context()
	big := string(pattern(20 << 20)) // more than is held anywhere on the way
	in := archive(t, "tree/big", big, "tree/sub/no\xffutf8", "x")
	for _, step := range []struct{ path, top string }{{"copies", "tree"}, {".", "tree"}, {"/workspace/deep/er", ""}} {
		if left, err := c.CopyIn(ctx, id, step.path, step.top, bytes.NewReader(in)); err != nil || len(left) != 0 {
			t.Fatalf("copy to %s: %v, left out %q", step.path, err, left)
		}
	}
	for path, top := range map[string]string{"copies": "copies", "tree": "tree", "/workspace/deep/er/tree/": "tree"} {
		d, err := c.CopyOut(ctx, id, path)
		if err != nil {
			t.Fatal(err)
		}
		got := contents(t, d)
		if got[top+"/big"] != big || got[top+"/sub/no\xffutf8"] != "x" {
			t.Errorf("%s came back with %d files", path, len(got))
		}
		if _, err := io.Copy(io.Discard, d); err != nil || len(d.LeftOut()) != 0 {
			t.Errorf("%s: %v, left out %q", path, err, d.LeftOut())
		}
		d.Close()
	}
}

func TestCopiesThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	_, c, id := shellServer(t, servertest.Config{})
	ctx := t.Context()
	_, err := c.CopyOut(ctx, id, "nothing/here")
	wantCode(t, "a path that is not there", err, "not_found")
	_, err = c.CopyOut(ctx, id, "/")
	wantCode(t, "the root", err, "not_found")
	_, err = c.CopyOut(ctx, "01a", "x")
	wantCode(t, "a session that is not there", err, "not_found")
	for what, in := range map[string][]byte{
		"no archive":     []byte(strings.Repeat("this is no archive ", 1000)),
		"leads out":      archive(t, "top/a", "x", "../evil", "x"),
		"another top":    archive(t, "other", "x"),
		"large and late": append(archive(t, "/absolute", "x"), make([]byte, 8<<20)...),
	} {
		_, err := c.CopyIn(ctx, id, ".", "top", bytes.NewReader(in))
		wantCode(t, what, err, "invalid")
	}
	_, err = c.CopyIn(ctx, id, ".", "../top", bytes.NewReader(nil))
	wantCode(t, "a top that is no name", err, "invalid")
	_, err = c.CopyIn(ctx, id, "no/dir", "top", bytes.NewReader(archive(t, "top", "x")))
	wantCode(t, "a place that is not there", err, "invalid")
}

func TestCutCopyDoesNotLookWhole(t *testing.T) {
	t.Parallel()
	s, c, id := shellServer(t, servertest.Config{})
	ctx := t.Context()
	if _, err := c.CopyIn(ctx, id, "big", "", bytes.NewReader(archive(t, "f", string(pattern(64<<20))))); err != nil {
		t.Fatal(err)
	}
	d, err := c.CopyOut(ctx, id, "big")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := io.CopyN(io.Discard, d, 1<<20); err != nil {
		t.Fatal(err)
	}
	s.Fake.Kill(id)
	if n, err := io.Copy(io.Discard, d); err == nil {
		t.Errorf("the copy of a dead sandbox ended after %d bytes as if it were whole", n)
	}

	// And the other way, into a sandbox that has what the dead one held.
	for _, err = c.EnsureWorkspace(ctx, id); err != nil; _, err = c.EnsureWorkspace(ctx, id) {
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	r, w := io.Pipe()
	result := make(chan error, 1)
	go func() {
		_, err := c.CopyIn(ctx, id, "half", "", r)
		result <- err
	}()
	half := archive(t, "f", string(pattern(8<<20)))
	if _, err := w.Write(half[:4<<20]); err != nil {
		t.Fatal(err)
	}
	s.Fake.Kill(id)
	err = <-result
	w.Close()
	wantCode(t, "a copy into a sandbox that dies", err, "execution_lost")
}

func TestWhatIsLeftOutIsSaid(t *testing.T) {
	t.Parallel()
	s, c, id := shellServer(t, servertest.Config{})
	ctx := t.Context()
	if _, err := c.CopyIn(ctx, id, "d", "", bytes.NewReader(archive(t, "f", "x"))); err != nil {
		t.Fatal(err)
	}
	boxes, err := filepath.Glob(filepath.Join(s.Dir, "sandboxes", "*", "workspace", "d"))
	if err != nil || len(boxes) != 1 {
		t.Fatalf("the workspace is in %v (%v)", boxes, err)
	}
	l, err := net.Listen("unix", filepath.Join(boxes[0], "s"))
	if err != nil {
		t.Skipf("SKIPPED: a socket cannot be made at so long a path: %v", err)
	}
	defer l.Close()
	d, err := c.CopyOut(ctx, id, "d")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	got := contents(t, d)
	if _, err := io.Copy(io.Discard, d); err != nil {
		t.Fatal(err)
	}
	if left := d.LeftOut(); got["d/f"] != "x" || len(left) != 1 || !strings.Contains(left[0], "d/s") {
		t.Errorf("got %v, left out %q", got, left)
	}
}

func TestPortIsReachedByManyAtOnce(t *testing.T) {
	t.Parallel()
	_, c, id := shellServer(t, servertest.Config{})
	port := echo(t)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			near, far := net.Pipe()
			defer near.Close()
			result := make(chan error, 1)
			go func() {
				defer far.Close()
				result <- c.Forward(t.Context(), id, port, far)
			}()
			want := fmt.Sprintf("%d %s", i, pattern(300_000))
			go io.WriteString(near, want)
			got := make([]byte, len(want))
			if _, err := io.ReadFull(near, got); err != nil || string(got) != want {
				t.Errorf("connection %d: %d bytes the same: %t (%v)", i, len(got), string(got) == want, err)
			}
			near.Close()
			<-result
		})
	}
	all.Wait()
}

// echo listens on a port and sends back what comes.
func echo(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.Copy(conn, conn)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func TestPortHalfClosesAndSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	s, c, id := shellServer(t, servertest.Config{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	near, far := net.Pipe()
	defer near.Close()
	wantCode(t, "a port that nobody listens on", c.Forward(t.Context(), id, port, far), "not_found")

	conn := &halfConn{Conn: far, in: strings.NewReader("all that is sent")}
	var out bytes.Buffer
	conn.out = &out
	if err := c.Forward(t.Context(), id, echo(t), conn); err != nil {
		t.Errorf("forward: %v", err)
	}
	if out.String() != "all that is sent" {
		t.Errorf("came back: %q", out.String())
	}

	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	started := make(chan struct{})
	go func() {
		a, b := net.Pipe()
		go func() {
			a.Write([]byte("x"))
			io.ReadFull(a, make([]byte, 1))
			close(started)
		}()
		result <- c.Forward(ctx, id, echo(t), b)
	}()
	<-started
	s.Fake.Kill(id)
	if err := <-result; err == nil {
		t.Error("a connection into a dead sandbox ended as if the port had said all")
	}
	cancel()
}

// halfConn reads from one place and writes to another.
type halfConn struct {
	net.Conn
	in  io.Reader
	out io.Writer
}

func (c *halfConn) Read(p []byte) (int, error)  { return c.in.Read(p) }
func (c *halfConn) Write(p []byte) (int, error) { return c.out.Write(p) }

func TestVisitsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	_, c, id := shellServer(t, servertest.Config{})
	ctx := t.Context()
	for range 30 {
		if _, err := c.CopyIn(ctx, id, "d", "", bytes.NewReader(archive(t, "f", "x"))); err != nil {
			t.Fatal(err)
		}
		end, err := c.Shell(ctx, client.Shell{Session: id, Name: "same", Argv: []string{"both"}})
		wantExit(t, end, err, 0)
	}
	v, err := c.Session(ctx, id)
	if err != nil || v.Workspace.State != "attached" {
		t.Errorf("the workspace is %q (%v)", v.Workspace.State, err)
	}
}

func TestNoComputeNoVisit(t *testing.T) {
	t.Parallel()
	_, c, id := shellServer(t, servertest.Config{NoCompute: true})
	_, err := c.Shell(t.Context(), client.Shell{Session: id})
	wantCode(t, "a shell", err, "compute_not_configured")
	_, err = c.CopyOut(t.Context(), id, "x")
	wantCode(t, "a copy", err, "compute_not_configured")
	if refused, ok := errors.AsType[*client.Error](err); !ok || refused.Status != http.StatusConflict {
		t.Errorf("the refusal is %v", err)
	}
}
