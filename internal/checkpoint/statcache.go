package checkpoint

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cache remembers on this machine which files were seen unchanged at which
// checkpoint. An entry is believed if device, inode, ctime, mtime, size and mode
// are what they were, under these rules:
//
//   - It belongs to one root and one directory, so it speaks of the files that
//     this checkpoint was made from or restored to.
//   - ctime is compared because mtime can be set at will.
//   - A file whose ctime is not well before the capture began is left out: it
//     could change again without its ctime moving.
//   - Only file systems known to move ctime on every write are believed, and no
//     other devices below the top. tmpfs is not among them: writes through a
//     mapping do not show.
//   - The caller stopped all writers, and the capture syncs the file system
//     before it looks, which brings dirty mappings into the times.
//
// A lost, damaged or foreign cache file only costs reading. The zero Cache
// remembers nothing. A Cache is safe for concurrent use.
type Cache struct {
	dir string
	max int64
}

// OpenCache returns the cache in a directory, which it creates. maxBytes bounds
// it, the oldest files go first; zero means 256 MiB.
func OpenCache(directory string, maxBytes int64) (*Cache, error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("open stat cache: %w", err)
	}
	if maxBytes <= 0 {
		maxBytes = 256 << 20
	}
	return &Cache{dir: directory, max: maxBytes}, nil
}

// record is what is remembered of one entry; the rest is in the manifest. The
// zero value is never believed.
type record struct {
	dev, ino uint64
	ctime    int64 // ns
}

const recordSize = 24

var cacheMagic = []byte("SJSTAT\x00\x02")

// ctimeSlack covers the coarse clock of kernels without fine-grained times.
const ctimeSlack = 20 * time.Millisecond

func newRecord(st *stat, before time.Time, dev uint64) record {
	ns := st.ctime.Sec*1e9 + int64(st.ctime.Nsec)
	if st.dev != dev || st.ctime.Sec < 0 || st.ctime.Sec > 1<<32 || ns >= before.Add(-ctimeSlack).UnixNano() {
		return record{}
	}
	return record{dev: st.dev, ino: st.ino, ctime: ns}
}

// believes reports whether a file with this stat is the one that e was made of.
func (r record) believes(st *stat, e *Entry) bool {
	return r.ino != 0 && r.dev == st.dev && r.ino == st.ino &&
		r.ctime == st.ctime.Sec*1e9+int64(st.ctime.Nsec) &&
		e.MTime == st.mtime && e.Mode == st.mode&0o7777 && !e.Torn &&
		(e.Type == TypeFile && st.kind() == unix.S_IFREG && e.Size == st.size ||
			e.Type == TypeSymlink && st.kind() == unix.S_IFLNK ||
			e.Type == TypeDir && st.kind() == unix.S_IFDIR)
}

// believable reports whether the file system of an open directory moves ctime
// on every change.
func believable(fd int) bool {
	var fs unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd, &fs) }); err != nil {
		return false
	}
	switch int64(fs.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.OVERLAYFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC:
		return true
	}
	return false
}

func (c *Cache) file(root RootID, t Tree, top *dir) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d %d", root, t, top.dev, top.ino))
	return filepath.Join(c.dir, hex.EncodeToString(sum[:16])+".stat")
}

// load returns the records of a tree, one for each entry of the manifest, or
// nil.
func (c *Cache) load(root RootID, t Tree, top *dir, entries int64) []record {
	if c == nil || c.dir == "" {
		return nil
	}
	b, err := os.ReadFile(c.file(root, t, top))
	if err != nil || int64(len(b)) != int64(len(cacheMagic))+entries*recordSize+32 {
		return nil
	}
	body, tail := b[:len(b)-32], b[len(b)-32:]
	if sum := sha256.Sum256(body); string(sum[:]) != string(tail) || string(body[:len(cacheMagic)]) != string(cacheMagic) {
		return nil
	}
	recs := make([]record, entries)
	for i := range recs {
		r := body[len(cacheMagic)+i*recordSize:]
		recs[i] = record{
			dev:   binary.LittleEndian.Uint64(r),
			ino:   binary.LittleEndian.Uint64(r[8:]),
			ctime: int64(binary.LittleEndian.Uint64(r[16:])),
		}
	}
	return recs
}

// save stores the records of a tree. A failure costs the next capture time and
// nothing else, so there is none to report.
func (c *Cache) save(root RootID, t Tree, top *dir, recs []record) {
	if c == nil || c.dir == "" {
		return
	}
	b := make([]byte, 0, len(cacheMagic)+len(recs)*recordSize+32)
	b = append(b, cacheMagic...)
	for _, r := range recs {
		b = binary.LittleEndian.AppendUint64(b, r.dev)
		b = binary.LittleEndian.AppendUint64(b, r.ino)
		b = binary.LittleEndian.AppendUint64(b, uint64(r.ctime))
	}
	sum := sha256.Sum256(b)
	b = append(b, sum[:]...)
	f, err := os.CreateTemp(c.dir, "new-*")
	if err != nil {
		return
	}
	_, err = f.Write(b)
	if cerr := f.Close(); err != nil || cerr != nil || os.Rename(f.Name(), c.file(root, t, top)) != nil {
		os.Remove(f.Name())
		return
	}
	c.prune()
}

func (c *Cache) prune() {
	files, err := os.ReadDir(c.dir)
	if err != nil {
		return
	}
	type aged struct {
		name string
		size int64
		at   time.Time
	}
	var all []aged
	var total int64
	for _, f := range files {
		fi, err := f.Info()
		if err != nil || !strings.HasSuffix(f.Name(), ".stat") && time.Since(fi.ModTime()) < time.Hour {
			continue
		}
		all = append(all, aged{f.Name(), fi.Size(), fi.ModTime()})
		total += fi.Size()
	}
	slices.SortFunc(all, func(a, b aged) int { return a.at.Compare(b.at) })
	for i := 0; total > c.max && i < len(all)-1; i++ {
		os.Remove(filepath.Join(c.dir, all[i].name))
		total -= all[i].size
	}
}
