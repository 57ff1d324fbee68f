package egress

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"
)

// The reasons with which an address is refused.
const (
	reasonPrivate    = "private_address"    // not public: private, loopback, link-local, multicast, reserved
	reasonMetadata   = "metadata_address"   // where clouds answer with credentials of the host
	reasonHost       = "host_address"       // of this host
	reasonOwn        = "own_listener"       // this server
	reasonUnresolved = "name_not_resolved"  // no address; nothing was refused
	reasonNoAnswer   = "host_not_reachable" // addresses, and no connection
)

// notPublic are the IPv4 ranges that are not reachable by everybody, and those of IPv6
// inside its global unicast range.
var notPublic = parsePrefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"224.0.0.0/4", "240.0.0.0/4",
	"2001::/23", // Teredo, benchmarks, ORCHID
	"2001:db8::/32", "3fff::/20",
)

// metadata are the addresses at which clouds tell a machine its secrets.
var metadata = parsePrefixes("169.254.169.254/32", "169.254.170.2/32", "169.254.170.23/32", "100.100.100.200/32",
	"192.0.0.192/32", "168.63.129.16/32", "fd00:ec2::254/128", "fd00:ec2::23/128", "fd20:ce::254/128")

// The ranges of IPv6 that are judged by the IPv4 address in them.
var (
	globalUnicast = netip.MustParsePrefix("2000::/3")
	sixToFour     = netip.MustParsePrefix("2002::/16")
	nat64         = netip.MustParsePrefix("64:ff9b::/96")
	compatible    = netip.MustParsePrefix("::/96")
)

func parsePrefixes(texts ...string) []netip.Prefix {
	ps := make([]netip.Prefix, len(texts))
	for i, s := range texts {
		ps[i] = netip.MustParsePrefix(s)
	}
	return ps
}

// judge returns why an address is refused as such, or "". a is unmapped.
func judge(a netip.Addr) string {
	within := func(ps []netip.Prefix) bool {
		return slices.ContainsFunc(ps, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	switch {
	case !a.IsValid() || a.Zone() != "":
		return reasonPrivate
	case within(metadata):
		return reasonMetadata
	case within(notPublic):
		return reasonPrivate
	case a.Is4():
		return ""
	}
	b := a.As16()
	switch {
	case nat64.Contains(a):
		return judge(netip.AddrFrom4([4]byte(b[12:])))
	case compatible.Contains(a): // and :: and ::1
		if why := judge(netip.AddrFrom4([4]byte(b[12:]))); why != "" {
			return why
		}
		return reasonPrivate
	case !globalUnicast.Contains(a):
		return reasonPrivate
	case sixToFour.Contains(a):
		return judge(netip.AddrFrom4([4]byte(b[2:6])))
	case binary.BigEndian.Uint32(b[8:12])&^0x0200_0000 == 0x0000_5efe: // ISATAP
		return judge(netip.AddrFrom4([4]byte(b[12:])))
	}
	return ""
}

// check returns why nobody may connect to an address at a port, or "".
func (e *Egress) check(a netip.Addr, port int) string {
	mine := e.isHostAddr(a)
	if e.isOwn(a, port, mine) {
		return reasonOwn
	}
	for _, x := range e.cfg.AllowPrivate {
		if (x.Port == 0 || x.Port == port) && x.Prefix.Contains(a) {
			return ""
		}
	}
	if why := judge(a); why != "" {
		return why
	}
	if mine {
		return reasonHost
	}
	return ""
}

// isOwn reports whether the server itself listens there.
func (e *Egress) isOwn(a netip.Addr, port int, mine bool) bool {
	if e.cfg.Own == nil {
		return false
	}
	here := mine || a.IsLoopback() || a.IsUnspecified()
	return slices.ContainsFunc(e.cfg.Own(), func(own netip.AddrPort) bool {
		at := own.Addr().Unmap()
		return int(own.Port()) == port && (at == a || here && (at.IsUnspecified() || at.IsLoopback() && a.IsUnspecified()))
	})
}

// hostAddrTime is how long the addresses of the interfaces are taken to be the same.
const hostAddrTime = 10 * time.Second

// isHostAddr reports whether an interface of this host has the address. When the
// interfaces cannot be read, every address counts as one.
func (e *Egress) isHostAddr(a netip.Addr) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.hostAddrs == nil || time.Since(e.hostRead) > hostAddrTime {
		list, err := net.InterfaceAddrs()
		if err != nil {
			e.log.Error("read addresses of interfaces", "error", err)
			return true
		}
		e.hostAddrs, e.hostRead = make(map[netip.Addr]bool, len(list)), time.Now()
		for _, at := range list {
			if p, err := netip.ParsePrefix(at.String()); err == nil {
				e.hostAddrs[p.Addr().Unmap().WithZone("")] = true
			}
		}
	}
	return e.hostAddrs[a]
}

const (
	resolveTime = 10 * time.Second
	dialTime    = 10 * time.Second // for one address
	maxAddrs    = 16               // of one name that are looked at
	maxDials    = 4                // addresses of one name that are tried
)

// resolve returns the addresses of host, all of them checked for port.
func (e *Egress) resolve(ctx context.Context, host string, port int) ([]netip.Addr, error) {
	addrs := []netip.Addr(nil)
	if a, err := netip.ParseAddr(host); err == nil {
		addrs = append(addrs, a)
	} else {
		ctx, cancel := context.WithTimeout(ctx, resolveTime)
		defer cancel()
		// The final dot keeps the host's search domains out.
		if addrs, err = e.cfg.Resolver.LookupNetIP(ctx, "ip", host+"."); err != nil {
			return nil, &refusal{reasonUnresolved, err}
		}
	}
	if len(addrs) == 0 {
		return nil, &refusal{reason: reasonUnresolved}
	}
	addrs = addrs[:min(len(addrs), maxAddrs)]
	for i, a := range addrs {
		addrs[i] = a.Unmap()
		if why := e.check(addrs[i], port); why != "" {
			return nil, &refusal{reason: why}
		}
	}
	return addrs, nil
}

// dial connects to host at port by an address that was checked. Its errors are
// refusals.
func (e *Egress) dial(ctx context.Context, host string, port int) (net.Conn, error) {
	addrs, err := e.resolve(ctx, host, port)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs[:min(len(addrs), maxDials)] {
		var conn net.Conn
		one, cancel := context.WithTimeout(ctx, dialTime)
		conn, err = e.cfg.Dial(one, "tcp", netip.AddrPortFrom(a, uint16(port)).String())
		cancel()
		if err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, &refusal{reasonNoAnswer, fmt.Errorf("dial: %w", err)}
}
