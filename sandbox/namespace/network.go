package namespace

import (
	"context"
	"fmt"
	"os"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

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

// Uninstall removes the rules of the network; see sandbox.Uninstaller.
func (d *Driver) Uninstall(context.Context) error { return d.launcher.network.Uninstall() }
