package nat

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// commandIdle is the first argument with which the test binary is a sandbox.
const commandIdle = "nattest-idle"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == commandIdle {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test lets go
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The addresses of the world: nothing of it leaves its network namespaces.
const (
	uplinkOfHost = "93.184.216.1"
	publicServer = "93.184.216.34"
	privateAddr  = "10.9.9.9"
	metadataAddr = "169.254.169.254"
	port         = "80"
)

var testRange = netip.MustParsePrefix("172.30.0.0/16")

// world is a host with an uplink to an internet of its own.
type world struct {
	t              *testing.T
	host, internet netns.NsHandle
}

// newWorld makes the namespaces and puts the test's thread into the host's.
func newWorld(t *testing.T) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can make network namespaces and interfaces")
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with the test, and leaves no trace
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("SKIPPED: this machine makes no network namespaces: %v", err)
	}
	host, err := netns.Get()
	must(t, err)
	f, err := NewNamespace()
	must(t, err)
	t.Cleanup(func() { f.Close(); host.Close() })
	w := &world{t: t, host: host, internet: netns.NsHandle(f.Fd())}
	must(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: named("uplink"), PeerName: "world", PeerNamespace: netlink.NsFd(w.internet)}))
	address(t, "lo", "127.0.0.1/8")
	address(t, "uplink", uplinkOfHost+"/24")
	w.in(w.internet, func() {
		address(t, "world", publicServer+"/24")
		address(t, "lo", privateAddr+"/32")
		address(t, "lo", metadataAddr+"/32")
		// So that it could call in, if the host let it.
		route(t, testRange.String(), uplinkOfHost)
	})
	route(t, privateAddr+"/32", publicServer)
	route(t, metadataAddr+"/32", publicServer)
	return w
}

func named(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

func address(t *testing.T, link, cidr string) {
	t.Helper()
	l, err := netlink.LinkByName(link)
	must(t, err)
	addr, err := netlink.ParseAddr(cidr)
	must(t, err)
	if addr.IP.To4() == nil {
		addr.Flags = unix.IFA_F_NODAD
	}
	must(t, netlink.LinkSetUp(l))
	if err := netlink.AddrAdd(l, addr); err != nil && !errors.Is(err, unix.EEXIST) {
		t.Fatal(err)
	}
}

func route(t *testing.T, cidr, via string) {
	t.Helper()
	_, dst, err := net.ParseCIDR(cidr)
	must(t, err)
	must(t, netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(via)}))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// in runs something in another network namespace, on the test's thread.
func (w *world) in(ns netns.NsHandle, do func()) {
	w.t.Helper()
	must(w.t, netns.Set(ns))
	defer func() { must(w.t, netns.Set(w.host)) }()
	do()
}

// serve answers on all addresses of the current namespace with the caller's address.
func serve(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", ":"+port)
	must(t, err)
	t.Cleanup(func() { ln.Close() })
	go func() { // ends with the listener
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, c.RemoteAddr().(*net.TCPAddr).IP)
			c.Close()
		}
	}()
	return ln
}

// ask connects and returns as whom the server sees the caller; "" is no connection.
func ask(addr string) string {
	c, err := net.DialTimeout("tcp", net.JoinHostPort(addr, port), 400*time.Millisecond)
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	b, _ := io.ReadAll(c)
	return string(b)
}

// reach is ask where there must be an answer. A link that was just raised may lose the first
// packet, and the kernel sends it again only after a second.
func reach(addr string) string {
	for range 10 {
		if got := ask(addr); got != "" {
			return got
		}
	}
	return ""
}

// box is a process with a network namespace of its own.
type box struct {
	cmd  *exec.Cmd
	in   io.Closer
	ns   *os.File
	addr Address
}

func (w *world) newBox() *box {
	w.t.Helper()
	self, err := os.Executable()
	must(w.t, err)
	cmd := exec.Command(self, commandIdle)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	in, err := cmd.StdinPipe()
	must(w.t, err)
	must(w.t, cmd.Start())
	b := &box{cmd: cmd, in: in}
	w.t.Cleanup(b.end)
	b.ns, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	must(w.t, err)
	return b
}

// end ends the process and lets go of its namespace. It may be called twice.
func (b *box) end() {
	b.in.Close()
	_ = b.cmd.Wait() // the second time it says so
	b.ns.Close()
}

func (w *world) attach(n *Network, id string) *box {
	w.t.Helper()
	b := w.newBox()
	var err error
	b.addr, err = n.Attach(id, b.ns)
	must(w.t, err)
	return b
}

func none(string) bool { return false }

func (w *world) open(server string) *Network {
	w.t.Helper()
	n, err := Open(Config{Server: server, Range: testRange}, none)
	must(w.t, err)
	w.t.Cleanup(func() { n.Close() })
	return n
}

func TestSandboxReachesPublicAddressesOnly(t *testing.T) {
	w := newWorld(t)
	n := w.open("/srv/one")
	w.in(w.internet, func() { serve(t) })
	serve(t)
	a, b := w.attach(n, "a"), w.attach(n, "b")
	w.in(netns.NsHandle(b.ns.Fd()), func() { serve(t) })

	// The host reaches all of it, so what is refused below is refused by the rules.
	for _, addr := range []string{publicServer, privateAddr, metadataAddr} {
		if got := reach(addr); got == "" {
			t.Fatalf("the host cannot reach %s", addr)
		}
	}
	w.in(netns.NsHandle(a.ns.Fd()), func() {
		if got := reach(publicServer); got != uplinkOfHost {
			t.Errorf("the internet sees the sandbox as %q, want %s", got, uplinkOfHost)
		}
		for _, addr := range []string{privateAddr, metadataAddr, uplinkOfHost, a.addr.Gateway.String(), b.addr.Gateway.String(), b.addr.Sandbox.Addr().String()} {
			if got := ask(addr); got != "" {
				t.Errorf("the sandbox reaches %s as %s", addr, got)
			}
		}
	})
	c, err := n.Counts()
	must(t, err)
	if c.Allowed == 0 || c.Private == 0 || c.ToHost == 0 || c.Spoofed != 0 {
		t.Errorf("counts = %+v", c)
	}
}

func TestNothingComesIn(t *testing.T) {
	w := newWorld(t)
	n := w.open("/srv/one")
	b := w.attach(n, "a")
	w.in(netns.NsHandle(b.ns.Fd()), func() { serve(t) })
	addr := b.addr.Sandbox.Addr().String()
	if got := ask(addr); got != "" {
		t.Errorf("the host reaches into the sandbox as %s", got)
	}
	w.in(w.internet, func() {
		if got := ask(addr); got != "" {
			t.Errorf("the internet reaches into the sandbox as %s", got)
		}
	})
	c, err := n.Counts()
	must(t, err)
	if c.Inbound == 0 {
		t.Errorf("counts = %+v", c)
	}
	must(t, n.Uninstall())
	// The way there was: without the rules the same link lets it in.
	n = w.open("/srv/one")
	b = w.attach(n, "a")
	w.in(netns.NsHandle(b.ns.Fd()), func() { serve(t) })
	conn, err := n.conn()
	must(t, err)
	n.unguard()
	conn.DelTable(n.table())
	must(t, conn.Flush())
	w.in(w.internet, func() {
		if got := reach(b.addr.Sandbox.Addr().String()); got == "" {
			t.Error("without rules nothing comes in either, so the test shows nothing")
		}
	})
}

func TestForeignSourcesAndIPv6AreDropped(t *testing.T) {
	w := newWorld(t)
	n := w.open("/srv/one")
	b := w.attach(n, "a")
	links, err := n.own()
	must(t, err)
	address(t, links[0].Attrs().Name, "fd00:1::1/64")
	serve(t)
	w.in(netns.NsHandle(b.ns.Fd()), func() {
		address(t, "lo", "93.184.216.99/32")
		address(t, inside, "fd00:1::2/64")
		c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP("93.184.216.99")}, &net.UDPAddr{IP: net.ParseIP(publicServer), Port: 53})
		must(t, err)
		defer c.Close()
		_, err = c.Write([]byte("x"))
		must(t, err)
		if got := ask("fd00:1::1"); got != "" {
			t.Errorf("the sandbox reaches the host over IPv6 as %s", got)
		}
	})
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		c, err := n.Counts()
		must(t, err)
		if c.Spoofed > 0 && c.ToHost > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("counts = %+v", c)
		}
	}
}

func (w *world) names(prefix string) []string {
	w.t.Helper()
	all, err := netlink.LinkList()
	must(w.t, err)
	var names []string
	for _, l := range all {
		if strings.HasPrefix(l.Attrs().Name, prefix) {
			names = append(names, l.Attrs().Name+"="+l.Attrs().Alias)
		}
	}
	slices.Sort(names)
	return names
}

func TestLinkEndsWithItsSandbox(t *testing.T) {
	w := newWorld(t)
	n := w.open("/srv/one")
	b := w.attach(n, "a")
	if got := w.names("sj"); len(got) != 1 {
		t.Fatalf("links = %v, want one", got)
	}
	b.end()
	for end := time.Now().Add(30 * time.Second); len(w.names("sj")) != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("links = %v after the end of the sandbox", w.names("sj"))
		}
	}
	must(t, n.Detach("a"))
}

func TestServersOnOneHostLeaveEachOtherAlone(t *testing.T) {
	w := newWorld(t)
	one, two := w.open("/srv/one"), w.open("/srv/two")
	w.in(w.internet, func() { serve(t) })
	a, b := w.attach(one, "same"), w.attach(two, "same")
	if a.addr == b.addr {
		t.Fatalf("both have %v", a.addr)
	}
	kept := w.names(two.prefix())
	// The first server comes back and knows nothing of its sandbox.
	one = w.open("/srv/one")
	if got := w.names(one.prefix()); len(got) != 0 {
		t.Errorf("links of the first server = %v, want none", got)
	}
	must(t, one.Uninstall())
	if got := w.names(two.prefix()); !slices.Equal(got, kept) {
		t.Errorf("links of the second server = %v, want %v", got, kept)
	}
	w.in(netns.NsHandle(b.ns.Fd()), func() {
		if got := reach(publicServer); got != uplinkOfHost {
			t.Errorf("the second server's sandbox is seen as %q, want %s", got, uplinkOfHost)
		}
	})
	if _, err := two.Counts(); err != nil {
		t.Errorf("counts of the second server: %v", err)
	}
}

func TestSweepKeepsWhatRuns(t *testing.T) {
	w := newWorld(t)
	n := w.open("/srv/one")
	w.attach(n, "a")
	w.attach(n, "b")
	again, err := Open(Config{Server: "/srv/one", Range: testRange}, func(id string) bool { return id == "b" })
	must(t, err)
	defer again.Close()
	if got := w.names("sj"); len(got) != 1 || !strings.HasSuffix(got[0], "=b") {
		t.Errorf("links = %v, want that of b", got)
	}
}

func TestAttachSaysWhenAllIsTaken(t *testing.T) {
	w := newWorld(t)
	n, err := Open(Config{Server: "/srv/one", Range: netip.MustParsePrefix("172.30.7.0/29")}, none)
	must(t, err)
	defer n.Close()
	w.attach(n, "a")
	w.attach(n, "b")
	third := w.newBox()
	if a, err := n.Attach("c", third.ns); err == nil || !strings.Contains(err.Error(), "taken") {
		t.Errorf("a third of two blocks = %v, %v", a, err)
	}
	must(t, n.Detach("a"))
	if _, err := n.Attach("c", third.ns); err != nil {
		t.Errorf("after one was given back: %v", err)
	}
}

func TestCheckRefuses(t *testing.T) {
	w := newWorld(t)
	for _, p := range []string{"8.8.0.0/16", "10.0.0.0/31", "10.0.0.1/16", "fd00::/64"} {
		if err := (Config{Range: netip.MustParsePrefix(p)}).Check(); err == nil {
			t.Errorf("range %s is accepted", p)
		}
	}
	if err := (Config{Range: testRange}).Check(); err != nil {
		t.Errorf("Check = %v", err)
	}
	must(w.t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0))
	if err := (Config{Range: testRange}).Check(); err == nil || !strings.Contains(err.Error(), "ip_forward") {
		t.Errorf("Check on a host that does not forward = %v", err)
	}
}

// BenchmarkAttach measures giving a namespace an interface and taking it away, beside making
// and ending the process that has the namespace.
func BenchmarkAttach(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("SKIPPED: only root can make network namespaces and interfaces")
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		b.Skipf("SKIPPED: this machine makes no network namespaces: %v", err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		b.Fatal(err)
	}
	n, err := Open(Config{Server: "/srv/bench", Range: testRange}, none)
	if err != nil {
		b.Fatal(err)
	}
	defer n.Close()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	var attach, process time.Duration
	i := 0
	for ; b.Loop(); i++ {
		began := time.Now()
		cmd := exec.Command(self, commandIdle)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			b.Fatal(err)
		}
		process += time.Since(began)
		began = time.Now()
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
		if err == nil {
			_, err = n.Attach("bench", ns)
			ns.Close()
		}
		if err != nil {
			b.Fatal(err)
		}
		if err := n.Detach("bench"); err != nil {
			b.Fatal(err)
		}
		attach += time.Since(began)
		began = time.Now()
		in.Close()
		_ = cmd.Wait() // it ends with its input
		process += time.Since(began)
	}
	b.ReportMetric(attach.Seconds()*1000/float64(i), "attach-ms")
	b.ReportMetric(attach.Seconds()/process.Seconds(), "x-process")
}
