package namespace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// Name is the driver's name in handles and settings.
const Name = "namespace"

// Config says where a driver works. Dir and Executable are needed.
type Config struct {
	// Dir is the driver's directory, absolute; it is made if it is not there.
	Dir string
	// Executable is our own executable, absolute. It must be statically linked,
	// call Init for the argument "namespace-init", run a keeper for the argument
	// "keeper", and stay as it is while sandboxes run.
	Executable string
	// Images is where sandboxes with an image get it from; nil is no images.
	Images sandbox.Images
	// RawNetwork is the private IPv4 network out of which sandboxes with NetworkNAT
	// get their addresses; several servers of a host may share it. The zero value is
	// no such sandboxes.
	RawNetwork netip.Prefix
}

// Driver is a sandbox.Driver.
type Driver struct {
	machine  *local.Machine
	launcher *launcher
}

var (
	_ sandbox.Driver  = (*Driver)(nil)
	_ sandbox.Warmer  = (*Driver)(nil)
	_ sandbox.Cleaner = (*Driver)(nil)

	_ sandbox.Uninstaller = (*Driver)(nil)
)

// Open returns the driver of a directory. It does not try whether namespaces can be
// made here; Probe does.
func Open(cfg Config) (*Driver, error) {
	if err := local.CheckExecutable(cfg.Executable); err != nil {
		return nil, fmt.Errorf("open namespace driver: %w", err)
	}
	l := &launcher{roots: local.NewRoots(filepath.Clean(cfg.Dir), cfg.Images), executable: cfg.Executable, privileged: privileged()}
	caps := capabilities(!l.privileged)
	caps.Images = cfg.Images != nil
	var err error
	if l.network, err = local.OpenNetwork(Name, cfg.Dir, cfg.RawNetwork, l.privileged); err != nil {
		return nil, err
	}
	if l.network != nil {
		caps.Networks = append(caps.Networks, sandbox.NetworkNAT)
	}
	m, err := local.Open(Name, cfg.Dir, caps, l)
	if err != nil {
		return nil, errors.Join(err, l.network.Close())
	}
	if err := l.roots.Prepare(m); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s driver: %w", Name, err), m.Close(), l.network.Close())
	}
	return &Driver{machine: m, launcher: l}, nil
}

func capabilities(unprivileged bool) sandbox.Capabilities {
	return sandbox.Capabilities{
		Isolation:    sandbox.IsolationNamespace,
		Exec:         true,
		PTY:          true,
		Limits:       sandbox.LimitSupport{Processes: true, OpenFiles: true, How: "Without groups, processes are counted by user namespace."},
		Networks:     []sandbox.Network{sandbox.NetworkNone},
		Unprivileged: unprivileged,
	}
}

// Name is "namespace".
func (d *Driver) Name() string { return Name }

// Capabilities is what the driver can do on this machine.
func (d *Driver) Capabilities() sandbox.Capabilities { return d.machine.Capabilities() }

// Create makes a sandbox; see sandbox.Driver.
func (d *Driver) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	return d.machine.Create(ctx, spec)
}

// Recover takes a running sandbox over; see sandbox.Driver.
func (d *Driver) Recover(ctx context.Context, h sandbox.Handle) (sandbox.Sandbox, error) {
	return d.machine.Recover(ctx, h)
}

// List returns all sandboxes of the directory; see sandbox.Driver.
func (d *Driver) List(ctx context.Context) ([]sandbox.Handle, error) { return d.machine.List(ctx) }

// Remains returns the directories of a sandbox that was not removed; see sandbox.Driver.
func (d *Driver) Remains(ctx context.Context, h sandbox.Handle) (sandbox.Dirs, error) {
	return d.machine.Remains(ctx, h)
}

// Remove destroys what is left of a sandbox; see sandbox.Driver.
func (d *Driver) Remove(ctx context.Context, h sandbox.Handle) error { return d.machine.Remove(ctx, h) }

// Warm makes there be n sandboxes ready for a spec; see sandbox.Warmer.
func (d *Driver) Warm(ctx context.Context, spec sandbox.Spec, n int) error {
	return d.machine.Warm(ctx, spec, n)
}

// Ready is how many sandboxes are ready for a spec; see sandbox.Warmer.
func (d *Driver) Ready(spec sandbox.Spec) int { return d.machine.Ready(spec) }

// Leftovers is what an earlier server left and could not be removed; see sandbox.Cleaner.
func (d *Driver) Leftovers() error { return d.machine.Leftovers() }

// ImagesInUse returns the digests of the images that the sandboxes of the directory were
// made with, whether they run or not.
func (d *Driver) ImagesInUse() (map[string]bool, error) { return d.machine.ImagesInUse() }

// Close lets go of all sandboxes; they run on. It ends those that are ready.
func (d *Driver) Close() error { return errors.Join(d.machine.Close(), d.launcher.network.Close()) }

// privileged reports whether this process may map users and mounts as root does. If
// not, the sandbox's root is this process's own user.
func privileged() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Geteuid() != 0 || unix.Capget(&hdr, &data[0]) != nil {
		return false
	}
	const need = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
	return data[0].Effective&need == need
}
