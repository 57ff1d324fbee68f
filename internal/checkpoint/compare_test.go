package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// props is every property of one entry, as read by code that shares nothing
// with the package.
type props struct {
	Mode   uint32
	UID    uint32
	GID    uint32
	Sec    int64
	Nsec   int64
	Size   int64
	Target string
	Hash   string
	Xattrs string
	Links  string // the first name of the same file
	blocks int64
	hole   bool // file has one of at least 64 KiB
}

// look reads a tree. Sockets, fifos and devices are left out, as documented.
func look(t testing.TB, dir string) map[string]props {
	t.Helper()
	out := make(map[string]props)
	first := make(map[[2]uint64]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		p := props{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Sec: st.Mtim.Sec, Nsec: st.Mtim.Nsec, blocks: st.Blocks}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			p.Size = st.Size
			p.Hash, p.hole, err = hashFile(path)
			if err != nil {
				return err
			}
			fallthrough
		case unix.S_IFDIR:
			if p.Xattrs, err = listXattrs(path); err != nil {
				return err
			}
		case unix.S_IFLNK:
			if p.Target, err = os.Readlink(path); err != nil {
				return err
			}
		default:
			return nil
		}
		if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			id := [2]uint64{st.Dev, st.Ino}
			if first[id] == "" {
				first[id] = rel
			}
			p.Links = first[id]
		}
		out[rel] = p
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// hashFile returns a hash of size and of all blocks that hold more than zeros,
// and whether the file has a hole of at least 128 KiB.
func hashFile(path string) (sum string, hole bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return "", false, err
	}
	size := fi.Size()
	h := sha256.New()
	fmt.Fprintln(h, size)
	buf, zeros := make([]byte, 4096), make([]byte, 4096)
	for off := int64(0); off < size; {
		start, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
		if err != nil {
			start = size
		}
		hole = hole || start-off >= 128<<10
		end, err := unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			end = size
		}
		for off = start - start%4096; off < end; off += 4096 {
			n, err := f.ReadAt(buf, off)
			if err != nil && err != io.EOF {
				return "", false, err
			}
			if !bytes.Equal(buf[:n], zeros[:n]) {
				fmt.Fprintln(h, off, n)
				h.Write(buf[:n])
			}
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)), hole, nil
}

func listXattrs(path string) (string, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buf)
	if errors.Is(err, unix.ENOTSUP) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var out []string
	for _, name := range strings.Split(string(buf[:n]), "\x00") {
		if name == "" {
			continue
		}
		v := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, v)
		if err != nil {
			return "", err
		}
		out = append(out, fmt.Sprintf("%s=%q", name, v[:n]))
	}
	slices.Sort(out)
	return strings.Join(out, ","), nil
}

// differences lists how two trees differ, at most 20 lines.
func differences(want, got map[string]props) []string {
	var out []string
	for _, path := range slices.Sorted(maps.Keys(want)) {
		w := want[path]
		g, ok := got[path]
		if !ok {
			out = append(out, fmt.Sprintf("%q is missing", path))
			continue
		}
		wb, gb := w.blocks, g.blocks
		if gb > wb+64 {
			out = append(out, fmt.Sprintf("%q takes %d blocks, was %d", path, gb, wb))
		}
		if w.hole && !g.hole {
			out = append(out, fmt.Sprintf("%q lost its hole", path))
		}
		w.blocks, g.blocks, w.hole, g.hole = 0, 0, false, false
		if w != g {
			out = append(out, fmt.Sprintf("%q\n  is  %+v\n  was %+v", path, g, w))
		}
	}
	for path := range got {
		if _, ok := want[path]; !ok {
			out = append(out, fmt.Sprintf("%q is new", path))
		}
	}
	if len(out) > 20 {
		out = append(out[:20], fmt.Sprintf("and %d more", len(out)-20))
	}
	return out
}

func mustEqualTrees(t testing.TB, want, got map[string]props) {
	t.Helper()
	if d := differences(want, got); len(d) > 0 {
		t.Fatalf("restored tree differs:\n%s", strings.Join(d, "\n"))
	}
}
