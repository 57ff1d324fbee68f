package files

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

// Kind says what stood in the way, in a form to branch on.
type Kind string

// The kinds of errors.
const (
	NotFound     Kind = "not_found"
	Escapes      Kind = "escapes"       // the path leads out of where it may go
	IsDirectory  Kind = "is_directory"  // and should be a file
	NotDirectory Kind = "not_directory" // and should be one, or have something below it
	NotRegular   Kind = "not_regular"   // a pipe, socket, device, or made up by the system
	Denied       Kind = "denied"        // by the permissions in the sandbox
	Loop         Kind = "loop"          // more links than any path needs
	TooLong      Kind = "too_long"      // a name, or more names than are opened at once
	NoSpace      Kind = "no_space"      // the disk is full
	Cut          Kind = "cut"           // fewer bytes came than were announced
	Changed      Kind = "changed"       // the file became shorter while it was read
)

// Error is a refusal.
type Error struct {
	Kind Kind
	Path string // as it was asked for
	Err  error  // of the system; may be nil
}

// Error returns kind, path and cause.
func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %.200q: %v", e.Kind, e.Path, e.Err)
	}
	return fmt.Sprintf("%s: %.200q", e.Kind, e.Path)
}

// Unwrap returns the system's error.
func (e *Error) Unwrap() error { return e.Err }

// refusal gives an error of the system its kind.
func refusal(path string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	for errno, kind := range map[unix.Errno]Kind{
		unix.ENOENT: NotFound, unix.ENOTDIR: NotDirectory, unix.EISDIR: IsDirectory, unix.ELOOP: Loop,
		unix.EACCES: Denied, unix.EPERM: Denied, unix.EROFS: Denied, unix.ENAMETOOLONG: TooLong, unix.EMFILE: TooLong,
		unix.ENOSPC: NoSpace, unix.EDQUOT: NoSpace, unix.ENXIO: NotRegular,
		unix.EEXIST: IsDirectory, unix.ENOTEMPTY: IsDirectory, // a directory took the name of a file
	} {
		if errors.Is(err, errno) {
			return &Error{Kind: kind, Path: path, Err: errno}
		}
	}
	return fmt.Errorf("%.200q: %w", path, err)
}

// Type is what kind of thing has a name.
type Type string

// The types.
const (
	File      Type = "file"
	Directory Type = "directory"
	Symlink   Type = "symlink"
	Other     Type = "other" // a pipe, a socket, a device
)

// Info describes what has a name.
type Info struct {
	Type    Type
	Mode    fs.FileMode // permission bits
	Size    int64       // of a file in bytes; otherwise 0
	ModTime time.Time
}

func infoOf(st *unix.Stat_t) Info {
	i := Info{Mode: fs.FileMode(st.Mode) & fs.ModePerm, ModTime: time.Unix(st.Mtim.Unix()), Type: Other}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		i.Type, i.Size = File, st.Size
	case unix.S_IFDIR:
		i.Type = Directory
	case unix.S_IFLNK:
		i.Type = Symlink
	}
	return i
}

// again repeats a call that a signal interrupted.
func again[T any](call func() (T, error)) (T, error) {
	for {
		v, err := call()
		if !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
}

func openat(dir int, name string, flags int, mode uint32) (int, error) {
	return again(func() (int, error) { return unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode) })
}

// madeUp reports whether the system makes up what an open file holds: there it
// would say things of our own process, and its size says nothing.
func madeUp(fd int) bool {
	var st unix.Statfs_t
	_, err := again(func() (struct{}, error) { return struct{}{}, unix.Fstatfs(fd, &st) })
	return err == nil && st.Type == unix.PROC_SUPER_MAGIC
}
