package namespace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox/internal/inroot"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// The ways in which the root of a sandbox can be changed by it.
const (
	rootReadOnly = ""       // it cannot
	rootOnDisk   = "disk"   // changes are files of the cell
	rootInMemory = "memory" // changes are lost with the sandbox, and cost memory
)

// The directories of an overlay's changes in the tree that is for them.
const (
	upperDir = "upper"
	workDir  = "work"
)

// memoryOptions bound the changes that are kept in memory, without a limit.
const memoryOptions = "mode=0755,size=50%"

// makeChanges makes the directories for what a sandbox changes in its image.
func makeChanges(c *local.Cell) (string, error) {
	dir := c.Changes()
	for _, d := range []string{dir, filepath.Join(dir, upperDir), filepath.Join(dir, workDir)} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return "", fmt.Errorf("make place for changes: %w", err)
		}
		if err := os.Chmod(d, 0o755); err != nil { // whatever the umask
			return "", fmt.Errorf("make place for changes: %w", err)
		}
	}
	return dir, nil
}

// enterRoot makes the first tree the working directory and root to be. With a second
// tree for its changes it is covered by an overlay; where the kernel or the file system
// of the tree refuses that, changes are kept in memory, and where it has no overlays at
// all the root is read-only. It says which.
func enterRoot(place string, p plan, trees []int) (string, error) {
	if !p.Changes {
		if err := attach(trees[0], place); err != nil {
			return "", fmt.Errorf("mount %s at /: %w", p.Trees[0].Source, err)
		}
		return rootReadOnly, unix.Chdir(place)
	}
	// A place in memory for the parts: they are gone from view once the root is
	// changed, and live on inside the overlay.
	if err := unix.Mount("tmpfs", place, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700,size=64k"); err != nil {
		return "", fmt.Errorf("mount place for overlay: %w", err)
	}
	if err := unix.Chdir(place); err != nil {
		return "", fmt.Errorf("enter place for overlay: %w", err)
	}
	for _, d := range []string{"image", rootOnDisk, rootInMemory, "root"} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return "", fmt.Errorf("make place for overlay: %w", err)
		}
	}
	for i, d := range []string{"image", rootOnDisk} {
		if err := attach(trees[i], d); err != nil {
			return "", fmt.Errorf("mount %s: %w", p.Trees[i].Source, err)
		}
	}
	how, err := cover(p)
	if err != nil {
		return "", err
	}
	if how == rootReadOnly {
		return how, unix.Chdir("image")
	}
	return how, unix.Chdir("root")
}

// cover mounts the overlay at "root".
func cover(p plan) (string, error) {
	if mountOverlay(rootOnDisk) == nil {
		return rootOnDisk, nil
	}
	if err := unix.Mount("tmpfs", rootInMemory, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, sized(memoryOptions, p.Share.Root)); err != nil {
		return "", fmt.Errorf("mount place for changes: %w", err)
	}
	for _, d := range []string{upperDir, workDir} {
		if err := os.Mkdir(filepath.Join(rootInMemory, d), 0o755); err != nil {
			return "", fmt.Errorf("make place for changes: %w", err)
		}
	}
	if mountOverlay(rootInMemory) == nil {
		return rootInMemory, nil
	}
	return rootReadOnly, nil
}

func mountOverlay(changes string) error {
	options := fmt.Sprintf("lowerdir=image,upperdir=%[1]s/%[2]s,workdir=%[1]s/%[3]s,userxattr", changes, upperDir, workDir)
	return unix.Mount("overlay", "root", "overlay", unix.MS_NOSUID|unix.MS_NODEV, options)
}

// attachBeneath mounts a tree at its target below the working directory. Images come
// with links of their own: they are followed inside the new root only. What is missing
// is made if the root can be changed.
func attachBeneath(fd int, t tree, writable bool) error {
	root, err := unix.Open(".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	at, err := inroot.Open(root, t.Target, 0)
	if errors.Is(err, unix.ENOENT) && writable {
		at, err = makeTarget(root, fd, t.Target)
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return unix.MoveMount(fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// makeTarget makes a mount point of the same kind as the tree fd.
func makeTarget(root, fd int, target string) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return inroot.Dir(root, target, 0o755, nil)
	}
	dir, err := inroot.Dir(root, filepath.Dir(target), 0o755, nil)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	f, err := unix.Openat(dir, filepath.Base(target), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return -1, err
	}
	unix.Close(f)
	return inroot.Open(root, target, unix.O_NOFOLLOW)
}
