package namespace_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// commandCalls is the first argument with which the test binary tries system calls in
// a sandbox and prints how each ended.
const commandCalls = "namespacetest-calls"

// tried are system calls and how they must end in a sandbox. Zero is success.
var tried = []struct {
	name string
	want syscall.Errno
	call func() syscall.Errno
}{
	{"socket AF_NETLINK", 0, func() syscall.Errno { return socket(unix.AF_NETLINK) }},
	{"socket AF_INET6", 0, func() syscall.Errno { return socket(unix.AF_INET6) }},
	{"socket AF_UNIX", 0, func() syscall.Errno { return socket(unix.AF_UNIX) }},
	{"socket AF_INET", 0, func() syscall.Errno { return socket(unix.AF_INET) }},
	{"socket AF_VSOCK", unix.EAFNOSUPPORT, func() syscall.Errno { return socket(unix.AF_VSOCK) }},
	{"socket AF_ALG", unix.EAFNOSUPPORT, func() syscall.Errno { return socket(unix.AF_ALG) }},
	{"socket AF_PACKET", unix.EAFNOSUPPORT, func() syscall.Errno { return socket(unix.AF_PACKET) }},
	{"socket AF_KEY", unix.EAFNOSUPPORT, func() syscall.Errno { return socket(unix.AF_KEY) }},
	{"socket AF_XDP", unix.EAFNOSUPPORT, func() syscall.Errno { return socket(unix.AF_XDP) }},
	{"socket NETLINK_NETFILTER", unix.EAFNOSUPPORT, func() syscall.Errno { return netlink(unix.NETLINK_NETFILTER) }},
	{"socket NETLINK_AUDIT", unix.EAFNOSUPPORT, func() syscall.Errno { return netlink(unix.NETLINK_AUDIT) }},
	{"socketpair AF_UNIX", 0, func() syscall.Errno { return socketpair(unix.AF_UNIX) }},
	{"socketpair AF_TIPC", unix.EAFNOSUPPORT, func() syscall.Errno { return socketpair(unix.AF_TIPC) }},
	{"TIOCSTI", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_IOCTL, 0, unix.TIOCSTI, 0) }},
	{"TIOCSTI with high bits", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_IOCTL, 0, 1<<32|unix.TIOCSTI, 0) }},
	{"another ioctl on no file", unix.EBADF, func() syscall.Errno { return raw(unix.SYS_IOCTL, 999, unix.TIOCGWINSZ, 0) }},
	{"socket with high bits", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_SOCKET, 1<<32|unix.AF_UNIX, unix.SOCK_STREAM, 0) }},
	{"personality 0xffffffff", 0, func() syscall.Errno { return raw(unix.SYS_PERSONALITY, 0xffffffff, 0, 0) }},
	{"personality of no randomisation", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_PERSONALITY, 0x0040000, 0, 0) }},
	{"clone of a user namespace", unix.EPERM, func() syscall.Errno {
		return raw(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0)
	}},
	{"clone3", unix.ENOSYS, func() syscall.Errno { return raw(unix.SYS_CLONE3, 0, 0, 0) }},
	{"unshare", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER, 0, 0) }},
	{"setns", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_SETNS, 0, 0, 0) }},
	{"bpf", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_BPF, 0, 0, 0) }},
	{"keyctl", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_KEYCTL, 0, 0, 0) }},
	{"io_uring_setup", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_IO_URING_SETUP, 1, 0, 0) }},
	{"perf_event_open", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0) }},
	{"userfaultfd", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_USERFAULTFD, 0, 0, 0) }},
	{"name_to_handle_at", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_NAME_TO_HANDLE_AT, 0, 0, 0) }},
	{"mount_setattr", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_MOUNT_SETATTR, 0, 0, 0) }},
	{"kexec_load", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_KEXEC_LOAD, 0, 0, 0) }},
	{"syslog", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_SYSLOG, 10, 0, 0) }},
	{"ptrace of nobody", unix.ESRCH, func() syscall.Errno { return raw(unix.SYS_PTRACE, unix.PTRACE_ATTACH, 1<<22, 0) }},
	{"fsopen", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_FSOPEN, 0, 0, 0) }},
	{"open_tree", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_OPEN_TREE, 0, 0, 0) }},
	{"chroot", unix.EPERM, func() syscall.Errno { return raw(unix.SYS_CHROOT, 0, 0, 0) }},
	{"an unknown call", unix.EPERM, func() syscall.Errno { return raw(4000, 0, 0, 0) }},
}

func raw(number, a, b, c uintptr) syscall.Errno {
	_, _, errno := syscall.RawSyscall(number, a, b, c)
	return errno
}

func socket(domain int) syscall.Errno {
	return closed(unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))
}

func netlink(protocol int) syscall.Errno {
	return closed(unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol))
}

func socketpair(domain int) syscall.Errno {
	fds, err := unix.Socketpair(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	_ = closed(fds[1], err)
	return closed(fds[0], err)
}

// closed closes a descriptor that should perhaps not have been there.
func closed(fd int, err error) syscall.Errno {
	if err != nil {
		return err.(syscall.Errno)
	}
	unix.Close(fd)
	return 0
}

func tryCalls() int {
	code := 0
	for _, c := range tried {
		if got := c.call(); got != c.want {
			fmt.Printf("%s = %v, want %v\n", c.name, got, c.want)
			code = 1
		}
	}
	return code
}

func TestSandboxIsHardened(t *testing.T) {
	d, err := open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	sb, err := d.Create(t.Context(), sandbox.Spec{Session: "hard"})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Destroy(context.Background())
	conn, err := sb.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := link.Open(t.Context(), link.Framed(conn), link.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	// The keeper's threads, because capabilities belong to threads, and what it starts,
	// several times.
	want := "CapInh: 0000000000000000 CapPrm: 00000000000000fb CapEff: 00000000000000fb CapBnd: 00000000000000fb CapAmb: 0000000000000000 NoNewPrivs: 1 Seccomp: 2"
	for _, file := range []string{"/proc/1/status", "/proc/1/task/*/status", "/proc/self/status", "/proc/self/status", "/proc/self/status"} {
		out, code := run(t, c, "sh", "-c", `for f in $1; do grep -E "^(Cap|NoNewPrivs|Seccomp:)" $f | tr -s '\n\t' '  '; echo; done`, "sh", file)
		if code != 0 || out == "" {
			t.Errorf("read %s: %d %s", file, code, out)
		}
		for line := range strings.Lines(out) {
			if got := strings.Join(strings.Fields(line), " "); got != want {
				t.Errorf("%s: %s, want %s", file, got, want)
			}
		}
	}
	if out, _ := run(t, c, "sh", "-c", "ulimit -Hc; ulimit -c"); out != "0\n0\n" {
		t.Errorf("limits of core files = %q, want 0 and 0", out)
	}
	procIsGuarded(t, c)
	if out, code := run(t, c, sandbox.KeeperPath, commandCalls); code != 0 {
		t.Errorf("system calls: %s", out)
	}
	if out, code := run(t, c, "sh", "-c", "echo x > /etc/x || echo x > /x"); code == 0 {
		t.Errorf("the root directory can be written: %s", out)
	}
	ownersOnDisk(t, d, sb, c)
}

// procIsGuarded looks at the places of /proc and /dev that tell about, or act on, the host.
func procIsGuarded(t *testing.T, c *link.Client) {
	t.Helper()
	for _, name := range []string{"kcore", "keys", "timer_list", "kallsyms", "modules", "interrupts", "acpi", "scsi", "driver"} {
		if out, _ := run(t, c, "sh", "-c", `test -d "$1" && ls -A "$1" || head -c 64 "$1" 2>/dev/null`, "sh", "/proc/"+name); out != "" {
			t.Errorf("/proc/%s shows %q, want nothing", name, out)
		}
	}
	for _, name := range []string{"sys/kernel/core_pattern", "sys/vm/overcommit_memory", "sysrq-trigger", "irq/default_smp_affinity", "bus/x", "fs/x"} {
		if out, code := run(t, c, "sh", "-c", `: >> "$1"`, "sh", "/proc/"+name); code == 0 {
			t.Errorf("/proc/%s can be opened to write: %s", name, out)
		}
	}
	if out, _ := run(t, c, "ls", "-A", "/sys"); out != "" {
		t.Errorf("/sys shows %q, want nothing", out)
	}
	want := "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
	if out, _ := run(t, c, "ls", "/dev"); strings.Join(strings.Fields(out), " ") != want {
		t.Errorf("/dev has %q, want %s", out, want)
	}
}

// ownersOnDisk checks that files have the same owner on both sides.
func ownersOnDisk(t *testing.T, d sandbox.Driver, sb sandbox.Sandbox, c *link.Client) {
	t.Helper()
	run(t, c, "touch", "/workspace/by-root")
	want := uint32(os.Geteuid())
	if !d.Capabilities().Unprivileged {
		if out, code := run(t, c, "sh", "-c", "touch /workspace/by-user && chown 1000:1001 /workspace/by-user"); code != 0 {
			t.Errorf("chown: %s", out)
		}
		if uid := owner(t, filepath.Join(sb.Dirs().Workspace, "by-user")); uid != 1000 {
			t.Errorf("owner on the host of a file of user 1000 = %d", uid)
		}
	}
	if uid := owner(t, filepath.Join(sb.Dirs().Workspace, "by-root")); uid != want {
		t.Errorf("owner on the host of a file of root = %d, want %d", uid, want)
	}
}

func owner(t *testing.T, path string) uint32 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("lstat %s: %v", path, err)
	}
	return st.Uid
}

// run runs a program to its end.
func run(t *testing.T, c *link.Client, argv ...string) (string, int) {
	t.Helper()
	id := fmt.Sprint(argv, time.Now().UnixNano())
	p := link.StartParams{ProcessID: id, Argv: argv, Cwd: "/", Env: map[string]string{"PATH": "/usr/bin:/bin"}}
	if err := c.Start(t.Context(), p); err != nil {
		t.Fatalf("start %q: %v", argv, err)
	}
	var out bytes.Buffer
	for after := int64(0); ; {
		r, err := c.Read(t.Context(), link.ReadParams{ProcessID: id, AfterSeq: after, Wait: link.MaxWait})
		if err != nil {
			t.Fatalf("read output of %q: %v", argv, err)
		}
		for _, chunk := range r.Chunks {
			out.Write(chunk.Data)
		}
		after = r.NextSeq - 1
		if r.Closed && r.ExitCode != nil {
			return out.String(), *r.ExitCode
		}
		if r.Closed {
			return out.String() + r.Failure + r.Signal, -1
		}
	}
}
