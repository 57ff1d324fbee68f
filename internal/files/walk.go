package files

import (
	"errors"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of a walk. A path is as long as the system's longest; deeper trees have
// to be walked in steps.
const (
	maxLinks = 40
	maxPath  = 4096
	maxTries = 8 // at what is swapped while we look
)

// Where is a directory that paths begin at.
type Where struct {
	Dir string // of this machine
	// Names are absolute paths by which links call Dir. One that begins with none
	// of them leads out.
	Names []string
	// Open lets ".." at Dir stay there, as at the root of a file system, where
	// nothing leads out. Names should then hold "/".
	Open bool
}

// place is what a path leads to: a name in an open directory.
type place struct {
	w     *walker
	dir   int    // O_PATH; owned
	name  string // "." for the directory itself
	found bool   // something had the name
}

func (p *place) close() { unix.Close(p.dir) }

// walker follows one path. It holds one directory open at a time.
type walker struct {
	where Where
	path  string // as it was asked for
	make  bool   // make directories that are missing
	root  int

	dir   int      // the directory that the walk is in; O_PATH
	names []string // how it got there from the root, without links
	stale bool     // names went up: dir is not theirs
	links int
}

// find walks to path below w. With follow a link at its end is followed, too;
// with create missing directories are made. The caller closes the place.
func (w Where) find(name string, follow, create bool) (*place, error) {
	if len(name) > maxPath {
		return nil, &Error{Kind: TooLong, Path: name[:200]}
	}
	root, err := openat(unix.AT_FDCWD, w.Dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, refusal(name, err)
	}
	defer unix.Close(root)
	k := &walker{where: w, path: name, make: create, root: root, dir: -1, stale: true}
	p, err := k.walk(name, follow)
	if err != nil {
		if k.dir >= 0 {
			unix.Close(k.dir)
		}
		return nil, refusal(name, err)
	}
	return p, nil
}

// walk goes to the end of a path.
func (k *walker) walk(todo string, follow bool) (*place, error) {
	for {
		name, rest, more := strings.Cut(strings.TrimLeft(todo, "/"), "/")
		rest = strings.TrimLeft(rest, "/")
		last := rest == ""
		switch name {
		case "", ".":
			if last {
				return k.arrive(".", true)
			}
			todo = rest
			continue
		case "..":
			if err := k.up(); err != nil {
				return nil, err
			}
			todo = rest
			continue
		}
		if err := k.settle(); err != nil {
			return nil, err
		}
		mustDir := !last || more // a slash behind the last name asks for a directory
		next, err := k.step(name, mustDir && k.make)
		switch {
		case err == nil:
			if last {
				return &place{w: k, dir: k.take(next), name: ".", found: true}, nil
			}
			k.enter(next, name)
			todo = rest
			continue
		case errors.Is(err, unix.ENOENT):
			if mustDir {
				return nil, err
			}
			return k.arrive(name, false)
		case !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP):
			return nil, err
		}
		target, err := k.link(name)
		switch {
		case errors.Is(err, unix.EINVAL): // no link
			if mustDir {
				return nil, unix.ENOTDIR
			}
			return k.arrive(name, true)
		case err != nil:
			return nil, err
		case last && !more && !follow:
			return k.arrive(name, true)
		}
		if todo, err = k.lead(target, rest, more); err != nil {
			return nil, err
		}
	}
}

// arrive ends the walk at a name in the directory that it is in.
func (k *walker) arrive(name string, found bool) (*place, error) {
	if err := k.settle(); err != nil {
		return nil, err
	}
	dir := k.dir
	k.dir = -1
	return &place{w: k, dir: dir, name: name, found: found}, nil
}

// take makes the directory next the one that the walk has ended in.
func (k *walker) take(next int) int {
	unix.Close(k.dir)
	k.dir = -1
	return next
}

func (k *walker) enter(next int, name string) {
	unix.Close(k.dir)
	k.dir = next
	k.names = append(k.names, name)
}

// step opens a directory of the one that the walk is in, and makes it if it may.
func (k *walker) step(name string, create bool) (int, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW
	fd, err := openat(k.dir, name, flags, 0)
	if !create || !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	if err := unix.Mkdirat(k.dir, name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	return openat(k.dir, name, flags, 0)
}

func (k *walker) link(name string) (string, error) {
	buf := make([]byte, maxPath)
	n, err := again(func() (int, error) { return unix.Readlinkat(k.dir, name, buf) })
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// lead returns the path that is left when a link has been put in place of its
// name, and goes to where that one begins.
func (k *walker) lead(target, rest string, more bool) (string, error) {
	if k.links++; k.links > maxLinks {
		return "", unix.ELOOP
	}
	if path.IsAbs(target) {
		below, ok := k.where.below(target)
		if !ok {
			return "", &Error{Kind: Escapes, Path: k.path}
		}
		target = below
		k.names, k.stale = k.names[:0], true
	}
	if more {
		target += "/" + rest
	}
	if len(target) > maxPath {
		return "", unix.ENAMETOOLONG
	}
	return target, nil
}

// below returns what is left of an absolute path behind a name of the directory.
func (w Where) below(abs string) (string, bool) {
	for _, name := range w.Names {
		name = strings.TrimSuffix(name, "/")
		if rest, ok := strings.CutPrefix(abs, name); ok && (rest == "" || rest[0] == '/') {
			return rest, true
		}
	}
	return "", false
}

// up leaves the directory that the walk is in.
func (k *walker) up() error {
	if len(k.names) == 0 {
		if k.where.Open {
			return nil
		}
		return &Error{Kind: Escapes, Path: k.path}
	}
	k.names, k.stale = k.names[:len(k.names)-1], true
	return nil
}

// settle opens the directory that the names lead to, if the walk is not in it. To
// go there from the root again, rather than by "..", leads nowhere else even when
// the directory was moved.
func (k *walker) settle() error {
	if !k.stale {
		return nil
	}
	dir, err := unix.FcntlInt(uintptr(k.root), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for _, name := range k.names {
		next, err := openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		unix.Close(dir)
		if err != nil {
			return err
		}
		dir = next
	}
	if k.dir >= 0 {
		unix.Close(k.dir)
	}
	k.dir, k.stale = dir, false
	return nil
}

// OpenRoot opens the directory that a path leads to, so that nothing outside of it
// can be reached. With create it is made if it is missing.
func (w Where) OpenRoot(name string, create bool) (*os.Root, error) {
	root, as, err := w.OpenParent(name+"/", create)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	sub, err := root.OpenRoot(as)
	return sub, refusal(name, err)
}

// OpenParent opens the directory in which a path ends, and returns the name that
// it has there: "." when the path leads to a directory. A link at the end is
// followed only when a slash is behind it.
func (w Where) OpenParent(name string, create bool) (*os.Root, string, error) {
	p, err := w.find(name, false, create)
	if err != nil {
		return nil, "", err
	}
	defer p.close()
	// The kernel's own name of what is open leads to that and nothing else.
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(p.dir))
	return root, p.name, refusal(name, err)
}
