package egress

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/sandbox"
)

const (
	maxHeaderBytes   = 64 << 10
	headerTime       = 30 * time.Second
	keepAliveTime    = 5 * time.Minute
	maxIdleUpstreams = 32
)

// Gate is the proxy of one sandbox.
type Gate struct {
	e      *Egress
	spec   Spec
	log    *slog.Logger
	ledger *ledger
	ln     *listener

	outer     *http.Server // on the socket
	inner     *http.Server // in tunnels
	tunnels   *handover    // what inner accepts
	proxy     *httputil.ReverseProxy
	transport *http.Transport

	ctx    context.Context // of all flows
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // servers and handlers; grows under mu and while not closed
	ending sync.Once
	ledged sync.WaitGroup // the reporter, which ends after them
	ledge  context.CancelFunc

	sent, received atomic.Int64 // bytes in tunnels

	changing    sync.Mutex   // held while a policy is put in force
	authorities []*authority // of the broker, as they were needed; under changing

	mu     sync.Mutex
	filter sojourn.NetworkFilter
	broker *broker // nil: no credentials
	flows  map[*flow]struct{}
	closed bool
}

// flow is one request or tunnel that was let through.
type flow struct {
	host string // as compared
	port int
	terms
	rule  string // that allows it
	named bool   // what is in it is known to name the host; under Gate.mu
	cut   context.CancelCauseFunc
	stop  func() bool // lets go of the gate's context
}

// terms are how a policy lets a flow through.
type terms struct {
	strict bool        // it has rules: names in the flow are checked
	narrow bool        // the rule names no port, so it means the web only
	secret *credential // what the broker puts in, or nil
}

// Open makes the gate of a sandbox and serves it until Close. ctx is for the opening
// only.
func (e *Egress) Open(ctx context.Context, spec Spec) (*Gate, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("open egress: %w", err)
	}
	g := &Gate{
		e: e, spec: spec, flows: make(map[*flow]struct{}), tunnels: newHandover(),
		log:    e.log.With("session", spec.Session, "lease_epoch", spec.Epoch),
		ledger: newLedger(e.cfg.Now, spec.Report),
	}
	if err := g.setPolicy(spec.Policy); err != nil {
		return nil, fmt.Errorf("open egress: %w", err)
	}
	ln, err := listen(spec.Dir, e.cfg.MaxConns)
	if err != nil {
		return nil, fmt.Errorf("open egress: %w", err)
	}
	g.ln = ln
	g.ctx, g.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	quiet := log.New(quietly{g.log}, "", 0)
	g.transport = &http.Transport{
		DialContext: g.dialUpstream, TLSClientConfig: g.upstreamTLS(), TLSHandshakeTimeout: dialTime,
		DisableCompression: true, // what the client did not ask for, it does not get
		MaxIdleConns:       maxIdleUpstreams, IdleConnTimeout: time.Minute, ExpectContinueTimeout: time.Second,
		MaxResponseHeaderBytes: 4 * maxHeaderBytes,
	}
	g.proxy = &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: g.transport, FlushInterval: -1, BufferPool: buffers{}, ErrorLog: quiet,
		ModifyResponse: g.answered, ErrorHandler: g.failed,
	}
	g.outer = g.newServer(g.serveOuter, quiet)
	g.inner = g.newServer(g.serveInner, quiet)
	g.inner.ConnContext = withTunnel
	g.wg.Go(func() { g.serve(g.outer, ln) })
	g.wg.Go(func() { g.serve(g.inner, g.tunnels) })
	if spec.Report != nil {
		var reporting context.Context
		reporting, g.ledge = context.WithCancel(context.WithoutCancel(ctx))
		g.ledged.Go(func() { g.ledger.run(reporting) })
	}
	return g, nil
}

func (g *Gate) newServer(h http.HandlerFunc, quiet *log.Logger) *http.Server {
	return &http.Server{
		Handler: g.counted(h), ErrorLog: quiet, MaxHeaderBytes: maxHeaderBytes,
		ReadHeaderTimeout: headerTime, IdleTimeout: keepAliveTime,
		// "OPTIONS *" is for the local handler, as everything without a host is.
		DisableGeneralOptionsHandler: true,
	}
}

func (g *Gate) serve(s *http.Server, ln net.Listener) {
	if err := s.Serve(ln); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		g.log.Error("egress ended", "error", err)
	}
}

// counted makes Close wait for h.
func (g *Gate) counted(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		if g.closed {
			g.mu.Unlock()
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		g.wg.Add(1)
		g.mu.Unlock()
		defer g.wg.Done()
		h(w, r)
	}
}

// SetPolicy puts a policy in force, at once: flows that it does not allow are cut. The
// caller has checked it; one that cannot be carried out lets nothing through.
func (g *Gate) SetPolicy(p sojourn.NetworkPolicy) {
	if err := g.setPolicy(p); err != nil {
		g.log.Error("set network policy: nothing is let through", "error", err)
		g.enforce(sojourn.NetworkFilter{}, nil)
	}
}

func (g *Gate) setPolicy(p sojourn.NetworkPolicy) error {
	if err := g.e.Check(p); err != nil {
		return err
	}
	filter, err := p.Compile()
	if err != nil {
		return err
	}
	g.changing.Lock()
	defer g.changing.Unlock()
	broker, err := g.newBroker(p.Credentials)
	if err != nil {
		return err
	}
	g.enforce(filter, broker)
	return nil
}

// enforce replaces what is decided by, and cuts what that does not allow.
func (g *Gate) enforce(filter sojourn.NetworkFilter, b *broker) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.filter, g.broker = filter, b
	for f := range g.flows {
		allowed, reason := filter.Allows(f.host, f.port)
		if allowed && f.meets(g.termsLocked(f.host, f.port)) {
			f.rule = reason
			continue
		}
		delete(g.flows, f)
		f.cut(&refusal{reason: reasonPolicyChanged})
		g.ledger.add(f.host, f.port, false, reasonPolicyChanged)
	}
}

// termsLocked are those of the policy in force for a host and port that it allows.
func (g *Gate) termsLocked(host string, port int) terms {
	t := terms{strict: g.filter.Mode() == sojourn.NetworkAllow, secret: g.broker.forHost(host, port)}
	if rule, ok := g.filter.Rule(host, port); ok {
		t.narrow = rule.Port() == 0
	}
	return t
}

// meets reports whether a flow may go on under other terms. One that began under looser
// ones may carry what was not looked at and is not allowed now.
func (f *flow) meets(now terms) bool {
	looser := now.strict && !f.strict || now.narrow && !f.narrow
	return now.secret == f.secret && (!looser || f.named)
}

// enter judges a host and port by the policy in force, and begins a flow if it may be
// reached. The context ends, with a refusal as its cause, when that is over. named says
// that what is sent is known to name the host.
func (g *Gate) enter(ctx context.Context, host string, port int, named bool) (context.Context, *flow, *refusal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	allowed, reason := g.filter.Allows(host, port)
	if g.closed {
		return ctx, nil, &refusal{reasonNoAnswer, errClosed}
	}
	if !allowed {
		g.ledger.add(host, port, false, reason)
		return ctx, nil, &refusal{reason: reason}
	}
	h, _ := sojourn.ParseNetworkHost(host) // it was allowed, so it is one
	f := &flow{host: h.String(), port: port, rule: reason, named: named}
	f.terms = g.termsLocked(f.host, port)
	ctx, f.cut = context.WithCancelCause(ctx)
	f.stop = context.AfterFunc(g.ctx, func() { f.cut(context.Cause(g.ctx)) })
	g.flows[f] = struct{}{}
	return ctx, f, nil
}

// setNamed notes that a tunnel carries TLS that names its host.
func (g *Gate) setNamed(f *flow) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.named = true
}

// leave ends a flow.
func (g *Gate) leave(f *flow) {
	g.mu.Lock()
	delete(g.flows, f)
	g.mu.Unlock()
	f.stop()
	f.cut(context.Canceled)
}

// note counts what became of a flow.
func (g *Gate) note(f *flow, r *refusal) {
	if r != nil && r.refused() {
		g.ledger.add(f.host, f.port, false, r.reason)
		return
	}
	g.mu.Lock()
	rule := f.rule
	g.mu.Unlock()
	g.ledger.add(f.host, f.port, true, rule)
}

func (g *Gate) mode() sojourn.NetworkMode {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m := g.filter.Mode(); m != "" {
		return m
	}
	return sojourn.NetworkNone
}

func (g *Gate) dialUpstream(ctx context.Context, _, address string) (net.Conn, error) {
	host, digits, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &refusal{sojourn.NetworkReasonBadName, err}
	}
	port, err := strconv.Atoi(digits)
	if err != nil {
		return nil, &refusal{sojourn.NetworkReasonBadPort, err}
	}
	return g.e.dial(ctx, host, port)
}

// Env is what programs in the sandbox need in their environment to use the gate.
func (g *Gate) Env() map[string]string {
	const proxy, direct = "http://" + sandbox.EgressAddress, "localhost,127.0.0.1,::1"
	env := map[string]string{
		"http_proxy": proxy, "https_proxy": proxy, "all_proxy": proxy,
		"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "ALL_PROXY": proxy,
		"no_proxy": direct, "NO_PROXY": direct,
		"NODE_USE_ENV_PROXY": "1", // Node knows the others only when it is told to
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.broker.addEnv(env)
	return env
}

// Traffic is how many bytes tunnels have carried out of and into the sandbox.
func (g *Gate) Traffic() (sent, received int64) { return g.sent.Load(), g.received.Load() }

// Close cuts all flows, waits for what the gate started, and reports what was not yet
// reported. It may be called twice.
func (g *Gate) Close() error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	var err error
	g.ending.Do(func() {
		g.cancel(errClosed)
		err = errors.Join(g.outer.Close(), g.inner.Close(), g.ln.Close())
	})
	g.wg.Wait()
	g.transport.CloseIdleConnections()
	if g.ledge != nil {
		g.ledge()
	}
	g.ledged.Wait()
	return err
}

var errClosed = errors.New("egress is closed")

// quietly turns what HTTP servers complain about into lines for who looks closely:
// what a sandbox sends is none of the operator's business until then.
type quietly struct{ log *slog.Logger }

func (q quietly) Write(b []byte) (int, error) {
	q.log.Debug("egress connection", "what", shownText(b))
	return len(b), nil
}

func shownText(b []byte) string { return strconv.QuoteToASCII(string(b[:min(len(b), 512)])) }
