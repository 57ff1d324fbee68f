package image

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox/internal/inroot"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

const (
	// maxDepth is how many directories deep a tree may be, so that whoever walks it
	// later needs neither much stack nor many descriptors.
	maxDepth = 256
	// maxNoted bounds the memory for paths: a million long ones compress to nothing.
	maxNoted = 256 << 20
	// hidingFactor times the entries that an image may have is how many names its
	// whiteouts may be compared with: each of them can go through a whole tree.
	hidingFactor = 8
)

// tree is a root file system in the making. Paths are relative to its root. Links that
// are in it are followed as in a sandbox: never out.
type tree struct {
	root   int    // descriptor of the directory
	prefix string // how the kernel calls that directory, with a slash at the end
	trash  string // directory for what has been replaced
	// owners says that files get the owners that the archive names. Only root can do
	// that; for others all is their own, and readable to them.
	owners bool
	limits Limits

	entries, bytes int64
	hidden         int64 // names that whiteouts were compared with
	noted          int64 // bytes of the paths in times and fresh
	trashed        int
	times          map[string]time.Time // of directories, set when the tree is finished
	// fresh has what the present layer has made and the directories above that, by real
	// path; nil in a first layer, which has nothing below it.
	fresh map[string]bool

	last struct { // the directory that was used last
		path, real string
		fd         int
	}
}

// newTree opens a tree in the empty directory root. What is replaced is moved to the
// directory trash, which is made.
func newTree(root, trash string, owners bool, limits Limits) (*tree, error) {
	if err := os.Mkdir(trash, 0o700); err != nil {
		return nil, err
	}
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", root, err)
	}
	t := &tree{root: fd, trash: trash, owners: owners, limits: limits, times: make(map[string]time.Time)}
	t.last.fd = -1
	real, err := os.Readlink(procFD(fd))
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	t.prefix = real + "/"
	return t, nil
}

func (t *tree) close() {
	t.forget()
	unix.Close(t.root)
}

// forget closes the directory that was used last: its path may lead elsewhere now.
func (t *tree) forget() {
	if t.last.fd >= 0 {
		unix.Close(t.last.fd)
		t.last.fd = -1
	}
}

// count counts an entry against the limit.
func (t *tree) count() error {
	if t.entries++; t.entries > t.limits.Entries {
		return fmt.Errorf("%w: more than %d entries", ErrTooLarge, t.limits.Entries)
	}
	return nil
}

// parent returns the directory that holds p and its real path; it makes what is missing.
// The descriptor stays the tree's, and is good until the next call.
func (t *tree) parent(p string) (fd int, real string, err error) {
	dir := path.Dir(p)
	if t.last.fd >= 0 && t.last.path == dir {
		return t.last.fd, t.last.real, nil
	}
	t.forget()
	fd, err = inroot.Dir(t.root, dir, 0o755, func(string) error { return t.count() })
	if err != nil {
		return -1, "", fmt.Errorf("%w: directory of %.200q: %w", ErrCorrupt, p, err)
	}
	real, err = t.realPath(fd)
	if err != nil {
		unix.Close(fd)
		return -1, "", err
	}
	t.last.path, t.last.real, t.last.fd = dir, real, fd
	return fd, real, nil
}

// realPath is where in the tree an open directory is; "" is the root.
func (t *tree) realPath(fd int) (string, error) {
	at, err := os.Readlink(procFD(fd))
	if err != nil {
		return "", err
	}
	real, ok := strings.CutPrefix(at+"/", t.prefix)
	if !ok {
		return "", fmt.Errorf("%w: a directory is at %.200q, outside", ErrCorrupt, at)
	}
	real = strings.TrimSuffix(real, "/")
	if strings.Count(real, "/") >= maxDepth {
		return "", fmt.Errorf("%w: directories more than %d deep", ErrTooLarge, maxDepth)
	}
	return real, nil
}

// place makes room for p: what is there is removed, except a directory that is to be a
// directory. It returns the directory that holds p, p's name in it, and whether that
// directory was kept.
func (t *tree) place(p string, isDir bool) (dir int, name string, kept bool, err error) {
	dir, real, err := t.parent(p)
	if err != nil {
		return -1, "", false, err
	}
	name = path.Base(p)
	var st unix.Stat_t
	err = unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		err = nil
	case err != nil:
	case isDir && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		kept = true
	default:
		err = t.discard(dir, name, st.Mode)
		// The directory p is in is not the one that was moved away.
	}
	if err != nil {
		return -1, "", false, fmt.Errorf("make room for %.200q: %w", p, err)
	}
	if err := t.touch(path.Join(real, name)); err != nil {
		return -1, "", false, err
	}
	return dir, name, kept, nil
}

// touch notes that the present layer has made p, or something below it.
func (t *tree) touch(p string) error {
	if t.fresh == nil || t.fresh[p] {
		return nil
	}
	if err := t.note(p); err != nil {
		return err
	}
	for ; p != "." && !t.fresh[p]; p = path.Dir(p) { // parts of p cost nothing
		t.fresh[p] = true
	}
	return nil
}

// note counts the memory of a path that is kept.
func (t *tree) note(p string) error {
	if t.noted += int64(len(p)); t.noted > maxNoted {
		return fmt.Errorf("%w: more than %d bytes of names", ErrTooLarge, maxNoted)
	}
	return nil
}

// discard removes a file, or moves a directory to the trash.
func (t *tree) discard(dir int, name string, mode uint32) error {
	if mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.Unlinkat(dir, name, 0)
	}
	t.trashed++
	return unix.Renameat(dir, name, unix.AT_FDCWD, filepath.Join(t.trash, strconv.Itoa(t.trashed)))
}

// whiteout removes what lower layers have at p.
func (t *tree) whiteout(p string) error {
	if t.fresh == nil {
		return nil
	}
	dir, err := inroot.Open(t.root, path.Dir(p), unix.O_DIRECTORY)
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	real, err := t.realPath(dir)
	if err != nil {
		return err
	}
	t.forget()
	return t.hide(dir, real, path.Base(p))
}

// opaque removes what lower layers have in the directory p.
func (t *tree) opaque(p string) error {
	if t.fresh == nil {
		return nil
	}
	dir, err := inroot.Open(t.root, p, unix.O_DIRECTORY)
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	real, err := t.realPath(dir)
	if err != nil {
		return err
	}
	t.forget()
	return t.hideAll(dir, real)
}

// hide removes a name of a directory, unless the present layer has made it. Of a
// directory that it has made or kept, what is below is treated alike.
func (t *tree) hide(dir int, real, name string) error {
	if t.hidden++; t.hidden/hidingFactor > t.limits.Entries {
		return fmt.Errorf("%w: more than %d names that whiteouts could hide", ErrTooLarge, hidingFactor*t.limits.Entries)
	}
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	p := path.Join(real, name)
	if !t.fresh[p] {
		return t.discard(dir, name, st.Mode)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return t.hideAll(fd, p)
}

func (t *tree) hideAll(dir int, real string) error {
	if strings.Count(real, "/") >= maxDepth {
		return fmt.Errorf("%w: directories more than %d deep", ErrTooLarge, maxDepth)
	}
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(fd), real)
	names, err := d.Readdirnames(-1)
	d.Close()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := t.hide(dir, real, name); err != nil {
			return err
		}
	}
	return nil
}

// nextLayer says that what comes now is another layer on top.
func (t *tree) nextLayer() error {
	t.fresh = make(map[string]bool)
	return t.empty()
}

// empty removes what is in the trash.
func (t *tree) empty() error {
	if t.trashed == 0 {
		return nil
	}
	names, err := os.ReadDir(t.trash)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := local.RemoveTree(filepath.Join(t.trash, n.Name())); err != nil {
			return err
		}
	}
	return nil
}

// finish sets what had to wait until nothing is written into directories any more.
func (t *tree) finish() error {
	t.forget()
	for _, p := range slices.Sorted(maps.Keys(t.times)) {
		fd, err := inroot.Open(t.root, p, unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if absent(err) {
			continue // a later layer took it away
		}
		if err != nil {
			return err
		}
		when := unix.NsecToTimespec(t.times[p].UnixNano())
		err = unix.UtimesNanoAt(unix.AT_FDCWD, procFD(fd), []unix.Timespec{when, when}, 0)
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("set time of %.200q: %w", p, err)
		}
	}
	return t.empty()
}

// absent reports whether a path led to nothing, or to no directory.
func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
