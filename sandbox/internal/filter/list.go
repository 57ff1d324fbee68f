package filter

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// refused is what a system call that is not allowed returns.
const refused = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)

// Allow allows this thread, and what it becomes, the system calls that container
// engines allow to containers without capabilities, less what no sandbox gets, and
// refuses all others. Sockets are those of families that sandboxes need.
func Allow() error {
	rules, err := callRules()
	if err != nil {
		return err
	}
	before, err := stricter(families)
	if err != nil {
		return err
	}
	prog, err := assemble(before, rules, refused)
	if err != nil {
		return err
	}
	return install(prog)
}

// Deny refuses this thread, and what it becomes, what no sandbox gets and all sockets but
// those between processes of the host, and allows everything else.
func Deny() error {
	before, err := stricter([]uint32{unix.AF_UNIX})
	if err != nil {
		return err
	}
	prog, err := assemble(before, nil, unix.SECCOMP_RET_ALLOW)
	if err != nil {
		return err
	}
	return install(prog)
}

// install gives this thread a filter. It must not be able to gain privileges.
func install(filter []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return fmt.Errorf("filter system calls: %w", errno)
	}
	return nil
}

// rule says what happens to one system call. With cases, act is taken when all
// conditions of one of them hold, and the call is refused otherwise.
type rule struct {
	number int
	act    uint32
	cases  [][]specs.LinuxSeccompArg
}

// callRules translates the container engines' list for this kernel and processor, one
// rule a system call.
func callRules() ([]rule, error) {
	none := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}}
	list, err := seccomp.GetDefaultProfile(none)
	if err != nil {
		return nil, fmt.Errorf("read list of system calls: %w", err)
	}
	machine, err := arch.GetInfo("")
	if err != nil {
		return nil, fmt.Errorf("read list of system calls: %w", err)
	}
	at := make(map[int]int) // number to index in rules
	var rules []rule
	for _, entry := range list.Syscalls {
		act, err := action(entry)
		if err != nil {
			return nil, err
		}
		for _, name := range entry.Names {
			number, known := machine.SyscallNames[name]
			if !known {
				continue // of another processor
			}
			i, seen := at[number]
			switch {
			case !seen:
				i = len(rules)
				at[number] = i
				rules = append(rules, rule{number: number, act: act})
			case len(rules[i].cases) == 0: // decided without conditions
				continue
			case len(entry.Args) == 0:
				rules[i].act, rules[i].cases = act, nil
				continue
			case rules[i].act != act:
				return nil, fmt.Errorf("list of system calls does different things to %s", name)
			}
			if len(entry.Args) > 0 {
				rules[i].cases = append(rules[i].cases, entry.Args)
			}
		}
	}
	slices.SortFunc(rules, func(a, b rule) int { return a.number - b.number })
	return rules, nil
}

func action(entry specs.LinuxSyscall) (uint32, error) {
	switch {
	case entry.Action == specs.ActAllow:
		return unix.SECCOMP_RET_ALLOW, nil
	case entry.Action == specs.ActErrno && entry.ErrnoRet != nil:
		return unix.SECCOMP_RET_ERRNO | uint32(*entry.ErrnoRet)&unix.SECCOMP_RET_DATA, nil
	case entry.Action == specs.ActErrno:
		return refused, nil
	}
	return 0, fmt.Errorf("list of system calls has action %s", entry.Action)
}

// auditArch is how the kernel names the processor in a filter's data.
var auditArch = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// Offsets in struct seccomp_data.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// x32Bit marks calls of the x32 interface, which share amd64's name in the data but
// have numbers of their own.
const x32Bit = 0x4000_0000

// assemble makes the filter program, in which the instructions before come first. What
// neither they nor the rules decide ends as otherwise says. Every call that is looked at more closely is
// decided where it is looked at, because the arguments take the place of the number.
func assemble(before []unix.SockFilter, rules []rule, otherwise uint32) ([]unix.SockFilter, error) {
	name, ok := auditArch[runtime.GOARCH]
	if !ok {
		return nil, fmt.Errorf("no system call filter for %s", runtime.GOARCH)
	}
	prog := []unix.SockFilter{
		load(offArch),
		jump(unix.BPF_JEQ, name, 1, 0),
		ret(unix.SECCOMP_RET_KILL_PROCESS),
		load(offNumber),
	}
	if runtime.GOARCH == "amd64" {
		prog = append(prog, jump(unix.BPF_JGE, x32Bit, 0, 1), ret(unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS)))
	}
	prog = append(prog, before...)
	for _, r := range rules {
		block := []unix.SockFilter{ret(r.act)}
		if len(r.cases) > 0 {
			block = nil
			for _, c := range r.cases {
				code, err := assembleCase(c, r.act)
				if err != nil {
					return nil, err
				}
				block = append(block, code...)
			}
			block = append(block, ret(refused))
		}
		prog = append(prog, jump(unix.BPF_JEQ, uint32(r.number), 1, 0), skip(len(block)))
		prog = append(prog, block...)
	}
	prog = append(prog, ret(otherwise))
	if len(prog) > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("system call filter has %d instructions", len(prog))
	}
	return prog, nil
}

// assembleCase returns code that does act when all conditions hold and else runs on
// behind its end.
func assembleCase(conditions []specs.LinuxSeccompArg, act uint32) ([]unix.SockFilter, error) {
	code := []unix.SockFilter{ret(act)}
	for _, c := range slices.Backward(conditions) {
		test, err := assembleCondition(c, uint8(len(code)))
		if err != nil {
			return nil, err
		}
		code = append(test, code...)
	}
	return code, nil
}

// assembleCondition returns code that runs on behind its end when the condition holds,
// and else behind another rest instructions.
func assembleCondition(c specs.LinuxSeccompArg, rest uint8) ([]unix.SockFilter, error) {
	high, low := uint32(c.Value>>32), uint32(c.Value)
	at := uint32(offArgs + 8*c.Index) // both processors are little-endian
	switch {
	case c.Op == specs.OpEqualTo:
		return []unix.SockFilter{
			load(at + 4), jump(unix.BPF_JEQ, high, 0, rest+2),
			load(at), jump(unix.BPF_JEQ, low, 0, rest),
		}, nil
	case c.Op == specs.OpLessThan:
		return []unix.SockFilter{
			load(at + 4), jump(unix.BPF_JGT, high, rest+3, 0),
			jump(unix.BPF_JEQ, high, 0, 2), // a smaller high half decides
			load(at), jump(unix.BPF_JGE, low, rest, 0),
		}, nil
	case c.Op == specs.OpMaskedEqual && c.ValueTwo == 0: // none of the bits of the first value
		return []unix.SockFilter{
			load(at + 4), jump(unix.BPF_JSET, high, rest+2, 0),
			load(at), jump(unix.BPF_JSET, low, rest, 0),
		}, nil
	}
	return nil, fmt.Errorf("list of system calls has condition %+v", c)
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func jump(test uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, K: k, Jt: yes, Jf: no}
}

func skip(n int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(n)}
}

func ret(act uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: act}
}
