package namespace

import (
	"errors"
	"fmt"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// heldCapabilities are what root in the sandbox may do: things with files, users and
// processes of the sandbox, so that installers and archives work as usual. None of them
// reaches beyond ids that are mapped into the sandbox.
const heldCapabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID

// maxCapability is a bound of the numbers of capabilities; the kernel answers EINVAL
// from its own on.
const maxCapability = 63

// dropCapabilities keeps the held capabilities and makes sure that no others come back.
func dropCapabilities() error {
	for c := uintptr(0); c <= maxCapability; c++ {
		if heldCapabilities&(1<<c) != 0 {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new privileges: %w", err)
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: heldCapabilities, Permitted: heldCapabilities}}
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}

// restrictFiles says once more, through Landlock, what can be written and that nothing
// can be mounted, which sockets of the host can be connected to and that no signal
// leaves. Kernels without it rely on the mounts and namespaces alone. A root that is
// the sandbox's own to change can be written to everywhere.
func restrictFiles(ownRoot bool) error {
	writable := []string{sandbox.WorkspacePath, sandbox.HomePath, "/tmp", "/dev", "/proc"}
	if ownRoot {
		writable = []string{"/"}
	}
	// In one layer, because a second that handles no files would forbid to move them
	// between directories. Ports are the sandbox's own.
	all := landlock.Config{HandledAccessFS: landlock.V9.HandledAccessFS, Scoped: landlock.V9.Scoped}
	err := all.BestEffort().Restrict(
		landlock.RODirs("/"),
		landlock.RWDirs(writable...).WithRefer().WithIoctlDev(),
		landlock.RODirs(sandbox.SocketDir).WithResolveUnix(),
	)
	if err != nil {
		return fmt.Errorf("restrict files: %w", err)
	}
	return nil
}

// landlockSays is a sentence for operators about this kernel's Landlock.
func landlockSays() string {
	abi, err := ll.LandlockGetABIVersion()
	if err != nil {
		return "The kernel has no Landlock: mounts and namespaces alone keep its files."
	}
	return fmt.Sprintf("Landlock ABI %d backs the mounts up.", abi)
}
