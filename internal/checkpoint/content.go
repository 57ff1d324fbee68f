package checkpoint

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

func matchName(pattern, name string) (bool, error) { return path.Match(pattern, name) }

// errMoved means that a file changed while it was read.
var errMoved = errors.New("changed while it was read")

// openFile opens what the walk saw for reading. It never blocks and never
// follows a link; what is no regular file any more gives errReplaced.
func openFile(dirfd int, name string, seen *stat, privileged bool) (fd int, st stat, err error) {
	flags := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY
	if privileged {
		flags |= unix.O_NOATIME // only allowed to the owner and root
	}
	fd, err = openat(dirfd, name, flags, 0)
	if err != nil {
		if errors.Is(err, unix.ENXIO) { // a socket or fifo took its place
			err = errReplaced
		}
		return -1, st, err
	}
	if st, err = fstat(fd); err == nil && (st.kind() != unix.S_IFREG || st.dev != seen.dev || st.ino != seen.ino) {
		err = errReplaced
	}
	if err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// pread reads len(b) bytes at off, fewer only at the end of the file.
func pread(fd int, b []byte, off int64) (int, error) {
	n := 0
	for n < len(b) {
		m, err := unix.Pread(fd, b[n:], off+int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil || m == 0 {
			return n, err
		}
		n += m
	}
	return n, nil
}

// feed reads a file of the given stat into s, without touching its holes.
func feed(fd int, st *stat, s *splitter, buf []byte, stop func() error) error {
	sparse := st.blocks*512 < st.size
	for off := int64(0); off < st.size; {
		if err := stop(); err != nil {
			return err
		}
		end := st.size
		if sparse {
			data, err := seek(fd, off, unix.SEEK_DATA, st.size)
			if err != nil {
				return err
			}
			// Only whole blocks: the rest of a block may be data.
			if data < st.size {
				data -= data % holeBlock
			}
			if data > off {
				if err := s.zero(data - off); err != nil {
					return err
				}
				off = data
				continue
			}
			if end, err = seek(fd, off, unix.SEEK_HOLE, st.size); err != nil {
				return err
			}
			end = min(st.size, (end+holeBlock-1)/holeBlock*holeBlock)
			end = max(end, min(st.size, off+holeBlock))
		}
		n := min(end-off, int64(len(buf)))
		got, err := pread(fd, buf[:n], off)
		if err != nil {
			return err
		}
		if int64(got) < n {
			return errMoved
		}
		if err := s.write(buf[:n]); err != nil {
			return err
		}
		off += n
	}
	return s.end()
}

// seek finds data or a hole at or after off; no more of it means limit.
func seek(fd int, off int64, whence int, limit int64) (int64, error) {
	n, err := unix.Seek(fd, off, whence)
	if errors.Is(err, unix.ENXIO) {
		return limit, nil
	}
	if errors.Is(err, unix.EINVAL) { // not supported: all is data
		if whence == unix.SEEK_DATA {
			return off, nil
		}
		return limit, nil
	}
	return min(max(n, off), limit), err
}

// keepXattr reports whether an attribute is part of a checkpoint.
func keepXattr(name string, privileged bool) bool {
	return strings.HasPrefix(name, "user.") ||
		name == "system.posix_acl_access" || name == "system.posix_acl_default" ||
		privileged && name == "security.capability"
}

// readXattrs returns the attributes of an open file that a checkpoint keeps,
// sorted by name.
func readXattrs(fd int, privileged bool) ([]Xattr, error) {
	var small [512]byte
	names, err := growing(small[:], func(b []byte) (int, error) { return unix.Flistxattr(fd, b) })
	if err != nil {
		if errors.Is(err, unix.ENOTSUP) {
			return nil, nil
		}
		return nil, err
	}
	if len(names) == 0 {
		return nil, nil
	}
	var out []Xattr
	total := 0
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		if !keepXattr(name, privileged) {
			continue
		}
		value, err := growing(make([]byte, 256), func(b []byte) (int, error) { return unix.Fgetxattr(fd, name, b) })
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if total += len(value); len(value) > maxXattrValue || total > maxXattrBytes || len(out) >= maxXattrs {
			return nil, errLimitXattr
		}
		out = append(out, Xattr{name, append([]byte(nil), value...)})
	}
	sortXattrs(out)
	return out, nil
}

// growing calls f with larger buffers until the answer fits.
func growing(b []byte, f func([]byte) (int, error)) ([]byte, error) {
	for {
		n, err := f(b)
		switch {
		case err == unix.EINTR:
		case errors.Is(err, unix.ERANGE) && len(b) < 1<<20:
			b = make([]byte, 4*len(b))
		case err != nil:
			return nil, err
		default:
			return b[:n], nil
		}
	}
}

// readlink returns the target of a link.
func readlink(dirfd int, name string) (string, error) {
	buf := make([]byte, maxSymlink+1)
	for {
		n, err := unix.Readlinkat(dirfd, name, buf)
		switch {
		case err == unix.EINTR:
			continue
		case errors.Is(err, unix.EINVAL):
			return "", errReplaced
		case err != nil:
			return "", err
		case n > maxSymlink:
			return "", errLimitPath
		}
		return string(buf[:n]), nil
	}
}

var errLimitXattr = fmt.Errorf("extended attributes too large: %w", ErrLimit)

func sortXattrs(x []Xattr) {
	slices.SortFunc(x, func(a, b Xattr) int { return strings.Compare(a.Name, b.Name) })
}
