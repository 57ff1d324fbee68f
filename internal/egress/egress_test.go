package egress_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/egress"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// world is a small Internet: names with addresses, and servers of this process at
// address and port.
type world struct {
	mu      sync.Mutex
	names   map[string][]string // addresses
	servers map[string]string   // "address:port" to where it really listens
	lookups []string
	dials   []string
}

func newWorld() *world {
	return &world{names: map[string][]string{}, servers: map[string]string{}}
}

// public is the address of all servers that tests put up under a name.
const public = "93.184.215.14"

// serve puts a server up under a name and port.
func (w *world) serve(name string, port int, addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names[name] = []string{public}
	w.servers[net.JoinHostPort(public, fmt.Sprint(port))] = addr
}

func (w *world) name(name string, addrs ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names[name] = addrs
}

func (w *world) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lookups = append(w.lookups, host)
	addrs := w.names[strings.TrimSuffix(host, ".")]
	if len(addrs) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	var out []netip.Addr
	for _, a := range addrs {
		out = append(out, netip.MustParseAddr(a))
	}
	return out, nil
}

func (w *world) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mu.Lock()
	w.dials = append(w.dials, addr)
	at, ok := w.servers[addr]
	w.mu.Unlock()
	if !ok {
		return nil, errors.New("nobody is there")
	}
	var d net.Dialer
	return d.DialContext(ctx, network, at)
}

func (w *world) dialled() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.dials)
}

// config is one whose gates live in the world.
func (w *world) config() egress.Config { return egress.Config{Resolver: w, Dial: w.dial} }

// box is a gate as a sandbox sees it.
type box struct {
	t    testing.TB
	gate *egress.Gate
	dir  string

	mu        sync.Mutex
	decisions []sojourn.NetworkDecision
}

// open makes the gate of a sandbox. change may alter its spec.
func open(t *testing.T, cfg egress.Config, p sojourn.NetworkPolicy, change ...func(*egress.Spec)) *box {
	t.Helper()
	e, err := egress.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{t: t, dir: t.TempDir()}
	spec := egress.Spec{Session: "s", Epoch: 1, Dir: b.dir, Policy: p, Report: b.report}
	for _, c := range change {
		c(&spec)
	}
	if b.gate, err = e.Open(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.close() })
	return b
}

func (b *box) report(list []sojourn.NetworkDecision) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.decisions = append(b.decisions, list...)
}

func (b *box) close() {
	b.t.Helper()
	if err := b.gate.Close(); err != nil {
		b.t.Errorf("Close = %v", err)
	}
}

// decided closes the gate and returns what was decided, as lines.
func (b *box) decided() []string {
	b.t.Helper()
	b.close()
	b.mu.Lock()
	defer b.mu.Unlock()
	var lines []string
	for _, d := range b.decisions {
		verb := "refused"
		if d.Allowed {
			verb = "allowed"
		}
		lines = append(lines, fmt.Sprintf("%s %s:%d %s x%d", verb, d.Host, d.Port, d.Reason, d.Count))
	}
	return lines
}

// dial connects to the socket, as the keeper's forwarder does.
func (b *box) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", filepath.Join(b.dir, sandbox.EgressSocketName))
}

func (b *box) connect() net.Conn {
	b.t.Helper()
	c, err := b.dial(b.t.Context(), "", "")
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		b.t.Fatal(err)
	}
	return c
}

// client is an HTTP client that uses the gate as its proxy.
func (b *box) client(change ...func(*http.Transport)) *http.Client {
	tr := &http.Transport{
		Proxy:       http.ProxyURL(&url.URL{Scheme: "http", Host: "127.0.0.1:3128"}),
		DialContext: b.dial,
	}
	for _, c := range change {
		c(tr)
	}
	b.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// get returns the status, reason and body of a GET through the gate.
func (b *box) get(url string) (status int, reason, body string) {
	b.t.Helper()
	resp, err := b.client().Get(url)
	if err != nil {
		b.t.Fatalf("GET %s: %v", url, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatalf("GET %s: %v", url, err)
	}
	return resp.StatusCode, resp.Header.Get("Sojourn-Refused"), string(text)
}

// tunnel asks for a tunnel and returns the answer's status and reason.
func (b *box) tunnel(target string) (conn net.Conn, r *bufio.Reader, status int, reason string) {
	b.t.Helper()
	conn = b.connect()
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	r = bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		b.t.Fatalf("CONNECT %s: %v", target, err)
	}
	return conn, r, resp.StatusCode, resp.Header.Get("Sojourn-Refused")
}

// echoHost is a web server that says which host it was asked for.
func echoHost(t *testing.T) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s%s", r.Method, r.Host, r.URL.RequestURI())
	}))
	t.Cleanup(s.Close)
	return s
}

func addrOf(s *httptest.Server) string { return s.Listener.Addr().String() }

func allow(rules ...string) sojourn.NetworkPolicy {
	return sojourn.NetworkPolicy{Mode: sojourn.NetworkAllow, Allow: rules}
}

var openPolicy = sojourn.NetworkPolicy{Mode: sojourn.NetworkOpen}

func TestAllowedHostIsReachedAndOthersAreNot(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := echoHost(t)
	w.serve("a.test", 80, addrOf(s))
	w.serve("b.test", 80, addrOf(s))
	b := open(t, w.config(), allow("a.test"))
	if code, _, body := b.get("http://a.test/x%2Fy?q=1;2"); code != 200 || body != "GET a.test/x%2Fy?q=1;2" {
		t.Errorf("a.test = %d %q", code, body)
	}
	code, why, body := b.get("http://b.test/")
	if code != 403 || why != "no_rule" || !strings.Contains(body, `network policy "allow" has no rule for b.test:80`) {
		t.Errorf("b.test = %d %s %q", code, why, body)
	}
	got := strings.Join(b.decided(), "\n")
	if want := "allowed a.test:80 a.test x1\nrefused b.test:80 no_rule x1"; got != want {
		t.Errorf("decisions:\n%s\nwant:\n%s", got, want)
	}
}
