package tarball

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// maxName bounds a name in an archive, and what a link holds.
	maxName = 4096
	// maxDirs and maxDirBytes bound the directories whose mode and time wait for the
	// end, and their names: a million long ones fit in a small archive.
	maxDirs     = 1 << 20
	maxDirBytes = 64 << 20
)

// ErrCut says that an archive is over before its end.
var ErrCut = errors.New("the archive is cut off: its end is missing")

// ErrNoSpace says that the disk of the target is full.
var ErrNoSpace = errors.New("no space left on device")

// Target says where an archive goes.
type Target struct {
	Dir string // exists; nothing outside of it is touched
	// Top is the one top that the archive may have; "" admits any.
	Top string
	// As is what Top is called in Dir; "" leaves it.
	As string
	// Umask is taken from the permissions of the archive.
	Umask fs.FileMode
	// Gate, if not nil, is called before files are touched, and what it returns
	// afterwards.
	Gate func(context.Context) (leave func(), err error)
}

// extractor is one archive being taken apart.
type extractor struct {
	ctx    context.Context
	t      Target
	root   *os.Root
	report *Report
	dirs   []dirEnd
	names  int // bytes of the names in dirs
	buf    []byte
}

// dirEnd is what a directory gets once everything is in it.
type dirEnd struct {
	name string
	mode fs.FileMode
	at   time.Time
}

// Extract reads an archive from r to its end and makes its files beneath the
// target. A file that is there already is replaced in one step, a directory is
// kept. It ends at the first thing that is wrong.
func Extract(ctx context.Context, r io.Reader, t Target, report *Report) error {
	root, err := os.OpenRoot(t.Dir)
	if err != nil {
		return fmt.Errorf("open the target: %s", reason(err))
	}
	defer root.Close()
	return ExtractInto(ctx, r, root, t, report)
}

// ExtractInto is [Extract] into a directory that is open already; Dir does not
// count.
func ExtractInto(ctx context.Context, r io.Reader, root *os.Root, t Target, report *Report) error {
	x := &extractor{ctx: ctx, t: t, root: root, report: report, buf: make([]byte, 128<<10)}
	z := &zeros{r: r}
	if err := x.entries(tar.NewReader(z), z); err != nil {
		return err
	}
	if err := x.settle(); err != nil {
		return err
	}
	// Whoever sends must be able to send all of it.
	_, err := io.Copy(io.Discard, r)
	return err
}

func (x *extractor) entries(r *tar.Reader, z *zeros) error {
	for {
		if err := context.Cause(x.ctx); err != nil {
			return err
		}
		z.run = 0 // what an entry holds is no end mark
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			// The reader takes the end of its input for the end of the archive, too.
			if z.run < endMark {
				err = io.ErrUnexpectedEOF
			} else {
				return nil
			}
		}
		if err != nil {
			return fmt.Errorf("behind %d entries: %w", x.report.Files, unreadable(err))
		}
		if err := x.entry(h, r); err != nil {
			return fmt.Errorf("%q: %w", clip(h.Name), err)
		}
		if _, err := io.Copy(io.Discard, r); err != nil { // of an entry that was left out
			return fmt.Errorf("%q: %w", clip(h.Name), unreadable(err))
		}
	}
}

// endMark is how many zeros end an archive: two blocks.
const endMark = 2 * 512

// zeros counts the zero bytes that were read last.
type zeros struct {
	r   io.Reader
	run int64
}

// Read implements io.Reader.
func (z *zeros) Read(b []byte) (int, error) {
	n, err := z.r.Read(b)
	if rest := bytes.TrimRight(b[:n], "\x00"); len(rest) > 0 {
		z.run = int64(n - len(rest))
	} else {
		z.run += int64(n)
	}
	return n, err
}

// unreadable says why an archive cannot be read on.
func unreadable(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return ErrCut
	case errors.Is(err, tar.ErrHeader):
		return errors.New("this is no tar archive, or a damaged one")
	}
	return fmt.Errorf("read the archive: %w", err)
}

// clip shortens a name for a message.
func clip(name string) string {
	const most = 200
	if len(name) > most {
		return name[:most] + "…"
	}
	return name
}

// entry makes one file.
func (x *extractor) entry(h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := x.local(h.Name)
	if err != nil || name == "." {
		return err
	}
	if sparse(h) {
		return errors.New("is sparse, and could become larger than anybody sent")
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont:
		err = x.file(name, h, r)
	case tar.TypeDir:
		err = x.guarded(func() error { return x.directory(name, h) })
	case tar.TypeSymlink:
		err = x.guarded(func() error { return x.symlink(name, h) })
	case tar.TypeLink:
		err = x.guarded(func() error { return x.link(name, h) })
	default:
		x.report.leave(h.Name, "is neither a file, a directory nor a link")
		return nil
	}
	if err != nil {
		return known(err)
	}
	x.report.passed(h.Size)
	return nil
}

// known says why an entry cannot be made, in words that tell nothing of the host.
func known(err error) error {
	switch {
	case errors.Is(err, ErrCut):
		return ErrCut
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return ErrNoSpace
	}
	return errors.New(reason(err))
}

// sparse reports whether an entry has holes: a few bytes of archive would stand
// for any number of bytes on the disk.
func sparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

// guarded does something to files while the gate is open.
func (x *extractor) guarded(do func() error) error {
	if x.t.Gate == nil {
		return do()
	}
	leave, err := x.t.Gate(x.ctx)
	if err != nil {
		return err
	}
	defer leave()
	return do()
}

// local checks a name of the archive and returns the path beneath the root that
// it stands for.
func (x *extractor) local(name string) (string, error) {
	if name == "" || len(name) > maxName || strings.ContainsRune(name, 0) {
		return "", errors.New("is no name")
	}
	clean := path.Clean(name)
	if path.IsAbs(name) || slices.Contains(strings.Split(name, "/"), "..") {
		return "", errors.New("leads out of the target")
	}
	if x.t.Top == "" {
		return clean, nil
	}
	top, rest, _ := strings.Cut(clean, "/")
	if top != x.t.Top {
		return "", fmt.Errorf("is not part of %q", clip(x.t.Top))
	}
	if x.t.As != "" {
		top = x.t.As
	}
	return path.Join(top, rest), nil
}

// parents makes the directories that lead to name.
func (x *extractor) parents(name string) error {
	if dir := path.Dir(name); dir != "." {
		return x.root.MkdirAll(dir, 0o755&^x.t.Umask)
	}
	return nil
}

// directory makes a directory, or keeps the one that is there. What it is to
// have in the end waits, because it might forbid us to go on.
func (x *extractor) directory(name string, h *tar.Header) error {
	if err := x.parents(name); err != nil {
		return err
	}
	info, err := x.root.Lstat(name)
	if err == nil && !info.IsDir() {
		if err := x.root.Remove(name); err != nil {
			return err
		}
	}
	if err != nil || !info.IsDir() {
		if err := x.root.Mkdir(name, 0o700); err != nil {
			return err
		}
	} else if info.Mode().Perm()&0o700 != 0o700 {
		if err := x.root.Chmod(name, info.Mode().Perm()|0o700); err != nil {
			return err
		}
	}
	if x.names += len(name); len(x.dirs) >= maxDirs || x.names > maxDirBytes {
		return errors.New("there are too many directories")
	}
	x.dirs = append(x.dirs, dirEnd{name, x.mode(h), h.ModTime})
	return nil
}

func (x *extractor) mode(h *tar.Header) fs.FileMode {
	m := fs.FileMode(h.Mode) & fs.ModePerm
	if h.Mode&0o1000 != 0 {
		m |= fs.ModeSticky
	}
	return m & permBits &^ x.t.Umask
}

// settle gives the directories their modes and times, the innermost first.
func (x *extractor) settle() error {
	for _, d := range slices.Backward(x.dirs) {
		err := x.guarded(func() error {
			// One that has been replaced since by a later entry is not ours.
			if info, err := x.root.Lstat(d.name); err != nil || !info.IsDir() {
				return err
			}
			if err := x.root.Chmod(d.name, d.mode); err != nil {
				return err
			}
			return x.root.Chtimes(d.name, d.at, d.at)
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%q: %w", clip(d.name), known(err))
		}
	}
	return nil
}

// beside returns a name in the directory of name that nothing has.
func beside(name string) string { return path.Join(path.Dir(name), ".sojourn-"+rand.Text()) }

// put makes a file under a name of its own and moves it to its place, so that
// whoever looks there finds the old or the new one, whole.
func (x *extractor) put(name string, create func(tmp string) error) error {
	if info, err := x.root.Lstat(name); err == nil && info.IsDir() {
		return errors.New("there is a directory of this name")
	}
	tmp := beside(name)
	err := create(tmp)
	if err == nil {
		if err = x.root.Rename(tmp, name); err == nil {
			// Two names of one file are left as they are by a rename.
			err = x.root.Remove(tmp)
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			return err
		}
	}
	if gone := x.root.Remove(tmp); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
		return errors.Join(err, gone)
	}
	return err
}

func (x *extractor) symlink(name string, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) > maxName || strings.ContainsRune(h.Linkname, 0) {
		return errors.New("is a link to nothing")
	}
	if err := x.parents(name); err != nil {
		return err
	}
	return x.put(name, func(tmp string) error { return x.root.Symlink(h.Linkname, tmp) })
}

// link makes a second name of a file that came before.
func (x *extractor) link(name string, h *tar.Header) error {
	to, err := x.local(h.Linkname)
	if err != nil {
		return fmt.Errorf("is a link that %w", err)
	}
	if info, err := x.root.Lstat(to); err != nil || !info.Mode().IsRegular() {
		return errors.New("is a link to a file that is not there")
	}
	if err := x.parents(name); err != nil {
		return err
	}
	return x.put(name, func(tmp string) error { return x.root.Link(to, tmp) })
}

// file makes a regular file. The gate is passed anew for every piece, so that
// a slow sender holds up nobody who wants it closed.
func (x *extractor) file(name string, h *tar.Header, r io.Reader) error {
	var f *os.File
	tmp := beside(name)
	err := x.guarded(func() (err error) {
		if info, err := x.root.Lstat(name); err == nil && info.IsDir() {
			return errors.New("there is a directory of this name")
		}
		if err := x.parents(name); err != nil {
			return err
		}
		f, err = x.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	if err = x.copy(f, r); err == nil {
		err = x.guarded(func() error {
			if err := errors.Join(f.Chmod(x.mode(h)), x.root.Chtimes(tmp, h.ModTime, h.ModTime)); err != nil {
				return err
			}
			return x.root.Rename(tmp, name)
		})
	}
	err = errors.Join(err, f.Close())
	if err != nil {
		if gone := x.root.Remove(tmp); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

func (x *extractor) copy(f *os.File, r io.Reader) error {
	for {
		if err := context.Cause(x.ctx); err != nil {
			return err
		}
		n, err := r.Read(x.buf)
		if n > 0 {
			if err := x.guarded(func() error { _, err := f.Write(x.buf[:n]); return err }); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return unreadable(err)
		}
	}
}
