package inroot_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox/internal/inroot"
)

// newRoot returns a directory with links that would lead out of it, and a directory
// beside it that nothing may reach.
func newRoot(t *testing.T) (fd int, dir, outside string) {
	t.Helper()
	top := t.TempDir()
	dir, outside = filepath.Join(top, "root"), filepath.Join(top, "rootbeside")
	for _, d := range []string{dir, outside, filepath.Join(dir, "var/run"), filepath.Join(dir, "etc")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"run": "/var/run", "up": "../../../..", "beside": "../rootbeside", "beside-abs": outside,
		"loop": "loop", "nothing": "missing", "self": "/proc/self/root", "var/back": "../etc",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd, dir, outside
}

func TestOpenFollowsLinksInsideOnly(t *testing.T) {
	t.Parallel()
	root, dir, _ := newRoot(t)
	for path, want := range map[string]string{
		"": dir, "/": dir, "up": dir, "../../etc": dir + "/etc", "run": dir + "/var/run", "/var/back": dir + "/etc",
	} {
		fd, err := inroot.Open(root, path, unix.O_DIRECTORY)
		if err != nil {
			t.Errorf("Open(%q) = %v", path, err)
			continue
		}
		got, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		unix.Close(fd)
		if err != nil || got != want {
			t.Errorf("Open(%q) leads to %s, %v, want %s", path, got, err, want)
		}
	}
	for path, want := range map[string]error{
		"beside": unix.ENOENT, "beside-abs": unix.ENOENT, "self": unix.ENOENT, "nothing": unix.ENOENT, "loop": unix.ELOOP,
	} {
		if fd, err := inroot.Open(root, path, 0); !errors.Is(err, want) {
			unix.Close(fd)
			t.Errorf("Open(%q) = %v, want %v", path, err, want)
		}
	}
}

func TestDirMakesWhatIsMissingInside(t *testing.T) {
	t.Parallel()
	root, dir, outside := newRoot(t)
	var made []string
	fd, err := inroot.Dir(root, "/run/a/b", 0o750, func(path string) error { made = append(made, path); return nil })
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	if info, err := os.Stat(filepath.Join(dir, "var/run/a/b")); err != nil || !info.IsDir() || info.Mode().Perm() != 0o750 {
		t.Errorf("directory behind a link = %v, %v", info, err)
	}
	if want := []string{"run/a", "run/a/b"}; !slices.Equal(made, want) {
		t.Errorf("made %q, want %q", made, want)
	}
	for path, want := range map[string]error{"beside/x": unix.EEXIST, "nothing/x": unix.EEXIST, "loop/x": unix.ELOOP} {
		if fd, err := inroot.Dir(root, path, 0o755, nil); !errors.Is(err, want) {
			unix.Close(fd)
			t.Errorf("Dir(%q) = %v, want %v", path, err, want)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("beside the root there is %v, %v", left, err)
	}
	full := errors.New("no more")
	if _, err := inroot.Dir(root, "etc/new", 0o755, func(string) error { return full }); !errors.Is(err, full) {
		t.Errorf("Dir over a limit = %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "etc/new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused directory was made: %v", err)
	}
}
