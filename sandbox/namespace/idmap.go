package namespace

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mapTrees opens the trees for an init that cannot reach them itself because it is
// another user, and shows it their files as if the host's root were the sandbox's: so
// the ids on disk are the ids in the sandbox.
func mapTrees(trees []tree, pid int) (files []*os.File, err error) {
	users, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err != nil {
		return nil, fmt.Errorf("open user namespace of init: %w", err)
	}
	defer users.Close()
	defer func() {
		if err != nil {
			closeAll(files)
		}
	}()
	for _, t := range trees {
		f, err := openTree(t)
		if err != nil {
			return files, err
		}
		files = append(files, f)
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users.Fd())}
		err = unix.MountSetattr(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
		// Some file systems cannot be mapped. Where only reading matters their
		// files can belong to nobody.
		if err != nil && t.Own {
			return files, fmt.Errorf("map the owners of %s: %w", t.Source, err)
		}
	}
	return files, nil
}

// openTree returns a copy of the mounts at a tree's source, with its restrictions, that
// is not attached anywhere.
func openTree(t tree) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, t.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", t.Source, err)
	}
	f := os.NewFile(uintptr(fd), t.Source)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID, Propagation: unix.MS_PRIVATE}
	if !t.Write {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		f.Close()
		return nil, fmt.Errorf("restrict %s: %w", t.Source, err)
	}
	return f, nil
}
