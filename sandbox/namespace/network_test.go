package namespace_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/namespace"
)

// TestNetworkIsGivenAndTakenAway runs in a process of its own, whose network namespace is
// the host: the test of package nat says what the rules do.
func TestNetworkIsGivenAndTakenAway(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can make network interfaces")
	}
	if os.Getenv(inOwnNetwork) == "" {
		againInOwnNetwork(t)
		return
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg := namespace.Config{Dir: t.TempDir(), Executable: self, RawNetwork: netip.MustParsePrefix("10.213.0.0/16")}
	d, err := namespace.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := d.Create(t.Context(), sandbox.Spec{Session: "raw", Network: sandbox.NetworkNAT})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Destroy(context.Background())
	conn, err := sb.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := link.Open(t.Context(), link.Framed(conn), link.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if out, _ := run(t, c, "cat", "/proc/net/route"); !strings.Contains(out, "eth0\t00000000") {
		t.Errorf("routes in the sandbox = %q, want a default one", out)
	}
	// The network takes nothing from the other walls.
	if out, code := run(t, c, sandbox.KeeperPath, commandCalls); code != 0 {
		t.Errorf("system calls: %s", out)
	}
	if got := links(t); got != 1 {
		t.Errorf("%d interfaces of sandboxes, want 1", got)
	}

	// A server that comes back leaves it alone.
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = namespace.Open(cfg); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if got := links(t); got != 1 {
		t.Errorf("%d interfaces of sandboxes after a restart, want 1", got)
	}
	if err := d.Remove(t.Context(), sb.Handle()); err != nil {
		t.Fatal(err)
	}
	if got := links(t); got != 0 {
		t.Errorf("%d interfaces of sandboxes after its removal, want none", got)
	}
}

func links(t *testing.T) int {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, i := range all {
		if strings.HasPrefix(i.Name, "sj") {
			n++
		}
	}
	return n
}

func TestNetworkNeedsRootAndForwarding(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	on, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	if err != nil {
		t.Fatal(err)
	}
	if forwards, _ := strconv.Atoi(strings.TrimSpace(string(on))); forwards == 1 && unix.Geteuid() == 0 {
		t.Skip("SKIPPED: this host has both")
	}
	d, err := namespace.Open(namespace.Config{Dir: t.TempDir(), Executable: self, RawNetwork: netip.MustParsePrefix("10.213.0.0/16")})
	if err == nil {
		d.Close()
		t.Fatal("a network is promised that cannot be")
	}
	if !strings.Contains(err.Error(), "ip_forward") && !strings.Contains(err.Error(), "root") {
		t.Errorf("Open = %v, want the reason", err)
	}
}
