package namespace

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The directories in memory and, without a limit, what fits in them at most.
const (
	tmpOptions = "mode=1777,size=50%"
	shmOptions = "mode=1777,size=25%"
	devOptions = "mode=0755,size=64k"
)

// sized puts a limit in place of what the options say, if there is one. The last size
// counts.
func sized(options string, bytes int64) string {
	if bytes == 0 {
		return options
	}
	return fmt.Sprintf("%s,size=%d", options, bytes)
}

// devices are the devices of the host that a sandbox gets.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// deviceLinks are what else programs expect in /dev.
var deviceLinks = map[string]string{
	"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	"ptmx": "pts/ptmx",
}

// Files and directories of /proc that tell about, or act on, more than the sandbox. The
// kernel's own checks stop most of it already; these do not rely on them.
var (
	procHidden = []string{
		"acpi", "asound", "config.gz", "driver", "interrupts", "iomem", "ioports", "kallsyms", "kcore",
		"key-users", "keys", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats", "modules",
		"mtrr", "sched_debug", "scsi", "softirqs", "timer_list", "timer_stats", "vmallocinfo",
	}
	procReadOnly = []string{"sys", "sysrq-trigger", "irq", "bus", "fs"}
)

// buildRoot puts the trees together at a spare place, adds what is not on disk, and
// makes it the root directory. It says how the root can be changed.
func buildRoot(p plan, trees []int) (how string, err error) {
	devs := make([]int, len(devices))
	for i, name := range devices {
		fd, err := unix.OpenTree(unix.AT_FDCWD, "/dev/"+name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return "", fmt.Errorf("open /dev/%s: %w", name, err)
		}
		devs[i] = fd
	}
	// Any directory that every host has does as the place; /usr itself is already
	// among the open trees.
	const place = "/usr"
	if how, err = enterRoot(place, p, trees); err != nil {
		return "", err
	}
	for i, t := range p.Trees {
		if t.Target == "" || t.Target == "/" {
			continue
		}
		if err := attachBeneath(trees[i], t, how != rootReadOnly); err != nil {
			return "", fmt.Errorf("mount %s at %s: %w", t.Source, t.Target, err)
		}
	}
	mounts := []struct {
		kind, target string
		flags        uintptr
		options      string
	}{
		{"proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"tmpfs", "tmp", unix.MS_NOSUID | unix.MS_NODEV, sized(tmpOptions, p.Share.Tmp)},
		{"tmpfs", "dev", unix.MS_NOSUID | unix.MS_NOEXEC, devOptions},
	}
	for _, m := range mounts {
		if info, err := os.Lstat(m.target); err != nil || !info.IsDir() {
			return "", fmt.Errorf("mount /%s: the root has no such directory", m.target)
		}
		if err := unix.Mount(m.kind, m.target, m.kind, m.flags, m.options); err != nil {
			return "", fmt.Errorf("mount /%s: %w", m.target, err)
		}
	}
	if err := buildDev(p, devs); err != nil {
		return "", err
	}
	openLowPorts()
	if err := guardProc(); err != nil {
		return "", err
	}
	// With both arguments the same the old root ends up on top of the new one, from
	// where it is taken off.
	if err := unix.PivotRoot(".", "."); err != nil {
		return "", fmt.Errorf("change root directory: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return "", fmt.Errorf("let go of the host's files: %w", err)
	}
	return how, unix.Chdir("/")
}

func attach(fd int, target string) error {
	return unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

func buildDev(p plan, devs []int) error {
	for i, name := range devices {
		path := "dev/" + name
		if err := os.WriteFile(path, nil, 0o666); err != nil {
			return fmt.Errorf("make /dev: %w", err)
		}
		if err := attach(devs[i], path); err != nil {
			return fmt.Errorf("mount /%s: %w", path, err)
		}
	}
	for name, target := range deviceLinks {
		if err := os.Symlink(target, "dev/"+name); err != nil {
			return fmt.Errorf("make /dev: %w", err)
		}
	}
	for _, d := range []string{"dev/pts", "dev/shm"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return fmt.Errorf("make /dev: %w", err)
		}
	}
	ptsOptions := "newinstance,ptmxmode=0666,mode=0620"
	if p.Groups {
		ptsOptions += ",gid=5"
	}
	if err := unix.Mount("devpts", "dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, ptsOptions); err != nil {
		return fmt.Errorf("mount /dev/pts: %w", err)
	}
	if err := unix.Mount("tmpfs", "dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, sized(shmOptions, p.Share.Shm)); err != nil {
		return fmt.Errorf("mount /dev/shm: %w", err)
	}
	return nil
}

// openLowPorts lets every process of the sandbox listen on ports below 1024 of its own
// network: the keeper, which answers lookups there, holds no capability for it. Where
// the kernel does not let us, names are resolved by the proxy alone.
func openLowPorts() {
	_ = os.WriteFile("proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0)
}

// guardProc hides some of /proc and makes other parts of it read-only.
func guardProc() error {
	for _, name := range procHidden {
		if err := hide("proc/" + name); err != nil {
			return err
		}
	}
	for _, name := range procReadOnly {
		path := "proc/" + name
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		if err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("guard /%s: %w", path, err)
		}
		const flags = unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
		if err := unix.Mount("", path, "", flags, ""); err != nil {
			return fmt.Errorf("guard /%s: %w", path, err)
		}
	}
	return nil
}

// hide puts nothing in the place of a file or directory, if there is one.
func hide(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return nil // what is not there needs no hiding
	}
	if info.IsDir() {
		const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
		err = unix.Mount("tmpfs", path, "tmpfs", flags, "mode=0555,size=4k")
	} else {
		err = unix.Mount("dev/null", path, "", unix.MS_BIND, "")
	}
	if err != nil {
		return fmt.Errorf("hide /%s: %w", path, err)
	}
	return nil
}
