package tarball

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const (
	// maxDepth bounds nesting: each level costs one open directory.
	maxDepth = 512
	// maxLinked bounds the hard-linked files that are remembered; those beyond
	// it are written again in full.
	maxLinked = 1 << 18
	// listNames is how many names of a directory are held at once, so that a
	// directory may be of any size.
	listNames = 4096
)

// inode names a file of this machine.
type inode struct{ dev, ino uint64 }

// writer is one archive being written.
type writer struct {
	ctx    context.Context
	tar    *tar.Writer
	report *Report
	linked map[inode]string // the name that a file with several has in the archive
	buf    []byte
}

// Write writes the files or trees at paths to w as one archive, each under its
// last name. A path that is a link is written as a link; one that ends in a
// slash is the directory that it leads to. What cannot be read is left out and
// reported. The error is that of w, of ctx, or that a path is not there.
func Write(ctx context.Context, w io.Writer, report *Report, paths ...string) error {
	t := &writer{
		ctx: ctx, tar: tar.NewWriter(w), report: report, linked: map[inode]string{}, buf: make([]byte, 128<<10),
	}
	for _, p := range paths {
		if err := t.top(p); err != nil {
			return err
		}
	}
	return t.tar.Close()
}

// WriteOpen writes the file or tree that is open in dir under name to w as one
// archive. The files of a directory have their names from there, without the
// directory's own; anything else has the name as. A link is written as a link. The
// error is that of w, of ctx, or that nothing has the name.
func WriteOpen(ctx context.Context, w io.Writer, report *Report, dir *os.Root, name, as string) error {
	t := &writer{
		ctx: ctx, tar: tar.NewWriter(w), report: report, linked: map[inode]string{}, buf: make([]byte, 128<<10),
	}
	info, err := dir.Lstat(name)
	if err != nil {
		return missing(as, err)
	}
	if info.IsDir() {
		err = t.inside(dir, name, "", info, 0)
	} else {
		err = t.node(dir, name, as, info, 0)
	}
	if err != nil {
		return err
	}
	return t.tar.Close()
}

// top writes one of the paths that were asked for.
func (t *writer) top(p string) error {
	abs, err := filepath.Abs(p)
	if err != nil {
		return missing(p, err)
	}
	as := filepath.Base(abs)
	if strings.HasSuffix(p, "/") {
		if abs, err = filepath.EvalSymlinks(abs); err != nil {
			return missing(p, err)
		}
	}
	if as == "/" || abs == "/" {
		return errors.New("the root directory has no name to copy it under")
	}
	return t.under(filepath.Dir(abs), filepath.Base(abs), as)
}

func missing(name string, err error) error {
	return fmt.Errorf("%q: %s", filepath.Base(name), reason(err))
}

// under writes what is called name in the directory dir, as the archive's as.
func (t *writer) under(dir, name, as string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return missing(name, err)
	}
	defer root.Close()
	info, err := root.Lstat(name)
	if err != nil {
		return missing(name, err)
	}
	return t.node(root, name, as, info, 0)
}

// node writes one file of any kind, and what is below it.
func (t *writer) node(dir *os.Root, name, as string, info fs.FileInfo, depth int) error {
	if err := context.Cause(t.ctx); err != nil {
		return err
	}
	h := &tar.Header{
		Name: as, Mode: modeOf(info.Mode()), ModTime: info.ModTime(), Format: tar.FormatPAX,
	}
	switch info.Mode().Type() {
	case 0:
		return t.file(dir, name, h, info)
	case fs.ModeDir:
		return t.directory(dir, name, h, info, depth)
	case fs.ModeSymlink:
		to, err := dir.Readlink(name)
		if err != nil {
			t.report.leave(as, reason(err))
			return nil
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, to
		if err := t.tar.WriteHeader(h); err != nil {
			return err
		}
		t.report.passed(0)
		return nil
	default:
		t.report.leave(as, "is neither a file, a directory nor a link")
		return nil
	}
}

func modeOf(m fs.FileMode) int64 {
	mode := int64(m.Perm())
	if m&fs.ModeSticky != 0 {
		mode |= 0o1000
	}
	return mode
}

// file writes a regular file, or a link to the name that it was written under.
func (t *writer) file(dir *os.Root, name string, h *tar.Header, info fs.FileInfo) error {
	h.Typeflag = tar.TypeReg
	id, several := links(info)
	if first, ok := t.linked[id]; several && ok {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		if err := t.tar.WriteHeader(h); err != nil {
			return err
		}
		t.report.passed(0)
		return nil
	}
	// A pipe that took the file's place meanwhile must not make the open wait.
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		t.report.leave(h.Name, reason(err))
		return nil
	}
	defer f.Close()
	now, err := f.Stat()
	if err != nil || !os.SameFile(info, now) {
		t.report.leave(h.Name, "changed while it was read")
		return nil
	}
	h.Size = now.Size()
	if err := t.tar.WriteHeader(h); err != nil {
		return err
	}
	if err := t.contents(f, h); err != nil {
		return err
	}
	if several && len(t.linked) < maxLinked {
		t.linked[id] = h.Name
	}
	t.report.passed(h.Size)
	return nil
}

// links returns the identity of a file and reports whether it has several names.
func links(info fs.FileInfo) (inode, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Nlink < 2 {
		return inode{}, false
	}
	return inode{uint64(st.Dev), st.Ino}, true
}

// contents writes exactly as many bytes as the header promised. A file that
// became shorter is filled up, because the promise stands already, and reported.
func (t *writer) contents(f io.Reader, h *tar.Header) error {
	left := h.Size
	for left > 0 {
		if err := context.Cause(t.ctx); err != nil {
			return err
		}
		n, err := f.Read(t.buf[:min(int64(len(t.buf)), left)])
		if _, err := t.tar.Write(t.buf[:n]); err != nil {
			return err
		}
		left -= int64(n)
		if err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) {
			t.report.leave(h.Name, reason(err))
		} else if left > 0 {
			t.report.leave(h.Name, "became shorter while it was read")
		}
		break
	}
	clear(t.buf)
	for left > 0 {
		n, err := t.tar.Write(t.buf[:min(int64(len(t.buf)), left)])
		if err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

// directory writes a directory and what is in it.
func (t *writer) directory(dir *os.Root, name string, h *tar.Header, info fs.FileInfo, depth int) error {
	h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	if depth >= maxDepth {
		t.report.leave(h.Name, fmt.Sprintf("is more than %d directories deep", maxDepth))
		return nil
	}
	if err := t.tar.WriteHeader(h); err != nil {
		return err
	}
	t.report.passed(0)
	return t.inside(dir, name, h.Name, info, depth)
}

// inside writes what is in a directory. as ends in a slash, or is empty.
func (t *writer) inside(dir *os.Root, name, as string, info fs.FileInfo, depth int) error {
	sub, err := dir.OpenRoot(name)
	if err != nil {
		t.report.leave(as, reason(err))
		return nil
	}
	defer sub.Close()
	list, err := sub.Open(".")
	if err != nil {
		t.report.leave(as, reason(err))
		return nil
	}
	defer list.Close()
	if now, err := list.Stat(); err != nil || !os.SameFile(info, now) {
		t.report.leave(as, "changed while it was read")
		return nil
	}
	return t.list(sub, list, as, depth)
}

// list writes the files of an open directory.
func (t *writer) list(dir *os.Root, list *os.File, as string, depth int) error {
	for {
		names, err := list.Readdirnames(listNames)
		if err != nil && !errors.Is(err, io.EOF) {
			t.report.leave(as, reason(err))
			return nil
		}
		if len(names) == 0 {
			return nil
		}
		slices.Sort(names)
		for _, name := range names {
			info, err := dir.Lstat(name)
			switch {
			case errors.Is(err, fs.ErrNotExist): // removed since
				continue
			case err != nil:
				t.report.leave(as+name, reason(err))
				continue
			}
			if err := t.node(dir, name, as+name, info, depth+1); err != nil {
				return err
			}
		}
	}
}
