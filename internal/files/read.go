package files

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// OpenFile opens the regular file that a path leads to, for reading. For anything
// else it returns what that is, and no file: a directory is no error. The caller
// closes the file.
func (w Where) OpenFile(name string) (*os.File, Info, error) {
	for try := 1; ; try++ {
		f, info, err := w.open(name)
		if err != nil && swapped(err) && try < maxTries {
			continue
		}
		return f, info, refusal(name, err)
	}
}

// swapped reports whether what a walk had found was another thing when it was
// opened.
func swapped(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return errors.Is(err, unix.ELOOP) && (!ok || e.Kind != Loop)
}

func (w Where) open(name string) (*os.File, Info, error) {
	p, err := w.find(name, true, false)
	if err != nil {
		return nil, Info{}, err
	}
	defer p.close()
	if !p.found {
		return nil, Info{}, unix.ENOENT
	}
	var st unix.Stat_t
	if _, err := again(func() (struct{}, error) {
		return struct{}{}, unix.Fstatat(p.dir, p.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	}); err != nil {
		return nil, Info{}, err
	}
	if info := infoOf(&st); info.Type == Directory || info.Type == Other {
		return nil, info, nil
	}
	// A pipe that took the file's place meanwhile must not make the open wait.
	fd, err := openat(p.dir, p.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, Info{}, err
	}
	f := os.NewFile(uintptr(fd), p.name)
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, Info{}, err
	}
	info := infoOf(&st)
	if info.Type != File || madeUp(fd) {
		f.Close()
		return nil, info, &Error{Kind: NotRegular, Path: name}
	}
	return f, info, nil
}
