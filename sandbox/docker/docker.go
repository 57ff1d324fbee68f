package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// The driver's names in handles and settings. They are one driver with two demands.
const (
	Name        = "docker"
	NameMicroVM = "microvm"
)

// openTime is how long Open may wait for the engine.
const openTime = 60 * time.Second

// Config says where a driver works and with which engine. Dir and Executable are needed.
type Config struct {
	// Dir is the driver's directory, absolute; it is made if it is not there.
	Dir string
	// Executable is our own executable, absolute. It must be statically linked, run a
	// keeper for the argument "keeper", and stay as it is while sandboxes run.
	Executable string
	// Host is the engine's socket, "unix:///path". "" is DOCKER_HOST, or else the first
	// of the usual sockets of Docker and Podman that answers.
	Host string
	// Isolation is the wall that sandboxes must have: container, gvisor or microvm. ""
	// is that of the runtime. With microvm the driver's name is "microvm".
	Isolation sandbox.Isolation
	// Runtime is one of the engine's runtimes. "" is its default, or with Isolation
	// the first that has it.
	Runtime string
	// Images are the references that sessions may name, as they write them; one that
	// ends in "*" stands for all that begin so. None means that there are no images but
	// the driver's own root.
	Images []string
	// Pull says when images are fetched.
	Pull PullPolicy
	// Credentials, if set, returns what to log in with at an image's registry; an empty
	// user name means without.
	Credentials func(ctx context.Context, registry string) (user, password string, err error)
	// Progress, if set, is called while images are fetched, by several goroutines.
	Progress func(Progress)
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

// Open returns the driver of a directory. It talks to the engine, imports the root image
// if it is not there, and removes what no sandbox of the directory owns. It does not try
// whether a sandbox can be made; Probe does.
func Open(cfg Config) (*Driver, error) {
	ctx, cancel := context.WithTimeout(context.Background(), openTime)
	defer cancel()
	name := nameOf(cfg)
	if err := local.CheckExecutable(cfg.Executable); err != nil {
		return nil, fmt.Errorf("open %s driver: %w", name, err)
	}
	e, err := connect(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open %s driver: %w", name, err)
	}
	d, err := open(ctx, cfg, e)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s driver: %w", name, err), e.Close())
	}
	return d, nil
}

func open(ctx context.Context, cfg Config, e *engine) (*Driver, error) {
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("directory %q is not absolute", cfg.Dir)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	server, err := serverID(cfg.Dir)
	if err != nil {
		return nil, err
	}
	security, err := e.secure(filepath.Clean(cfg.Dir))
	if err != nil {
		return nil, err
	}
	l := &launcher{
		engine: e, server: server, security: security, executable: cfg.Executable, skeletons: local.NewSkeletons(filepath.Clean(cfg.Dir)),
		images: images{engine: e, allowed: cfg.Images, pull: cfg.Pull, login: cfg.Credentials, progress: cfg.Progress},
	}
	if err := l.prepareRoot(ctx); err != nil {
		return nil, err
	}
	m, err := local.Open(nameOf(cfg), cfg.Dir, e.capabilities(len(cfg.Images) > 0), l)
	if err != nil {
		return nil, err
	}
	if err := l.skeletons.Prepare(m); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return &Driver{machine: m, launcher: l}, nil
}

// Name is "docker", or "microvm" where that was asked for.
func (d *Driver) Name() string { return d.machine.Name() }

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

// List returns all sandboxes of the directory, and those that the engine made for it
// when the server that had asked was dead; see sandbox.Driver.
func (d *Driver) List(ctx context.Context) ([]sandbox.Handle, error) {
	hs, err := d.machine.List(ctx)
	if err != nil {
		return nil, err
	}
	orphans, err := d.launcher.orphans(ctx)
	if err != nil {
		return nil, err
	}
	for _, o := range orphans {
		h := sandbox.Handle{Driver: d.Name(), Session: o.session, Epoch: o.epoch}
		if sandbox.ValidateSession(h.Session, h.Epoch) == nil {
			hs = append(hs, h)
		}
	}
	return hs, nil
}

// Remains returns the directories of a sandbox that was not removed; see sandbox.Driver.
func (d *Driver) Remains(ctx context.Context, h sandbox.Handle) (sandbox.Dirs, error) {
	return d.machine.Remains(ctx, h)
}

// Remove destroys what is left of a sandbox; see sandbox.Driver.
func (d *Driver) Remove(ctx context.Context, h sandbox.Handle) error {
	if err := d.machine.Remove(ctx, h); err != nil || len(h.Data) > 0 {
		return err
	}
	// A handle without data may be of what the engine alone still has.
	orphans, err := d.launcher.orphans(ctx)
	if err != nil {
		return err
	}
	for _, o := range orphans {
		if o.session != h.Session || o.epoch != h.Epoch {
			continue
		}
		if err := d.launcher.remove(ctx, o.id); err != nil {
			return fmt.Errorf("remove sandbox %s-%d: %w", h.Session, h.Epoch, err)
		}
	}
	return nil
}

// Warm makes there be n sandboxes ready for a spec; see sandbox.Warmer.
func (d *Driver) Warm(ctx context.Context, spec sandbox.Spec, n int) error {
	return d.machine.Warm(ctx, spec, n)
}

// Ready is how many sandboxes are ready for a spec; see sandbox.Warmer.
func (d *Driver) Ready(spec sandbox.Spec) int { return d.machine.Ready(spec) }

// Leftovers is what an earlier server left and could not be removed; see sandbox.Cleaner.
func (d *Driver) Leftovers() error { return d.machine.Leftovers() }

// Close lets go of all sandboxes; they run on. It ends those that are ready.
func (d *Driver) Close() error {
	return errors.Join(d.machine.Close(), d.launcher.engine.Close())
}

func nameOf(cfg Config) string {
	if cfg.Isolation == sandbox.IsolationMicroVM {
		return NameMicroVM
	}
	return Name
}
