package filter

import (
	"fmt"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// families are the kinds of sockets that a sandbox needs. Everything else that the
// kernel has is a lot of code which hardly any program uses, and which has often been
// the way out.
var families = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6}

// injections are the requests to a terminal that type into it, as if its user had.
var injections = []uint32{unix.TIOCSTI, unix.TIOCLINUX}

// outright are calls that no sandbox gets, whatever the list says of them: they make or
// enter namespaces and mounts, act on the machine, or go around what other walls look at.
var outright = []string{
	"mount", "umount2", "pivot_root", "fsopen", "fsconfig", "fsmount", "fspick", "move_mount", "open_tree", "mount_setattr",
	"setns", "unshare", "open_by_handle_at", "name_to_handle_at", "fanotify_init", "fanotify_mark",
	"bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
	"add_key", "request_key", "keyctl", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module",
	"reboot", "swapon", "swapoff", "syslog", "acct", "quotactl", "iopl", "ioperm", "modify_ldt", "settimeofday", "clock_settime",
}

// namespaces are the flags of clone that make some.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWTIME

// stricter is the part of the filter that takes away from the list. It leaves the
// number of the call where it found it.
func stricter(families []uint32) ([]unix.SockFilter, error) {
	machine, err := arch.GetInfo("")
	if err != nil {
		return nil, fmt.Errorf("read list of system calls: %w", err)
	}
	number := func(name string) uint32 { return uint32(machine.SyscallNames[name]) }
	const unsupported = unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)

	var prog []unix.SockFilter
	for _, name := range outright {
		if n, known := machine.SyscallNames[name]; known {
			prog = append(prog, jump(unix.BPF_JEQ, uint32(n), 0, 1), ret(refused))
		}
	}
	// Of clone3 a filter cannot see the flags; libraries then use clone.
	prog = append(prog, when(number("clone"), []unix.SockFilter{
		load(offArgs), jump(unix.BPF_JSET, namespaces, 0, 1), ret(refused),
	})...)
	prog = append(prog, jump(unix.BPF_JEQ, number("clone3"), 0, 1), ret(unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS)))
	prog = append(prog, when(number("socket"), onlyFamilies(families, unsupported))...)
	prog = append(prog, when(number("socketpair"), []unix.SockFilter{
		load(offArgs), jump(unix.BPF_JEQ, unix.AF_UNIX, 1, 0), ret(unsupported),
	})...)
	var typing []unix.SockFilter
	typing = append(typing, load(offArgs+8))
	for _, request := range injections {
		typing = append(typing, jump(unix.BPF_JEQ, request, 0, 1), ret(refused))
	}
	return append(prog, when(number("ioctl"), typing)...), nil
}

// onlyFamilies refuses all sockets but those of the families, and of netlink those that
// read and set interfaces and routes, which are the sandbox's own.
func onlyFamilies(families []uint32, refusal uint32) []unix.SockFilter {
	code := []unix.SockFilter{load(offArgs)}
	for i, f := range families {
		code = append(code, jump(unix.BPF_JEQ, f, uint8(len(families)-i+3), 0))
	}
	return append(code,
		jump(unix.BPF_JEQ, unix.AF_NETLINK, 0, 2),
		load(offArgs+16),
		jump(unix.BPF_JEQ, unix.NETLINK_ROUTE, 1, 0),
		ret(refusal),
	)
}

// when runs code for one system call. Code decides or runs on behind its end; then the
// number is put back in place.
func when(number uint32, code []unix.SockFilter) []unix.SockFilter {
	code = append(code, load(offNumber))
	return append([]unix.SockFilter{jump(unix.BPF_JEQ, number, 1, 0), skip(len(code))}, code...)
}
