package quota

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// measureBatch is how many directory entries are read at once.
	measureBatch = 512
	// measureDepth is how deep directories are followed; descriptors are held for
	// each level.
	measureDepth = 512
	// measureLinks is how many files with several names are remembered, so that
	// each counts once.
	measureLinks = 1 << 16
	// sectorBytes is the unit in which the kernel counts a file's blocks.
	sectorBytes = 512
)

// ErrTooDeep reports a tree that is deeper than can be measured.
var ErrTooDeep = errors.New("directories are nested too deep to be measured")

// Measure adds up what the files below dir take of the disk, while others write there.
// The tree may be hostile: no link is followed. It stops as soon as the sum is greater
// than enough, if that is not 0. A directory that does not let its owner read it is
// opened up for the moment it takes.
func Measure(ctx context.Context, dir string, enough int64) (int64, error) {
	m := &measure{ctx: ctx, enough: enough, seen: make(map[inode]bool)}
	err := m.dir(unix.AT_FDCWD, dir, 0)
	if errors.Is(err, errEnough) {
		err = nil
	}
	if err != nil {
		return m.sum, fmt.Errorf("measure %s: %w", dir, err)
	}
	return m.sum, nil
}

var errEnough = errors.New("enough")

type inode struct{ dev, ino uint64 }

type measure struct {
	ctx    context.Context
	enough int64
	sum    int64
	seen   map[inode]bool // files with several names
}

func (m *measure) dir(at int, name string, depth int) error {
	if depth > measureDepth {
		return ErrTooDeep
	}
	f, restore, err := openShut(at, name)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil // it has just changed
	}
	if err != nil {
		return err
	}
	defer f.Close()
	defer restore()
	for {
		if err := context.Cause(m.ctx); err != nil {
			return err
		}
		names, err := f.Readdirnames(measureBatch)
		for _, n := range names {
			if err := m.entry(f, n, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (m *measure) entry(dir *os.File, name string, depth int) error {
	var st unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if !isDir && st.Nlink > 1 {
		key := inode{st.Dev, st.Ino}
		if m.seen[key] {
			return nil
		}
		if len(m.seen) < measureLinks {
			m.seen[key] = true
		}
	}
	m.sum += st.Blocks * sectorBytes
	if m.enough > 0 && m.sum > m.enough {
		return errEnough
	}
	if isDir {
		return m.dir(int(dir.Fd()), name, depth+1)
	}
	return nil
}

// openShut opens a directory, also one that its owner may not read or search: then it
// changes the permissions, and restore puts them back.
func openShut(at int, name string) (_ *os.File, restore func(), _ error) {
	const flags = unix.O_NOFOLLOW | unix.O_DIRECTORY | unix.O_CLOEXEC
	handle, err := unix.Openat(at, name, unix.O_PATH|flags, 0)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(handle)
	self := "/proc/self/fd/" + strconv.Itoa(handle)
	var st unix.Stat_t
	if err := unix.Fstat(handle, &st); err != nil {
		return nil, nil, err
	}
	const search = 0o500
	shut := st.Mode&search != search && os.Geteuid() != 0
	if shut {
		if err := unix.Chmod(self, st.Mode&0o7777|search); err != nil {
			return nil, nil, err
		}
	}
	fd, err := unix.Openat(handle, ".", unix.O_RDONLY|flags, 0)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	return f, func() {
		if shut {
			_ = unix.Fchmod(fd, st.Mode&0o7777) // the sandbox may have removed it
		}
	}, nil
}
