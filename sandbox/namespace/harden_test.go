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
	{"socket AF_VSOCK", unix.EPERM, func() syscall.Errno { return socket(unix.AF_VSOCK) }},
	{"socket AF_ALG", unix.EPERM, func() syscall.Errno { return socket(unix.AF_ALG) }},
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
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
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

	// The keeper and what it starts, several times: capabilities belong to threads.
	want := "CapInh: 0000000000000000 CapPrm: 00000000000000fb CapEff: 00000000000000fb CapBnd: 00000000000000fb CapAmb: 0000000000000000 NoNewPrivs: 1 Seccomp: 2"
	for _, file := range []string{"/proc/1/status", "/proc/self/status", "/proc/self/status", "/proc/self/status"} {
		out, code := run(t, c, "grep", "-E", "^(Cap|NoNewPrivs|Seccomp:)", file)
		if got := strings.Join(strings.Fields(out), " "); code != 0 || got != want {
			t.Errorf("%s: %s, want %s", file, got, want)
		}
	}
	if out, code := run(t, c, sandbox.KeeperPath, commandCalls); code != 0 {
		t.Errorf("system calls: %s", out)
	}
	if out, code := run(t, c, "sh", "-c", "echo x > /etc/x || echo x > /x"); code == 0 {
		t.Errorf("the root directory can be written: %s", out)
	}
	ownersOnDisk(t, d, sb, c)
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
