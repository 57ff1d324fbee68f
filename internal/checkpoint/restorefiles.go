package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A restore never asks for more in one task: files of one segment, or pieces of
// long files that lie in it.
const taskPieces = 512

// task is what one worker does with one segment.
type task struct {
	pack, seg uint32
	pieces    []piece
	bytes     int64
}

// piece is a chunk of a file, or a file without any.
type piece struct {
	f   *newFile
	c   chunk // len 0 = nothing to write
	off int64
}

// newFile is a file being restored. Its pieces may be written by several
// goroutines; the last one finishes it.
type newFile struct {
	e    *Entry
	in   *dir
	name string
	n    int // number of the entry

	mu     sync.Mutex
	fd     int
	opened bool
	left   int // pieces to write, and one while more may come
}

// file plans the writing of a file.
func (tr *treeRestore) file(ctx context.Context, e *Entry, in *dir, name string, n int) error {
	f := &newFile{e: e, in: in, name: name, n: n, fd: -1, left: 1}
	pieces := 0
	err := tr.cursor.chunksOf(e, func(off int64, c *chunk) error {
		if c.hole {
			return nil
		}
		pieces++
		f.mu.Lock()
		f.left++
		f.mu.Unlock()
		return tr.plan(ctx, piece{f: f, c: *c, off: off})
	})
	if err != nil {
		return err
	}
	e.chunks, e.lists = nil, nil
	// The last piece may be written before the plan is complete, so planning
	// holds the file too, and gives it up as an empty piece.
	return tr.plan(ctx, piece{f: f})
}

// plan adds a piece to the task of its segment.
func (tr *treeRestore) plan(ctx context.Context, p piece) error {
	t := tr.task
	if t != nil && (len(t.pieces) >= taskPieces || p.c.len > 0 && t.bytes > 0 && (t.pack != p.c.at.pack || t.seg != p.c.at.seg)) {
		if err := tr.send(ctx); err != nil {
			return err
		}
		t = nil
	}
	if t == nil {
		t = &task{}
		tr.task = t
	}
	if p.c.len > 0 {
		t.pack, t.seg = p.c.at.pack, p.c.at.seg
	}
	t.pieces = append(t.pieces, p)
	t.bytes += p.c.len
	return nil
}

func (tr *treeRestore) send(ctx context.Context) error {
	t := tr.task
	tr.task = nil
	if t == nil {
		return nil
	}
	select {
	case tr.tasks <- t:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// work does tasks until there are no more.
func (tr *treeRestore) work(ctx context.Context) error {
	for t := range tr.tasks {
		if err := ctx.Err(); err != nil {
			return err
		}
		var seg []byte
		if t.bytes > 0 {
			var err error
			if seg, err = tr.segs.get(ctx, t.pack, t.seg); err != nil {
				return err
			}
		}
		for i := range t.pieces {
			if err := tr.piece(&t.pieces[i], seg); err != nil {
				return &pathError{t.pieces[i].f.e.Path, err}
			}
		}
	}
	return nil
}

func (tr *treeRestore) piece(p *piece, seg []byte) error {
	fd, err := tr.open(p.f)
	if err != nil {
		return err
	}
	if p.c.len > 0 {
		b, err := bytesOf(&p.c, seg)
		if err == nil {
			err = writeSparse(fd, b, p.off)
		}
		if err != nil {
			tr.closeFile(p.f)
			return err
		}
	}
	p.f.mu.Lock()
	p.f.left--
	last := p.f.left == 0
	p.f.mu.Unlock()
	if !last {
		return nil
	}
	defer tr.closeFile(p.f)
	return tr.finishFile(p.f)
}

// open creates the file when its first piece is written.
func (tr *treeRestore) open(f *newFile) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.opened {
		if f.fd < 0 {
			return -1, errors.New("another piece was not written")
		}
		return f.fd, nil
	}
	f.opened = true
	dirfd, err := tr.dirs.use(f.in)
	if err != nil {
		return -1, err
	}
	defer tr.dirs.done(f.in)
	f.fd, err = openat(dirfd, f.name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		f.fd = -1
		return -1, fmt.Errorf("create: %w", spaceError(err))
	}
	tr.openMu.Lock()
	tr.openFiles[f] = true
	tr.openMu.Unlock()
	return f.fd, nil
}

func (tr *treeRestore) closeFile(f *newFile) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fd >= 0 {
		unix.Close(f.fd)
		f.fd = -1
	}
	tr.openMu.Lock()
	delete(tr.openFiles, f)
	tr.openMu.Unlock()
}

// closeFiles closes what an error left open. The workers have ended.
func (tr *treeRestore) closeFiles() {
	for f := range maps.Clone(tr.openFiles) {
		tr.closeFile(f)
	}
}

// finishFile sets length and metadata when all pieces are there.
func (tr *treeRestore) finishFile(f *newFile) error {
	if err := retry(func() error { return unix.Ftruncate(f.fd, f.e.Size) }); err != nil {
		return fmt.Errorf("set length %d: %w", f.e.Size, spaceError(err))
	}
	if err := tr.setMetadata(f.fd, f.e); err != nil {
		return err
	}
	if tr.target.Cache != nil {
		return tr.note(f.fd, f.n)
	}
	return nil
}

// writeSparse writes b at off but leaves out whole blocks of zeros, which the
// new file has there anyway.
func writeSparse(fd int, b []byte, off int64) error {
	for len(b) > 0 {
		n := 0
		for n < len(b) {
			block := min(holeBlock-int((off+int64(n))%holeBlock), len(b)-n)
			if block == holeBlock && isZero(b[n:n+block]) {
				break
			}
			n += block
		}
		for done := 0; done < n; {
			m, err := unix.Pwrite(fd, b[done:n], off+int64(done))
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return fmt.Errorf("write: %w", spaceError(err))
			}
			done += m
		}
		b, off = b[n:], off+int64(n)
		for len(b) >= holeBlock && isZero(b[:holeBlock]) {
			b, off = b[holeBlock:], off+holeBlock
		}
	}
	return nil
}

// setMetadata gives an open file or directory its owner, attributes, mode and
// time. The order matters: a new owner clears setuid and capabilities, an ACL
// changes the group bits of the mode, and each of them could need permissions
// that the mode takes away.
func (tr *treeRestore) setMetadata(fd int, e *Entry) error {
	if tr.privileged {
		if err := unix.Fchown(fd, int(e.UID), int(e.GID)); err != nil {
			return fmt.Errorf("set owner: %w", err)
		}
	} else if int(e.UID) != unix.Geteuid() {
		tr.notes.add(NoteOwner, tr.tree, e.Path)
	}
	for _, x := range e.Xattrs {
		if !keepXattr(x.Name, tr.privileged) {
			if x.Name != "security.capability" {
				return corruptf("attribute %q", x.Name)
			}
			tr.notes.add(NoteXattr, tr.tree, e.Path)
			continue
		}
		err := unix.Fsetxattr(fd, x.Name, x.Value, 0)
		switch {
		case errors.Is(err, unix.ENOTSUP):
			tr.notes.add(NoteXattr, tr.tree, e.Path)
		case err != nil:
			return fmt.Errorf("set attribute %q: %w", x.Name, spaceError(err))
		}
	}
	if err := unix.Fchmod(fd, e.Mode); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	return setTime(fd, "", e.MTime)
}

// setTime sets the mtime of name in a directory without following links, or of
// the open file itself if name is empty.
func setTime(fd int, name string, t Time) error {
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: t.Sec, Nsec: int64(t.Nsec)}}
	flags := unix.AT_SYMLINK_NOFOLLOW
	if name == "" {
		flags = unix.AT_EMPTY_PATH
	}
	if err := unix.UtimesNanoAt(fd, name, times, flags); err != nil {
		return fmt.Errorf("set time: %w", err)
	}
	return nil
}

// note remembers the state in which the entry was left, for the stat cache.
// Numbers are handed out in order by one goroutine, and each is set by one.
func (tr *treeRestore) note(fd, n int) error {
	st, err := fstat(fd)
	if err != nil {
		return err
	}
	tr.recMu.Lock()
	tr.recs[n] = record{dev: st.dev, ino: st.ino, ctime: st.ctime.Sec*1e9 + int64(st.ctime.Nsec)}
	tr.recMu.Unlock()
	return nil
}

// remember saves what the restore left, so that the next capture reads only
// what changed. What was made in the last moment could change without its
// ctime moving and is left out.
func (tr *treeRestore) remember() {
	if tr.target.Cache == nil || !believable(tr.top.fd) {
		return
	}
	end := time.Now().Add(-ctimeSlack).UnixNano()
	for i := range tr.recs {
		if tr.recs[i].ctime >= end || tr.recs[i].dev != tr.top.dev {
			tr.recs[i] = record{}
		}
	}
	tr.target.Cache.save(tr.root.ID, tr.tree, tr.top, tr.recs)
}
