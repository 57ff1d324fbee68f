package files

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of a listing.
const (
	// maxOpen bounds the directories that are open at once.
	maxOpen = 512
	// maxHeld bounds the bytes of names that are held, in all directories at once.
	maxHeld = 64 << 20
	// readNames is how many names of a directory are looked at in one step.
	readNames = 4096
)

// Entry is one line of a listing.
type Entry struct {
	Path   string // from the directory that is listed
	Info   Info
	Target string // what a symbolic link holds
	// Closed says of a directory that what is in it is not listed: we may not read
	// it, or it is too deep.
	Closed bool
}

// Listing says what to list.
type Listing struct {
	Recursive bool
	Limit     int    // how many entries; at least 1
	After     string // the path of the last entry of the page before; "" for the first
}

// List lists the directory that a path leads to: by name, bytewise, and with
// Recursive what is in a directory behind the directory. It gives each entry to
// each, and ends early when that fails. more says that there are entries behind
// the last one.
func (w Where) List(ctx context.Context, name string, l Listing, each func(Entry) error) (more bool, err error) {
	p, err := w.find(name, true, false)
	if err != nil {
		return false, err
	}
	defer p.close()
	if !p.found {
		return false, refusal(name, unix.ENOENT)
	}
	dir, err := openDir(p.dir, p.name)
	if err != nil {
		return false, refusal(name, err)
	}
	k := &lister{ctx: ctx, l: l, each: each, left: l.Limit}
	err = k.directory(dir, "", l.After, 1)
	if errors.Is(err, errEnough) {
		return true, nil
	}
	return false, refusal(name, err)
}

// errEnough ends a listing that has reached its limit.
var errEnough = errors.New("enough")

func openDir(at int, name string) (*os.File, error) {
	fd, err := openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// lister is one listing.
type lister struct {
	ctx  context.Context
	l    Listing
	each func(Entry) error
	left int
	held int // bytes of names in memory
}

// directory lists an open directory, which it closes. after is the path, in this
// directory, of the last entry that was listed before.
func (k *lister) directory(dir *os.File, prefix, after string, depth int) error {
	defer dir.Close()
	first, below, inside := strings.Cut(after, "/")
	from, with := first, inside || k.l.Recursive && first != ""
	for {
		// One more than is wanted tells that there is more. The entry that goes on
		// inside a directory is none that counts.
		most := k.left + 2
		names, err := k.names(dir, from, with, most)
		if err != nil {
			return err
		}
		if err := k.hold(prefix, names, func(name string) error {
			resume := ""
			if name == first {
				resume = below // "" when the directory itself was the last entry
			}
			return k.entry(dir, prefix, name, name == first, resume, depth)
		}); err != nil {
			return err
		}
		if len(names) < most {
			return nil
		}
		// Some of them were removed before they could be listed: there may be more.
		from, with = names[len(names)-1], false
	}
}

// hold does something for each name, within what all that are held may take.
func (k *lister) hold(prefix string, names []string, do func(string) error) error {
	size := 0
	for _, n := range names {
		size += len(n)
	}
	if k.held += size; k.held > maxHeld {
		return &Error{Kind: TooLong, Path: prefix, Err: errors.New("too many long names in nested directories")}
	}
	defer func() { k.held -= size }()
	for _, name := range names {
		if err := context.Cause(k.ctx); err != nil {
			return err
		}
		if err := do(name); err != nil {
			return err
		}
	}
	return nil
}

// entry lists one name, and what is below it. With listed it was on an earlier
// page, and what is below it may not have been.
func (k *lister) entry(dir *os.File, prefix, name string, listed bool, after string, depth int) error {
	var st unix.Stat_t
	fd := int(dir.Fd())
	_, err := again(func() (struct{}, error) {
		return struct{}{}, unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	if errors.Is(err, unix.ENOENT) {
		return nil // removed since
	}
	if err != nil {
		return err
	}
	e := Entry{Path: path.Join(prefix, name), Info: infoOf(&st)}
	var sub *os.File
	switch {
	case e.Info.Type == Symlink:
		buf := make([]byte, maxPath)
		if n, err := again(func() (int, error) { return unix.Readlinkat(fd, name, buf) }); err == nil {
			e.Target = string(buf[:n])
		}
	case e.Info.Type == Directory && k.l.Recursive && depth < maxOpen:
		// What cannot be opened is listed and said to be closed.
		sub, err = openDir(fd, name)
		e.Closed = err != nil
	case e.Info.Type == Directory && k.l.Recursive:
		e.Closed = true
	}
	if !listed {
		if k.left == 0 {
			if sub != nil {
				sub.Close()
			}
			return errEnough
		}
		k.left--
		if err := k.each(e); err != nil {
			if sub != nil {
				sub.Close()
			}
			return err
		}
	}
	if sub == nil {
		return nil
	}
	return k.directory(sub, e.Path, after, depth+1)
}

// names returns the smallest n names of a directory behind from, or with it,
// sorted. However many there are, few more than that are held at once.
func (k *lister) names(dir *os.File, from string, with bool, n int) ([]string, error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	var best []string
	for {
		names, err := dir.Readdirnames(readNames)
		for _, name := range names {
			if name > from || name == from && with {
				best = append(best, name)
			}
		}
		over := errors.Is(err, io.EOF)
		if over || len(best) > 2*n+readNames {
			slices.Sort(best)
			best = slices.Compact(best) // one that was renamed while we read may come twice
			clear(best[min(n, len(best)):])
			best = best[:min(n, len(best))]
		}
		switch {
		case over:
			return best, nil
		case err != nil:
			return nil, err
		}
		if err := context.Cause(k.ctx); err != nil {
			return nil, err
		}
	}
}
