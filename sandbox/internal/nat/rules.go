package nat

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// closed are the networks that no sandbox reaches: all that are not public.
var closed = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"), // shared by providers, and some clouds' metadata
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"), // link-local, and other clouds' metadata
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("192.88.99.0/24"),
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("224.0.0.0/3"), // multicast, reserved, broadcast
}

// Counts are how many packets of all the server's sandboxes met a rule since the rules were
// installed.
type Counts struct {
	Allowed    uint64 // left for the internet
	Private    uint64 // were for an address that is not public
	Spoofed    uint64 // had a source that is not the sandbox's
	OtherProto uint64 // were not IPv4
	ToHost     uint64 // were for the host itself
	Inbound    uint64 // came to a sandbox without having been asked for
}

// The names of the counters.
const (
	countAllowed    = "allowed"
	countPrivate    = "private"
	countSpoofed    = "spoofed"
	countOtherProto = "other"
	countToHost     = "host"
	countInbound    = "inbound"
)

func (n *Network) table() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: "sojourn-" + n.key}
}

// conn is a connection to the rules of the host. It dials for each batch.
func (n *Network) conn() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.WithNetNSFd(int(n.home)))
	if err != nil {
		return nil, fmt.Errorf("reach nftables: %w", err)
	}
	return c, nil
}

// install puts the server's table in place of an earlier one, in one step.
func (n *Network) install() error {
	c, err := n.conn()
	if err != nil {
		return err
	}
	t := c.AddTable(n.table()) // so that there is one to remove
	c.DelTable(t)
	c.AddTable(t)
	for _, name := range []string{countAllowed, countPrivate, countSpoofed, countOtherProto, countToHost, countInbound} {
		c.AddObj(&nftables.CounterObj{Table: t, Name: name})
	}
	set := &nftables.Set{Table: t, Name: "closed", KeyType: nftables.TypeIPAddr, Interval: true, Constant: true}
	var elements []nftables.SetElement
	for _, p := range closed {
		elements = append(elements, nftables.SetElement{Key: p.Addr().AsSlice()})
		if end, ok := after(p); ok {
			elements = append(elements, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	if err := c.AddSet(set, elements); err != nil {
		return fmt.Errorf("add set of networks: %w", err)
	}
	n.filter(c, t, set)
	n.translate(c, t)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("install rules: %w", err)
	}
	return nil
}

// after returns the address behind a network, unless it is the last one.
func after(p netip.Prefix) (netip.Addr, bool) {
	b := p.Addr().As4()
	size := uint32(1) << (32 - p.Bits())
	next := uint64(b[0])<<24 + uint64(b[1])<<16 + uint64(b[2])<<8 + uint64(b[3]) + uint64(size)
	if next > 1<<32-1 {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte{byte(next >> 24), byte(next >> 16), byte(next >> 8), byte(next)}), true
}

// filter adds the chains that decide what passes.
func (n *Network) filter(c *nftables.Conn, t *nftables.Table, private *nftables.Set) {
	forward := n.chain(c, t, "forward", nftables.ChainHookForward)
	input := n.chain(c, t, "input", nftables.ChainHookInput)
	output := n.chain(c, t, "output", nftables.ChainHookOutput)
	add := func(ch *nftables.Chain, parts ...[]expr.Any) {
		var exprs []expr.Any
		for _, p := range parts {
			exprs = append(exprs, p...)
		}
		c.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: exprs})
	}
	from, to := n.through(expr.MetaKeyIIFNAME), n.through(expr.MetaKeyOIFNAME)

	add(input, from, count(countToHost), verdict(expr.VerdictDrop))
	add(output, to, ofKnown(), verdict(expr.VerdictAccept))
	add(output, to, count(countInbound), verdict(expr.VerdictDrop))

	// What comes out of a sandbox is looked at first, so that sandboxes do not reach
	// each other by answering.
	add(forward, from, notIPv4(), count(countOtherProto), verdict(expr.VerdictDrop))
	add(forward, from, foreignSource(), count(countSpoofed), verdict(expr.VerdictDrop))
	add(forward, from, destinationIn(private), count(countPrivate), verdict(expr.VerdictDrop))
	add(forward, from, to, count(countPrivate), verdict(expr.VerdictDrop))
	add(forward, from, count(countAllowed), verdict(expr.VerdictAccept))
	add(forward, to, ofKnown(), verdict(expr.VerdictAccept))
	add(forward, to, count(countInbound), verdict(expr.VerdictDrop))
}

func (n *Network) chain(c *nftables.Conn, t *nftables.Table, name string, hook *nftables.ChainHook) *nftables.Chain {
	accept := nftables.ChainPolicyAccept // what is not of sandboxes is none of our business
	return c.AddChain(&nftables.Chain{
		Table: t, Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter, Policy: &accept,
	})
}

// translate gives what leaves the host an address of the host's.
func (n *Network) translate(c *nftables.Conn, t *nftables.Table) {
	ch := c.AddChain(&nftables.Chain{
		Table: t, Name: "postrouting", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	exprs := n.through(expr.MetaKeyIIFNAME)
	c.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: append(exprs, &expr.Masq{})})
}

// through matches packets by the name of an interface of the server's.
func (n *Network) through(key expr.MetaKey) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(n.prefix())}, // a prefix: what follows is not compared
	}
}

func notIPv4() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}},
	}
}

// foreignSource matches when the route back does not lead through the interface by which the
// packet came.
func foreignSource() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, ResultOIF: true, FlagSADDR: true, FlagIIF: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
	}
}

// destinationIn matches IPv4 packets whose destination is in a set.
func destinationIn(set *nftables.Set) []expr.Any {
	const offset = 16 // of the destination in an IPv4 header
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID},
	}
}

// ofKnown matches packets of connections that a sandbox began.
func ofKnown() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED),
			Xor:  binaryutil.NativeEndian.PutUint32(0),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
	}
}

func count(name string) []expr.Any {
	return []expr.Any{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: name}}
}

func verdict(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

// Counts reads the counters.
func (n *Network) Counts() (Counts, error) {
	c, err := n.conn()
	if err != nil {
		return Counts{}, err
	}
	objs, err := c.GetObjects(n.table())
	if err != nil {
		return Counts{}, fmt.Errorf("read counters: %w", err)
	}
	var out Counts
	into := map[string]*uint64{
		countAllowed: &out.Allowed, countPrivate: &out.Private, countSpoofed: &out.Spoofed,
		countOtherProto: &out.OtherProto, countToHost: &out.ToHost, countInbound: &out.Inbound,
	}
	for _, o := range objs {
		if counter, ok := o.(*nftables.CounterObj); ok && into[counter.Name] != nil {
			*into[counter.Name] = counter.Packets
		}
	}
	return out, nil
}

// Uninstall removes the rules and all links: the server will not have such a network again.
// A nil network has none.
func (n *Network) Uninstall() error {
	if n == nil {
		return nil
	}
	n.unguard()
	err := n.remove(func(string) bool { return true })
	c, connErr := n.conn()
	if connErr != nil {
		return errors.Join(err, connErr)
	}
	t := c.AddTable(n.table()) // so that there is one to remove
	c.DelTable(t)
	if flushErr := c.Flush(); flushErr != nil {
		err = errors.Join(err, fmt.Errorf("remove rules: %w", flushErr))
	}
	return err
}
