package local

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRemoveTreeFollowsNothing(t *testing.T) {
	outside := t.TempDir()
	keep := filepath.Join(outside, "keep")
	write(t, keep, "keep")
	top := filepath.Join(t.TempDir(), "top")
	mkdir(t, top, "a", "b/c/d", "removed.1/x", "removed.2")
	for link, target := range map[string]string{
		"out": outside, "a/out": outside, "root": "/", "b/up": "..", "loop": "loop", "b/c/file": keep,
	} {
		if err := os.Symlink(target, filepath.Join(top, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(keep, filepath.Join(top, "hard")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(top, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := RemoveTree(top); err != nil {
		t.Fatalf("RemoveTree = %v", err)
	}
	gone(t, top)
	if b, err := os.ReadFile(keep); err != nil || string(b) != "keep" {
		t.Errorf("a file outside = %q, %v", b, err)
	}
	if err := RemoveTree(top); err != nil {
		t.Errorf("RemoveTree of nothing = %v", err)
	}
}

func TestRemoveTreeOfLinkRemovesTheLink(t *testing.T) {
	outside := t.TempDir()
	write(t, filepath.Join(outside, "keep"), "keep")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	if err := RemoveTree(link); err != nil {
		t.Fatalf("RemoveTree = %v", err)
	}
	gone(t, link)
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Errorf("the link's target: %v", err)
	}
}

func TestRemoveTreeUnlocksDirectories(t *testing.T) {
	top := filepath.Join(t.TempDir(), "top")
	mkdir(t, top, "locked/in/deeper")
	for _, d := range []string{"locked/in/deeper", "locked/in", "locked", "."} {
		if err := os.Chmod(filepath.Join(top, d), 0o300); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(top, 0); err != nil {
		t.Fatal(err)
	}
	if err := RemoveTree(top); err != nil {
		t.Fatalf("RemoveTree = %v", err)
	}
	gone(t, top)
}

// TestRemoveTreeHasNoDepth builds a tree deeper than paths and descriptors reach.
func TestRemoveTreeHasNoDepth(t *testing.T) {
	top := filepath.Join(t.TempDir(), "top")
	mkdir(t, top)
	fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	const depth = 2_000
	for i := range depth {
		if err := unix.Mkdirat(fd, "d", 0o755); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			f, err := unix.Openat(fd, "f", unix.O_CREAT|unix.O_WRONLY, 0o644)
			if err != nil {
				t.Fatal(err)
			}
			unix.Close(f)
		}
		next, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	if err := RemoveTree(top); err != nil {
		t.Fatalf("RemoveTree = %v", err)
	}
	gone(t, top)
}

func TestRemoveTreeHasNoWidth(t *testing.T) {
	top := filepath.Join(t.TempDir(), "top")
	mkdir(t, top, "wide")
	for i := range 3 * removeBatch {
		write(t, filepath.Join(top, "wide", fmt.Sprint(i)), "")
		if i%10 == 0 {
			mkdir(t, top, fmt.Sprintf("wide/d%d/e", i))
		}
	}
	if err := RemoveTree(top); err != nil {
		t.Fatalf("RemoveTree = %v", err)
	}
	gone(t, top)
}

func mkdir(t *testing.T, top string, names ...string) {
	t.Helper()
	for _, name := range append(names, ".") {
		if err := os.MkdirAll(filepath.Join(top, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func gone(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", path, err)
	}
}
