package sandboxtest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// sameProcesses is why a wall of files alone does not hide processes.
var sameProcesses = map[sandbox.Isolation]string{sandbox.IsolationProcess: "it has no process namespace"}

// escapeProcesses are ways to other processes, and to more rights.
var escapeProcesses = []attempt{
	{name: "ProcessesOfHost", try: seesMark, open: sameProcesses},
	{name: "SignalToHost", try: func(s stage) error { return unix.Kill(s.PID, 0) }},
	{name: "DescriptorOfHostProcess", try: func(s stage) error {
		fd, err := unix.PidfdOpen(s.PID, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.PidfdSendSignal(fd, 0, nil, 0)
	}},
	{name: "TraceHost", try: func(s stage) error { return trace(s.PID) }, bare: bareDepends},
	{name: "MemoryOfHostProcess", try: func(s stage) error { return peek(s.PID) }, bare: bareRoot},
	{name: "EnvironmentOfHostProcess", try: func(s stage) error { return opens(procFile(s.PID, "environ"), unix.O_RDONLY) }},
	{name: "TraceKeeper", try: func(stage) error { return trace(keeperPID()) }, bare: bareDepends},
	{name: "MemoryOfKeeper", try: func(stage) error {
		return anyOf(func() error { return peek(keeperPID()) },
			func() error { return opens(procFile(keeperPID(), "mem"), unix.O_RDWR) })
	}, bare: bareRoot},
	{name: "FilesOfKeeper", try: func(stage) error {
		return opens(procFile(keeperPID(), "fd/3"), unix.O_RDONLY)
	}, bare: bareDepends},
	{name: "TokenOfKeeper", try: keeperToken, bare: bareDepends},
	{name: "NewPrivileges", try: func(stage) error {
		set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
		if err != nil {
			return err
		}
		if set == 1 {
			return errors.New("no_new_privs is set")
		}
		return nil
	}},
	{name: "Capabilities", try: dangerousCapabilities, bare: bareRoot},
	{name: "CoreFiles", try: func(stage) error {
		var l unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_CORE, &l); err != nil {
			return err
		}
		if l.Max == 0 {
			return errors.New("no core files are written")
		}
		return nil
	}, bare: bareDepends, open: map[sandbox.Isolation]string{
		sandbox.IsolationGVisor:    "its kernel writes none",
		sandbox.IsolationContainer: "the engine decides it",
	}},
	{name: "RealTimePriority", try: func(stage) error {
		return anyOf(
			func() error {
				return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: 1, Priority: 1}, 0)
			},
			func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -20) },
		)
	}, bare: bareRoot, open: map[sandbox.Isolation]string{sandbox.IsolationGVisor: "its kernel notes it and tells no other"}},
	{name: "NeverOutOfMemory", try: func(stage) error {
		return os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
	}, bare: bareDepends, open: map[sandbox.Isolation]string{sandbox.IsolationGVisor: "its kernel notes it and tells no other"}},
	{name: "UserNamespace", try: func(s stage) error { return spawnIn(s, unix.CLONE_NEWUSER) }, bare: bareDepends, open: map[sandbox.Isolation]string{
		sandbox.IsolationGVisor:  "it is one of its own kernel",
		sandbox.IsolationProcess: "Landlock goes with it, and forbids to mount",
	}},
	{name: "OtherNamespaces", try: func(s stage) error {
		return spawnIn(s, unix.CLONE_NEWNS|unix.CLONE_NEWNET|unix.CLONE_NEWIPC)
	}, bare: bareRoot, open: map[sandbox.Isolation]string{sandbox.IsolationGVisor: "they are ones of its own kernel"}},
	{name: "NamespacesOfHost", try: func(s stage) error { return joinNamespaces(1, s.PID) }, bare: bareRoot},
}

func procFile(pid int, name string) string { return fmt.Sprintf("/proc/%d/%s", pid, name) }

// keeperPID is the keeper, which is process 1 where there is a process namespace.
func keeperPID() int { return os.Getppid() }

// seesMark looks for a process of the host among all that can be seen.
func seesMark(s stage) error {
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, name := range found {
		line, err := os.ReadFile(name)
		if err == nil && bytes.Contains(line, []byte(s.Mark)) && !bytes.Contains(line, []byte("{")) { // not ourselves
			return nil
		}
	}
	return fmt.Errorf("%d processes can be seen, none of the host", len(found))
}

// trace takes hold of a process and lets it go.
func trace(pid int) error {
	if err := unix.PtraceSeize(pid); err != nil {
		return fmt.Errorf("trace process %d: %w", pid, err)
	}
	return nil // the thread ends, and with it the hold
}

// peek reads a little of a process' memory: where its program begins in memory is a
// fixed place for those that the Go linker makes.
func peek(pid int) error {
	buf := make([]byte, 4)
	local := []unix.Iovec{{Base: &buf[0], Len: uint64(len(buf))}}
	_, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: 0x400000, Len: len(buf)}}, 0)
	if err != nil {
		return fmt.Errorf("read memory of process %d: %w", pid, err)
	}
	return nil
}

// keeperToken looks for the keeper's secret where programs can look.
func keeperToken(stage) error {
	hex := regexp.MustCompile(sandbox.TokenVariable + `=[0-9a-f]{64}`)
	for _, name := range []string{procFile(keeperPID(), "environ"), "/proc/self/environ"} {
		b, err := os.ReadFile(name)
		if err == nil && hex.Match(b) {
			return nil
		}
	}
	if hex.MatchString(strings.Join(os.Environ(), "\n")) {
		return nil
	}
	return errors.New("it is nowhere to be seen")
}

// dangerous are the capabilities that act on more than files, users and processes of
// the sandbox.
var dangerous = map[string]uint{
	"CAP_DAC_READ_SEARCH": unix.CAP_DAC_READ_SEARCH, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_NET_RAW": unix.CAP_NET_RAW,
	"CAP_SYS_MODULE": unix.CAP_SYS_MODULE, "CAP_SYS_RAWIO": unix.CAP_SYS_RAWIO, "CAP_SYS_PTRACE": unix.CAP_SYS_PTRACE,
	"CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_SYS_BOOT": unix.CAP_SYS_BOOT, "CAP_SYS_TIME": unix.CAP_SYS_TIME,
	"CAP_MKNOD": unix.CAP_MKNOD, "CAP_SYSLOG": unix.CAP_SYSLOG, "CAP_BPF": unix.CAP_BPF, "CAP_PERFMON": unix.CAP_PERFMON,
	"CAP_SYS_RESOURCE": unix.CAP_SYS_RESOURCE, "CAP_SYS_NICE": unix.CAP_SYS_NICE,
}

func dangerousCapabilities(stage) error {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	var held, bound uint64
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		switch {
		case err != nil:
		case name == "CapEff", name == "CapPrm", name == "CapInh", name == "CapAmb":
			held |= set
		case name == "CapBnd":
			bound |= set
		case name == "NoNewPrivs" && set == 1:
			bound = 0 // it comes later, and nothing can be gained any more
		}
	}
	for _, c := range dangerous {
		if (held|bound)&(1<<c) != 0 {
			return nil
		}
	}
	return fmt.Errorf("held are %x, within reach %x", held, bound)
}

// spawnIn runs a program in fresh namespaces.
func spawnIn(s stage, flags uintptr) error {
	cmd := exec.Command(s.Keeper, commandInside, "nothing")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	return cmd.Run()
}

// joinNamespaces enters the mount or network namespaces of processes.
func joinNamespaces(pids ...int) error {
	var stopped []error
	for _, pid := range pids {
		for _, kind := range []string{"net", "ipc", "uts"} {
			fd, err := unix.Open(procFile(pid, "ns/"+kind), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err == nil {
				err = unix.Setns(fd, 0)
				unix.Close(fd)
			}
			if err == nil {
				return nil
			}
			stopped = append(stopped, err)
		}
	}
	return errors.Join(stopped...)
}

// call makes a system call and returns its error.
func call(number, a, b, c, d, e uintptr) error {
	_, _, errno := unix.Syscall6(number, a, b, c, d, e, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// descriptor is call for those that return one, which it closes.
func descriptor(number, a, b, c, d, e uintptr) error {
	fd, _, errno := unix.Syscall6(number, a, b, c, d, e, 0)
	if errno != 0 {
		return errno
	}
	return unix.Close(int(fd))
}

// cString is a string for a system call that has no function of its own.
func cString(s string) uintptr {
	b := append([]byte(s), 0)
	return uintptr(unsafe.Pointer(&b[0]))
}
