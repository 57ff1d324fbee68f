package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"github.com/elastic/go-seccomp-bpf"
	"golang.org/x/sys/unix"
)

// confined runs a program as Docker's defaults would: "confined UID PROGRAM ARG...".
// It has Docker's capabilities and cannot make namespaces or mounts.
func confined() {
	fmt.Fprintln(os.Stderr, "confined:", confine(os.Args[1], os.Args[2:]))
	os.Exit(1)
}

// dockersCapabilities are those that Docker gives to root, by number.
const dockersCapabilities = 0xa80425fb

// confine becomes the program. It returns only when that is not possible.
func confine(user string, argv []string) error {
	uid, err := strconv.Atoi(user)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the rights are the thread's, and exec keeps those of its own
	filter := seccomp.Filter{Flag: seccomp.FilterFlagTSync, Policy: seccomp.Policy{
		DefaultAction: seccomp.ActionAllow,
		Syscalls: []seccomp.SyscallGroup{
			{
				Action: seccomp.ActionErrno | seccomp.Action(unix.EPERM),
				Names:  []string{"unshare", "setns", "mount", "umount2", "pivot_root", "bpf", "keyctl", "fsopen", "open_tree", "move_mount", "mount_setattr"},
				NamesWithCondtions: []seccomp.NameWithConditions{{
					Name:       "clone",
					Conditions: seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.BitsSet, Value: 0x7e020000}},
				}},
			},
			{Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS), Names: []string{"clone3"}},
		},
	}}
	if err := seccomp.LoadFilter(filter); err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if dockersCapabilities&(1<<c) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if uid != 0 {
		// Of this thread only, as all that is done here.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			return fmt.Errorf("change group: %w", errno)
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			return fmt.Errorf("change user: %w", errno)
		}
	}
	return syscall.Exec(argv[0], argv, os.Environ())
}
