package files

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// newMode is what a new file gets when nobody says.
const newMode fs.FileMode = 0o644

// pieceBytes is how much is written while the gate is open.
const pieceBytes = 256 << 10

// Writing says how a file is written.
type Writing struct {
	// Mode is its permissions; nil keeps those of the file that is replaced.
	Mode *fs.FileMode
	// Size is how many bytes there are; negative when that is not known. When fewer
	// or more come, the file stays as it was.
	Size int64
	// Gate, if not nil, is called before files are touched, and what it returns
	// afterwards.
	Gate func(context.Context) (leave func(), err error)
}

// WriteFile replaces the regular file that a path leads to by what r holds, in
// one step when r has ended, or makes it, with the directories that lead to it. A
// link at the end of the path is followed, so a link stays one. Other names of
// the old file keep what it held.
//
// The bytes are not forced to the disk: what reads them next, a capture too, reads
// through the same cache, and a machine that loses power loses the sandbox with it.
func (w Where) WriteFile(ctx context.Context, name string, r io.Reader, o Writing) (Info, error) {
	t := &target{ctx: ctx, o: o, path: name}
	info, err := t.write(w, r)
	return info, refusal(name, err)
}

// target is a file being written.
type target struct {
	ctx  context.Context
	o    Writing
	path string
	at   *place
	tmp  string
	mode fs.FileMode
}

func (t *target) write(w Where, r io.Reader) (Info, error) {
	var f *os.File
	err := t.guarded(func() (err error) {
		f, err = t.begin(w)
		return err
	})
	if t.at != nil {
		defer t.at.close()
	}
	if err != nil {
		return Info{}, err
	}
	defer f.Close() // once more does no harm
	info := Info{}
	if err = t.fill(f, r); err == nil {
		err = t.guarded(func() (err error) {
			info, err = t.commit(f)
			return err
		})
	}
	if err != nil {
		// Not guarded: nothing that anybody knows of goes.
		gone := unix.Unlinkat(t.at.dir, t.tmp, 0)
		if gone != nil && !errors.Is(gone, unix.ENOENT) {
			err = errors.Join(err, gone)
		}
	}
	return info, err
}

// guarded does something to files while the gate is open.
func (t *target) guarded(do func() error) error {
	if err := context.Cause(t.ctx); err != nil {
		return err
	}
	if t.o.Gate == nil {
		return do()
	}
	leave, err := t.o.Gate(t.ctx)
	if err != nil {
		return err
	}
	defer leave()
	return do()
}

// begin finds the place and makes a file of its own beside it.
func (t *target) begin(w Where) (*os.File, error) {
	at, err := w.find(t.path, true, true)
	if err != nil {
		return nil, err
	}
	t.at, t.mode = at, newMode
	if at.name == "." {
		return nil, &Error{Kind: IsDirectory, Path: t.path}
	}
	if at.found {
		var st unix.Stat_t
		err := unix.Fstatat(at.dir, at.name, &st, unix.AT_SYMLINK_NOFOLLOW)
		switch {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			return nil, err
		case st.Mode&unix.S_IFMT == unix.S_IFREG:
			t.mode = fs.FileMode(st.Mode) & fs.ModePerm
		case st.Mode&unix.S_IFMT != unix.S_IFLNK: // swapped in since: it will be replaced, not followed
			return nil, &Error{Kind: NotRegular, Path: t.path}
		}
	}
	if t.o.Mode != nil {
		t.mode = *t.o.Mode & fs.ModePerm
	}
	t.tmp = ".sojourn-" + rand.Text()
	fd, err := openat(at.dir, t.tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), t.tmp), nil
}

// fill writes what r holds. The gate is passed anew for every piece, so that a
// slow sender holds up nobody who wants it closed.
func (t *target) fill(f *os.File, r io.Reader) error {
	buf := make([]byte, pieceBytes)
	var total int64
	for {
		if err := context.Cause(t.ctx); err != nil {
			return err
		}
		n, err := r.Read(buf)
		if n > 0 {
			total += int64(n)
			if err := t.guarded(func() error { return write(f, buf[:n]) }); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF) && (t.o.Size < 0 || t.o.Size == total):
			return nil
		case errors.Is(err, io.EOF), err == nil && t.o.Size >= 0 && total > t.o.Size:
			return &Error{Kind: Cut, Path: t.path}
		case err != nil:
			return err
		}
	}
}

// writeStep bounds one write. The kernel takes page cache for a write in pieces of its
// size, and a virtual machine has large pieces only from memory that its host has to
// find first.
const writeStep = 64 << 10

// write writes b in steps.
func write(f *os.File, b []byte) error {
	for step := range slices.Chunk(b, writeStep) {
		if _, err := f.Write(step); err != nil {
			return err
		}
	}
	return nil
}

// commit gives the file its permissions and its name.
func (t *target) commit(f *os.File) (Info, error) {
	var st unix.Stat_t
	err := errors.Join(f.Chmod(t.mode), unix.Fstat(int(f.Fd()), &st), f.Close())
	if err == nil {
		_, err = again(func() (struct{}, error) {
			return struct{}{}, unix.Renameat(t.at.dir, t.tmp, t.at.dir, t.at.name)
		})
	}
	return infoOf(&st), err
}
