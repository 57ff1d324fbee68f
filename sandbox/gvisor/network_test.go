package gvisor_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/gvisor"
)

// inOwnNetwork is set in the environment of a test that runs in a network namespace of its own.
const inOwnNetwork = "GVISORTEST_OWN_NETWORK"

// The host of the test and its internet, which is another network namespace.
const (
	uplinkOfHost = "93.184.216.1"
	publicServer = "93.184.216.34"
)

// TestNetworkReachesPublicAddressesOnly runs in a process of its own, so that nothing of it
// touches the machine's interfaces, rules and settings.
func TestNetworkReachesPublicAddressesOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can make network interfaces")
	}
	if os.Getenv(inOwnNetwork) == "" {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inOwnNetwork+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("in a network namespace of its own: %v\n%s", err, out)
		}
		return
	}
	port := internet(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d, err := gvisor.Open(gvisor.Config{Dir: t.TempDir(), Executable: self, RawNetwork: netip.MustParsePrefix("10.213.0.0/16")})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
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

	ln, err := net.Listen("tcp", fmt.Sprintf(":%d", port)) // of the host
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	public := fmt.Sprintf("%s:%d", publicServer, port)
	host := fmt.Sprintf("%s:%d", uplinkOfHost, port)
	p := link.StartParams{ProcessID: "connect", Argv: []string{sandbox.KeeperPath, "sandboxtest-inside", "connect", public, host}, Cwd: "/"}
	if err := c.Start(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	var reached strings.Builder
	for after := int64(0); ; {
		r, err := c.Read(t.Context(), link.ReadParams{ProcessID: "connect", AfterSeq: after, Wait: link.MaxWait})
		if err != nil {
			t.Fatal(err)
		}
		for _, chunk := range r.Chunks {
			reached.Write(chunk.Data)
		}
		after = r.NextSeq - 1
		if r.Closed {
			break
		}
	}
	if got := reached.String(); got != public+"\n" {
		t.Errorf("the sandbox reaches %q, want %s alone", got, public)
	}
	// What could not be resumed is not saved: that would end its processes for nothing.
	if _, err := sb.(sandbox.Snapshotter).Snapshot(t.Context(), t.TempDir()); !errors.Is(err, sandbox.ErrUnsupported) || sb.Err() != nil {
		t.Errorf("Snapshot = %v, and the sandbox says %v, want ErrUnsupported and that it runs", err, sb.Err())
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.Uninstall(t.Context()); err != nil {
		t.Errorf("Uninstall = %v", err)
	}
	nft, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	if tables, err := nft.ListTables(); err != nil || len(tables) != 0 {
		t.Errorf("after Uninstall there are the tables %v, %v", tables, err)
	}
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		if strings.HasPrefix(i.Name, "sj") {
			t.Errorf("interface %s is left", i.Name)
		}
	}
}

// internet connects this process' namespace with another one, in which something listens on
// the port that is returned.
func internet(t *testing.T) (port int) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	host, err := netns.Get()
	check(err)
	defer host.Close()
	far, err := netns.New()
	check(err)
	defer far.Close()
	check(netns.Set(host))
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "uplink"
	check(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "world", PeerNamespace: netlink.NsFd(far)}))
	raise := func(name, cidr string) {
		t.Helper()
		l, err := netlink.LinkByName(name)
		check(err)
		addr, err := netlink.ParseAddr(cidr)
		check(err)
		check(netlink.AddrAdd(l, addr))
		check(netlink.LinkSetUp(l))
	}
	raise("uplink", uplinkOfHost+"/24")
	check(netns.Set(far))
	raise("world", publicServer+"/24")
	ln, err := net.Listen("tcp", ":0")
	check(err)
	t.Cleanup(func() { ln.Close() })
	check(netns.Set(host))
	return ln.Addr().(*net.TCPAddr).Port
}
