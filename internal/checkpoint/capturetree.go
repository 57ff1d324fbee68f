package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// treeJob captures one tree. The work flows
//
//	walk → batches → readers → segments → compressors → packs
//	   └──────── items in order ────────→ assembler → pages
//
// and every arrow is a bounded channel. An item reaches the assembler in the
// order of the walk and is waited for there.
type treeJob struct {
	c      *capturing
	tree   Tree
	path   string
	cutter cutter
	max    int64
	state  globs // only for the conversation

	dirs     *dirs
	top      *dir
	believed bool     // file system and cache allow to believe stats
	recs     []record // of the parent's entries
	before   *cursor  // over the parent's entries, in step with the walk
	prev     *Entry   // the parent's entry that is not behind the walk yet
	prevN    int64    // its number

	batches  chan *batch
	segments chan segment
	queue    chan *item
	batch    *batch // being filled
	pending  []*node
	leaders  map[fileID]leader
	queued   int64 // items handed to the assembler
	oldest   int64 // number of the first item in batch
	data     int64 // allocated bytes seen by the walk
}

type fileID struct{ dev, ino uint64 }

// leader is the first name of a file with several.
type leader struct {
	it   *item
	path string
}

// item is one entry on its way into the manifest.
type item struct {
	n      node
	e      Entry
	rec    record
	batch  *batch // that makes it complete; nil = it is
	skip   bool   // it went away
	leader *item  // of a hard link
}

// plain is what an error of the system says without the path that it is about: that of
// a top is the host's, and a detail is read by whoever owns the files.
func plain(err error) string {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno.Error()
	}
	return "it cannot be opened"
}

// batch is work for one reader: neighbours that fit into one segment, or one
// long file.
type batch struct {
	items []*item
	bytes int64
	done  chan struct{}
}

func (j *treeJob) run(ctx context.Context) (TreeInfo, *manifest, error) {
	if j.path == "" {
		return TreeInfo{Reason: ReasonNotRequested}, nil, nil
	}
	j.dirs = &dirs{}
	top, err := j.dirs.openTop(j.path)
	if err != nil {
		return TreeInfo{Reason: ReasonUnreadable, Detail: "the top: " + plain(err)}, nil, nil
	}
	j.top = top
	j.c.tops[j.tree], j.c.dirs[j.tree] = top, j.dirs
	// Brings what was written through mappings into mtime and ctime.
	if err := retry(func() error { return unix.Syncfs(top.fd) }); err != nil {
		return TreeInfo{Reason: ReasonUnreadable, Detail: "sync: " + err.Error()}, nil, nil
	}
	j.c.start = time.Now()
	j.prepareParent(ctx)
	if err := j.size(ctx); err != nil {
		info, err := outcome(err)
		return info, nil, err
	}
	a := newAssembler(j)
	err = j.pipeline(ctx, a)
	if err == nil {
		err = a.finish()
	}
	if err != nil {
		info, err := outcome(err)
		return info, nil, err
	}
	j.c.records[j.tree] = a.recs
	return a.info, a.manifest(), nil
}

// prepareParent opens the parent's tree and what is remembered of it.
func (j *treeJob) prepareParent(ctx context.Context) {
	trusted := believable(j.top.fd)
	if j.c.parent == nil || !j.c.parent.Trees[j.tree].Captured {
		j.believed = trusted
		return
	}
	info := j.c.parent.Trees[j.tree]
	if trusted {
		j.recs = j.c.spec.Cache.load(j.c.parent.ID, j.tree, j.top, info.Entries)
	}
	j.believed = trusted
	if j.recs != nil {
		j.before = j.c.s.newCursor(ctx, j.c.parent, j.tree)
		j.prevN = -1
	}
}

// size walks the tree once to see whether it is over its cap before anything is
// stored. With a cache, reading little anyway, the capture itself looks.
func (j *treeJob) size(ctx context.Context) error {
	if j.max <= 0 || j.recs != nil {
		return nil
	}
	var sum int64
	links := make(map[fileID]bool)
	w := j.walker(ctx, func(n *node) error {
		if n.vanish || n.st.kind() != unix.S_IFREG {
			return nil
		}
		if n.st.nlink > 1 {
			if id := (fileID{n.st.dev, n.st.ino}); links[id] {
				return nil
			} else {
				links[id] = true
			}
		}
		return j.addSize(&sum, n)
	})
	w.gone = func(*node) {}
	return w.walk(j.top)
}

func (j *treeJob) addSize(sum *int64, n *node) error {
	*sum += n.st.allocated()
	if j.max > 0 && *sum > j.max {
		return &pathError{n.path, fmt.Errorf("%w of %d bytes with this file of %d", errTooLarge, j.max, n.st.size)}
	}
	return nil
}

func (j *treeJob) walker(ctx context.Context, visit func(*node) error) *walker {
	w := &walker{ctx: ctx, dirs: j.dirs, visit: visit}
	w.gone = func(n *node) { j.c.notes.add(NoteVanished, j.tree, n.path) }
	if j.tree == Conversation {
		w.filter = func(path string, isDir bool) bool {
			taken, below := j.state.match(path)
			return taken || isDir && below
		}
	}
	return w
}

// pipeline runs the stages and returns when all have ended.
func (j *treeJob) pipeline(ctx context.Context, a *assembler) error {
	n := j.c.s.workers
	j.batches = make(chan *batch, n)
	j.segments = make(chan segment, n)
	j.queue = make(chan *item, queueItems)
	j.leaders = make(map[fileID]leader)
	j.batch = newBatch()

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(j.queue)
		defer close(j.batches)
		return j.sequence(ctx)
	})
	var readers sync.WaitGroup
	for range n {
		readers.Add(1)
		g.Go(func() error {
			defer readers.Done()
			return newFileReader(j).run(ctx)
		})
	}
	g.Go(func() error {
		readers.Wait()
		close(j.segments)
		return nil
	})
	for range n {
		g.Go(func() error { return j.compress() })
	}
	g.Go(func() error { return a.run(ctx) })
	return g.Wait()
}

// compress writes segments until the readers have ended. After an error it
// takes the rest without writing, so that no reader waits for it.
func (j *treeJob) compress() error {
	enc := j.c.s.encoders.Get().(*zstd.Encoder)
	defer j.c.s.encoders.Put(enc)
	buf := j.c.s.buffers.Get().(*[]byte)
	defer j.c.s.buffers.Put(buf)
	var failed error
	for sg := range j.segments {
		if failed == nil {
			*buf, failed = j.c.pk.write(enc, *buf, sg)
		}
		*sg.buf = (*sg.buf)[:0]
		j.c.s.buffers.Put(sg.buf)
		if failed != nil {
			break
		}
	}
	return failed
}

func newBatch() *batch { return &batch{done: make(chan struct{})} }

// sequence walks the tree and hands out work.
func (j *treeJob) sequence(ctx context.Context) error {
	visit := func(n *node) error { return j.visit(ctx, n) }
	if j.tree == Workspace {
		st, err := fstat(j.top.fd)
		if err != nil {
			return &pathError{"", err}
		}
		if err := visit(&node{self: j.top, st: st}); err != nil {
			return err
		}
	}
	if err := j.walker(ctx, visit).walk(j.top); err != nil {
		return err
	}
	return j.dispatch(ctx)
}

// visit takes one node of the walk.
func (j *treeJob) visit(ctx context.Context, n *node) error {
	if n.vanish {
		j.c.notes.add(NoteVanished, j.tree, n.path)
		return nil
	}
	if j.tree == Conversation {
		// A directory above matches is stored only if there is one.
		for len(j.pending) > 0 && !strings.HasPrefix(n.path, j.pending[len(j.pending)-1].path+"/") {
			j.pending = j.pending[:len(j.pending)-1]
		}
		if taken, _ := j.state.match(n.path); !taken {
			keep := *n
			j.pending = append(j.pending, &keep)
			return nil
		}
	}
	if kind, special := specialKind(n.st.kind()); special {
		j.c.notes.add(kind, j.tree, n.path)
		return nil
	}
	for _, p := range j.pending {
		if err := j.take(ctx, p); err != nil {
			return err
		}
	}
	j.pending = j.pending[:0]
	return j.take(ctx, n)
}

func specialKind(kind uint32) (NoteKind, bool) {
	switch kind {
	case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK:
		return "", false
	case unix.S_IFSOCK:
		return NoteSocket, true
	case unix.S_IFIFO:
		return NoteFifo, true
	}
	return NoteDevice, true
}

// take turns a node into an item, complete if nothing has to be read for it.
func (j *treeJob) take(ctx context.Context, n *node) error {
	it := &item{n: *n, e: Entry{Path: n.path}}
	setEntry(&it.e, &n.st)
	if n.self == nil && n.st.nlink > 1 {
		id := fileID{n.st.dev, n.st.ino}
		if l, ok := j.leaders[id]; ok {
			it.leader = l.it
			it.e = Entry{Path: n.path, Type: TypeHardlink, Target: l.path}
			return j.enqueue(ctx, it)
		}
		j.leaders[id] = leader{it, n.path}
	}
	if it.e.Type == TypeFile {
		if err := j.addSize(&j.data, n); err != nil {
			return err
		}
	}
	if j.recs != nil {
		old, rec, err := j.lookup(n.path)
		if err != nil {
			return err
		}
		if old != nil && rec.believes(&n.st, old) {
			it.e, it.rec = *old, rec
			return j.enqueue(ctx, it)
		}
	}
	size := it.e.Size
	if len(j.batch.items) > 0 && (j.batch.bytes+size > segmentTarget || len(j.batch.items) >= 512) {
		if err := j.dispatch(ctx); err != nil {
			return err
		}
	}
	if len(j.batch.items) == 0 {
		j.oldest = j.queued
	}
	it.batch = j.batch
	j.batch.items = append(j.batch.items, it)
	j.batch.bytes += size
	return j.enqueue(ctx, it)
}

// lookup returns the parent's entry for a path that comes later than those
// asked for before.
func (j *treeJob) lookup(path string) (*Entry, record, error) {
	for j.before != nil {
		if j.prev == nil {
			e, err := j.before.next()
			if err != nil {
				return nil, record{}, fmt.Errorf("read parent: %w", err)
			}
			if e == nil {
				j.before = nil
				break
			}
			j.prev = e
			j.prevN++
		}
		switch c := comparePaths(j.prev.Path, path); {
		case c == 0:
			return j.prev, j.recs[j.prevN], nil
		case c > 0:
			return nil, record{}, nil
		}
		j.prev = nil
	}
	return nil, record{}, nil
}

// queueItems bounds how far the walk runs ahead of the assembler.
const queueItems = 16 << 10

// enqueue hands an item to the assembler. The assembler waits for batches in the
// order of their items, so the batch being filled must go out before the queue
// can be full of what comes after it.
func (j *treeJob) enqueue(ctx context.Context, it *item) error {
	if len(j.batch.items) > 0 && j.queued-j.oldest >= queueItems/2 {
		if err := j.dispatch(ctx); err != nil {
			return err
		}
	}
	j.queued++
	select {
	case j.queue <- it:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (j *treeJob) dispatch(ctx context.Context) error {
	if len(j.batch.items) == 0 {
		return nil
	}
	b := j.batch
	j.batch = newBatch()
	select {
	case j.batches <- b:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func setEntry(e *Entry, st *stat) {
	e.Mode, e.UID, e.GID, e.MTime = st.mode&0o7777, st.uid, st.gid, st.mtime
	switch st.kind() {
	case unix.S_IFDIR:
		e.Type = TypeDir
	case unix.S_IFLNK:
		e.Type = TypeSymlink
	default:
		e.Type, e.Size = TypeFile, st.size
	}
}
