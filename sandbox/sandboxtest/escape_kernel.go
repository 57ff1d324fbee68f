package sandboxtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// ownKernel is why a system call can succeed and mean nothing.
const ownKernel = "it is its own kernel's"

// Why an attempt may get through.
var (
	isItsOwn   = map[sandbox.Isolation]string{sandbox.IsolationGVisor: ownKernel}
	unfiltered = map[sandbox.Isolation]string{
		sandbox.IsolationGVisor:  ownKernel,
		sandbox.IsolationProcess: "it has no filter of system calls",
	}
)

// escapeKernel are ways to the kernel and its devices.
var escapeKernel = []attempt{
	{name: "CorePattern", try: writes("/proc/sys/kernel/core_pattern"), bare: bareRoot, open: isItsOwn},
	{name: "ModuleLoader", try: writes("/proc/sys/kernel/modprobe"), bare: bareDepends, open: isItsOwn},
	{name: "KernelSettings", try: writes("/proc/sys/vm/drop_caches", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/randomize_va_space", "/proc/sys/fs/binfmt_misc/register"), bare: bareRoot, open: isItsOwn},
	{name: "SystemRequest", try: writes("/proc/sysrq-trigger"), bare: bareDepends, open: isItsOwn},
	{name: "HotplugHelper", try: writes("/sys/kernel/uevent_helper", "/sys/power/state", "/sys/class/block/loop0/uevent"), bare: bareDepends},
	{name: "CgroupReleaseAgent", try: releaseAgent, bare: bareDepends},
	{name: "KernelMemory", try: readsAny("/proc/kcore", "/dev/mem", "/dev/kmem", "/dev/port"), bare: bareDepends},
	{name: "KernelLog", try: kernelLog, bare: bareDepends},
	{name: "DiskDevice", try: device(unix.S_IFBLK, 7, 0, 8, 0, 254, 0, 253, 0), bare: bareDepends},
	{name: "MemoryDevice", try: device(unix.S_IFCHR, 1, 1), bare: bareDepends},
	{name: "LoopDevices", try: opensAny("/dev/loop-control", "/dev/loop0"), bare: bareDepends},
	{name: "Hypervisor", try: opensAny("/dev/kvm", "/dev/vhost-vsock", "/dev/vhost-net"), bare: bareDepends},
	{name: "Fuse", try: opensAny("/dev/fuse"), bare: bareDepends, open: isItsOwn},
	{name: "Tun", try: opensAny("/dev/net/tun"), bare: bareDepends, open: isItsOwn},
	{name: "MountMemory", try: func(s stage) error { return mounted(s, "tmpfs", 0) }, bare: bareRoot, open: isItsOwn},
	{name: "MountBind", try: func(s stage) error { return mounted(s, "/", unix.MS_BIND) }, bare: bareRoot, open: isItsOwn},
	{name: "MountProc", try: func(s stage) error { return mounted(s, "proc", 0) }, bare: bareRoot, open: isItsOwn},
	{name: "NewMountCalls", try: func(s stage) error {
		return anyOf(
			func() error { return descriptor(unix.SYS_FSOPEN, cString("tmpfs"), 0, 0, 0, 0) },
			func() error {
				fd, err := unix.OpenTree(unix.AT_FDCWD, s.Workspace, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
				if err != nil {
					return err
				}
				return unix.Close(fd)
			},
		)
	}, bare: bareRoot, open: isItsOwn},
	{name: "RemountSystem", try: func(s stage) error {
		return unix.Mount("", filepath.Dir(s.Keeper), "", unix.MS_REMOUNT|unix.MS_BIND, "")
	}, bare: bareDepends},
	{name: "PivotRoot", try: func(s stage) error {
		// Both being the same place where nothing is mounted is an error of its own
		// for those who may.
		err := unix.PivotRoot(s.Workspace, s.Workspace)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EBUSY) {
			return nil
		}
		return err
	}, bare: bareRoot, open: isItsOwn},
	{name: "Bpf", try: func(stage) error {
		attr := [72]byte{0: 2, 4: 4, 8: 4, 12: 1} // an array map of one number
		return descriptor(unix.SYS_BPF, 0, uintptr(unsafe.Pointer(&attr[0])), unsafe.Sizeof(attr), 0, 0)
	}, bare: bareRoot},
	{name: "PerfEvents", try: func(stage) error {
		attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Config: unix.PERF_COUNT_SW_CPU_CLOCK}
		fd, err := unix.PerfEventOpen(&attr, -1, 0, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	}, bare: bareRoot},
	{name: "UserFaults", try: func(stage) error {
		return descriptor(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0, 0, 0)
	}, bare: bareRoot},
	{name: "IoUring", try: func(stage) error {
		var params [120]byte
		return descriptor(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params[0])), 0, 0, 0)
	}, bare: bareDepends, open: unfiltered},
	{name: "Keyrings", try: func(stage) error {
		return anyOf(
			func() error {
				_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_USER_KEYRING, true)
				return err
			},
			func() error {
				_, err := unix.AddKey("user", "sandboxtest", []byte("x"), unix.KEY_SPEC_PROCESS_KEYRING)
				return err
			},
		)
	}, bare: bareDepends, open: unfiltered},
	{name: "LoadModule", try: mayCall(unix.SYS_FINIT_MODULE, ^uintptr(0), cString(""), 0), bare: bareDepends},
	{name: "LoadKernel", try: mayCall(unix.SYS_KEXEC_LOAD, 0, ^uintptr(0), 0), bare: bareDepends},
	{name: "Reboot", try: mayCall(unix.SYS_REBOOT, unix.LINUX_REBOOT_MAGIC1, unix.LINUX_REBOOT_MAGIC2, 1), bare: bareRoot},
	{name: "SwapOn", try: mayCall(unix.SYS_SWAPON, cString("/nothing/here"), 0, 0), bare: bareRoot},
	{name: "Accounting", try: mayCall(unix.SYS_ACCT, cString("/nothing/here"), 0, 0), bare: bareDepends},
	{name: "Clock", try: func(stage) error {
		// A time that cannot be is an error of its own for those who may.
		err := unix.ClockSettime(unix.CLOCK_REALTIME, &unix.Timespec{Sec: -1})
		if errors.Is(err, unix.EINVAL) {
			return nil
		}
		return err
	}, bare: bareDepends},
	{name: "Quotas", try: mayCall(unix.SYS_QUOTACTL, 0x80000200, cString("/nothing/here"), 0), bare: bareDepends},
}

// writes opens files that change the kernel, and writes nothing.
func writes(paths ...string) func(stage) error { return tryAll(unix.O_WRONLY, paths) }

func opensAny(paths ...string) func(stage) error { return tryAll(unix.O_RDWR, paths) }

func tryAll(flags int, paths []string) func(stage) error {
	return func(stage) error {
		var stopped []error
		for _, p := range paths {
			err := opens(p, flags)
			if err == nil {
				return nil
			}
			stopped = append(stopped, err)
		}
		return errors.Join(stopped...)
	}
}

// readsAny reads the first bytes of files that must have none.
func readsAny(paths ...string) func(stage) error {
	return func(stage) error {
		var stopped []error
		for _, p := range paths {
			fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err == nil {
				var n int
				n, err = unix.Read(fd, make([]byte, 16))
				unix.Close(fd)
				if err == nil && n > 0 {
					return nil
				}
				if err == nil {
					err = fmt.Errorf("%s is empty", p)
				}
			}
			stopped = append(stopped, err)
		}
		return errors.Join(stopped...)
	}
}

// kernelLog reads what the host's kernel says. Another kernel has a log of its own.
func kernelLog(stage) error {
	if err := readsAny("/proc/kmsg", "/dev/kmsg")(stage{}); err == nil {
		return nil
	}
	buf := make([]byte, 16<<10)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, buf)
	if err != nil {
		return err
	}
	if ownLog(buf[:n]) {
		return errors.New(ownKernel)
	}
	return nil
}

// ownLog reports whether a kernel's log is gVisor's, which tells jokes.
func ownLog(log []byte) bool {
	for i := range log {
		if string(log[i:min(i+18, len(log))]) == "Starting gVisor..." {
			return true
		}
	}
	return false
}

// device makes device files by their numbers, major and minor in turn, and opens them.
func device(kind uint32, numbers ...uint32) func(stage) error {
	return func(s stage) error {
		var stopped []error
		for i := 0; i < len(numbers); i += 2 {
			name := filepath.Join(s.Workspace, "escape-device")
			err := unix.Mknod(name, kind|0o600, int(unix.Mkdev(numbers[i], numbers[i+1])))
			if err == nil {
				err = opens(name, unix.O_RDONLY)
				_ = os.Remove(name)
			}
			if err == nil {
				return nil
			}
			stopped = append(stopped, err)
		}
		return errors.Join(stopped...)
	}
}

// mounted mounts something on a directory and takes it off again.
func mounted(s stage, source string, flags uintptr) error {
	dir := filepath.Join(s.Workspace, "escape-mount")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	defer os.Remove(dir)
	if err := unix.Mount(source, dir, source, flags, ""); err != nil {
		return err
	}
	return unix.Unmount(dir, unix.MNT_DETACH)
}

// releaseAgent looks for the file that names a program which the host's kernel runs.
func releaseAgent(stage) error {
	found, err := filepath.Glob("/sys/fs/cgroup/*/release_agent")
	if err != nil {
		return err
	}
	for _, name := range append(found, "/sys/fs/cgroup/release_agent") {
		if opens(name, unix.O_WRONLY) == nil {
			return nil
		}
	}
	return fmt.Errorf("none of %d can be written", len(found))
}

// mayCall makes a system call with arguments that make no sense, and gets through when
// they are what is wrong with it.
func mayCall(number, a, b, c uintptr) func(stage) error {
	return func(stage) error {
		err := call(number, a, b, c, 0, 0)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSYS) {
			return err
		}
		return nil
	}
}
