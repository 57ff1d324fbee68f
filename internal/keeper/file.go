package keeper

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/link"
)

const (
	// maxEntries bounds a directory listing and a copied tree.
	maxEntries = 100_000
	// maxLinks bounds the links followed in one path.
	maxLinks = 40
)

// locate turns a path from the wire into one of the host. With followLast the
// last element may be a link; otherwise the link itself is meant.
func (k *Keeper) locate(wire string, followLast bool) (string, error) {
	name, err := link.ParsePath(wire)
	if err != nil {
		return "", invalid("%v", err)
	}
	if k.cfg.MapPath == nil {
		return name, nil
	}
	inside, err := k.resolve(name, followLast)
	if err != nil {
		return "", err
	}
	return k.mapPath(inside), nil
}

// resolve follows the links in a path as the sandbox sees them: an absolute
// link starts again at the sandbox's root, and nothing leads above it. What
// does not exist is left as it is.
func (k *Keeper) resolve(name string, followLast bool) (string, error) {
	done, todo := "/", strings.TrimPrefix(name, "/")
	for links := 0; todo != ""; {
		elem, rest, _ := strings.Cut(todo, "/")
		next := path.Join(done, elem) // Join keeps ".." below the root
		target, err := os.Readlink(k.mapPath(next))
		if err != nil || elem == ".." || (rest == "" && !followLast) {
			done, todo = next, rest
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("resolve %s: %w", name, unix.ELOOP)
		}
		if path.IsAbs(target) {
			done = "/"
		}
		todo = strings.Trim(path.Clean(target)+"/"+rest, "/")
	}
	return done, nil
}

// openFile opens a regular file. Without O_NONBLOCK a named pipe would hold
// the call for ever, and a device is no file to be read to its end.
func openFile(name string, flags int) (*os.File, error) {
	f, err := os.OpenFile(name, flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0o666)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: errNotRegular}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

var errNotRegular = errors.New("not a regular file")

func callReadFile(c *conn, p link.PathParams) (any, error) {
	name, err := c.k.locate(p.Path, true)
	if err != nil {
		return nil, err
	}
	f, err := openFile(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := readBounded(f, link.MaxFileBytes+1)
	if err != nil {
		return nil, err
	}
	if len(data) > link.MaxFileBytes {
		return nil, fmt.Errorf("read %s: over %d bytes: %w", p.Path, link.MaxFileBytes, link.ErrLimit)
	}
	return &link.ReadFileResult{Data: data}, nil
}

// readBounded reads a file to its end or to a limit. The size that it has is only
// where to begin: it may grow meanwhile, and what the kernel makes up has none.
func readBounded(f *os.File, limit int64) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	data := bytes.NewBuffer(make([]byte, 0, min(max(info.Size(), 0), limit)+bytes.MinRead))
	_, err = data.ReadFrom(io.LimitReader(f, limit))
	return data.Bytes(), err
}

func callWriteFile(c *conn, p link.WriteFileParams) (any, error) {
	if len(p.Data) > link.MaxFileBytes {
		return nil, fmt.Errorf("write %s: over %d bytes: %w", p.Path, link.MaxFileBytes, link.ErrLimit)
	}
	name, err := c.k.locate(p.Path, true)
	if err != nil {
		return nil, err
	}
	// Truncated only after it has proved to be a regular file.
	f, err := openFile(name, os.O_WRONLY|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.Write(p.Data)
	}
	return nil, errors.Join(err, f.Close())
}

func callCreateDirectory(c *conn, p link.CreateDirectoryParams) (any, error) {
	name, err := c.k.locate(p.Path, true)
	if err != nil {
		return nil, err
	}
	if p.Recursive == nil || *p.Recursive {
		return nil, os.MkdirAll(name, 0o777)
	}
	return nil, os.Mkdir(name, 0o777)
}

func callGetMetadata(c *conn, p link.PathParams) (any, error) {
	self, err := c.k.locate(p.Path, false)
	if err != nil {
		return nil, err
	}
	own, err := os.Lstat(self)
	if err != nil {
		return nil, err
	}
	m := link.Metadata{IsSymlink: own.Mode()&fs.ModeSymlink != 0}
	info := own
	if m.IsSymlink {
		name, err := c.k.locate(p.Path, true)
		if err != nil {
			return nil, err
		}
		if target, err := os.Stat(name); err == nil { // a dangling link describes itself
			info = target
		}
	}
	m.IsDirectory, m.IsFile, m.Size = info.IsDir(), info.Mode().IsRegular(), info.Size()
	m.ModifiedAtMs = info.ModTime().UnixMilli()
	return m, nil
}

func callReadDirectory(c *conn, p link.PathParams) (any, error) {
	name, err := c.k.locate(p.Path, true)
	if err != nil {
		return nil, err
	}
	entries, err := readDir(name)
	if err != nil {
		return nil, err
	}
	r := link.ReadDirectoryResult{Entries: make([]link.DirEntry, len(entries))}
	for i, e := range entries {
		out := link.DirEntry{Name: e.Name(), IsDirectory: e.IsDir(), IsFile: e.Type().IsRegular()}
		if !utf8.ValidString(out.Name) {
			out.NameBytes = []byte(out.Name)
		}
		r.Entries[i] = out
	}
	return r, nil
}

// readDir lists a directory of bounded size, sorted by name.
func readDir(name string) ([]fs.DirEntry, error) {
	d, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var entries []fs.DirEntry
	for {
		more, err := d.ReadDir(1024)
		entries = append(entries, more...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if len(entries) > maxEntries {
			return nil, fmt.Errorf("list %s: over %d entries: %w", name, maxEntries, link.ErrLimit)
		}
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

func callRemove(c *conn, p link.RemoveParams) (any, error) {
	name, err := c.k.locate(p.Path, false)
	if err != nil {
		return nil, err
	}
	if name == "/" {
		return nil, invalid("the root is not to be removed")
	}
	force := p.Force == nil || *p.Force
	if _, err := os.Lstat(name); err != nil {
		if force && errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	if p.Recursive == nil || *p.Recursive {
		return nil, os.RemoveAll(name)
	}
	return nil, os.Remove(name)
}

func callCanonicalize(c *conn, p link.PathParams) (any, error) {
	name, err := link.ParsePath(p.Path)
	if err != nil {
		return nil, invalid("%v", err)
	}
	if c.k.cfg.MapPath != nil {
		if name, err = c.k.resolve(name, true); err != nil {
			return nil, err
		}
		if _, err := os.Stat(c.k.mapPath(name)); err != nil {
			return nil, err
		}
	} else if name, err = filepath.EvalSymlinks(name); err != nil {
		return nil, err
	}
	return link.CanonicalizeResult{Path: link.PathURI(name)}, nil
}

func callCopy(c *conn, p link.CopyParams) (any, error) {
	from, err := c.k.locate(p.SourcePath, false)
	if err != nil {
		return nil, err
	}
	to, err := c.k.locate(p.DestinationPath, true)
	if err != nil {
		return nil, err
	}
	info, err := os.Lstat(from)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		if !p.Recursive {
			return nil, invalid("%s is a directory and recursive is not set", p.SourcePath)
		}
		if to == from || strings.HasPrefix(to, strings.TrimSuffix(from, "/")+"/") {
			return nil, invalid("%s lies inside %s", p.DestinationPath, p.SourcePath)
		}
	}
	left := maxEntries
	return nil, c.copy(from, to, info, &left)
}

// copy copies one entry and what is in it. Links are copied as links. What is
// neither file, directory nor link is an error: a copy is complete or fails.
func (c *conn) copy(from, to string, info fs.FileInfo, left *int) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if *left--; *left < 0 {
		return fmt.Errorf("copy %s: over %d entries: %w", from, maxEntries, link.ErrLimit)
	}
	switch {
	case info.IsDir():
		return c.copyDir(from, to, info, left)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case info.Mode().IsRegular():
		return copyFile(from, to, info.Mode().Perm())
	}
	return fmt.Errorf("copy %s: %w", from, errNotRegular)
}

func (c *conn) copyDir(from, to string, info fs.FileInfo, left *int) error {
	// Writable while it is filled; its own mode comes last.
	if err := os.MkdirAll(to, info.Mode().Perm()|0o700); err != nil {
		return err
	}
	entries, err := readDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		child, err := e.Info()
		if err != nil {
			return err
		}
		if err := c.copy(filepath.Join(from, e.Name()), filepath.Join(to, e.Name()), child, left); err != nil {
			return err
		}
	}
	return os.Chmod(to, info.Mode().Perm())
}

func copyFile(from, to string, mode fs.FileMode) error {
	src, err := openFile(from, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := openFile(to, os.O_WRONLY|os.O_CREATE)
	if err != nil {
		return err
	}
	err = dst.Truncate(0)
	if err == nil {
		_, err = io.Copy(dst, src)
	}
	if err == nil {
		err = dst.Chmod(mode)
	}
	return errors.Join(err, dst.Close())
}
