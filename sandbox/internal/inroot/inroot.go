// Package inroot opens and makes files beneath a root directory that somebody else has
// filled, as a process with that directory as its "/" would: links lead wherever they
// lead in there, and never out.
//
// Nothing else may move directories of the tree meanwhile if what was found is to stay
// where it is; but even then nothing outside is reached, because the kernel resolves each
// path in one step.
//
// All paths are relative to the root, with or without a slash in front.
package inroot

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// resolveTries is how often a path is resolved again when directories were moved on the
// machine just then: the kernel then cannot tell whether ".." led out.
const resolveTries = 128

// Open opens what path leads to beneath the directory root, without any right but to name
// it (O_PATH); flags such as O_DIRECTORY and O_NOFOLLOW can be added. The caller closes
// the descriptor.
func Open(root int, path string, flags int) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(unix.O_PATH | unix.O_CLOEXEC | flags),
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	if path == "" {
		path = "."
	}
	for try := 1; ; try++ {
		fd, err := unix.Openat2(root, path, &how)
		if errors.Is(err, unix.EAGAIN) && try < resolveTries || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return -1, fmt.Errorf("open %.200q: %w", path, err)
		}
		return fd, nil
	}
}

// Dir opens a directory beneath root and makes what is missing of it, with the
// permissions perm. made is called with the path of each directory before it is made.
func Dir(root int, dir string, perm uint32, made func(string) error) (int, error) {
	fd, err := Open(root, dir, unix.O_DIRECTORY)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	done := ""
	for part := range strings.SplitSeq(strings.Trim(path.Clean("/"+dir), "/"), "/") {
		parent := done
		done = path.Join(done, part)
		fd, err := Open(root, done, unix.O_DIRECTORY)
		if err == nil {
			unix.Close(fd)
			continue
		}
		if !errors.Is(err, unix.ENOENT) {
			return -1, err
		}
		if err := mkdir(root, parent, part, perm, made); err != nil {
			return -1, fmt.Errorf("make directory %.200q: %w", done, err)
		}
	}
	return Open(root, dir, unix.O_DIRECTORY)
}

func mkdir(root int, parent, name string, perm uint32, made func(string) error) error {
	fd, err := Open(root, parent, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if made != nil {
		if err := made(path.Join(parent, name)); err != nil {
			return err
		}
	}
	// A link to nothing is in the way, too: EEXIST.
	if err := unix.Mkdirat(fd, name, perm); err != nil {
		return err
	}
	return unix.Fchmodat(fd, name, perm, 0) // whatever the umask
}
