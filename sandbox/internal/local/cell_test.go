package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox"
)

func TestNamesOfCellsAreUnambiguous(t *testing.T) {
	for _, c := range []struct {
		session string
		epoch   int64
	}{{"a", 0}, {"a-1", 2}, {"a", 12}, {"-", 1}, {"a--", 3}, {"1-2", 3}, {strings.Repeat("x", 64), 1 << 62}} {
		name := newCell("/d", c.session, c.epoch).name()
		if session, epoch, ok := parseName(name); !ok || session != c.session || epoch != c.epoch {
			t.Errorf("parseName(%q) = %q, %d, %v, want %q, %d", name, session, epoch, ok, c.session, c.epoch)
		}
	}
	for _, name := range []string{"", "a", "a-", "-1", "a-01", "a-+1", "a--1x", "a-x", "../x-1", "a b-1", "a-99999999999999999999"} {
		if session, epoch, ok := parseName(name); ok {
			t.Errorf("parseName(%q) = %q, %d, want nothing", name, session, epoch)
		}
	}
}

func TestIDsDifferByDirectorySessionAndEpoch(t *testing.T) {
	seen := make(map[string]bool)
	for _, root := range []string{"/d", "/e"} {
		for _, session := range []string{"a", "a-1"} {
			for epoch := range int64(3) {
				id := newCell(root, session, epoch).ID
				if len(id) != 32 || seen[id] {
					t.Errorf("id of %s %s %d = %q: used or not 32 digits", root, session, epoch, id)
				}
				seen[id] = true
			}
		}
	}
}

// still is a launcher whose sandboxes are a process that does nothing.
type still struct {
	t      *testing.T
	launch error
	kill   error
}

func (s *still) Launch(_ context.Context, c *Cell, _ sandbox.Spec) (Process, error) {
	_, p := sleeper(s.t)
	if err := c.Begun(p); err != nil {
		return p, err
	}
	return p, s.launch
}

func (s *still) Kill(ctx context.Context, c *Cell) error {
	if s.kill != nil {
		return s.kill
	}
	if c.Record.Process.PID == 0 {
		return nil
	}
	return errors.Join(c.Record.Process.Kill(), c.Record.Process.Wait(ctx))
}

// beginCell makes a cell with nothing in it.
func beginCell(c *Cell) error {
	return errors.Join(c.begin(Record{Token: NewToken(), KeeperEpoch: c.Epoch}), c.furnish())
}

func machine(t *testing.T, dir string, l Launcher) *Machine {
	t.Helper()
	m, err := Open("still", dir, sandbox.Capabilities{Networks: []sandbox.Network{sandbox.NetworkNone}}, l)
	if err != nil {
		t.Fatal(err)
	}
	forgetGroups(t, m)
	t.Cleanup(func() { m.Close() })
	return m
}

// forgetGroups removes, after the test, the groups of cells that the test leaves.
func forgetGroups(t testing.TB, m *Machine) {
	t.Cleanup(func() {
		names, err := m.groups.List()
		for _, n := range names {
			err = errors.Join(err, m.groups.Group(n).Remove(context.Background()))
		}
		if err != nil {
			t.Error(err)
		}
		m.groups.Close()
	})
}

func TestCreateThatFailsLeavesNothing(t *testing.T) {
	l := &still{t: t, launch: errors.New("no room")}
	m := machine(t, t.TempDir(), l)
	if _, err := m.Create(t.Context(), sandbox.Spec{Session: "s"}); !errors.Is(err, l.launch) {
		t.Errorf("Create = %v, want %v", err, l.launch)
	}
	if hs, err := m.List(t.Context()); err != nil || len(hs) != 0 {
		t.Errorf("List = %v, %v, want none", hs, err)
	}
}

func TestWhatCannotBeEndedStaysListed(t *testing.T) {
	l := &still{t: t, launch: errors.New("no room"), kill: errors.New("it does not die")}
	m := machine(t, t.TempDir(), l)
	if _, err := m.Create(t.Context(), sandbox.Spec{Session: "s"}); !errors.Is(err, l.kill) {
		t.Errorf("Create = %v, want also %v", err, l.kill)
	}
	hs, err := m.List(t.Context())
	if err != nil || len(hs) != 1 {
		t.Fatalf("List = %v, %v, want one", hs, err)
	}
	if err := m.Remove(t.Context(), hs[0]); !errors.Is(err, l.kill) {
		t.Errorf("Remove = %v, want %v", err, l.kill)
	}
	l.kill, l.launch = nil, nil
	sb, err := m.Create(t.Context(), sandbox.Spec{Session: "s"}) // clears the place first
	if err != nil {
		t.Fatalf("Create after that = %v", err)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Errorf("Destroy = %v", err)
	}
}

// TestHalfMadeCells tries every state that a killed server can leave on disk.
func TestHalfMadeCells(t *testing.T) {
	half := map[string]func(t *testing.T, c *Cell){
		"empty directory": func(t *testing.T, c *Cell) {
			if err := os.Mkdir(c.Dir, 0o700); err != nil {
				t.Fatal(err)
			}
		},
		"broken record": func(t *testing.T, c *Cell) {
			mkdir(t, c.Dir, "workspace")
			write(t, filepath.Join(c.Dir, recordName), `{"version":`)
		},
		"record of something else": func(t *testing.T, c *Cell) {
			mkdir(t, c.Dir)
			write(t, filepath.Join(c.Dir, recordName), `{"version":1,"id":"x","ready":true,"process":{"pid":1}}`)
		},
		"no process": func(t *testing.T, c *Cell) {
			if err := beginCell(c); err != nil {
				t.Fatal(err)
			}
		},
		"process, not ready": func(t *testing.T, c *Cell) {
			if err := beginCell(c); err != nil {
				t.Fatal(err)
			}
			_, p := sleeper(t)
			if err := c.Begun(p); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if p.Alive() {
					t.Error("its process is left")
				}
			})
		},
	}
	for name, make := range half {
		t.Run(name, func(t *testing.T) {
			m := machine(t, t.TempDir(), &still{t: t})
			make(t, newCell(m.root, "s", 1))
			hs, err := m.List(t.Context())
			if err != nil || len(hs) != 1 || hs[0].Session != "s" || hs[0].Epoch != 1 {
				t.Fatalf("List = %+v, %v, want the half-made one", hs, err)
			}
			if _, err := m.Recover(t.Context(), hs[0]); !errors.Is(err, sandbox.ErrGone) {
				t.Errorf("Recover = %v, want ErrGone", err)
			}
			sb, err := m.Create(t.Context(), sandbox.Spec{Session: "s", Epoch: 1})
			if err != nil {
				t.Fatalf("Create in its place = %v", err)
			}
			if err := sb.Destroy(t.Context()); err != nil {
				t.Errorf("Destroy = %v", err)
			}
			make(t, newCell(m.root, "s", 1))
			if err := m.Remove(t.Context(), hs[0]); err != nil {
				t.Errorf("Remove = %v", err)
			}
			if hs, err := m.List(t.Context()); err != nil || len(hs) != 0 {
				t.Errorf("List after Remove = %v, %v, want none", hs, err)
			}
		})
	}
}

func TestClosedMachineRefuses(t *testing.T) {
	m := machine(t, t.TempDir(), &still{t: t})
	sb, err := m.Create(t.Context(), sandbox.Spec{Session: "s"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	}
	if _, err := m.Create(t.Context(), sandbox.Spec{Session: "t"}); err == nil {
		t.Error("Create after Close worked")
	}
	if _, err := sb.Dial(t.Context()); err == nil || errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Dial after Close = %v, want an error that is not ErrGone", err)
	}
	if sb.Err() != nil {
		t.Errorf("Close ended the sandbox: %v", sb.Err())
	}
}
