package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// skipPool skips tests that say how many sandboxes are ready.
func (s *Suite) skipPool(t *testing.T) {
	t.Helper()
	if s.Pool {
		t.Skip("SKIPPED: this driver makes sandboxes ready by itself")
	}
}

// openWarmer opens a driver that keeps sandboxes ready, or skips the test.
func (s *Suite) openWarmer(t *testing.T, dir string) (sandbox.Driver, sandbox.Warmer) {
	t.Helper()
	d := s.open(t, dir)
	w, ok := d.(sandbox.Warmer)
	if !ok {
		t.Skipf("SKIPPED: driver %s keeps no sandboxes ready", d.Name())
	}
	return d, w
}

// warm makes there be n ready sandboxes for spec.
func warm(t *testing.T, w sandbox.Warmer, spec sandbox.Spec, n int) {
	t.Helper()
	if err := w.Warm(within(t), spec, n); err != nil {
		t.Fatalf("Warm(%d) = %v", n, err)
	}
	if got := w.Ready(spec); got != n {
		t.Fatalf("Ready after Warm(%d) = %d", n, got)
	}
}

func testWarm(t *testing.T, s *Suite) {
	s.skipPool(t)
	dir := s.newDir(t)
	d, w := s.openWarmer(t, dir)
	warm(t, w, sandbox.Spec{}, 2)
	if hs := list(t, d); len(hs) != 0 {
		t.Errorf("List shows sandboxes that are nobody's: %+v", hs)
	}
	one := start(t, d, "one", 7)
	if got := w.Ready(sandbox.Spec{}); got != 1 {
		t.Errorf("Ready after a Create = %d, want 1", got)
	}
	if hs := list(t, d); len(hs) != 1 || hs[0].Session != "one" || hs[0].Epoch != 7 {
		t.Errorf("List = %+v, want the one sandbox", hs)
	}
	if got := one.sh("ls -A " + sandbox.WorkspacePath + " " + sandbox.HomePath + " | grep -v :"); strings.TrimSpace(got) != "" {
		t.Errorf("a ready sandbox has files already: %q", got)
	}
	for at, host := range map[string]string{sandbox.WorkspacePath: one.Dirs().Workspace, sandbox.HomePath: one.Dirs().Home} {
		if err := os.WriteFile(filepath.Join(host, "in"), []byte("restored"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := one.must("cat", at+"/in"); got != "restored" {
			t.Errorf("%s/in = %q, want what the host wrote", at, got)
		}
		one.sh("echo kept >" + at + "/out")
		if got, err := os.ReadFile(filepath.Join(host, "out")); err != nil || string(got) != "kept\n" {
			t.Errorf("%s/out on the host = %q, %v", at, got, err)
		}
	}
	// The keeper was started for no epoch. It obeys the session's now, and no older.
	conn, err := one.Dial(within(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := link.Open(within(t), link.Framed(conn), link.Options{Epoch: 6}); err == nil {
		t.Error("the keeper serves an epoch older than the sandbox's")
	}

	two := start(t, d, "two", 7)
	two.must("echo")
	if bytes.Equal(one.Handle().Data, two.Handle().Data) || one.Dirs() == two.Dirs() {
		t.Error("two sessions were given one sandbox")
	}
	if err := one.Destroy(within(t)); err != nil {
		t.Fatalf("Destroy = %v", err)
	}
	ended(t, one)
	if _, err := os.Lstat(one.Dirs().Workspace); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the workspace is left after Destroy: %v", err)
	}
	two.must("echo")
	// The place is free, and nothing is ready: this one is made as always.
	start(t, d, "one", 7).must("echo")
}

// testWarmFits asks for what is not ready, and for fewer.
func testWarmFits(t *testing.T, s *Suite) {
	s.skipPool(t)
	dir := s.newDir(t)
	d, w := s.openWarmer(t, dir)
	layered := sandbox.Spec{Layers: []sandbox.Mount{{Source: t.TempDir(), Target: "/agents/one"}}}
	warm(t, w, layered, 1)
	if got := w.Ready(sandbox.Spec{}); got != 0 {
		t.Errorf("Ready for another spec = %d, want 0", got)
	}
	start(t, d, "plain", 1).must("echo")
	if got := w.Ready(layered); got != 1 {
		t.Errorf("Ready after a Create for another spec = %d, want 1", got)
	}
	// The same path with another directory behind it is another layer.
	source := layered.Layers[0].Source
	if err := os.Rename(source, source+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(source, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(source, "new"), []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	layered.Session = "layered"
	sb, err := d.Create(within(t), layered)
	if err != nil {
		t.Fatalf("Create = %v", err)
	}
	if got := connect(t, sb).must("cat", "/agents/one/new"); got != "new" {
		t.Errorf("the layer has %q, want the new directory's file", got)
	}
	warm(t, w, layered, 0)
	if err := w.Warm(within(t), sandbox.Spec{Network: "anything"}, 1); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("Warm with an unknown network = %v, want ErrUnsupported", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := w.Warm(ctx, sandbox.Spec{}, 1); err == nil {
		t.Error("Warm with a context that has ended works")
	}
	if got := w.Ready(sandbox.Spec{}); got != 0 {
		t.Errorf("Ready after a Warm that failed = %d, want 0", got)
	}
}

// testWarmRace lets sessions race for the last sandbox that is ready.
func testWarmRace(t *testing.T, s *Suite) {
	s.skipPool(t)
	d, w := s.openWarmer(t, s.newDir(t))
	warm(t, w, sandbox.Spec{}, 1)
	var sbs [3]sandbox.Sandbox
	var all sync.WaitGroup
	for i, session := range []string{"a", "b", "b"} {
		all.Go(func() {
			var err error
			if sbs[i], err = d.Create(within(t), sandbox.Spec{Session: session, Epoch: 1}); err != nil {
				t.Errorf("Create(%s) = %v", session, err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	if sbs[0].Dirs() == sbs[1].Dirs() || sbs[1].Dirs() != sbs[2].Dirs() {
		t.Errorf("directories of a, b and b again: %v", []sandbox.Dirs{sbs[0].Dirs(), sbs[1].Dirs(), sbs[2].Dirs()})
	}
	for _, sb := range sbs[:2] {
		connect(t, sb).must("echo")
	}
	if got := w.Ready(sandbox.Spec{}); got != 0 {
		t.Errorf("Ready = %d, want 0", got)
	}
}

// testWarmRestart restarts the server with one sandbox that was bound and one that was
// not.
func testWarmRestart(t *testing.T, s *Suite) {
	s.skipPool(t)
	dir := s.newDir(t)
	d, w := s.openWarmer(t, dir)
	warm(t, w, sandbox.Spec{}, 2)
	c := start(t, d, "bound", 3)
	c.launch("sleeper", "sleep", "600")
	for range 2 {
		second, w := s.openWarmer(t, dir)
		if l, ok := second.(sandbox.Cleaner); ok && l.Leftovers() != nil {
			t.Errorf("Leftovers = %v", l.Leftovers())
		}
		if got := w.Ready(sandbox.Spec{}); got != 0 {
			t.Errorf("Ready after a restart = %d, want 0: they were another server's", got)
		}
		sb, err := second.Recover(within(t), stored(t, c.Handle()))
		if err != nil {
			t.Fatalf("Recover = %v", err)
		}
		if sb.Dirs() != c.Dirs() {
			t.Errorf("Dirs after a restart = %v, want %v", sb.Dirs(), c.Dirs())
		}
		c.client.Close() // as if the server had been killed
		if c = connect(t, sb); !c.alive("sleeper") {
			t.Fatal("a process of before the restart is gone")
		}
		d = second
	}
	if err := d.Remove(within(t), c.Handle()); err != nil {
		t.Fatalf("Remove = %v", err)
	}
	if ps := processesOf(t, dir); len(ps) != 0 {
		t.Errorf("processes left: %q", ps)
	}
}

// testWarmSnapshot saves the processes of a sandbox that was made ahead. Those of another
// that is ready are not mixed up with the ones that come back.
func testWarmSnapshot(t *testing.T, s *Suite) {
	s.skipPool(t)
	d, w := s.openWarmer(t, s.newDir(t))
	resumer(t, d) // skips
	warm(t, w, sandbox.Spec{}, 2)
	c := start(t, d, "warm", 3)
	r := startRemembering(t, c)
	next := resume(t, d, 4, c, c.snapshot())
	if got := w.Ready(sandbox.Spec{}); got != 1 {
		t.Errorf("Ready after a Create with a snapshot = %d, want 1 as before", got)
	}
	if err := d.Remove(within(t), c.Handle()); err != nil {
		t.Errorf("Remove of a sandbox that was saved = %v", err)
	}
	r.check(next, 1)
}

// testWarmCrash kills servers that are busy making sandboxes ready and binding them.
func testWarmCrash(t *testing.T, s *Suite) {
	s.skipPool(t)
	if s.InProcess {
		t.Skip("SKIPPED: sandboxes of this driver die with the server's process")
	}
	dir := s.newDir(t)
	s.openWarmer(t, s.newDir(t)) // skips
	rounds := 4
	if testing.Short() {
		rounds = 2
	}
	for range rounds {
		delay := time.Duration(200+rand.IntN(1000)) * time.Millisecond
		crash(t, commandWarmCrash, dir, delay)
		d := s.open(t, dir)
		if l, ok := d.(sandbox.Cleaner); ok && l.Leftovers() != nil {
			t.Errorf("Leftovers = %v", l.Leftovers())
		}
		left := list(t, d)
		t.Logf("killed after %v, left %d sandboxes", delay, len(left))
		seen := make(map[string]bool)
		for _, h := range left {
			sb, err := d.Recover(within(t), h)
			switch {
			case err == nil:
				connect(t, sb).must("echo")
				if seen[sb.Dirs().Workspace] {
					t.Errorf("%s-%d shares its workspace with another", h.Session, h.Epoch)
				}
				seen[sb.Dirs().Workspace] = true
			case !errors.Is(err, sandbox.ErrGone):
				t.Errorf("Recover of what a crash left = %v", err)
			}
			if err := d.Remove(within(t), h); err != nil {
				t.Errorf("Remove of what a crash left = %v", err)
			}
		}
		if ps := processesOf(t, dir); len(ps) != 0 {
			t.Errorf("processes left after Remove: %q", ps)
		}
		if left := glob(t, dir, "sandboxes", ".warm-*"); len(left) != 0 {
			t.Errorf("directories left after Remove: %q", left)
		}
	}
}

// warmForever is the server that is killed: it makes sandboxes ready, binds them and
// destroys every other one.
func warmForever(open Open, dir string) int {
	d, err := open(dir)
	if err != nil {
		return 1
	}
	os.Stdout.WriteString("x")
	for i := range int64(1 << 20) {
		if err := d.(sandbox.Warmer).Warm(context.Background(), sandbox.Spec{}, 2); err != nil {
			return 1
		}
		sb, err := d.Create(context.Background(), sandbox.Spec{Session: "crash", Epoch: i})
		if err != nil {
			return 1
		}
		if i%2 == 0 {
			if err := sb.Destroy(context.Background()); err != nil {
				return 1
			}
		}
	}
	return 0
}
