package local

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// removeBatch is how many directory entries are read at once.
const removeBatch = 1024

// RemoveTree removes the directory path and all below it. What is below may be
// hostile: links are not followed, permissions that forbid it are changed, and
// neither depth nor width cost memory or descriptors, because every directory that
// is found below is moved up to the top before it is emptied. Nothing may write to
// the tree meanwhile, but another may remove it, too. It is no error when path does not
// exist.
func RemoveTree(path string) error {
	top, err := openDir(unix.AT_FDCWD, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if errors.Is(err, unix.ENOTDIR) {
		return os.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	defer top.Close()
	r := remover{top: top}
	if err := r.empty(top); err != nil {
		return fmt.Errorf("empty %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", filepath.Base(path), err)
	}
	return nil
}

type remover struct {
	top   *os.File
	moved int // directories moved up so far; makes their names
}

// empty removes what is in dir, in passes, until a pass finds nothing.
func (r *remover) empty(dir *os.File) error {
	for {
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		n, err := r.pass(dir)
		if err != nil || n == 0 {
			return err
		}
	}
}

// pass removes, or moves up, each entry of dir and returns how many there were.
func (r *remover) pass(dir *os.File) (int, error) {
	total := 0
	for {
		names, err := dir.Readdirnames(removeBatch)
		for _, name := range names {
			if err := r.entry(dir, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return total, err
			}
		}
		total += len(names)
		if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) { // dir itself is gone
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

func (r *remover) entry(dir *os.File, name string) error {
	err := unix.Unlinkat(int(dir.Fd()), name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR) == nil {
		return nil
	}
	sub, openErr := openDir(int(dir.Fd()), name)
	if openErr != nil {
		return errors.Join(err, openErr)
	}
	defer sub.Close()
	if dir == r.top {
		if err := r.empty(sub); err != nil {
			return err
		}
		return unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
	}
	err = r.moveUp(dir, name)
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EINVAL) { // a file system that cannot
		if err := r.empty(sub); err != nil {
			return err
		}
		return unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
	}
	return err
}

// moveUp moves the subdirectory name of dir to the top under a name that is free.
func (r *remover) moveUp(dir *os.File, name string) error {
	for {
		r.moved++
		to := "removed." + strconv.Itoa(r.moved)
		err := unix.Renameat2(int(dir.Fd()), name, int(r.top.Fd()), to, unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
}

// openDir opens a directory for reading, and gives its owner all permissions if it
// cannot be read, written or searched otherwise.
func openDir(at int, name string) (*os.File, error) {
	const flags = unix.O_NOFOLLOW | unix.O_DIRECTORY | unix.O_CLOEXEC
	handle, err := unix.Openat(at, name, unix.O_PATH|flags, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(handle)
	self := "/proc/self/fd/" + strconv.Itoa(handle)
	var st unix.Stat_t
	if err := unix.Fstat(handle, &st); err != nil {
		return nil, err
	}
	if st.Mode&0o700 != 0o700 {
		if err := unix.Chmod(self, 0o700); err != nil && os.Geteuid() != 0 {
			return nil, err
		}
	}
	fd, err := unix.Openat(handle, ".", unix.O_RDONLY|flags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
