package gvisor

import (
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

// networkOf is the value of runsc's flag for a cell.
func networkOf(c *local.Cell) string {
	if _, err := os.Lstat(filepath.Join(c.Private(), networkMark)); err == nil {
		return "sandbox"
	}
	return "none"
}

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
