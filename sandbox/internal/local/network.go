package local

import (
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/nat"
)

// OpenNetwork opens the network of the sandboxes with an interface of a driver's directory.
// It is nil, which has no links and needs no closing, when addrs is the zero value. Links
// that are there with a name belong to sandboxes that run, because a link ends with its
// namespace.
func OpenNetwork(driver, dir string, addrs netip.Prefix, privileged bool) (*nat.Network, error) {
	if !addrs.IsValid() {
		return nil, nil
	}
	if !privileged {
		return nil, fmt.Errorf("open %s driver: network %q: only a server with root can make interfaces: %w",
			driver, sandbox.NetworkNAT, sandbox.ErrUnsupported)
	}
	n, err := nat.Open(nat.Config{Server: filepath.Clean(dir), Range: addrs}, func(id string) bool { return id != "" })
	if err != nil {
		return nil, fmt.Errorf("open %s driver: %w", driver, err)
	}
	return n, nil
}
