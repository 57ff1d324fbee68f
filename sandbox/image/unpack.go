package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox/internal/inroot"
)

// Bounds of what an entry of an archive may say.
const (
	maxName   = 4096 // bytes of a path or a link, as the kernel has it
	maxXattrs = 64
	maxXattr  = 64 << 10
)

// Names with a meaning in layers: a file that hides one of lower layers, and the one that
// hides all of its directory.
const (
	whiteoutPrefix = ".wh."
	whiteoutMeta   = ".wh..wh."
	whiteoutOpaque = ".wh..wh..opq"
)

// extract adds the entries of a tar stream to the tree. In layers, whiteouts remove what
// is there; in other archives they are names like any other.
func (t *tree) extract(ctx context.Context, r io.Reader, isLayer bool) error {
	archive := tar.NewReader(r)
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return readError("archive", err)
		}
		if err := t.count(); err != nil {
			return err
		}
		name, err := cleanName(h.Name)
		if err != nil {
			return err
		}
		if base := path.Base(name); isLayer && strings.HasPrefix(base, whiteoutPrefix) {
			err = t.extractWhiteout(name, base)
		} else {
			err = t.extractEntry(name, h, archive)
		}
		if err != nil {
			return err
		}
	}
}

// readError is why an archive could not be read: its own fault, unless it says more.
func readError(what string, err error) error {
	for _, known := range []error{ErrTooLarge, ErrCorrupt, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return fmt.Errorf("read %s: %w", what, err)
		}
	}
	return fmt.Errorf("%w: read %s: %w", ErrCorrupt, what, err)
}

// cleanName is the path of an entry. What could mean another file than the one in the
// tree is refused.
func cleanName(name string) (string, error) {
	switch {
	case len(name) > maxName, strings.ContainsRune(name, 0), path.IsAbs(name), strings.TrimRight(name, "/") == "":
		return "", fmt.Errorf("%w: entry %.200q is not a relative path", ErrCorrupt, name)
	case strings.Count(name, "/") > 2*maxDepth:
		return "", fmt.Errorf("%w: directories more than %d deep", ErrTooLarge, maxDepth)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", fmt.Errorf("%w: entry %.200q leads out", ErrCorrupt, name)
		}
	}
	return path.Clean(name), nil
}

func (t *tree) extractWhiteout(name, base string) error {
	switch hidden := strings.TrimPrefix(base, whiteoutPrefix); {
	case base == whiteoutOpaque:
		return t.opaque(path.Dir(name))
	case strings.HasPrefix(base, whiteoutMeta):
		return nil // notes of a union file system to itself
	case hidden == "" || hidden == "." || hidden == "..":
		return fmt.Errorf("%w: whiteout %.200q hides nothing", ErrCorrupt, name)
	default:
		return t.whiteout(path.Join(path.Dir(name), hidden))
	}
}

func (t *tree) extractEntry(name string, h *tar.Header, r io.Reader) error {
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return fmt.Errorf("%w: the root is no directory", ErrCorrupt)
		}
		return t.setDir(t.root, ".", "", h)
	}
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		err = t.makeDir(name, h)
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		err = t.makeFile(name, h, r)
	case tar.TypeSymlink:
		err = t.makeSymlink(name, h)
	case tar.TypeLink:
		err = t.makeLink(name, h.Linkname)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		// A sandbox has its own devices, and nothing of the host should wait at a
		// pipe that it finds. What was there is gone all the same.
		_, _, _, err = t.place(name, false)
	case tar.TypeXGlobalHeader:
	default:
		err = fmt.Errorf("%w: entry of unknown type %q", ErrCorrupt, h.Typeflag)
	}
	if err != nil {
		return fmt.Errorf("unpack %.200q: %w", name, err)
	}
	return nil
}

func (t *tree) makeDir(name string, h *tar.Header) error {
	dir, base, kept, err := t.place(name, true)
	if err != nil {
		return err
	}
	if !kept {
		if err := unix.Mkdirat(dir, base, 0o700); err != nil {
			return err
		}
	}
	return t.setDir(dir, base, path.Join(t.last.real, base), h)
}

// setDir gives a directory, whose real path is given, what the header says.
func (t *tree) setDir(dir int, base, real string, h *tar.Header) error {
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, again := t.times[real]; !again {
		if err := t.note(real); err != nil {
			return err
		}
	}
	t.times[real] = entryTime(h.ModTime)
	return t.setAttributes(fd, h, 0o700)
}

func (t *tree) makeFile(name string, h *tar.Header, r io.Reader) error {
	if h.Size < 0 || h.Size > t.limits.Bytes-t.bytes {
		return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, t.limits.Bytes)
	}
	t.bytes += h.Size
	dir, base, _, err := t.place(name, false)
	if err != nil {
		return err
	}
	fd, err := unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	if err := copySparse(f, r, h.Size); err != nil {
		return err
	}
	if err := t.setAttributes(fd, h, 0o600); err != nil {
		return err
	}
	when := unix.NsecToTimespec(entryTime(h.ModTime).UnixNano())
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, procFD(fd), []unix.Timespec{when, when}, 0); err != nil {
		return err
	}
	return f.Close()
}

// block is how much is copied at once, and the least that becomes a hole.
const block = 64 << 10

var zeros [block]byte

// copySparse copies size bytes and leaves holes where there are only zeros, so that a
// sparse file costs what it holds.
func copySparse(f *os.File, r io.Reader, size int64) error {
	buf := make([]byte, min(size, block))
	hole := false
	for left := size; left > 0; {
		chunk := buf[:min(left, block)]
		if _, err := io.ReadFull(r, chunk); err != nil {
			return readError("file", err)
		}
		left -= int64(len(chunk))
		if hole = bytes.Equal(chunk, zeros[:len(chunk)]); hole {
			if _, err := f.Seek(int64(len(chunk)), io.SeekCurrent); err != nil {
				return err
			}
		} else if _, err := f.Write(chunk); err != nil {
			return err
		}
	}
	if hole {
		return f.Truncate(size)
	}
	return nil
}

func (t *tree) makeSymlink(name string, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) >= maxName || strings.ContainsRune(h.Linkname, 0) {
		return fmt.Errorf("%w: link to %.200q", ErrCorrupt, h.Linkname)
	}
	dir, base, _, err := t.place(name, false)
	if err != nil {
		return err
	}
	// Wherever it leads: nobody on the host follows it.
	if err := unix.Symlinkat(h.Linkname, dir, base); err != nil {
		return err
	}
	if t.owners {
		if err := unix.Fchownat(dir, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	when := unix.NsecToTimespec(entryTime(h.ModTime).UnixNano())
	return unix.UtimesNanoAt(dir, base, []unix.Timespec{when, when}, unix.AT_SYMLINK_NOFOLLOW)
}

// makeLink gives a file of the tree a further name.
func (t *tree) makeLink(name, target string) error {
	// Some writers start the target with a slash; it means the root of the archive.
	clean, err := cleanName(strings.TrimLeft(target, "/"))
	if err != nil {
		return err
	}
	from, err := inroot.Open(t.root, path.Dir(clean), unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("%w: link to %.200q: %w", ErrCorrupt, target, err)
	}
	defer unix.Close(from)
	var st unix.Stat_t
	if err := unix.Fstatat(from, path.Base(clean), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("%w: link to %.200q: %w", ErrCorrupt, target, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return fmt.Errorf("%w: link to the directory %.200q", ErrCorrupt, target)
	}
	dir, real, err := t.parent(name)
	if err != nil {
		return err
	}
	var there unix.Stat_t
	if unix.Fstatat(dir, path.Base(name), &there, unix.AT_SYMLINK_NOFOLLOW) == nil && there.Ino == st.Ino && there.Dev == st.Dev {
		// It is that file already, and would be lost if it made room for itself.
		return t.touch(path.Join(real, path.Base(name)))
	}
	dir, base, _, err := t.place(name, false)
	if err != nil {
		return err
	}
	if err := unix.Linkat(from, path.Base(clean), dir, base, 0); err != nil {
		return fmt.Errorf("%w: link to %.200q: %w", ErrCorrupt, target, err)
	}
	return nil
}

// setAttributes gives an open file the owner, the permissions and the extended attributes
// of its header. needed are the permissions that the owner has at least where all files
// are the server's own.
func (t *tree) setAttributes(fd int, h *tar.Header, needed uint32) error {
	mode := uint32(h.Mode) & 0o7777
	if t.owners {
		if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) >= 1<<32-1 || int64(h.Gid) >= 1<<32-1 {
			return fmt.Errorf("%w: owner %d:%d", ErrCorrupt, h.Uid, h.Gid)
		}
		if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil { // takes away set-user-id, so it comes first
			return fmt.Errorf("give it to %d:%d: %w", h.Uid, h.Gid, err)
		}
	} else {
		mode |= needed
	}
	if err := unix.Fchmod(fd, mode); err != nil {
		return err
	}
	return t.setXattrs(fd, h.PAXRecords)
}

const xattrRecord = "SCHILY.xattr."

// setXattrs sets the extended attributes that mean something in a sandbox. Everything
// else is for the host: its access lists, its labels, and its overlays, in which an
// attribute of a file can stand for another one.
func (t *tree) setXattrs(fd int, records map[string]string) error {
	n := 0
	for key, value := range records {
		name, ok := strings.CutPrefix(key, xattrRecord)
		if !ok || !wantedXattr(name, t.owners) {
			continue
		}
		if n++; n > maxXattrs || len(value) > maxXattr {
			return fmt.Errorf("%w: extended attributes", ErrTooLarge)
		}
		err := unix.Fsetxattr(fd, name, []byte(value), 0)
		switch {
		case err == nil, errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.EPERM), errors.Is(err, unix.EINVAL):
			// The file system has none, or not these: the file works without.
		default:
			return fmt.Errorf("set extended attribute %.100q: %w", name, err)
		}
	}
	return nil
}

func wantedXattr(name string, owners bool) bool {
	if name == "security.capability" {
		return owners
	}
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.") && len(name) < 256
}

// entryTime keeps times within what file systems and nanoseconds can hold.
func entryTime(when time.Time) time.Time {
	if first, last := time.Unix(0, 0), time.Unix(1<<33, 0); when.Before(first) || when.After(last) {
		return first
	}
	return when
}
