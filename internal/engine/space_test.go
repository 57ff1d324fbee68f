package engine_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// smallDisk mounts a file system of 48 MiB for the test.
func smallDisk(t *testing.T) string {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=48m"); err != nil {
		t.Skipf("SKIPPED: a full disk needs a file system to fill, which needs root: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// fill takes all space of the directory's file system and returns how to give it
// back.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "ballast")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size >= 512; size /= 2 {
		block := make([]byte, size)
		for err = nil; err == nil; {
			_, err = f.Write(block)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullDisk is CP-13: a typed error, reads still work, nothing torn, and the
// next turn is fine after space has returned.
func TestFullDisk(t *testing.T) {
	dir := smallDisk(t)
	s := begin(t, servertest.Config{Dir: dir})
	s.completes("@remember a b")
	before := len(s.events())

	id := s.submit("@work 1500 50")
	s.speaks(id, "step 3 of 30")
	free := fill(t, dir)
	refusals := 0
	s.until("the disk to be felt", func() bool {
		status, code := s.Call(http.MethodPost, "/v1/sessions", map[string]any{"title": "no room"}, nil)
		if code == "cloud_out_of_space" && status == http.StatusInsufficientStorage {
			refusals++
		} else if status/100 != 2 {
			s.Fatalf("with a full disk: %d %s", status, code)
		}
		return refusals > 0
	})
	if n := len(s.events()); n < before {
		t.Errorf("%d events are left of %d", n, before)
	}
	free()
	r := s.ended(id) // the agent worked on; what it said is taken up when there is space
	s.want("run", r.State, "completed")
	s.want("lines", len(s.said(id)), 30)
	s.want("recalled", s.said(s.completes("@recall a"))[0], "b")
	s.Restart()
	s.want("recalled", s.said(s.completes("@recall a"))[0], "b")
	s.oneEnd()
}
