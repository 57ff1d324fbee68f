package namespace

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
	"github.com/sojourn-dev/sojourn/sandbox/internal/nat"
)

// openNetwork opens the network of the sandboxes that ask for one. Links that are there with
// a name belong to sandboxes that run, because a link ends with its namespace.
func openNetwork(cfg Config) (*nat.Network, error) {
	if !privileged() {
		return nil, fmt.Errorf("open %s driver: network %q: only a server with root can make interfaces: %w",
			Name, sandbox.NetworkNAT, sandbox.ErrUnsupported)
	}
	n, err := nat.Open(nat.Config{Server: filepath.Clean(cfg.Dir), Range: cfg.RawNetwork}, func(id string) bool { return id != "" })
	if err != nil {
		return nil, fmt.Errorf("open %s driver: %w", Name, err)
	}
	return n, nil
}

// attach gives a sandbox whose init waits for its plan the network that its spec asks for.
func (l *launcher) attach(c *local.Cell, pid int, spec sandbox.Spec) error {
	if spec.Network != sandbox.NetworkNAT {
		return nil
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return fmt.Errorf("find network namespace: %w", err)
	}
	defer ns.Close()
	_, err = l.network.Attach(c.ID, ns)
	return err
}

// detach removes the link of a sandbox that has ended, which the kernel may be about to do.
func (l *launcher) detach(c *local.Cell) error {
	if l.network == nil {
		return nil
	}
	return l.network.Detach(c.ID)
}

// close lets go of the network; links and rules stay.
func (l *launcher) close() error {
	if l.network == nil {
		return nil
	}
	return l.network.Close()
}

// Uninstall removes the rules of the network; see sandbox.Uninstaller.
func (d *Driver) Uninstall(context.Context) error {
	if d.launcher.network == nil {
		return nil
	}
	return d.launcher.network.Uninstall()
}
