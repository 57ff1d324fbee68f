package quota

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// loopTries is how often a free loop device is asked for when others take them.
const loopTries = 50

// inodeRatio is for how many bytes there is an inode: trees of sources and packages
// have small files.
const inodeRatio = "8192"

// makers are where mkfs.ext4 is on hosts whose PATH for users has no sbin.
var makers = []string{"mkfs.ext4", "/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"}

func imageOf(dir string) string { return dir + ".img" }

// makeImage makes a file system of limit bytes in a sparse file and mounts it at dir.
func makeImage(ctx context.Context, dir string, limit int64) error {
	path := imageOf(dir)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	if err := errors.Join(f.Truncate(limit), f.Close()); err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	maker := ""
	for _, m := range makers {
		if p, err := exec.LookPath(m); err == nil {
			maker = p
			break
		}
	}
	if maker == "" {
		return errors.New("make image: mkfs.ext4 is not there")
	}
	// Nothing is kept back for root, and nothing is written that can be written later.
	// The journal makes the files readable after a crash of the host.
	cmd := exec.CommandContext(ctx, maker, "-q", "-F", "-m", "0", "-i", inodeRatio,
		"-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0", path)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make image: %w: %.500s", err, out)
	}
	return mountImage(dir)
}

// mountImage mounts the image of a space at its directory, unless it is mounted.
func mountImage(dir string) error {
	mounted, err := isMount(dir)
	if mounted || err != nil {
		return err
	}
	image, err := os.OpenFile(imageOf(dir), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("mount image: %w", err)
	}
	defer image.Close()
	loop, err := attached(image)
	if err == nil && loop == nil {
		loop, err = attach(image)
	}
	if err != nil {
		return fmt.Errorf("mount image: %w", err)
	}
	defer loop.Close()
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME
	// Blocks that are freed inside are given back to the host, and the tables of
	// inodes are not filled before they are used.
	if err := unix.Mount(loop.Name(), dir, "ext4", flags, "discard,noinit_itable,errors=remount-ro"); err != nil {
		return fmt.Errorf("mount image: %w", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount image: %w", err)
	}
	return nil
}

// removeImage unmounts and removes the image of a space if there is one.
func removeImage(dir string) error {
	for {
		mounted, err := isMount(dir)
		if err != nil {
			return err
		}
		if !mounted {
			break
		}
		// Whoever still reads from it keeps it for that long.
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount image: %w", err)
		}
	}
	if err := os.Remove(imageOf(dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove image: %w", err)
	}
	return nil
}

// isMount reports whether something is mounted at dir itself.
func isMount(dir string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at %s: %w", dir, err)
	}
	if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return false, errors.New("this kernel does not tell what is mounted")
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// attached returns the loop device that an image is attached to, perhaps by an earlier
// server in another mount namespace; nil when there is none.
func attached(image *os.File) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &st); err != nil {
		return nil, err
	}
	backings, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, b := range backings {
		name, _, _ := strings.Cut(strings.TrimPrefix(b, "/sys/block/"), "/")
		dev, err := os.OpenFile("/dev/"+name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		if err == nil && info.Inode == st.Ino && info.Device == st.Dev {
			return dev, nil
		}
		dev.Close()
	}
	return nil, nil
}

// attach gives an image a free loop device, which the kernel takes back when it is not
// used any more.
func attach(image *os.File) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("attach image: %w", err)
	}
	defer control.Close()
	for range loopTries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("attach image: %w", err)
		}
		dev, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR, 0)
		if err != nil {
			return nil, fmt.Errorf("attach image: %w", err)
		}
		cfg := unix.LoopConfig{Fd: uint32(image.Fd())}
		cfg.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		copy(cfg.Info.File_name[:], filepath.Base(filepath.Dir(image.Name())))
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &cfg)
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) { // somebody else took it meanwhile
			return nil, fmt.Errorf("attach image: %w", err)
		}
	}
	return nil, errors.New("attach image: no loop device stays free")
}
