package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Restore writes the trees of a checkpoint into the directories of target,
// which exist and are empty (or are emptied if target says so). Every chunk is
// verified before it is written. After an error the caller discards the target.
// A tree that was not captured leaves its directory empty, and the report says
// so: look at Captured.
func (s *Store) Restore(ctx context.Context, ref Ref, target Target) (Report, error) {
	root, err := s.readRoot(ctx, ref)
	if err != nil {
		return Report{}, fmt.Errorf("restore: %w", err)
	}
	r := &restoring{s: s, root: root, target: target, segs: newSegmentReader(s, root), privileged: os.Geteuid() == 0}
	for t, path := range map[Tree]string{Workspace: target.Workspace, Conversation: target.Home} {
		if path == "" {
			continue
		}
		if err := prepareTarget(path, target.Empty); err != nil {
			return Report{}, fmt.Errorf("restore %s: %w", t, err)
		}
	}
	for _, t := range treeOrder {
		path := target.Workspace
		if t == Conversation {
			path = target.Home
		}
		if path == "" || !root.Trees[t].Captured {
			continue
		}
		if err := r.tree(ctx, t, path); err != nil {
			return Report{}, fmt.Errorf("restore %s of %s: %w", t, ref.ID, err)
		}
	}
	return Report{
		Workspace: root.Trees[Workspace], Conversation: root.Trees[Conversation], Agent: root.Agent,
		Notes: r.notes.list, Counts: r.notes.counts, Fetched: r.segs.fetched.Load() + ref.Bytes,
	}, nil
}

// prepareTarget makes sure that a directory is there and empty.
func prepareTarget(path string, empty bool) error {
	f, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer f.Close()
	d, err := f.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(256)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !empty {
			return fmt.Errorf("%s holds %q: %w", path, names[0], ErrNotEmpty)
		}
		for _, name := range names {
			if err := f.RemoveAll(name); err != nil {
				return err
			}
		}
	}
}

// restoring is one restore in progress.
type restoring struct {
	s          *Store
	root       *Root
	target     Target
	segs       *segmentReader
	privileged bool
	notes      noteList
}

// treeRestore writes one tree. One goroutine reads the manifest, makes
// directories and symbolic links, and hands out the writing of files; hard
// links and the metadata of directories come when all files are there.
type treeRestore struct {
	*restoring
	tree   Tree
	dirs   *dirs
	top    *dir
	above  []madeDir // around the current entry, outermost first
	made   []madeDir // all, in order
	links  []Entry
	tasks  chan *task
	task   *task // being filled
	cursor *cursor

	recMu sync.Mutex // guards recs against growth while an element is set
	recs  []record

	openMu    sync.Mutex
	openFiles map[*newFile]bool
}

// madeDir is a directory that was made, with what it gets in the end.
type madeDir struct {
	d *dir
	e *Entry
	n int // number of the entry
}

func (r *restoring) tree(ctx context.Context, t Tree, path string) error {
	tr := &treeRestore{restoring: r, tree: t, dirs: &dirs{}, openFiles: make(map[*newFile]bool), cursor: r.s.newCursor(ctx, r.root, t)}
	top, err := tr.dirs.openTop(path)
	if err != nil {
		return err
	}
	tr.top = top
	defer tr.dirs.closeAll(top)
	defer tr.closeFiles()
	if t == Conversation {
		// The home directory itself is not part of the tree.
		tr.above = []madeDir{{d: top, e: &Entry{}, n: -1}}
	}
	if err := tr.files(ctx); err != nil {
		return err
	}
	for i := range tr.links {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := tr.link(&tr.links[i]); err != nil {
			return &pathError{tr.links[i].Path, err}
		}
	}
	// Backwards: what is below a directory is done before it is closed to us.
	for _, m := range slices.Backward(tr.made) {
		if err := tr.finishDir(m); err != nil {
			return &pathError{m.e.Path, err}
		}
	}
	r.segs.fetched.Add(tr.cursor.pages.fetched)
	tr.remember()
	return nil
}

// files makes everything but hard links.
func (tr *treeRestore) files(ctx context.Context) error {
	tr.tasks = make(chan *task, tr.s.workers)
	g, ctx := errgroup.WithContext(ctx)
	tr.cursor.ctx = ctx
	if tr.target.Cache != nil {
		tr.recs = make([]record, 0, min(tr.root.Trees[tr.tree].Entries, 1<<16))
	}
	// A task mostly waits: for a range of the bucket, or for the disk.
	for range 2 * tr.s.workers {
		g.Go(func() error { return tr.work(ctx) })
	}
	g.Go(func() error {
		defer close(tr.tasks)
		for n := 0; ; n++ {
			e, err := tr.cursor.next()
			if err != nil {
				return err
			}
			if e == nil {
				return tr.send(ctx)
			}
			if err := tr.entry(ctx, e, n); err != nil {
				return err
			}
		}
	})
	return g.Wait()
}

// entry takes the next entry of the manifest. The cursor has checked that its
// directory is the last one made that holds it.
func (tr *treeRestore) entry(ctx context.Context, e *Entry, n int) error {
	if tr.target.Cache != nil {
		tr.recMu.Lock()
		tr.recs = append(tr.recs, record{})
		tr.recMu.Unlock()
	}
	if e.Path == "" {
		tr.above = append(tr.above, madeDir{tr.top, e, n})
		tr.made = append(tr.made, madeDir{tr.top, e, n})
		return nil
	}
	parent, name := splitPath(e.Path)
	for len(tr.above) > 0 && tr.above[len(tr.above)-1].e.Path != parent {
		tr.above = tr.above[:len(tr.above)-1]
	}
	if len(tr.above) == 0 {
		return corruptf("entry %q: no directory for it", e.Path)
	}
	in := tr.above[len(tr.above)-1].d
	switch e.Type {
	case TypeHardlink:
		tr.links = append(tr.links, *e)
		return nil
	case TypeFile:
		return tr.file(ctx, e, in, name, n)
	}
	fd, err := tr.dirs.use(in)
	if err != nil {
		return &pathError{e.Path, err}
	}
	defer tr.dirs.done(in)
	if e.Type == TypeSymlink {
		if err := tr.symlink(fd, name, e); err != nil {
			return &pathError{e.Path, err}
		}
		return nil
	}
	if err := retry(func() error { return unix.Mkdirat(fd, name, 0o700) }); err != nil {
		return &pathError{e.Path, fmt.Errorf("make directory: %w", spaceError(err))}
	}
	st, err := lstatat(fd, name)
	if err != nil {
		return &pathError{e.Path, err}
	}
	m := madeDir{&dir{parent: in, name: name, depth: in.depth + 1, dev: st.dev, ino: st.ino, fd: -1}, e, n}
	tr.above = append(tr.above, m)
	tr.made = append(tr.made, m)
	return nil
}

func (tr *treeRestore) symlink(dirfd int, name string, e *Entry) error {
	if err := retry(func() error { return unix.Symlinkat(e.Target, dirfd, name) }); err != nil {
		return fmt.Errorf("make link: %w", spaceError(err))
	}
	if tr.privileged {
		if err := unix.Fchownat(dirfd, name, int(e.UID), int(e.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("set owner: %w", err)
		}
	}
	return setTime(dirfd, name, e.MTime)
}

// link makes a further name of a file that is there.
func (tr *treeRestore) link(e *Entry) error {
	from, err := tr.find(e.Target)
	if err != nil {
		return err
	}
	defer tr.dirs.done(from)
	to, err := tr.find(e.Path)
	if err != nil {
		return err
	}
	defer tr.dirs.done(to)
	_, oldName := splitPath(e.Target)
	_, newName := splitPath(e.Path)
	if err := retry(func() error { return unix.Linkat(from.fd, oldName, to.fd, newName, 0) }); err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM) {
			return corruptf("link to %q, which is no file: %v", e.Target, err)
		}
		return fmt.Errorf("link to %q: %w", e.Target, spaceError(err))
	}
	return nil
}

// find returns the directory that holds a path, in use, so that its descriptor
// is open. Only directories that this restore made are found.
func (tr *treeRestore) find(path string) (*dir, error) {
	parent, _ := splitPath(path)
	d := tr.top
	if parent != "" {
		i, ok := slices.BinarySearchFunc(tr.made, parent, func(m madeDir, p string) int { return comparePaths(m.e.Path, p) })
		if !ok {
			return nil, corruptf("no directory for %q", path)
		}
		d = tr.made[i].d
	}
	if _, err := tr.dirs.use(d); err != nil {
		return nil, err
	}
	return d, nil
}

// finishDir gives a directory its metadata.
func (tr *treeRestore) finishDir(m madeDir) error {
	fd, err := tr.dirs.use(m.d)
	if err != nil {
		return err
	}
	defer tr.dirs.done(m.d)
	if err := tr.setMetadata(fd, m.e); err != nil {
		return err
	}
	if tr.target.Cache != nil {
		return tr.note(fd, m.n)
	}
	return nil
}

// spaceError makes a full disk recognisable.
func spaceError(err error) error {
	if isNoSpace(err) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}
