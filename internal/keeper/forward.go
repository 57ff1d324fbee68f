package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"time"
)

// The way out of a sandbox without a network: a proxy of the server's on a Unix
// socket. The keeper brings programs there that speak to a proxy (forward), and those
// that look a name up and connect to it (names, transparent).
const (
	// egressName is the socket, beside the driver's.
	egressName = "egress.sock"
	// socketDir is where both are in every sandbox with a network of its own.
	socketDir = "/run/sojourn"
	// egressAddress is where programs find the proxy.
	egressAddress = "127.0.0.1:3128"
	// nameAddress is where the resolver is.
	nameAddress = "127.0.0.1:53"
)

const (
	// maxWays bounds the connections to the socket at a time.
	maxWays = 1024
	// wayPatience is how long a connection waits for a server that restarts.
	wayPatience = 3 * time.Second
	wayPause    = 50 * time.Millisecond
)

const nobodyThere = "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" +
	"sojourn: nobody serves the network of this sandbox at the moment.\n"

// way is the keeper's part of the way out.
type way struct {
	socket string
	log    *slog.Logger
	slots  chan struct{}
	names  *names

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	closers map[io.Closer]struct{} // what close has to close
	closed  bool
	told    map[string]bool // what was said once
}

// wayConfig is where a way listens: "" is nowhere.
type wayConfig struct {
	socket  string       // the server's
	forward string       // TCP
	names   string       // UDP and TCP
	block   netip.Prefix // of addresses for names; IPv4
}

// openWay starts what of it can be started, and says in the log what cannot.
func openWay(cfg wayConfig, log *slog.Logger) *way {
	w := &way{
		socket: cfg.socket, log: log, slots: make(chan struct{}, maxWays),
		closers: make(map[io.Closer]struct{}), told: make(map[string]bool),
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.names = newNames(w, cfg.block)
	if cfg.forward != "" {
		if ln, err := w.listen(cfg.forward); err != nil {
			log.Warn("listen for programs that use the proxy", "err", err)
		} else {
			w.wg.Go(func() { w.accept(ln, w.forward) })
		}
	}
	if cfg.names != "" {
		if err := w.serveNames(cfg.names); err != nil {
			log.Warn("listen for lookups of names; only programs that use the proxy get out", "err", err)
		}
	}
	return w
}

// systemWay is what every sandbox has that has a network of its own.
func systemWay(driverSocket string) (wayConfig, bool) {
	dir := filepath.Dir(driverSocket)
	return wayConfig{
		socket: filepath.Join(dir, egressName), forward: egressAddress, names: nameAddress, block: nameRange,
	}, dir == socketDir
}

// close ends everything and waits for it.
func (w *way) close() {
	w.cancel()
	w.mu.Lock()
	w.closed = true
	for c := range w.closers {
		c.Close()
	}
	w.mu.Unlock()
	w.wg.Wait()
}

// keep makes close close c. It reports false, and closes c, when it is too late.
func (w *way) keep(c io.Closer) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		c.Close()
		return false
	}
	w.closers[c] = struct{}{}
	return true
}

// drop closes c.
func (w *way) drop(c io.Closer) {
	w.mu.Lock()
	delete(w.closers, c)
	w.mu.Unlock()
	c.Close()
}

// once logs something the first time.
func (w *way) once(what string, err error) {
	w.mu.Lock()
	first := !w.told[what]
	w.told[what] = true
	w.mu.Unlock()
	if first {
		w.log.Warn(what, "err", err)
	}
}

func (w *way) listen(addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp4", addr)
	if err != nil {
		return nil, err
	}
	if !w.keep(ln) {
		return nil, net.ErrClosed
	}
	return ln, nil
}

// accept serves the connections of a listener until it is closed.
func (w *way) accept(ln net.Listener, serve func(net.Conn)) {
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: let others finish
			if !w.wait(wayPause) {
				return
			}
			continue
		}
		select {
		case w.slots <- struct{}{}:
		default:
			c.Close()
			continue
		}
		if !w.keep(c) {
			return
		}
		w.wg.Go(func() {
			defer func() { <-w.slots }()
			defer w.drop(c)
			serve(c)
		})
	}
}

// wait reports false when the way is closed before d has passed.
func (w *way) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-w.ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// dial connects to the server, and waits for one that restarts.
func (w *way) dial(ctx context.Context) (net.Conn, error) {
	began := time.Now()
	for {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", w.socket)
		if err == nil || time.Since(began) > wayPatience || ctx.Err() != nil {
			return c, err
		}
		if !w.wait(wayPause) {
			return nil, err
		}
	}
}

// forward carries a connection to the proxy.
func (w *way) forward(c net.Conn) {
	out, err := w.dial(w.ctx)
	if err != nil {
		w.once("connect to the proxy", err)
		_, _ = io.WriteString(c, nobodyThere) // the client may be gone
		return
	}
	w.carry(c, out, out)
}

// carry copies between a connection of the sandbox and one to the server, whose data
// is read from r, until both directions are done.
func (w *way) carry(inside, out net.Conn, r io.Reader) {
	if !w.keep(out) {
		return
	}
	defer w.drop(out)
	var up sync.WaitGroup
	up.Go(func() { w.oneWay(out, inside, inside, out) })
	w.oneWay(inside, r, inside, out)
	up.Wait()
}

// oneWay copies one direction. Its end is passed on; when it breaks, both connections
// are closed, so that the other direction ends, too.
func (w *way) oneWay(dst net.Conn, src io.Reader, inside, out net.Conn) {
	_, err := io.Copy(dst, src)
	if half, ok := dst.(interface{ CloseWrite() error }); ok && err == nil {
		err = half.CloseWrite()
	}
	if err != nil {
		inside.Close()
		out.Close()
	}
}

// nameRange holds the addresses that names get inside: all of it is loopback, so what
// goes there never leaves the sandbox but through the keeper.
var nameRange = netip.MustParsePrefix("127.64.0.0/10")

// errNoAddress says that every address is in use.
var errNoAddress = fmt.Errorf("more than %d names are in use", maxNames)
