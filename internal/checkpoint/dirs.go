package checkpoint

import (
	"container/list"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// dir is a directory of a tree, known by its parent and name and pinned by
// device and inode. It is only ever reached through its parent's descriptor
// without following links, so no path is resolved twice and none has to fit
// into PATH_MAX.
type dir struct {
	parent *dir // nil for the top
	name   string
	depth  int
	dev    uint64
	ino    uint64

	// Guarded by dirs.mu.
	fd    int // -1 while closed
	users int
	elem  *list.Element // in dirs.idle, when open and unused
}

var errReplaced = errors.New("another file is there now")

// dirs keeps directory descriptors open, the most recently used ones when
// there are many.
type dirs struct {
	mu   sync.Mutex
	max  int
	open int
	idle list.List // of *dir, least recently used first
}

// openTop opens the top of a tree. The path is the caller's own and may contain
// links.
func (c *dirs) openTop(path string) (*dir, error) {
	fd, err := openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	st, err := fstat(fd)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("stat %s: %w", path, err)
	}
	if c.max == 0 {
		c.max = 512
	}
	// The top stays in use until close.
	return &dir{fd: fd, users: 1, dev: st.dev, ino: st.ino}, nil
}

// closeAll closes what is open. No directory is in use any more.
func (c *dirs) closeAll(top *dir) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for e := c.idle.Front(); e != nil; e = e.Next() {
		d := e.Value.(*dir)
		unix.Close(d.fd)
		d.fd, d.elem = -1, nil
	}
	c.idle.Init()
	if top != nil && top.fd >= 0 {
		unix.Close(top.fd)
		top.fd = -1
	}
}

// use returns the descriptor of d, which stays open until done is called with
// d. It fails with errReplaced if the directory is not the one it was.
func (c *dirs) use(d *dir) (int, error) {
	c.mu.Lock()
	if d.fd >= 0 {
		d.users++
		if d.elem != nil {
			c.idle.Remove(d.elem)
			d.elem = nil
		}
		fd := d.fd
		c.mu.Unlock()
		return fd, nil
	}
	c.mu.Unlock()

	pfd, err := c.use(d.parent)
	if err != nil {
		return -1, err
	}
	defer c.done(d.parent)
	fd, err := openat(pfd, d.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	st, err := fstat(fd)
	if err == nil && (st.dev != d.dev || st.ino != d.ino) {
		err = errReplaced
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if d.fd >= 0 { // another goroutine was faster
		unix.Close(fd)
		if d.elem != nil {
			c.idle.Remove(d.elem)
			d.elem = nil
		}
	} else {
		d.fd = fd
		c.open++
	}
	d.users++
	return d.fd, nil
}

func (c *dirs) done(d *dir) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.users--; d.users > 0 {
		return
	}
	d.elem = c.idle.PushBack(d)
	for c.open > c.max && c.idle.Len() > 0 {
		old := c.idle.Remove(c.idle.Front()).(*dir)
		unix.Close(old.fd)
		old.fd, old.elem = -1, nil
		c.open--
	}
}

// stat is what the walk knows of a file.
type stat struct {
	dev, ino     uint64
	mode         uint32 // with the type bits
	nlink        uint64
	uid, gid     uint32
	size, blocks int64
	mtime, ctime Time
}

func (s *stat) kind() uint32 { return s.mode & unix.S_IFMT }

// allocated returns how many bytes of the file are data at most.
func (s *stat) allocated() int64 { return min(s.size, s.blocks*512) }

// sameMoment reports whether nothing was done to the file between s and t.
func (s *stat) sameMoment(t *stat) bool {
	return s.dev == t.dev && s.ino == t.ino && s.mode == t.mode && s.size == t.size && s.mtime == t.mtime && s.ctime == t.ctime
}

func newStat(u *unix.Stat_t) stat {
	return stat{
		dev: uint64(u.Dev), ino: u.Ino, mode: u.Mode, nlink: uint64(u.Nlink), uid: u.Uid, gid: u.Gid,
		size: u.Size, blocks: u.Blocks,
		mtime: Time{int64(u.Mtim.Sec), uint32(u.Mtim.Nsec)},
		ctime: Time{int64(u.Ctim.Sec), uint32(u.Ctim.Nsec)},
	}
}

func fstat(fd int) (stat, error) {
	var u unix.Stat_t
	err := retry(func() error { return unix.Fstat(fd, &u) })
	return newStat(&u), err
}

func lstatat(fd int, name string) (stat, error) {
	var u unix.Stat_t
	err := retry(func() error { return unix.Fstatat(fd, name, &u, unix.AT_SYMLINK_NOFOLLOW) })
	return newStat(&u), err
}

func openat(fd int, name string, flags int, mode uint32) (int, error) {
	for {
		n, err := unix.Openat(fd, name, flags|unix.O_CLOEXEC, mode)
		if err != unix.EINTR {
			return n, err
		}
	}
}

// vanished reports whether err says that the file is gone or is of another
// kind now.
func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) ||
		errors.Is(err, unix.ESTALE) || errors.Is(err, errReplaced)
}
