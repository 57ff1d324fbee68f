package image

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/inroot"
)

// point is a place in a tree that something is mounted on.
type point struct {
	path  string // relative
	isDir bool
}

// points are the mount points that drivers need in every root. Each is a real directory
// or file, so that what is mounted on one cannot end up on another; the directories that
// lead to it may be links within the tree.
var points = []point{
	{"proc", true},
	{"sys", true},
	{"dev", true},
	{"tmp", true},
	{strings.TrimPrefix(sandbox.WorkspacePath, "/"), true},
	{strings.TrimPrefix(sandbox.HomePath, "/"), true},
	{strings.TrimPrefix(sandbox.SocketDir, "/"), true},
	{strings.TrimPrefix(path.Dir(sandbox.KeeperPath), "/"), true},
	{strings.TrimPrefix(sandbox.KeeperPath, "/"), false},
}

// settings are files of ours in every tree. Names are answered inside the sandbox, or not
// at all.
var settings = []struct {
	path, content string
	always        bool // even if the image has one
}{
	{"etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:2 attempts:1\n", true},
	{"etc/hostname", "sojourn\n", true},
	{"etc/hosts", "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 sojourn\n", false},
}

// furnish adds mount points and settings to a tree.
func (t *tree) furnish() error {
	for _, p := range points {
		if err := t.addPoint(p); err != nil {
			return fmt.Errorf("make mount point /%s: %w", p.path, err)
		}
	}
	for _, s := range settings {
		if err := t.set(s.path, s.content, s.always); err != nil {
			return fmt.Errorf("write /%s: %w", s.path, err)
		}
	}
	return nil
}

// addPoint makes a mount point. What is in its way is replaced: a link to nothing, a file
// where a directory has to be.
func (t *tree) addPoint(p point) error {
	if err := t.clear(path.Dir(p.path)); err != nil {
		return err
	}
	dir, name, kept, err := t.place(p.path, p.isDir)
	switch {
	case err != nil || kept:
	case p.isDir:
		err = unix.Mkdirat(dir, name, 0o755)
		if err == nil {
			err = unix.Fchmodat(dir, name, 0o755, 0) // whatever the umask
		}
	default:
		err = t.write(dir, name, "", 0o755)
	}
	return err
}

// clear makes dir a directory, through links that lead to one, and takes away what keeps
// it from being one.
func (t *tree) clear(dir string) error {
	if dir == "." {
		return nil
	}
	if err := t.clear(path.Dir(dir)); err != nil {
		return err
	}
	t.forget()
	fd, err := inroot.Open(t.root, dir, unix.O_DIRECTORY)
	if err == nil {
		return unix.Close(fd)
	}
	if !absent(err) {
		return err
	}
	at, name, _, err := t.place(dir, false)
	if err != nil {
		return err
	}
	if err := unix.Mkdirat(at, name, 0o755); err != nil {
		return err
	}
	return unix.Fchmodat(at, name, 0o755, 0)
}

// set writes a file of ours. A link in its place is replaced, not followed.
func (t *tree) set(p, content string, always bool) error {
	if err := t.clear(path.Dir(p)); err != nil {
		return err
	}
	dir, _, err := t.parent(p)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	err = unix.Fstatat(dir, path.Base(p), &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && !always && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size > 0 {
		return nil
	}
	dir, name, _, err := t.place(p, false)
	if err != nil {
		return err
	}
	return t.write(dir, name, content, 0o644)
}

func (t *tree) write(dir int, name, content string, perm uint32) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, perm)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if err := f.Chmod(os.FileMode(perm)); err != nil {
		return err
	}
	if _, err := f.WriteString(content); err != nil {
		return err
	}
	return f.Close()
}

// checkPoints reports the mount points that a tree does not have.
func checkPoints(dir string, wanted []point) error {
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(root)
	var missing []string
	for _, p := range wanted {
		ok, err := hasPoint(root, p)
		if err != nil {
			return err
		}
		if !ok && p.isDir {
			missing = append(missing, "directory /"+p.path)
		} else if !ok {
			missing = append(missing, "file /"+p.path)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: it is used as it is and lacks what a sandbox is mounted on: %s", ErrCorrupt, strings.Join(missing, ", "))
	}
	return nil
}

func hasPoint(root int, p point) (bool, error) {
	fd, err := inroot.Open(root, p.path, unix.O_NOFOLLOW)
	if absent(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	kind := uint32(unix.S_IFREG)
	if p.isDir {
		kind = unix.S_IFDIR
	}
	return st.Mode&unix.S_IFMT == kind, nil
}

// layerPoints are the mount points that layers need.
func layerPoints(layers []sandbox.Mount) ([]point, error) {
	var wanted []point
	for _, l := range layers {
		info, err := os.Stat(l.Source)
		if err != nil {
			return nil, fmt.Errorf("layer: %w", err)
		}
		wanted = append(wanted, point{strings.TrimPrefix(l.Target, "/"), info.IsDir()})
	}
	slices.SortFunc(wanted, func(a, b point) int { return strings.Compare(a.path, b.path) })
	return wanted, nil
}

// addPoints makes the mount points that a finished tree lacks, and nothing else: what is
// in the way belongs to the image and stays. It returns the real paths of what it made,
// also when it fails.
func addPoints(dir string, wanted []point) (made []string, err error) {
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(root)
	for _, p := range wanted {
		ok, err := hasPoint(root, p)
		if err != nil {
			return made, err
		}
		if ok {
			continue
		}
		var dirs []string
		parent, err := inroot.Dir(root, path.Dir(p.path), 0o755, func(d string) error {
			dirs = append(dirs, d)
			return nil
		})
		if err == nil {
			err = makePoint(parent, p)
			unix.Close(parent)
		}
		for _, d := range append(dirs, p.path) {
			if real, ok := realIn(root, d); ok {
				made = append(made, real)
			}
		}
		if err != nil {
			return made, fmt.Errorf("make mount point /%s in the image: %w", p.path, err)
		}
	}
	return made, nil
}

// realIn is where in a tree p leads to, without links.
func realIn(root int, p string) (string, bool) {
	fd, err := inroot.Open(root, p, unix.O_NOFOLLOW)
	if err != nil {
		return "", false
	}
	defer unix.Close(fd)
	top, err := os.Readlink(procFD(root))
	if err != nil {
		return "", false
	}
	at, err := os.Readlink(procFD(fd))
	if err != nil {
		return "", false
	}
	return strings.CutPrefix(at, top+"/")
}

func makePoint(dir int, p point) error {
	if p.isDir {
		return unix.Mkdirat(dir, path.Base(p.path), 0o755)
	}
	fd, err := unix.Openat(dir, path.Base(p.path), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
