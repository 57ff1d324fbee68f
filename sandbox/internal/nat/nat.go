package nat

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The addresses of a slot, counted from its first.
const (
	slotSize  = 4
	hostAt    = 1
	sandboxAt = 2
	slotBits  = 30 // of a network prefix
)

// inside is the name of the interface in a sandbox.
const inside = "eth0"

// maxSlots is how many slots a range is divided into at most, so that their numbers fit in
// the names of interfaces.
const maxSlots = 1 << 16

// Config says which addresses a server gives to its sandboxes.
type Config struct {
	// Server tells this server from others on the host: the path of its directory.
	Server string
	// Range is a private IPv4 network of 4 addresses a sandbox, at least. Servers on
	// one host may share it.
	Range netip.Prefix
}

// Network is the network of one server's sandboxes, in the network namespace in which Open
// was called.
type Network struct {
	key   string // of the server, 6 hexadecimal digits
	addrs netip.Prefix
	home  netns.NsHandle
	links *netlink.Handle

	off      context.CancelFunc // ends the guard
	guarding sync.WaitGroup
}

// Address is what a sandbox got.
type Address struct {
	Sandbox netip.Prefix
	Gateway netip.Addr
}

// Check reports why sandboxes cannot have such a network here; nil means that they can.
func (c Config) Check() error {
	r := c.Range
	if !r.IsValid() || !r.Addr().Is4() || !r.Addr().IsPrivate() || r.Bits() > slotBits || r.Masked() != r {
		return fmt.Errorf("range %s is no private IPv4 network", r)
	}
	if os.Geteuid() != 0 {
		return errors.New("only root can make network interfaces")
	}
	on, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward") // of the calling thread's namespace
	if err != nil {
		return fmt.Errorf("read whether the host forwards packets: %w", err)
	}
	if string(bytes.TrimSpace(on)) != "1" {
		return errors.New("the host does not forward packets (sysctl net.ipv4.ip_forward=1 lets it)")
	}
	return nil
}

// Open installs the rules and removes links of this server that have no sandbox any more:
// keep reports whether one with an id exists.
func Open(cfg Config, keep func(id string) bool) (*Network, error) {
	if err := cfg.Check(); err != nil {
		return nil, fmt.Errorf("open network: %w", err)
	}
	home, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("open network: %w", err)
	}
	sum := sha256.Sum256([]byte(cfg.Server))
	n := &Network{key: hex.EncodeToString(sum[:3]), addrs: cfg.Range, home: home}
	if n.links, err = netlink.NewHandleAt(home, unix.NETLINK_ROUTE); err == nil {
		err = n.install()
	}
	if err == nil {
		err = n.sweep(keep)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open network: %w", err), n.Close())
	}
	var life context.Context
	life, n.off = context.WithCancel(context.Background())
	n.guarding.Go(func() { n.guard(life) })
	return n, nil
}

// Close lets go of the network; links and rules stay. It may be called twice, and not beside
// other methods. A nil network, of a server that has none, has nothing to let go of.
func (n *Network) Close() error {
	if n == nil {
		return nil
	}
	n.unguard()
	if n.links != nil {
		n.links.Close()
		n.links = nil
	}
	if n.home.IsOpen() {
		return n.home.Close()
	}
	return nil
}

// prefix is how the names of all the server's interfaces begin.
func (n *Network) prefix() string { return "sj" + n.key + "-" }

func (n *Network) slots() int {
	return min(1<<(slotBits-n.addrs.Bits()), maxSlots)
}

// slot returns the addresses of a slot.
func (n *Network) slot(i int) Address {
	first := binary.BigEndian.Uint32(n.addrs.Addr().AsSlice()) + uint32(i)*slotSize
	at := func(offset uint32) netip.Addr {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], first+offset)
		return netip.AddrFrom4(b)
	}
	return Address{Sandbox: netip.PrefixFrom(at(sandboxAt), slotBits), Gateway: at(hostAt)}
}

// Attach gives a network namespace an interface, and routes. There is one for an id: an
// earlier one is removed. The namespace is an open file, as those in /proc/PID/ns are.
func (n *Network) Attach(id string, namespace *os.File) (Address, error) {
	if err := n.Detach(id); err != nil {
		return Address{}, err
	}
	ns := netns.NsHandle(namespace.Fd())
	sum := sha256.Sum256([]byte(id))
	start := int(binary.BigEndian.Uint32(sum[:4])) % n.slots()
	for i := range n.slots() {
		slot := (start + i) % n.slots()
		a, err := n.take(slot, id, ns)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return Address{}, errors.Join(fmt.Errorf("attach %s: %w", id, err), n.Detach(id))
		}
		return a, nil
	}
	return Address{}, fmt.Errorf("attach %s: all %d blocks of %s are taken", id, n.slots(), n.addrs)
}

// take makes a link on a slot. The error is EEXIST when somebody else has the slot.
func (n *Network) take(slot int, id string, ns netns.NsHandle) (Address, error) {
	a := n.slot(slot)
	if taken, err := n.taken(a.Gateway, ""); err != nil || taken {
		return a, errors.Join(err, unix.EEXIST)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = fmt.Sprintf("%s%04x", n.prefix(), slot)
	// The far end is made where it belongs, so there is never one to move, and none is
	// left when the sandbox dies.
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: inside, PeerNamespace: netlink.NsFd(ns)}
	if err := n.links.LinkAdd(pair); err != nil {
		return a, fmt.Errorf("make interface: %w", err)
	}
	// A server that dies before this leaves a link of nobody, which the next removes.
	if err := n.links.LinkSetAlias(pair, id); err != nil {
		return a, errors.Join(fmt.Errorf("name interface: %w", err), n.links.LinkDel(pair))
	}
	addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a.Gateway, slotBits))}
	if err := n.links.AddrAdd(pair, addr); err != nil {
		return a, fmt.Errorf("give the host an address: %w", err)
	}
	// Another server may have looked for the same address at the same time. Then both
	// see it and both go on.
	if taken, err := n.taken(a.Gateway, attrs.Name); err != nil || taken {
		return a, errors.Join(err, n.links.LinkDel(pair), unix.EEXIST)
	}
	if err := n.links.LinkSetUp(pair); err != nil {
		return a, fmt.Errorf("raise interface: %w", err)
	}
	return a, furnish(ns, a)
}

// taken reports whether an interface other than one has an address.
func (n *Network) taken(a netip.Addr, but string) (bool, error) {
	all, err := n.links.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return false, fmt.Errorf("list addresses: %w", err)
	}
	for _, other := range all {
		ip, ok := netip.AddrFromSlice(other.IP.To4())
		if ok && ip == a && other.Label != but {
			return true, nil
		}
	}
	return false, nil
}

// furnish sets up the sandbox's end.
func furnish(ns netns.NsHandle, a Address) error {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(inside)
	if err != nil {
		return fmt.Errorf("find interface: %w", err)
	}
	if err := h.AddrAdd(link, &netlink.Addr{IPNet: ipNet(a.Sandbox)}); err != nil {
		return fmt.Errorf("give the sandbox an address: %w", err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("raise interface: %w", err)
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: a.Gateway.AsSlice()}
	if err := h.RouteAdd(route); err != nil {
		return fmt.Errorf("add route: %w", err)
	}
	return nil
}

// Detach removes the link of an id. It is no error when there is none, as in a nil network.
func (n *Network) Detach(id string) error {
	if n == nil {
		return nil
	}
	return n.remove(func(alias string) bool { return alias == id })
}

// sweep removes the links that have no sandbox.
func (n *Network) sweep(keep func(id string) bool) error {
	return n.remove(func(alias string) bool { return !keep(alias) })
}

func (n *Network) remove(which func(alias string) bool) error {
	links, err := n.own()
	if err != nil {
		return err
	}
	for _, l := range links {
		if !which(l.Attrs().Alias) {
			continue
		}
		err := n.links.LinkDel(l)
		if err != nil && !errors.Is(err, unix.ENODEV) { // it went with its sandbox
			return fmt.Errorf("remove interface %s: %w", l.Attrs().Name, err)
		}
	}
	return nil
}

// own lists the server's interfaces.
func (n *Network) own() ([]netlink.Link, error) {
	all, err := n.links.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return slices.DeleteFunc(all, func(l netlink.Link) bool { return !strings.HasPrefix(l.Attrs().Name, n.prefix()) }), nil
}

// NewNamespace makes a network namespace that only the returned file holds, for sandboxes
// whose processes cannot make one themselves. Its loopback is down.
func NewNamespace() (*os.File, error) {
	type made struct {
		file *os.File
		err  error
	}
	done := make(chan made)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends here, with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- made{err: fmt.Errorf("make network namespace: %w", err)}
			return
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		done <- made{f, err}
	}()
	m := <-done
	return m.file, m.err
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
