package gvisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
	"github.com/sojourn-dev/sojourn/sandbox/internal/nat"
)

// networkMark is a file of a cell whose sandbox has an interface: gVisor's own network stack
// then works on it.
const networkMark = "network"

// hasNetwork reports whether the sandbox of a cell has an interface.
func hasNetwork(c *local.Cell) bool {
	_, err := os.Lstat(filepath.Join(c.Private(), networkMark))
	return err == nil
}

// networkOf is the value of runsc's flag for a cell.
func networkOf(c *local.Cell) string {
	if hasNetwork(c) {
		return "sandbox"
	}
	return "none"
}

// attach prepares the network that a spec asks for, names it in the bundle, and returns what
// lets go of it. runsc takes the addresses off the interface for its own stack, so a
// namespace is for one sandbox only.
func (l *launcher) attach(c *local.Cell, description *specs.Spec, spec sandbox.Spec) (letGo func(), err error) {
	if spec.Network != sandbox.NetworkNAT {
		return func() {}, nil
	}
	if err := os.WriteFile(filepath.Join(c.Private(), networkMark), nil, 0o600); err != nil {
		return nil, fmt.Errorf("mark network: %w", err)
	}
	ns, err := nat.NewNamespace()
	if err != nil {
		return nil, err
	}
	if _, err := l.network.Attach(c.ID, ns); err != nil {
		ns.Close()
		return nil, err
	}
	for i, n := range description.Linux.Namespaces {
		if n.Type == specs.NetworkNamespace {
			description.Linux.Namespaces[i].Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd())
		}
	}
	return func() { ns.Close() }, nil
}

// Uninstall removes the rules of the network; see sandbox.Uninstaller.
func (d *Driver) Uninstall(context.Context) error { return d.launcher.network.Uninstall() }
