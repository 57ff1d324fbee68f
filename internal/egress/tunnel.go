package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
)

const (
	established = "HTTP/1.1 200 Connection established\r\n\r\n"
	// unrecognised is the TLS alert that says that the name in a hello is wrong here.
	unrecognised = "\x15\x03\x03\x00\x02\x02\x70"
	// peekBytes is how much of what a client sends first is looked at: a whole
	// ClientHello fits.
	peekBytes = 17 << 10
)

// tunnel is one CONNECT.
type tunnel struct {
	g        *Gate
	f        *flow
	client   net.Conn
	r        *bufio.Reader // of client, which nothing else reads
	upstream net.Conn      // nil while nothing is dialled

	sent, received atomic.Int64 // bytes
	diverted       atomic.Bool  // upstream is not used any more, and client is by others
}

// connect opens a tunnel, and returns when it is over.
func (g *Gate) connect(w http.ResponseWriter, r *http.Request) {
	host, port, ok := splitHost(r.RequestURI, 0)
	if !ok || port == 0 {
		why := &refusal{reason: reasonBadRequest}
		g.ledger.add(host, port, false, why.reason)
		g.refuse(w, host, port, why)
		return
	}
	ctx, f, refused := g.enter(r.Context(), host, port, false)
	if refused != nil {
		g.refuse(w, host, port, refused)
		return
	}
	defer g.leave(f)
	t := &tunnel{g: g, f: f}
	if !f.answeredHere() {
		var err error
		if t.upstream, err = g.e.dial(ctx, f.host, port); err != nil {
			why := refusalOf(ctx, err)
			if why.reason != reasonPolicyChanged {
				g.note(f, why)
			}
			g.refuse(w, host, port, why)
			return
		}
		defer t.upstream.Close()
	}
	client, early, err := http.NewResponseController(w).Hijack()
	if err != nil {
		g.log.Error("take over a connection", "error", err)
		return
	}
	defer client.Close()
	head, _ := early.Reader.Peek(early.Reader.Buffered()) // what came with the request
	t.client, t.r = client, bufio.NewReaderSize(io.MultiReader(bytes.NewReader(head), client), peekBytes)
	if _, err := io.WriteString(client, established); err != nil {
		return
	}
	t.run(ctx)
}

// answeredHere reports whether the gate is the far end of the flow's tunnels: it reads
// the requests in them and sends them on by itself.
func (f *flow) answeredHere() bool {
	return f.secret != nil || f.strict && f.narrow && f.port == 80
}

// run carries a tunnel until both sides are done, nothing moves any more, or ctx ends.
func (t *tunnel) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, t.cut)
	defer stop()
	idle := t.watch()
	defer idle()
	if t.upstream == nil {
		t.answer(ctx)
		return
	}
	var down sync.WaitGroup
	down.Go(func() {
		switch err := t.pump(t.client, t.upstream, &t.received, &t.g.received); {
		case t.diverted.Load():
		case err != nil:
			t.cut()
		default:
			closeWrite(t.client)
		}
	})
	why := t.inspect()
	switch {
	case why == nil:
		t.g.note(t.f, nil)
		if t.pump(t.upstream, t.r, &t.sent, &t.g.sent) != nil {
			t.cut()
		}
		closeWrite(t.upstream)
	case why.reason == reasonIsHTTP:
		// The requests are read here, and sent over connections of their own.
		t.diverted.Store(true)
		t.upstream.Close()
		down.Wait()
		if t.received.Load() > 0 { // a server that speaks first has just begun to
			t.refuse(&refusal{reason: reasonHostMismatch})
			return
		}
		t.serveHTTP(ctx, "http", t.client, t.r)
	default:
		t.refuse(why)
	}
	down.Wait()
}

// answer is run for a tunnel whose far end is here.
func (t *tunnel) answer(ctx context.Context) {
	first, err := t.r.Peek(1)
	switch {
	case err != nil:
		return
	case first[0] != recordHandshake && t.f.port == 443:
		t.refuse(&refusal{reason: reasonNotTLS})
	case first[0] != recordHandshake:
		t.serveHTTP(ctx, "http", t.client, t.r)
	case t.f.secret == nil:
		t.refuse(&refusal{reason: reasonBadRequest}) // TLS on 80
	default:
		if why := t.checkHello(); why != nil {
			t.refuse(why)
			return
		}
		t.intercept(ctx)
	}
}

// intercept ends the client's TLS here, so that the broker can see its requests.
func (t *tunnel) intercept(ctx context.Context) {
	b := t.g.currentBroker()
	if b == nil {
		return // the policy has just changed, and cuts this
	}
	conn := tls.Server(&readConn{Conn: t.client, r: t.r}, b.serverTLS(t.f.host))
	shaking, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	if err := conn.HandshakeContext(shaking); err != nil {
		t.g.log.Debug("egress connection", "what", shownText([]byte(err.Error())))
		return
	}
	t.serveHTTP(ctx, "https", conn, conn)
}

// serveHTTP gives a connection to the inner server and waits for its end.
func (t *tunnel) serveHTTP(ctx context.Context, scheme string, conn net.Conn, r io.Reader) {
	c := &innerConn{readConn: readConn{Conn: conn, r: r}, target: target{scheme, t.f}, closed: make(chan struct{})}
	if !t.g.tunnels.give(c) {
		return
	}
	select {
	case <-c.closed:
	case <-ctx.Done():
		conn.Close()
		<-c.closed
	}
}

// reasonIsHTTP is not a refusal: it says that a tunnel carries plain HTTP.
const reasonIsHTTP = "http"

// inspect looks at what the client sends first, and returns why the tunnel must not go
// on as it is. A protocol that is neither TLS nor HTTP has no names to compare.
func (t *tunnel) inspect() *refusal {
	first, err := t.r.Peek(1)
	if err != nil {
		return nil // the client sends nothing; it may still read
	}
	if first[0] == recordHandshake {
		return t.checkHello()
	}
	if !t.f.strict {
		return nil
	}
	if t.f.narrow && t.f.port == 443 {
		return &refusal{reason: reasonNotTLS}
	}
	if t.received.Load() == 0 && looksLikeHTTP(t.r) {
		return &refusal{reason: reasonIsHTTP}
	}
	return nil
}

// checkHello reads a ClientHello, without consuming it, and compares the name in it.
func (t *tunnel) checkHello() *refusal {
	_ = t.client.SetReadDeadline(time.Now().Add(dialTime))
	name, err := readHello(t.r)
	_ = t.client.SetReadDeadline(time.Time{})
	_, notName := netip.ParseAddr(t.f.host)
	switch {
	case err != nil:
		return &refusal{reasonBadHello, err}
	case name == "" && notName != nil && t.f.strict:
		return &refusal{reason: reasonNameMissing}
	case name != "" && name != t.f.host:
		return &refusal{reason: reasonNameMismatch}
	case name != "" && t.f.port != 80: // which by narrow rules is for plain HTTP
		t.g.setNamed(t.f)
	}
	return nil
}

// refuse ends a tunnel that was already open.
func (t *tunnel) refuse(why *refusal) {
	t.g.note(t.f, why)
	_ = t.client.SetWriteDeadline(time.Now().Add(time.Second))
	if first, err := t.r.Peek(1); err == nil && first[0] == recordHandshake {
		_, _ = io.WriteString(t.client, unrecognised) // the client may be gone
	}
	t.cut()
}

// cut ends both connections.
func (t *tunnel) cut() {
	t.client.Close()
	if t.upstream != nil {
		t.upstream.Close()
	}
}

// watch cuts the tunnel when nothing has moved for long, and returns what ends that.
func (t *tunnel) watch() (stop func()) {
	if t.upstream == nil {
		return func() {} // the inner server has its own time limits
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(t.g.e.cfg.IdleTimeout)
		defer tick.Stop()
		for last := int64(-1); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			moved := t.sent.Load() + t.received.Load()
			if moved == last {
				t.cut()
				return
			}
			last = moved
		}
	})
	return func() { cancel(); wg.Wait() }
}

// pump copies src to dst until its end, which is no error.
func (t *tunnel) pump(dst io.Writer, src io.Reader, counts ...*atomic.Int64) error {
	buf := chunks.Get().(*[chunkBytes]byte)
	defer chunks.Put(buf)
	for {
		n, err := src.Read(buf[:])
		if n > 0 {
			for _, c := range counts {
				c.Add(int64(n))
			}
			if _, err := dst.Write(buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// closeWrite says that no more comes, and leaves the other direction open.
func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // it may be closed altogether
		return
	}
	c.Close()
}

// readConn is a connection of which something was read ahead.
type readConn struct {
	net.Conn
	r io.Reader
}

func (c *readConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// innerConn is a connection for the inner server.
type innerConn struct {
	readConn
	target target
	closed chan struct{}
	once   sync.Once
}

func (c *innerConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { close(c.closed) })
	return err
}

type tunnelKey struct{}

// withTunnel tells the handler of a request in which tunnel it came.
func withTunnel(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, tunnelKey{}, c.(*innerConn).target)
}

// handover is a listener for connections that are there already.
type handover struct {
	conns chan net.Conn
	shut  chan struct{}
	once  sync.Once
}

func newHandover() *handover {
	return &handover{conns: make(chan net.Conn), shut: make(chan struct{})}
}

// give passes c on, and reports false when nobody takes connections any more.
func (h *handover) give(c net.Conn) bool {
	select {
	case h.conns <- c:
		return true
	case <-h.shut:
		return false
	}
}

func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.shut:
		return nil, net.ErrClosed
	}
}

func (h *handover) Close() error {
	h.once.Do(func() { close(h.shut) })
	return nil
}

func (h *handover) Addr() net.Addr {
	return &net.UnixAddr{Name: sandbox.EgressSocketName, Net: "unix"}
}
