package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// Probe tries a driver by making a sandbox in a directory of its own below dir, talking
// to its keeper and destroying it. An empty dir is the system's for temporary files. In
// any other it first removes what a try left that was killed.
func Probe(ctx context.Context, name string, caps sandbox.Capabilities, dir string,
	open func(dir string) (sandbox.Driver, error),
) sandbox.Report {
	r := sandbox.Report{Driver: name, Isolation: caps.Isolation, Unprivileged: caps.Unprivileged}
	left, err := try(ctx, dir, open)
	if err != nil {
		r.Reason = fmt.Sprintf("A sandbox could not be made: %v.", err)
		r.Fix = fix(caps.Unprivileged)
		return r
	}
	r.Available = true
	r.Reason = "A sandbox was made as root and its keeper called."
	if caps.Unprivileged {
		r.Reason = "A sandbox was made without root and its keeper called."
	}
	if left != nil {
		r.Reason += fmt.Sprintf(" What an earlier try left could not be removed: %v.", left)
	}
	return r
}

// try makes a sandbox; left is why what an earlier try left is still there.
func try(ctx context.Context, dir string, open func(dir string) (sandbox.Driver, error)) (left, err error) {
	if dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		left = removeOldProbes(ctx, dir, open)
	}
	tmp, lock, err := beginProbe(dir)
	if err != nil {
		return left, err
	}
	defer lock.Close()
	defer func() { err = errors.Join(err, RemoveTree(tmp)) }()
	return left, tryIn(ctx, tmp, open)
}

func tryIn(ctx context.Context, dir string, open func(dir string) (sandbox.Driver, error)) (err error) {
	d, err := open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	sb, err := d.Create(ctx, sandbox.Spec{Session: "probe"})
	if err != nil {
		return err
	}
	conn, err := sb.Dial(ctx)
	if err == nil {
		err = conn.Close()
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	return errors.Join(err, sb.Destroy(clean), uninstall(clean, d))
}

// uninstall removes what a driver has outside of its directory.
func uninstall(ctx context.Context, d sandbox.Driver) error {
	if u, ok := d.(sandbox.Uninstaller); ok {
		return u.Uninstall(ctx)
	}
	return nil
}

// switches are settings of the kernel that keep users from making namespaces.
var switches = []struct{ path, off, fix string }{
	{"/proc/sys/user/max_user_namespaces", "0", "Allow user namespaces: sysctl user.max_user_namespaces=15000."},
	{"/proc/sys/kernel/unprivileged_userns_clone", "0", "Allow user namespaces: sysctl kernel.unprivileged_userns_clone=1, or run as root."},
	{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "Let AppArmor allow user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run as root."},
}

// fix guesses what an operator can do.
func fix(unprivileged bool) string {
	for _, s := range switches {
		b, err := os.ReadFile(s.path)
		if err == nil && strings.TrimSpace(string(b)) == s.off {
			return s.fix
		}
	}
	_, err := os.Stat("/.dockerenv")
	if filtered, readErr := isFiltered("/proc/self/status"); err == nil || readErr == nil && filtered {
		return "Something confines the server. In a container: start it with --security-opt seccomp=unconfined --security-opt apparmor=unconfined --cap-add SYS_ADMIN."
	}
	if unprivileged {
		return "Run the server as root, or choose another driver."
	}
	return "Choose another driver."
}

// isFiltered reports whether a filter of system calls is around the process that status
// describes.
func isFiltered(status string) (bool, error) {
	b, err := os.ReadFile(status)
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(b)) {
		if mode, ok := strings.CutPrefix(line, "Seccomp:"); ok {
			return strings.TrimSpace(mode) == "2", nil
		}
	}
	return false, nil
}
