package process

import (
	"context"
	"fmt"
	"os"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// Name is the driver's name in handles and settings.
const Name = "process"

// Config says where a driver works. Both fields are needed.
type Config struct {
	// Dir is the driver's directory, absolute; it is made if it is not there.
	Dir string
	// Executable is our own executable, absolute. It must be statically linked,
	// call Guard for the argument "process-guard" and Confine for
	// "process-confine", run a keeper for the argument "keeper", and stay as it is
	// while sandboxes run.
	Executable string
}

// Driver is a sandbox.Driver.
type Driver struct {
	machine *local.Machine
}

var (
	_ sandbox.Driver  = (*Driver)(nil)
	_ sandbox.Cleaner = (*Driver)(nil)
)

// Open returns the driver of a directory.
func Open(cfg Config) (*Driver, error) {
	if err := local.CheckExecutable(cfg.Executable); err != nil {
		return nil, fmt.Errorf("open process driver: %w", err)
	}
	if _, err := ll.LandlockGetABIVersion(); err != nil {
		return nil, fmt.Errorf("open process driver: the kernel has no Landlock: %w", err)
	}
	m, err := local.Open(Name, cfg.Dir, capabilities(), &launcher{executable: cfg.Executable})
	if err != nil {
		return nil, err
	}
	return &Driver{machine: m}, nil
}

func capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{
		Isolation: sandbox.IsolationProcess,
		Exec:      true,
		PTY:       true,
		Limits: sandbox.LimitSupport{
			OpenFiles: true,
			How:       "Open files by setrlimit.",
		},
		Networks:     []sandbox.Network{sandbox.NetworkNone},
		HostPaths:    true,
		Unprivileged: os.Geteuid() != 0,
	}
}

// Name is "process".
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

// Leftovers is what an earlier server left and could not be removed; see sandbox.Cleaner.
func (d *Driver) Leftovers() error { return d.machine.Leftovers() }

// Close lets go of all sandboxes; they run on.
func (d *Driver) Close() error { return d.machine.Close() }
