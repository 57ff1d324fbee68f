package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
)

func testLife(t *testing.T, s *Suite) {
	dir := s.newDir(t)
	d := s.open(t, dir)
	c := start(t, d, "life", 7)
	h := c.Handle()
	if h.Driver != d.Name() || h.Session != "life" || h.Epoch != 7 {
		t.Errorf("Handle = %+v", h)
	}
	if err := c.Err(); err != nil {
		t.Errorf("Err of a running sandbox = %v", err)
	}
	if got := c.must("echo", "hello"); got != "hello\n" {
		t.Errorf("output = %q, want %q", got, "hello\n")
	}
	if hs := list(t, d); len(hs) != 1 || hs[0].Session != "life" || hs[0].Epoch != 7 {
		t.Errorf("List = %+v, want the one sandbox", hs)
	}
	dirs := c.Dirs()
	if err := c.Destroy(within(t)); err != nil {
		t.Fatalf("Destroy = %v", err)
	}
	ended(t, c)
	if hs := list(t, d); len(hs) != 0 {
		t.Errorf("List after Destroy = %+v, want none", hs)
	}
	for _, path := range []string{dirs.Workspace, dirs.Home} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left after Destroy", path)
		}
	}
	// The place is free again after a Destroy.
	start(t, d, "life", 7).must("echo")
}

func testDirs(t *testing.T, s *Suite) {
	c := start(t, s.open(t, s.newDir(t)), "dirs", 0)
	for at, host := range map[string]string{
		sandbox.WorkspacePath: c.Dirs().Workspace,
		sandbox.HomePath:      c.Dirs().Home,
	} {
		text := "from the host to " + at
		if err := os.WriteFile(filepath.Join(host, "in"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := c.must("cat", at+"/in"); got != text {
			t.Errorf("%s in the sandbox = %q, want %q", at+"/in", got, text)
		}
		if err := c.client.WriteFile(within(t), at+"/out", []byte(text)); err != nil {
			t.Fatalf("write %s: %v", at+"/out", err)
		}
		got, err := os.ReadFile(filepath.Join(host, "out"))
		if err != nil || string(got) != text {
			t.Errorf("file on the host = %q, %v, want %q", got, err, text)
		}
	}
	const files = 500
	for i := range files {
		name := fmt.Sprintf("%s/small/%d", sandbox.WorkspacePath, i)
		if i == 0 {
			if err := c.client.CreateDirectory(within(t), filepath.Dir(name), true); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.client.WriteFile(within(t), name, []byte(name)); err != nil {
			t.Fatalf("write %s: %v", name, err)
		}
	}
	if n := len(glob(t, c.Dirs().Workspace, "small", "*")); n != files {
		t.Errorf("%d files on the host, want %d", n, files)
	}
}

func testLayers(t *testing.T, s *Suite) {
	d := s.open(t, s.newDir(t))
	layer := t.TempDir()
	if err := os.Mkdir(filepath.Join(layer, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(layer, "bin", "file")
	if err := os.WriteFile(file, []byte("layer"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(layer, 0o755); err != nil {
		t.Fatal(err)
	}
	sb, err := d.Create(within(t), sandbox.Spec{Session: "layers", Layers: []sandbox.Mount{
		{Source: layer, Target: "/agents/one"}, {Source: file, Target: "/agents/file"},
	}})
	if err != nil {
		t.Fatalf("Create = %v", err)
	}
	c := connect(t, sb)
	for _, path := range []string{"/agents/one/bin/file", "/agents/file"} {
		if got := c.must("cat", path); got != "layer" {
			t.Errorf("%s = %q, want %q", path, got, "layer")
		}
	}
	if d.Capabilities().Isolation == sandbox.IsolationNone {
		return
	}
	for _, path := range []string{"/agents/one/x", "/agents/file"} {
		if out, code := c.run("sh", "-c", `echo x > "$1"`, "sh", path); code == 0 {
			t.Errorf("%s can be written: %s", path, out)
		}
	}
}

func testRecover(t *testing.T, s *Suite) {
	for _, kind := range []string{"closed", "killed"} {
		t.Run(kind, func(t *testing.T) {
			dir := s.newDir(t)
			first := s.open(t, dir)
			c := start(t, first, "again", 3)
			c.launch("sleeper", "sleep", "600")
			if kind == "closed" {
				if err := first.Close(); err != nil {
					t.Fatalf("Close = %v", err)
				}
				select {
				case <-c.Done():
					t.Error("Close ended the sandbox")
				default:
				}
			}
			second := s.open(t, dir)
			hs := list(t, second)
			if len(hs) != 1 {
				t.Fatalf("List after a restart = %+v, want one", hs)
			}
			for _, h := range []sandbox.Handle{stored(t, c.Handle()), hs[0]} {
				sb, err := second.Recover(within(t), h)
				if err != nil {
					t.Fatalf("Recover = %v", err)
				}
				// A killed server keeps no connection. This one lives, so it must
				// not let go before there is another to call.
				c.client.Close()
				again := connect(t, sb)
				if !again.alive("sleeper") {
					t.Error("a process of before the restart is gone")
				}
			}
			// Create finds it too.
			sb := create(t, second, "again", 3)
			if got, want := sb.Handle(), c.Handle(); !bytes.Equal(got.Data, want.Data) {
				t.Errorf("Create after a restart made another sandbox: %s, want %s", got.Data, want.Data)
			}
			if err := sb.Destroy(within(t)); err != nil {
				t.Fatalf("Destroy = %v", err)
			}
			if _, err := second.Recover(within(t), c.Handle()); !errors.Is(err, sandbox.ErrGone) {
				t.Errorf("Recover after Destroy = %v, want ErrGone", err)
			}
		})
	}
}

func testRecoverRefuses(t *testing.T, s *Suite) {
	d := s.open(t, s.newDir(t))
	for name, h := range map[string]sandbox.Handle{
		"unknown":        {Driver: d.Name(), Session: "nobody", Epoch: 1},
		"of other epoch": {Driver: d.Name(), Session: "nobody", Epoch: 2, Data: []byte(`{"version":1}`)},
		"broken":         {Driver: d.Name(), Session: "nobody", Epoch: 3, Data: []byte(`[]`)},
	} {
		if _, err := d.Recover(within(t), h); !errors.Is(err, sandbox.ErrGone) {
			t.Errorf("Recover of a handle that is %s = %v, want ErrGone", name, err)
		}
		if err := d.Remove(within(t), h); err != nil {
			t.Errorf("Remove of a handle that is %s = %v", name, err)
		}
	}
	if _, err := d.Recover(within(t), sandbox.Handle{Driver: "another", Session: "x"}); err == nil || errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Recover of another driver's handle = %v, want an error that is not ErrGone", err)
	}
	if _, err := d.Create(within(t), sandbox.Spec{Session: "../x"}); !errors.Is(err, sandbox.ErrInvalidSpec) {
		t.Errorf("Create with a path as session = %v, want ErrInvalidSpec", err)
	}
	if _, err := d.Create(within(t), sandbox.Spec{Session: "x", Network: "anything"}); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("Create with an unknown network = %v, want ErrUnsupported", err)
	}
}

func testTwoDirectories(t *testing.T, s *Suite) {
	one, two := s.open(t, s.newDir(t)), s.open(t, s.newDir(t))
	a, b := start(t, one, "same", 1), start(t, two, "same", 1)
	if err := a.Destroy(within(t)); err != nil {
		t.Fatalf("Destroy = %v", err)
	}
	if hs := list(t, two); len(hs) != 1 {
		t.Errorf("List of the other directory = %+v, want its sandbox", hs)
	}
	b.must("echo")
	if b.Err() != nil {
		t.Errorf("the other directory's sandbox ended: %v", b.Err())
	}
}

func testKeeperDeath(t *testing.T, s *Suite) {
	d := s.open(t, s.newDir(t))
	c := start(t, d, "death", 1)
	if err := os.WriteFile(filepath.Join(c.Dirs().Workspace, "work"), []byte("not saved yet"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Shutdown(within(t), 0); err != nil {
		t.Fatalf("shut the keeper down: %v", err)
	}
	ended(t, c)
	if _, err := d.Recover(within(t), c.Handle()); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Recover = %v, want ErrGone", err)
	}
	// An epoch is not used again: what is in the workspace may be needed.
	if _, err := d.Create(within(t), sandbox.Spec{Session: "death", Epoch: 1}); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Create in place of one that ended = %v, want ErrGone", err)
	}
	if _, err := os.Stat(filepath.Join(c.Dirs().Workspace, "work")); err != nil {
		t.Errorf("the workspace of a sandbox that ended: %v", err)
	}
	if hs := list(t, d); len(hs) != 1 {
		t.Errorf("List = %+v, want the sandbox that ended", hs)
	}
	start(t, d, "death", 2)
	if err := d.Remove(within(t), stored(t, c.Handle())); err != nil {
		t.Errorf("Remove = %v", err)
	}
	if hs := list(t, d); len(hs) != 1 || hs[0].Epoch != 2 {
		t.Errorf("List after Remove = %+v, want the second epoch", hs)
	}
}

func testCreateIdempotent(t *testing.T, s *Suite) {
	d := s.open(t, s.newDir(t))
	var data [8][]byte
	var all sync.WaitGroup
	for i := range data {
		all.Go(func() {
			sb, err := d.Create(within(t), sandbox.Spec{Session: "once", Epoch: 1})
			if err != nil {
				t.Errorf("Create = %v", err)
				return
			}
			data[i] = sb.Handle().Data
		})
	}
	all.Wait()
	for i := range data {
		if !bytes.Equal(data[i], data[0]) {
			t.Fatalf("Create returned two sandboxes: %s and %s", data[0], data[i])
		}
	}
	if hs := list(t, d); len(hs) != 1 {
		t.Errorf("List = %+v, want one", hs)
	}
	start(t, d, "once", 1).must("echo")
}

// testCreateBrokenOff ends Create early, at several moments.
func testCreateBrokenOff(t *testing.T, s *Suite) {
	d := s.open(t, s.newDir(t))
	for i := range 5 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i*25)*time.Millisecond)
		sb, err := d.Create(ctx, sandbox.Spec{Session: "early", Epoch: int64(i)})
		cancel()
		if err == nil { // it was faster
			if err := sb.Destroy(within(t)); err != nil {
				t.Errorf("Destroy = %v", err)
			}
		}
		if hs := list(t, d); len(hs) != 0 {
			t.Errorf("List after Create = %v shows %+v, want none", err, hs)
		}
	}
}

func testDestroyIdempotent(t *testing.T, s *Suite) {
	d := s.open(t, s.newDir(t))
	c := start(t, d, "twice", 1)
	c.launch("sleeper", "sleep", "600")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := c.Destroy(within(t)); err != nil {
				t.Errorf("Destroy = %v", err)
			}
		})
	}
	all.Wait()
	ended(t, c)
	if err := d.Remove(within(t), c.Handle()); err != nil {
		t.Errorf("Remove after Destroy = %v", err)
	}
}

// testReconnect restarts the server again and again; the keeper always comes back.
func testReconnect(t *testing.T, s *Suite) {
	dir := s.newDir(t)
	d := s.open(t, dir)
	c := start(t, d, "back", 1)
	c.launch("sleeper", "sleep", "600")
	for range 4 {
		if err := d.Close(); err != nil {
			t.Fatalf("Close = %v", err)
		}
		d = s.open(t, dir)
		sb, err := d.Recover(within(t), c.Handle())
		if err != nil {
			t.Fatalf("Recover = %v", err)
		}
		c = connect(t, sb)
		if !c.alive("sleeper") {
			t.Fatal("a process is gone after a restart")
		}
	}
}

// testDial replaces connections and ends a wait.
func testDial(t *testing.T, s *Suite) {
	d := s.open(t, s.newDir(t))
	sb := create(t, d, "dial", 1)
	first := connect(t, sb)
	second := connect(t, sb)
	select {
	case <-first.client.Done():
	case <-within(t).Done():
		t.Error("the first connection is open after a second Dial")
	}
	second.must("echo")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := sb.Dial(ctx); err == nil || errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Dial with a context that ended = %v, want another error than ErrGone", err)
	}
	connect(t, sb).must("echo")
}
