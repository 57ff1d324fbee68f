package checkpoint

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// segmentTarget is how many bytes of small chunks go into one segment.
const segmentTarget = 512 << 10

// fileReader completes items: reads files, links and attributes, and turns
// content into chunks and segments. It belongs to one goroutine.
type fileReader struct {
	j     *treeJob
	ctx   context.Context
	io    []byte // for reading long files
	split []byte // uncut data of a long file

	// The segment being filled; buf is nil if there is none.
	buf  *[]byte
	pack *openPack
	n    uint32
}

func newFileReader(j *treeJob) *fileReader { return &fileReader{j: j} }

func (r *fileReader) run(ctx context.Context) error {
	r.ctx = ctx
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b, ok := <-r.j.batches:
			if !ok {
				return nil
			}
			for _, it := range b.items {
				if err := r.complete(it); err != nil {
					return err
				}
			}
			if err := r.flush(); err != nil {
				return err
			}
			close(b.done)
		}
	}
}

// complete reads what an item lacks.
func (r *fileReader) complete(it *item) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	var err error
	switch it.e.Type {
	case TypeDir:
		err = r.completeDir(it)
	case TypeSymlink:
		err = r.completeLink(it)
	default:
		return r.completeFile(it)
	}
	switch {
	case err == nil:
		it.rec = r.j.record(&it.n.st)
		r.noteChange(it)
	case vanished(err):
		// What a directory held may be in the manifest already, so it stays.
		r.j.c.notes.add(NoteVanished, r.j.tree, it.n.path)
		it.skip = it.e.Type != TypeDir
	default:
		return &pathError{it.n.path, err}
	}
	return nil
}

// noteChange notes an entry that was changed since the capture began: then
// somebody writes, and the tree is not the one of any single moment. A ctime in
// the future only says that the clock was set back.
func (r *fileReader) noteChange(it *item) {
	at := it.n.st.ctime.Time()
	if !at.Before(r.j.c.start) && !at.After(time.Now()) {
		r.j.c.notes.add(NoteChanged, r.j.tree, it.n.path)
	}
}

func (j *treeJob) record(st *stat) record {
	if !j.believed {
		return record{}
	}
	return newRecord(st, j.c.start, j.top.dev)
}

func (r *fileReader) completeDir(it *item) error {
	fd, err := r.j.dirs.use(it.n.self)
	if err != nil {
		return err
	}
	defer r.j.dirs.done(it.n.self)
	it.e.Xattrs, err = readXattrs(fd, r.j.c.privileged)
	return err
}

func (r *fileReader) completeLink(it *item) error {
	fd, err := r.j.dirs.use(it.n.parent)
	if err != nil {
		return err
	}
	defer r.j.dirs.done(it.n.parent)
	it.e.Target, err = readlink(fd, it.n.name)
	return err
}

// completeFile reads a file until it holds still, three times at most.
func (r *fileReader) completeFile(it *item) error {
	fd, err := r.j.dirs.use(it.n.parent)
	if err == nil {
		defer r.j.dirs.done(it.n.parent)
	}
	for try := 1; err == nil; try++ {
		var after stat
		after, err = r.readFile(fd, it, try == 3 && r.j.c.spec.AllowTorn)
		switch {
		case err == nil:
			it.n.st = after
			r.j.c.readFiles.Add(1)
			if it.e.Torn {
				r.j.c.notes.add(NoteTorn, r.j.tree, it.n.path)
				return nil
			}
			it.rec = r.j.record(&after)
			r.noteChange(it)
			return nil
		case errors.Is(err, errMoved) && try < 3:
			err = nil
		case errors.Is(err, errReplaced) && try < 3:
			// Most likely renamed over: take the new one.
			var st stat
			if st, err = lstatat(fd, it.n.name); err == nil && st.kind() == unix.S_IFREG {
				r.j.c.notes.add(NoteReplaced, r.j.tree, it.n.path)
				it.n.st = st
			} else if err == nil {
				err = errReplaced
			}
		}
	}
	if vanished(err) {
		kind := NoteVanished
		if errors.Is(err, errReplaced) {
			kind = NoteReplaced
		}
		r.j.c.notes.add(kind, r.j.tree, it.n.path)
		it.skip = true
		return nil
	}
	var fatal *storeError
	if errors.As(err, &fatal) {
		return fatal.err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &pathError{it.n.path, err}
}

// storeError is an error of storing, as opposed to reading the tree.
type storeError struct{ err error }

func (e *storeError) Error() string { return e.err.Error() }

// readFile reads one file between two stats. With torn it accepts that the
// second differs.
func (r *fileReader) readFile(dirfd int, it *item, torn bool) (after stat, err error) {
	fd, st, err := openFile(dirfd, it.n.name, &it.n.st, r.j.c.privileged)
	if err != nil {
		return st, err
	}
	defer unix.Close(fd)
	e := Entry{Path: it.e.Path}
	setEntry(&e, &st)
	if e.Xattrs, err = readXattrs(fd, r.j.c.privileged); err != nil {
		return st, err
	}
	if st.size > int64(r.j.cutter.whole) {
		err = r.readLong(fd, &st, &e)
	} else if st.size > 0 {
		err = r.readSmall(fd, &st, &e, torn)
	}
	if torn && errors.Is(err, errMoved) {
		err = nil
	}
	if err != nil {
		return st, err
	}
	if after, err = fstat(fd); err != nil {
		return st, err
	}
	if !st.sameMoment(&after) || sum(e.chunks) != st.size {
		if !torn {
			return after, errMoved
		}
		e.Torn = true
	}
	e.Size = sum(e.chunks)
	it.e = e
	return after, nil
}

func sum(chunks []chunk) (n int64) {
	for i := range chunks {
		n += chunks[i].len
	}
	return n
}

// readSmall reads a file that is one chunk.
func (r *fileReader) readSmall(fd int, st *stat, e *Entry, torn bool) error {
	if err := r.room(int(st.size)); err != nil {
		return err
	}
	at := len(*r.buf)
	data := (*r.buf)[at : at+int(st.size)]
	n, err := pread(fd, data, 0)
	if err != nil {
		return err
	}
	if n < len(data) {
		if !torn {
			return errMoved
		}
		data = data[:n]
	}
	if n == 0 {
		return nil
	}
	c := chunk{hash: sha256.Sum256(data), len: int64(len(data))}
	if err := r.place(&c, func() { *r.buf = (*r.buf)[:at+len(data)] }); err != nil {
		return err
	}
	e.chunks = []chunk{c}
	return nil
}

// readLong cuts a file into chunks. The list may end early when the file does.
func (r *fileReader) readLong(fd int, st *stat, e *Entry) error {
	if r.io == nil {
		r.io = make([]byte, 256<<10)
		r.split = make([]byte, 0, 3<<20)
	}
	s := newSplitter(r.j.cutter, r.split, func(c chunk, data []byte) error {
		if !c.hole {
			if err := r.room(len(data)); err != nil {
				return err
			}
			if err := r.place(&c, func() { *r.buf = append(*r.buf, data...) }); err != nil {
				return err
			}
		}
		if len(e.chunks) >= maxInlineChunks*maxChunkLists/8 {
			return fmt.Errorf("file of more than %d chunks: %w", len(e.chunks), ErrLimit)
		}
		e.chunks = append(e.chunks, c)
		return nil
	})
	err := feed(fd, st, s, r.io, r.ctx.Err)
	if errors.Is(err, errMoved) {
		if eerr := s.end(); eerr != nil {
			return eerr
		}
	}
	return err
}

// room makes sure that the segment takes n more bytes.
func (r *fileReader) room(n int) error {
	if r.buf != nil && len(*r.buf) > 0 && len(*r.buf)+n > segmentTarget {
		if err := r.flush(); err != nil {
			return err
		}
	}
	if r.buf == nil {
		r.buf = r.j.c.s.buffers.Get().(*[]byte)
		*r.buf = (*r.buf)[:0]
	}
	return nil
}

// place finds the chunk among those that are stored, or adds it to the segment
// by calling add.
func (r *fileReader) place(c *chunk, add func()) error {
	seen := r.j.c.seen
	// To know the parent's chunks costs reading its manifest. That is worth it
	// unless the cache leaves only a few changed files to read.
	if r.j.recs == nil || seen.asked.Add(c.len) > 128<<10 {
		if err := seen.load(r.ctx); err != nil {
			return &storeError{err}
		}
	}
	if seen.find(c) {
		return nil
	}
	if r.pack == nil {
		var err error
		if r.pack, r.n, err = r.j.c.pk.alloc(segmentTarget); err != nil {
			return &storeError{err}
		}
	}
	c.at = place{r.pack.ord, r.n, uint32(len(*r.buf))}
	add()
	seen.add(c)
	return nil
}

// flush sends the segment on its way.
func (r *fileReader) flush() error {
	if r.pack == nil {
		return nil // nothing new: the buffer stays
	}
	sg := segment{p: r.pack, n: r.n, buf: r.buf}
	r.pack, r.buf = nil, nil
	select {
	case r.j.segments <- sg:
		return nil
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
}
