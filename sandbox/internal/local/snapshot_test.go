package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// saving is a launcher whose sandboxes can be saved, and that fails where it is told to.
type saving struct {
	still
	build, save, proceed error
	saved, continued     int
	resumed              *sandbox.Resume
}

var _ Saver = (*saving)(nil)

func (s *saving) Launch(ctx context.Context, c *Cell, spec sandbox.Spec) (Process, error) {
	s.resumed = spec.Resume
	return s.still.Launch(ctx, c, spec)
}

func (s *saving) Build(context.Context, *Cell) (string, error) { return "b", s.build }

func (s *saving) Save(_ context.Context, _ *Cell, dir string) error {
	s.saved++
	if err := os.WriteFile(filepath.Join(dir, "image"), []byte("12345"), 0o600); err != nil {
		return err
	}
	return s.save
}

func (s *saving) Continue(context.Context, *Cell) error {
	s.continued++
	return s.proceed
}

func (s *saving) Usable(_ context.Context, spec sandbox.Spec) error {
	if spec.Resume.Snapshot.Build != "b" {
		return sandbox.ErrUnsupported
	}
	return nil
}

func savingMachine(t *testing.T, dir string, l *saving) *Machine {
	t.Helper()
	l.t = t
	caps := sandbox.Capabilities{Networks: []sandbox.Network{sandbox.NetworkNone}, ProcessSnapshot: true}
	m, err := Open("saving", dir, caps, l)
	if err != nil {
		t.Fatal(err)
	}
	forgetGroups(t, m)
	t.Cleanup(func() { m.Close() })
	return m
}

func TestSnapshotCarriesTheKeeperOver(t *testing.T) {
	l := new(saving)
	m := savingMachine(t, t.TempDir(), l)
	sb, err := m.Create(t.Context(), sandbox.Spec{Session: "s", Epoch: 3})
	if err != nil {
		t.Fatal(err)
	}
	token := newLoaded(t, m, "s", 3).Record.Token
	for epoch := int64(4); epoch < 6; epoch++ { // the second has a keeper that is two epochs old
		image := t.TempDir()
		snap, err := sb.(sandbox.Snapshotter).Snapshot(t.Context(), image)
		if err != nil {
			t.Fatalf("Snapshot = %v", err)
		}
		if snap.Driver != "saving" || snap.Build != "b" || snap.Bytes != 5 {
			t.Errorf("Snapshot = %+v", snap)
		}
		if got := sandbox.ReasonOf(sb.Err()); got != sandbox.EndSnapshot {
			t.Errorf("reason = %q, want %q", got, sandbox.EndSnapshot)
		}
		spec := sandbox.Spec{Session: "s", Epoch: epoch, Resume: &sandbox.Resume{Dir: image, Snapshot: snap}}
		if _, err := m.Prepare(t.Context(), spec); err != nil {
			t.Fatalf("Prepare = %v", err)
		}
		if sb, err = m.Create(t.Context(), spec); err != nil {
			t.Fatalf("Create = %v", err)
		}
		if l.resumed == nil || l.resumed.Dir != image {
			t.Errorf("Launch got %+v to resume from", l.resumed)
		}
		r := newLoaded(t, m, "s", epoch).Record
		if r.Token != token || r.KeeperEpoch != 3 || r.Prepared || r.Saving || !r.Ready {
			t.Errorf("record of the resumed sandbox = %+v, want the token and the epoch of its keeper", r)
		}
	}
}

func TestSnapshotThatFailsLeavesTheSandbox(t *testing.T) {
	for name, c := range map[string]struct {
		fail    saving
		runs    bool
		touched int // how often the processes were stopped
	}{
		"before":    {saving{build: sandbox.ErrUnsupported}, true, 0},
		"in it":     {saving{save: errors.New("the disk is full")}, true, 1},
		"for good":  {saving{save: errors.New("the disk is full"), proceed: errors.New("it hangs")}, false, 1},
		"can't end": {saving{still: still{kill: errors.New("it does not die")}}, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			l := &c.fail
			m := savingMachine(t, t.TempDir(), l)
			sb, err := m.Create(t.Context(), sandbox.Spec{Session: "s", Epoch: 1})
			if err != nil {
				t.Fatal(err)
			}
			image := t.TempDir()
			if _, err := sb.(sandbox.Snapshotter).Snapshot(t.Context(), image); err == nil {
				t.Fatal("Snapshot worked")
			}
			if runs := sb.Err() == nil; runs != c.runs || l.saved != c.touched || l.continued != c.touched {
				t.Errorf("it runs: %v, saved %d times, continued %d times; want %v, %d, %d", runs, l.saved, l.continued, c.runs, c.touched, c.touched)
			}
			if left, err := os.ReadDir(image); err != nil || len(left) != 0 {
				t.Errorf("files of the failed snapshot: %v, %v", left, err)
			}
			if _, err := m.Remains(t.Context(), sb.Handle()); err != nil {
				t.Errorf("Remains = %v", err)
			}
			if r := newLoaded(t, m, "s", 1).Record; r.Saving {
				t.Error("the record says that a snapshot is being made")
			}
			l.kill = nil
			if err := sb.Destroy(t.Context()); err != nil {
				t.Errorf("Destroy = %v", err)
			}
		})
	}
}

// TestSnapshotThatAServerDiedOver finds a sandbox whose processes may stand still.
func TestSnapshotThatAServerDiedOver(t *testing.T) {
	for name, proceed := range map[string]error{"goes on": nil, "hangs": errors.New("it hangs")} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			sb, err := savingMachine(t, dir, new(saving)).Create(t.Context(), sandbox.Spec{Session: "s", Epoch: 1})
			if err != nil {
				t.Fatal(err)
			}
			l := &saving{proceed: proceed}
			m := savingMachine(t, dir, l)
			c := newLoaded(t, m, "s", 1)
			c.Record.Saving = true
			if err := c.save(); err != nil {
				t.Fatal(err)
			}
			_, err = m.Recover(t.Context(), sb.Handle())
			if l.continued != 1 || (err == nil) != (proceed == nil) || proceed != nil && !errors.Is(err, sandbox.ErrGone) {
				t.Errorf("Recover = %v, and the processes were continued %d times", err, l.continued)
			}
			c = newLoaded(t, m, "s", 1)
			if alive := c.Record.Process.Alive(); alive != (proceed == nil) || c.Record.Saving {
				t.Errorf("the process is alive: %v; record %+v", alive, c.Record)
			}
			if _, err := m.Remains(t.Context(), sb.Handle()); err != nil {
				t.Errorf("Remains = %v", err)
			}
			if err := m.Remove(t.Context(), sb.Handle()); err != nil {
				t.Errorf("Remove = %v", err)
			}
		})
	}
}

func newLoaded(t *testing.T, m *Machine, session string, epoch int64) *Cell {
	t.Helper()
	c := newCell(m.root, session, epoch)
	if err := c.load(); err != nil {
		t.Fatal(err)
	}
	return c
}
