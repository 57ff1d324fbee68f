package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// node is what the walk meets.
type node struct {
	parent *dir // holds it; nil for the top
	self   *dir // of a directory
	name   string
	path   string
	st     stat
	vanish bool // the entry went away between listing and stat
}

// walker visits a tree depth first, names in byte order, each entry once, and
// follows no link. Listings of directories that come soon are read ahead by
// other goroutines; visit is called by the goroutine that called walk.
type walker struct {
	ctx    context.Context
	dirs   *dirs
	filter func(path string, isDir bool) bool // nil = all; a false directory is not entered
	visit  func(n *node) error
	gone   func(n *node) // a directory could not be listed because it changed

	ahead chan struct{} // one token per listing that is read ahead
	wg    sync.WaitGroup
}

// errLimitPath marks trees that the format cannot carry.
var errLimitPath = fmt.Errorf("path too long or too deep: %w", ErrLimit)

// pathError names the entry an error is about.
type pathError struct {
	path string
	err  error
}

func (e *pathError) Error() string { return fmt.Sprintf("%q: %v", e.path, e.err) }
func (e *pathError) Unwrap() error { return e.err }

// listing is the content of one directory, sorted, or why there is none.
type listing struct {
	done  chan struct{}
	nodes []node
	err   error
}

// walk visits everything below top, but not top itself.
func (w *walker) walk(top *dir) error {
	ctx, cancel := context.WithCancel(w.ctx)
	w.ctx = ctx
	w.ahead = make(chan struct{}, 64)
	defer w.wg.Wait()
	defer cancel()
	n := &node{self: top}
	return w.children(n, w.list(n))
}

// perDir bounds how many listings one directory reads ahead, so that deeper
// ones, which come first, get some of the tokens.
const perDir = 8

func (w *walker) children(n *node, l *listing) error {
	if l.err != nil {
		if vanished(l.err) && n.parent != nil {
			w.gone(n)
			return nil
		}
		return l.err
	}
	var ahead []*listing // of the next directories in order
	scan := 0            // first node that was not considered for reading ahead
	for i := range l.nodes {
		c := &l.nodes[i]
		for ; scan < len(l.nodes) && len(ahead) < perDir; scan++ {
			if s := &l.nodes[scan]; s.self != nil && scan > i {
				f := w.listAhead(s)
				if f == nil {
					break
				}
				ahead = append(ahead, f)
			} else if s.self != nil {
				ahead = append(ahead, nil)
			}
		}
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if err := w.visit(c); err != nil {
			return err
		}
		if c.self == nil {
			continue
		}
		var sub *listing
		if i < scan && len(ahead) > 0 {
			sub, ahead = ahead[0], ahead[1:]
		} else {
			scan = max(scan, i+1)
		}
		if sub == nil {
			sub = w.list(c)
		} else {
			<-sub.done
		}
		if err := w.children(c, sub); err != nil {
			return err
		}
		c.self = nil
	}
	return nil
}

// listAhead starts a listing, or returns nil if enough are on the way.
func (w *walker) listAhead(n *node) *listing {
	select {
	case w.ahead <- struct{}{}:
	default:
		return nil
	}
	l := &listing{done: make(chan struct{})}
	w.wg.Go(func() {
		got := w.list(n)
		l.nodes, l.err = got.nodes, got.err
		<-w.ahead
		close(l.done)
	})
	return l
}

// list reads one directory and the stat of all it holds.
func (w *walker) list(n *node) *listing {
	l := &listing{}
	fail := func(err error) *listing {
		l.err = &pathError{n.path, err}
		return l
	}
	if err := w.ctx.Err(); err != nil {
		return fail(err)
	}
	fd, err := w.dirs.use(n.self)
	if err != nil {
		return fail(fmt.Errorf("open directory: %w", err))
	}
	defer w.dirs.done(n.self)
	names, err := readNames(fd)
	if err != nil {
		return fail(fmt.Errorf("list directory: %w", err))
	}
	slices.Sort(names)
	l.nodes = make([]node, 0, len(names))
	for _, name := range names {
		path := name
		if n.path != "" {
			path = n.path + "/" + name
		}
		st, err := lstatat(fd, name)
		if err != nil && !vanished(err) {
			return fail(fmt.Errorf("stat %q: %w", name, err))
		}
		c := node{parent: n.self, name: name, path: path, st: st, vanish: err != nil}
		isDir := !c.vanish && st.kind() == unix.S_IFDIR
		if w.filter != nil && !w.filter(path, isDir) {
			continue
		}
		if len(path) > maxPath || n.self.depth >= maxDepth {
			return fail(errLimitPath)
		}
		if isDir {
			c.self = &dir{parent: n.self, name: name, depth: n.self.depth + 1, dev: st.dev, ino: st.ino, fd: -1}
		}
		l.nodes = append(l.nodes, c)
	}
	return l
}

var direntPool = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// readNames returns the names in a directory. Nobody else reads entries through
// the descriptor.
func readNames(fd int) ([]string, error) {
	if _, err := unix.Seek(fd, 0, 0); err != nil {
		return nil, err
	}
	buf := direntPool.Get().(*[]byte)
	defer direntPool.Put(buf)
	var names []string
	for {
		n, err := unix.ReadDirent(fd, *buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return names, err
		}
		_, _, names = unix.ParseDirent((*buf)[:n], -1, names)
	}
}

// globs decides which paths below the home directory belong to the
// conversation.
type globs [][]string

// parseGlobs splits patterns into components. "**" stands for any number of
// components; within one, "*" and "?" and "[...]" are as in path.Match.
func parseGlobs(patterns []string) (globs, error) {
	var g globs
	for _, p := range patterns {
		parts := strings.Split(strings.Trim(p, "/"), "/")
		for _, part := range parts {
			if part == "" || part == "." || part == ".." {
				return nil, fmt.Errorf("state pattern %q: empty, . or .. component", p)
			}
			if _, err := matchName(part, "x"); err != nil {
				return nil, fmt.Errorf("state pattern %q: %w", p, err)
			}
		}
		g = append(g, parts)
	}
	return g, nil
}

// match reports whether the path, or a directory above it, matches a pattern,
// and whether something below it could.
func (g globs) match(path string) (taken, below bool) {
	parts := strings.Split(path, "/")
	for _, pattern := range g {
		t, b := matchParts(pattern, parts)
		taken, below = taken || t, below || b
		if taken {
			return true, true
		}
	}
	return taken, below
}

func matchParts(pattern, parts []string) (taken, below bool) {
	switch {
	case len(pattern) == 0:
		return true, true // a directory that matches is taken whole
	case len(parts) == 0:
		return false, true
	case pattern[0] == "**":
		if len(pattern) == 1 {
			return true, true
		}
		t, b := matchParts(pattern[1:], parts)
		if t {
			return true, true
		}
		t2, b2 := matchParts(pattern, parts[1:])
		return t2, b || b2
	}
	if ok, _ := matchName(pattern[0], parts[0]); !ok {
		return false, false
	}
	return matchParts(pattern[1:], parts[1:])
}
