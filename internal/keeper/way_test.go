package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/egress"
)

// outside is what is beyond a gate: every name that is looked up there has one address,
// and one server is behind it.
type outside struct {
	server string

	mu      sync.Mutex
	lookups []string
}

func (o *outside) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lookups = append(o.lookups, host)
	return []netip.Addr{netip.MustParseAddr("93.184.215.14")}, nil
}

func (o *outside) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, o.server)
}

func (o *outside) looked() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.lookups)
}

// inside is a way with a gate behind it.
type inside struct {
	t    *testing.T
	way  *way
	gate *egress.Gate
	dns  string // UDP and TCP
	out  *outside
	log  *bytes.Buffer
}

func newInside(t *testing.T, p sojourn.NetworkPolicy, handler http.Handler) *inside {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	in := &inside{t: t, out: &outside{server: s.Listener.Addr().String()}, log: &bytes.Buffer{}}
	dir := t.TempDir()
	e, err := egress.New(egress.Config{Resolver: in.out, Dial: in.out.dial})
	if err != nil {
		t.Fatal(err)
	}
	if in.gate, err = e.Open(t.Context(), egress.Spec{Session: "s", Dir: dir, Policy: p}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.gate.Close() })
	in.start(filepath.Join(dir, "egress.sock"))
	return in
}

// start opens the way to a socket, with a resolver and a block of loopback addresses
// that no other test has.
func (in *inside) start(socket string) {
	in.t.Helper()
	for range 20 {
		in.dns = fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(10_000))
		in.way = openWay(wayConfig{
			socket: socket, forward: "127.0.0.1:0", names: in.dns,
			block: netip.PrefixFrom(netip.AddrFrom4([4]byte{127, byte(64 + rand.IntN(64)), byte(rand.IntN(256)), 0}), 24),
		}, slog.New(slog.NewTextHandler(in.log, nil)))
		if !strings.Contains(in.log.String(), "listen for lookups") {
			in.t.Cleanup(in.way.close)
			return
		}
		in.way.close()
		in.log.Reset()
	}
	in.t.Fatal("no free port for the resolver")
}

func (in *inside) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, in.dns)
	}}
}

func (in *inside) lookup(name string) (string, error) {
	addrs, err := in.resolver().LookupNetIP(in.t.Context(), "ip", name+".")
	if err != nil {
		return "", err
	}
	return fmt.Sprint(addrs), nil
}

// client knows no proxy; it looks names up as the sandbox does.
func (in *inside) client() *http.Client {
	tr := &http.Transport{DialContext: (&net.Dialer{Resolver: in.resolver()}).DialContext}
	in.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

func allowed(rules ...string) sojourn.NetworkPolicy {
	return sojourn.NetworkPolicy{Mode: sojourn.NetworkAllow, Allow: rules}
}

var sayHost = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host) })

func TestProgramsThatKnowNoProxyReachAllowedNames(t *testing.T) {
	t.Parallel()
	in := newInside(t, allowed("a.test:40080", "*.b.test:40081"), sayHost)
	for _, at := range []string{"a.test:40080", "x.b.test:40081"} {
		resp, err := in.client().Get("http://" + at + "/")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(body) != at {
			t.Errorf("GET %s = %q, %v", at, body, err)
		}
	}
	var dns *net.DNSError
	if _, err := in.client().Get("http://c.test:40080/"); !errors.As(err, &dns) || !dns.IsNotFound {
		t.Errorf("a name without a rule: %v, want no such host", err)
	}
	if _, err := in.client().Get("http://a.test:40081/"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a port without a rule: %v, want refused", err)
	}
}

func TestNamesHaveStableAddressesOfTheirOwn(t *testing.T) {
	t.Parallel()
	in := newInside(t, allowed("*.a.test:40080"), sayHost)
	seen := map[string]string{}
	for range 2 {
		for i := range 20 {
			name := fmt.Sprintf("h%d.a.test", i)
			addr, err := in.lookup(name)
			if err != nil || !strings.HasPrefix(addr, "[127.") || strings.Contains(addr, " ") {
				t.Fatalf("%s = %s, %v, want one loopback address", name, addr, err)
			}
			for other, at := range seen {
				if (other == name) != (at == addr) {
					t.Errorf("%s has %s, and %s has %s", name, addr, other, at)
				}
			}
			seen[name] = addr
		}
	}
	if addr, err := in.lookup("localhost"); err != nil || !strings.Contains(addr, "127.0.0.1") {
		t.Errorf("localhost = %s, %v", addr, err)
	}
}

func TestAddressesAreReusedWhenAllAreTaken(t *testing.T) {
	t.Parallel()
	in := newInside(t, allowed("*.a.test:40080"), sayHost)
	n := in.way.names
	n.mu.Lock()
	n.size = 4 // 1 and 2 can be used
	n.mu.Unlock()
	for i := range 3 {
		addr, err := n.address(fmt.Sprintf("h%d.a.test", i), []int{40080})
		if i < 2 && err != nil || i == 2 && !errors.Is(err, errNoAddress) {
			t.Errorf("address %d = %v, %v", i, addr, err)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.byName["h0.a.test"].open++
	if !n.evictLocked() || n.byName["h0.a.test"] == nil || n.byName["h1.a.test"] != nil {
		t.Errorf("what was taken away is not the name without connections: %v", n.byName)
	}
	if n.evictLocked() {
		t.Error("a name in use lost its address")
	}
}

// TestLookupsLeaveNothing: what a sandbox asks for is data, and a name that the policy
// does not know goes nowhere, in any kind of query.
func TestLookupsLeaveNothing(t *testing.T) {
	t.Parallel()
	in := newInside(t, allowed("a.test:40080"), sayHost)
	secret := strings.Repeat("s3cr3t", 10) + "." + strings.Repeat("da7a", 15) + ".evil.test."
	for _, kind := range []dnsmessage.Type{
		dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeTXT, dnsmessage.TypeMX, dnsmessage.TypeCNAME, dnsmessage.TypeNS,
		dnsmessage.TypeSRV, dnsmessage.TypePTR, dnsmessage.TypeSOA, 65, dnsmessage.TypeALL, 10,
	} {
		for _, network := range []string{"udp", "tcp"} {
			if r := in.query(network, secret, kind, 0); r.RCode != dnsmessage.RCodeNameError || len(r.Answers) > 0 {
				t.Errorf("%s %v of a foreign name = %v", network, kind, r.GoString())
			}
			r := in.query(network, "a.test.", kind, 0)
			if want := kind == dnsmessage.TypeA; r.RCode != dnsmessage.RCodeSuccess || (len(r.Answers) > 0) != want {
				t.Errorf("%s %v of an allowed name = %v", network, kind, r.GoString())
			}
		}
	}
	if r := in.query("udp", "a.test.", dnsmessage.TypeA, 5); r.RCode != dnsmessage.RCodeNotImplemented {
		t.Errorf("an update = %v", r.GoString())
	}
	if got := in.out.looked(); len(got) != 0 {
		t.Errorf("outside was asked for %q", got)
	}
}

// query sends one query and returns the reply.
func (in *inside) query(network, name string, kind dnsmessage.Type, op dnsmessage.OpCode) dnsmessage.Message {
	in.t.Helper()
	q := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true, OpCode: op},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
	}
	b, err := q.Pack()
	if err != nil {
		in.t.Fatal(err)
	}
	c, err := net.Dial(network, in.dns)
	if err != nil {
		in.t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		in.t.Fatal(err)
	}
	reply := make([]byte, 4096)
	if network == "tcp" {
		b = append([]byte{byte(len(b) >> 8), byte(len(b))}, b...)
	}
	if _, err := c.Write(b); err != nil {
		in.t.Fatal(err)
	}
	if network == "tcp" {
		if _, err := io.ReadFull(c, reply[:2]); err != nil {
			in.t.Fatal(err)
		}
		reply = reply[:int(reply[0])<<8|int(reply[1])]
		_, err = io.ReadFull(c, reply)
	} else {
		var n int
		n, err = c.Read(reply)
		reply = reply[:n]
	}
	var r dnsmessage.Message
	if err := errors.Join(err, r.Unpack(reply)); err != nil {
		in.t.Fatal(err)
	}
	if r.ID != 7 || !r.Response {
		in.t.Errorf("reply = %v", r.GoString())
	}
	return r
}

func TestRefusalByPolicyIsReadOverPlainHTTP(t *testing.T) {
	t.Parallel()
	in := newInside(t, sojourn.NetworkPolicy{Mode: sojourn.NetworkOpen}, sayHost)
	addr, err := in.way.names.address("a.test", []int{40080})
	if err != nil {
		t.Fatal(err)
	}
	in.gate.SetPolicy(sojourn.NetworkPolicy{Mode: sojourn.NetworkNone})
	c, far := net.Pipe()
	t.Cleanup(func() { c.Close() })
	n := in.way.names
	n.mu.Lock()
	h := n.byAddr[addr]
	n.mu.Unlock()
	in.way.wg.Go(func() {
		defer far.Close()
		n.carry(h, 80, far)
	})
	body, err := io.ReadAll(c)
	if err != nil || !strings.Contains(string(body), "403 Forbidden") || !strings.Contains(string(body), `network policy "none"`) {
		t.Errorf("answer = %q, %v", body, err)
	}
}

func TestForwarderCarriesBothWaysAndWaitsForTheServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := &inside{t: t, log: &bytes.Buffer{}}
	in.start(filepath.Join(dir, "egress.sock"))
	c := in.dialForward()
	// The server comes up only now.
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprint(w, r.Host, " ", len(body), " ", err)
	}))
	t.Cleanup(s.Close)
	out := &outside{server: s.Listener.Addr().String()}
	e, err := egress.New(egress.Config{Resolver: out, Dial: out.dial})
	if err != nil {
		t.Fatal(err)
	}
	g, err := e.Open(t.Context(), egress.Spec{Session: "s", Dir: dir, Policy: allowed("a.test")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	client := &http.Client{Transport: &http.Transport{
		Proxy:       http.ProxyURL(&url.URL{Scheme: "http", Host: egressAddress}),
		DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil },
	}, Timeout: 20 * time.Second}
	resp, err := client.Post("http://a.test/", "text/plain", strings.NewReader(strings.Repeat("x", 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "a.test 1048576 <nil>" {
		t.Errorf("answer = %q, %v", body, err)
	}
}

func (in *inside) dialForward() net.Conn {
	in.t.Helper()
	in.way.mu.Lock()
	var addr string
	for c := range in.way.closers {
		if ln, ok := c.(net.Listener); ok && ln.Addr().String() != in.dns {
			addr = ln.Addr().String()
		}
	}
	in.way.mu.Unlock()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		in.t.Fatal(err)
	}
	in.t.Cleanup(func() { c.Close() })
	return c
}

func TestForwarderSaysThatNobodyIsThere(t *testing.T) {
	t.Parallel()
	in := &inside{t: t, log: &bytes.Buffer{}}
	in.start(filepath.Join(t.TempDir(), "egress.sock"))
	c := in.dialForward()
	body, err := io.ReadAll(c)
	if err != nil || string(body) != nobodyThere {
		t.Errorf("answer = %q, %v", body, err)
	}
	if r := in.query("udp", "a.test.", dnsmessage.TypeA, 0); r.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("a lookup = %v, want a failure that is asked again", r.GoString())
	}
}

func TestResolverSurvivesWhatIsNoQuery(t *testing.T) {
	t.Parallel()
	in := newInside(t, allowed("a.test:40080"), sayHost)
	c, err := net.Dial("udp", in.dns)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 1000 {
		junk := make([]byte, rand.IntN(600))
		for i := range junk {
			junk[i] = byte(rand.Uint32())
		}
		if _, err := c.Write(junk); err != nil {
			t.Fatal(err)
		}
	}
	if addr, err := in.lookup("a.test"); err != nil {
		t.Errorf("a lookup after that = %s, %v", addr, err)
	}
}

func FuzzReply(f *testing.F) {
	q := dnsmessage.Message{Questions: []dnsmessage.Question{{
		Name: dnsmessage.MustNewName("localhost."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET,
	}}}
	b, err := q.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	n := newNames(openWay(wayConfig{socket: "/nonexistent"}, slog.New(slog.DiscardHandler)), nameRange)
	n.way.cancel() // nobody is asked
	f.Fuzz(func(t *testing.T, query []byte) {
		reply := n.reply(query)
		if reply == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(reply); err != nil || !m.Response || len(reply) > 512 {
			t.Errorf("reply to %x = %x, %v", query, reply, err)
		}
	})
}
