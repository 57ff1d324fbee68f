package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// calling is a launcher whose sandboxes call, as their keeper would.
type calling struct {
	still
	silent  bool
	last    Process           // that was started
	digests map[string]string // what references mean
	live    map[string]bool   // what Reconcile was given
	trouble error             // what it returns
}

func (l *calling) Launch(ctx context.Context, c *Cell, spec sandbox.Spec) (Process, error) {
	c.Record.Image = l.digests[spec.Image]
	p, err := l.still.Launch(ctx, c, spec)
	l.last = p
	if err == nil && !l.silent {
		call(l.t, c.Run(), c.Record.Token+"\n")
	}
	return p, err
}

func (l *calling) Resolve(_ context.Context, reference string) (string, error) {
	if d, ok := l.digests[reference]; ok {
		return d, nil
	}
	return "", errors.New("no such image")
}

func (l *calling) Reconcile(_ context.Context, live map[string]bool) error {
	l.live = live
	return l.trouble
}

func callingMachine(t *testing.T, dir string, l *calling) *Machine {
	t.Helper()
	l.t = t
	caps := sandbox.Capabilities{Networks: []sandbox.Network{sandbox.NetworkNone}, Images: true}
	m, err := Open("calling", dir, caps, l)
	if err != nil {
		t.Fatal(err)
	}
	forgetGroups(t, m)
	t.Cleanup(func() { m.Close() })
	return m
}

// warmIDs returns the ids of all warm cells below a machine's directory.
func warmIDs(t *testing.T, m *Machine) []string {
	t.Helper()
	entries, err := os.ReadDir(m.root)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, e := range entries {
		if id, ok := parseWarm(e.Name()); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

func TestNamesOfWarmCells(t *testing.T) {
	c := newWarmCell("/d")
	if id, ok := parseWarm(filepath.Base(c.Dir)); !ok || id != c.ID || c.Dir != c.place() {
		t.Errorf("parseWarm(%q) = %q, %v, want %q", filepath.Base(c.Dir), id, ok, c.ID)
	}
	for _, name := range []string{"", ".warm-", ".warm-x", ".warm-" + strings.Repeat("A", 32), ".warm-" + strings.Repeat("0", 31), "../.warm-" + strings.Repeat("0", 32), "s-1"} {
		if id, ok := parseWarm(name); ok {
			t.Errorf("parseWarm(%q) = %q, want nothing", name, id)
		}
	}
	if session, epoch, ok := parseName(filepath.Base(c.Dir)); ok {
		t.Errorf("parseName takes a warm cell for %s-%d", session, epoch)
	}
}

// TestWarmCellsAfterACrash tries every state between two steps of binding and removing.
func TestWarmCellsAfterACrash(t *testing.T) {
	ready := func(t *testing.T, m *Machine) *Cell {
		c := newWarmCell(m.root)
		if err := beginCell(c); err != nil {
			t.Fatal(err)
		}
		_, p := sleeper(t)
		c.Record.Process, c.Record.Ready = p, true
		if err := c.save(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if p.Alive() {
				t.Error("its process is left")
			}
		})
		return c
	}
	bound := func(t *testing.T, m *Machine) *Cell {
		b, err := ready(t, m).bind("s", 1)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, state := range map[string]struct {
		make   func(t *testing.T, m *Machine)
		listed bool // as the session's
		runs   bool // and can be recovered
	}{
		"just begun": {make: func(t *testing.T, m *Machine) { mkdir(t, newWarmCell(m.root).Dir) }},
		"ready":      {make: func(t *testing.T, m *Machine) { ready(t, m) }},
		"record, no link": {make: func(t *testing.T, m *Machine) {
			c := ready(t, m)
			c.Record.Bound = &Bound{Session: "s", Epoch: 1}
			if err := c.save(); err != nil {
				t.Fatal(err)
			}
		}},
		"bound": {listed: true, runs: true, make: func(t *testing.T, m *Machine) { bound(t, m) }},
		"link, half removed": {listed: true, make: func(t *testing.T, m *Machine) {
			c := bound(t, m)
			if err := errors.Join(c.Record.Process.Kill(), c.Record.Process.Wait(t.Context()), RemoveTree(c.Workspace())); err != nil {
				t.Fatal(err)
			}
		}},
		"link to nothing": {listed: true, make: func(t *testing.T, m *Machine) {
			c := bound(t, m)
			if err := errors.Join(c.Record.Process.Kill(), c.Record.Process.Wait(t.Context()), RemoveTree(c.Dir)); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			state.make(t, callingMachine(t, dir, &calling{}))
			l := &calling{}
			m := callingMachine(t, dir, l)
			if err := m.Leftovers(); err != nil {
				t.Errorf("Leftovers = %v", err)
			}
			hs, err := m.List(t.Context())
			if want := map[bool]int{true: 1}[state.listed]; err != nil || len(hs) != want {
				t.Errorf("List = %+v, %v, want %d", hs, err, want)
			}
			if len(l.live) != len(hs) {
				t.Errorf("%d sandboxes are alive for Reconcile, want %d", len(l.live), len(hs))
			}
			h := sandbox.Handle{Driver: "calling", Session: "s", Epoch: 1}
			if sb, err := m.Recover(t.Context(), h); (err == nil) != state.runs || !state.runs && !errors.Is(err, sandbox.ErrGone) {
				t.Errorf("Recover = %v, %v, want it to work: %v", sb, err, state.runs)
			}
			if err := m.Remove(t.Context(), h); err != nil {
				t.Errorf("Remove = %v", err)
			}
			if hs, err := m.List(t.Context()); err != nil || len(hs) != 0 {
				t.Errorf("List after Remove = %+v, %v, want none", hs, err)
			}
			if ids := warmIDs(t, m); len(ids) != 0 {
				t.Errorf("warm cells left: %q", ids)
			}
			sb, err := m.Create(t.Context(), sandbox.Spec{Session: "s", Epoch: 1})
			if err != nil {
				t.Fatalf("Create in its place = %v", err)
			}
			if err := sb.Destroy(t.Context()); err != nil {
				t.Errorf("Destroy = %v", err)
			}
		})
	}
}

func TestLinkAloneGivesNobodyASandbox(t *testing.T) {
	m := callingMachine(t, t.TempDir(), &calling{})
	if err := m.Warm(t.Context(), sandbox.Spec{}, 1); err != nil {
		t.Fatal(err)
	}
	sb, err := m.Create(t.Context(), sandbox.Spec{Session: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Base(filepath.Dir(sb.Dirs().Home)), filepath.Join(m.root, "thief-0")); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Recover(t.Context(), sandbox.Handle{Driver: "calling", Session: "thief"}); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Recover through a second link = %v, want ErrGone", err)
	}
}

func TestSpareThatEndsIsForgotten(t *testing.T) {
	l := &calling{}
	m := callingMachine(t, t.TempDir(), l)
	if err := m.Warm(t.Context(), sandbox.Spec{}, 1); err != nil {
		t.Fatal(err)
	}
	w := m.spares[0]
	if err := l.last.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.watched:
	case <-time.After(time.Minute):
		t.Fatal("nobody noticed that it ended")
	}
	if n := m.Ready(sandbox.Spec{}); n != 0 || len(warmIDs(t, m)) != 0 {
		t.Errorf("Ready = %d, directories %q, want none", n, warmIDs(t, m))
	}
}

func TestDeadSpareIsGivenToNobody(t *testing.T) {
	m := callingMachine(t, t.TempDir(), &calling{})
	if err := m.Warm(t.Context(), sandbox.Spec{}, 1); err != nil {
		t.Fatal(err)
	}
	dead := m.pop(m.spares[0].kind)
	dead.stop() // from here on nobody notices
	if err := errors.Join(dead.cell.Record.Process.Kill(), dead.cell.Record.Process.Wait(t.Context())); err != nil {
		t.Fatal(err)
	}
	m.spares = append(m.spares, dead)
	sb, err := m.Create(t.Context(), sandbox.Spec{Session: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if sb.Err() != nil || sb.Dirs().Workspace == dead.cell.Workspace() {
		t.Errorf("Create returned the dead one: %v", sb.Err())
	}
	if ids := warmIDs(t, m); len(ids) != 0 {
		t.Errorf("directories left: %q", ids)
	}
}

func TestSandboxWhoseKeeperIsSilentIsNotReady(t *testing.T) {
	m := callingMachine(t, t.TempDir(), &calling{silent: true})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := m.Warm(ctx, sandbox.Spec{}, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Warm = %v, want the end of its context", err)
	}
	if n := m.Ready(sandbox.Spec{}); n != 0 || len(warmIDs(t, m)) != 0 {
		t.Errorf("Ready = %d, directories %q, want none", n, warmIDs(t, m))
	}
}

func TestMovedTagIsAnotherImage(t *testing.T) {
	l := &calling{digests: map[string]string{"app": "sha256:1"}}
	m := callingMachine(t, t.TempDir(), l)
	app := sandbox.Spec{Image: "app"}
	if err := m.Warm(t.Context(), app, 2); err != nil {
		t.Fatal(err)
	}
	old := warmIDs(t, m)
	l.digests["app"] = "sha256:2"
	sb, err := m.Create(t.Context(), sandbox.Spec{Session: "s", Image: "app"})
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(sb.Dirs().Workspace) != filepath.Join(m.root, "s-0") {
		t.Errorf("Create took a sandbox of the old image: %s", sb.Dirs().Workspace)
	}
	if n := m.Ready(app); n != 0 { // else nobody would make others
		t.Errorf("Ready = %d after a Create that found only sandboxes of the old image, want 0", n)
	}
	for deadline := time.Now().Add(time.Minute); len(warmIDs(t, m)) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("sandboxes of the old image are left: %q", warmIDs(t, m))
		}
	}
	if err := m.Warm(t.Context(), app, 1); err != nil {
		t.Fatal(err)
	}
	now := warmIDs(t, m)
	if m.Ready(app) != 1 || len(now) != 1 || now[0] == old[0] || now[0] == old[1] {
		t.Errorf("Ready = %d, directories %q, want one that is not of %q", m.Ready(app), now, old)
	}
}

func TestCloseEndsWhatIsNobodys(t *testing.T) {
	m := callingMachine(t, t.TempDir(), &calling{})
	if err := m.Warm(t.Context(), sandbox.Spec{}, 2); err != nil {
		t.Fatal(err)
	}
	sb, err := m.Create(t.Context(), sandbox.Spec{Session: "s"})
	if err != nil {
		t.Fatal(err)
	}
	p := m.spares[0].cell.Record.Process
	for range 2 {
		if err := m.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	}
	if p.Alive() || sb.Err() != nil || len(warmIDs(t, m)) != 1 {
		t.Errorf("after Close the spare runs: %v, the session's ended: %v, directories: %d, want 1", p.Alive(), sb.Err(), len(warmIDs(t, m)))
	}
	if err := m.Warm(t.Context(), sandbox.Spec{}, 1); err == nil {
		t.Error("Warm after Close worked")
	}
}

func TestSpareThatDoesNotEndIsTriedAgain(t *testing.T) {
	l := &calling{}
	m := callingMachine(t, t.TempDir(), l)
	if err := m.Warm(t.Context(), sandbox.Spec{}, 1); err != nil {
		t.Fatal(err)
	}
	l.kill = errors.New("it does not die")
	if err := m.Warm(t.Context(), sandbox.Spec{}, 0); err != nil {
		t.Errorf("Warm(0) = %v", err)
	}
	if again := callingMachine(t, filepath.Dir(m.root), l); !errors.Is(again.Leftovers(), l.kill) {
		t.Errorf("Leftovers = %v, want %v", again.Leftovers(), l.kill)
	}
	if err := m.Close(); !errors.Is(err, l.kill) {
		t.Errorf("Close = %v, want %v", err, l.kill)
	}
	l.kill = nil
	if again := callingMachine(t, filepath.Dir(m.root), l); again.Leftovers() != nil || len(warmIDs(t, again)) != 0 {
		t.Errorf("Leftovers = %v, directories %q, want none", again.Leftovers(), warmIDs(t, again))
	}
}

// BenchmarkBind compares the binding of a spare with making a cell's directory, which
// a cold start begins with.
func BenchmarkBind(b *testing.B) {
	root := b.TempDir()
	var bind, begin time.Duration
	for i := int64(0); b.Loop(); i++ {
		w := newWarmCell(root)
		started := time.Now()
		if err := beginCell(w); err != nil {
			b.Fatal(err)
		}
		begun := time.Now()
		if _, err := w.bind("s", i); err != nil {
			b.Fatal(err)
		}
		bind, begin = bind+time.Since(begun), begin+begun.Sub(started)
	}
	b.ReportMetric(float64(bind)/float64(begin), "bind/begin")
}
