package sandboxtest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// testRemains reads the files of sandboxes that run, that have ended, and that are gone.
func testRemains(t *testing.T, s *Suite) {
	dir := s.newDir(t)
	d := s.open(t, dir)
	c := start(t, d, "remains", 4)
	if err := os.WriteFile(filepath.Join(c.Dirs().Workspace, "work"), []byte("done"), 0o644); err != nil {
		t.Fatal(err)
	}
	if dirs, err := d.Remains(within(t), stored(t, c.Handle())); err != nil || dirs != c.Dirs() {
		t.Errorf("Remains of a running sandbox = %+v, %v, want %+v", dirs, err, c.Dirs())
	}
	if err := c.client.Shutdown(within(t), 0); err != nil {
		t.Fatalf("shut the keeper down: %v", err)
	}
	ended(t, c)
	drivers := []sandbox.Driver{d}
	if !s.InProcess {
		drivers = append(drivers, s.open(t, dir)) // after a restart
	}
	for _, d := range drivers {
		dirs, err := d.Remains(within(t), stored(t, c.Handle()))
		if err != nil {
			t.Fatalf("Remains of a sandbox that ended = %v", err)
		}
		if b, err := os.ReadFile(filepath.Join(dirs.Workspace, "work")); err != nil || string(b) != "done" {
			t.Errorf("what is left in the workspace = %q, %v", b, err)
		}
	}
	if err := d.Remove(within(t), c.Handle()); err != nil {
		t.Fatalf("Remove = %v", err)
	}
	unknown := sandbox.Handle{Driver: d.Name(), Session: "nobody", Epoch: 1}
	for _, h := range []sandbox.Handle{c.Handle(), unknown} {
		if dirs, err := d.Remains(within(t), h); !errors.Is(err, sandbox.ErrGone) {
			t.Errorf("Remains of %s, which is not there = %+v, %v, want ErrGone", h.Session, dirs, err)
		}
	}
}
