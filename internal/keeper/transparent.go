package keeper

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

const (
	// maxNames bounds the names that have addresses at a time, and with that the
	// listeners.
	maxNames = 512
	// idleName is how long a name keeps its address and listeners without a lookup
	// or connection. Its ports are free for programs of the sandbox after that.
	idleName  = 2 * time.Minute
	sweepTime = 15 * time.Second
)

// names gives each name that is looked up an address of its own, listens there, and
// carries what connects to the name, by a tunnel of the proxy. So programs work that
// know no proxy.
type names struct {
	way   *way
	http  *http.Client // to the server
	first netip.Addr
	size  uint32 // how many addresses there are

	mu       sync.Mutex
	verdicts map[string]verdict
	byName   map[string]*namedHost
	byAddr   map[netip.Addr]*namedHost
	next     uint32 // which address is tried next: one is not used again soon
}

// namedHost is one name with its address.
type namedHost struct {
	name  string
	addr  netip.Addr
	used  time.Time
	open  int // connections
	ports map[int]net.Listener
}

func newNames(w *way, within netip.Prefix) *names {
	n := &names{
		way: w, verdicts: make(map[string]verdict),
		byName: make(map[string]*namedHost), byAddr: make(map[netip.Addr]*namedHost),
	}
	if within.IsValid() {
		n.first, n.size = within.Masked().Addr(), 1<<(32-within.Bits())
	}
	n.http = &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, // the server may be another by then
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return w.dial(ctx) },
	}}
	return n
}

// address returns the address of a name, at which its ports are served. A port that
// something else listens on is left out.
func (n *names) address(name string, ports []int) (netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.byName[name]
	if h == nil {
		if len(n.byName) >= maxNames && !n.evictLocked() {
			return netip.Addr{}, errNoAddress
		}
		addr, err := n.freeLocked()
		if err != nil {
			return netip.Addr{}, err
		}
		h = &namedHost{name: name, addr: addr, ports: make(map[int]net.Listener)}
		n.byName[name], n.byAddr[addr] = h, h
	}
	h.used = time.Now()
	for _, port := range ports {
		if port < 1 || port > 65_535 || h.ports[port] != nil {
			continue
		}
		ln, err := n.way.listen(netip.AddrPortFrom(h.addr, uint16(port)).String())
		if err != nil {
			n.way.once("listen for programs that know no proxy, at port "+strconv.Itoa(port), err)
			continue
		}
		h.ports[port] = ln
		n.way.wg.Go(func() { n.way.accept(ln, func(c net.Conn) { n.carry(h, port, c) }) })
	}
	return h.addr, nil
}

// freeLocked finds an address that no name has.
func (n *names) freeLocked() (netip.Addr, error) {
	for range n.size {
		n.next = n.next%(n.size-2) + 1 // neither the first nor the last of the range
		b := n.first.As4()
		v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
		v += n.next
		addr := netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
		if n.byAddr[addr] == nil {
			return addr, nil
		}
	}
	return netip.Addr{}, errNoAddress
}

// evictLocked takes the address from the name that was used longest ago and has no
// connections.
func (n *names) evictLocked() bool {
	var oldest *namedHost
	for _, h := range n.byName {
		if h.open == 0 && (oldest == nil || h.used.Before(oldest.used)) {
			oldest = h
		}
	}
	if oldest == nil {
		return false
	}
	n.forgetLocked(oldest)
	return true
}

func (n *names) forgetLocked(h *namedHost) {
	delete(n.byName, h.name)
	delete(n.byAddr, h.addr)
	for _, ln := range h.ports {
		n.way.drop(ln)
	}
}

// sweep takes the addresses of names that are not used any more.
func (n *names) sweep() {
	for n.way.wait(sweepTime) {
		n.mu.Lock()
		for _, h := range n.byName {
			if h.open == 0 && time.Since(h.used) > idleName {
				n.forgetLocked(h)
			}
		}
		n.mu.Unlock()
	}
}

// use counts a connection to a name, or its end.
func (n *names) use(h *namedHost, open int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h.open += open
	h.used = time.Now()
}

// carry brings a connection to a name's address to the host of that name.
func (n *names) carry(h *namedHost, port int, c net.Conn) {
	n.use(h, 1)
	defer n.use(h, -1)
	out, err := n.way.dial(n.way.ctx)
	if err != nil {
		n.way.once("connect to the proxy", err)
		return
	}
	if !n.way.keep(out) {
		return
	}
	defer n.way.drop(out)
	at := net.JoinHostPort(h.name, strconv.Itoa(port))
	if _, err := fmt.Fprintf(out, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", at, at); err != nil {
		return
	}
	r := bufio.NewReader(out)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return
	}
	if resp.StatusCode != http.StatusOK {
		if port == 80 { // then the client can read why
			resp.Close = true
			_ = resp.Write(c) // it may be gone
		}
		return
	}
	n.way.carry(c, out, r)
}
