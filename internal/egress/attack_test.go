package egress_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/egress"
)

// forbidden are addresses that no policy reaches, in the forms in which they come.
var forbidden = []string{
	"127.0.0.1", "127.8.8.8", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
	"100.64.0.1", "100.100.100.200", "169.254.1.1", "169.254.169.254", "169.254.170.2", "168.63.129.16",
	"192.0.0.1", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.1", "203.0.113.1",
	"224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
	"::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::1.2.3.4",
	"fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "fd20:ce::254", "ff02::1", "2001:db8::1", "3fff::1", "100::1",
	"2001::1", "2001:0:53aa:64c:0:0:3f57:fefe", // Teredo
	"2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::1", // 6to4 around private ones
	"64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808", // NAT64
	"2606:4700::5efe:a00:1", "2606:4700::200:5efe:7f00:1", // ISATAP
	"4000::1", "::ffff:0:7f00:1",
}

func TestForbiddenAddressesAreRefusedInEveryMode(t *testing.T) {
	t.Parallel()
	w := newWorld()
	rules := []string{"*.evil.test", "mixed.test"}
	for i, a := range forbidden {
		w.name(fmt.Sprintf("h%d.evil.test", i), a)
		rules = append(rules, a)
	}
	w.name("mixed.test", public, "10.0.0.1")
	for _, p := range []sojourn.NetworkPolicy{openPolicy, allow(rules...)} {
		b := open(t, w.config(), p)
		for i, a := range forbidden {
			host := fmt.Sprintf("h%d.evil.test", i)
			if _, _, code, why := b.tunnel(host + ":443"); code != 403 || !strings.HasSuffix(why, "_address") {
				t.Errorf("%s: %s through a name = %d %s", p.Mode, a, code, why)
			}
			if _, _, code, why := b.tunnel(net.JoinHostPort(a, "443")); code != 403 || !strings.HasSuffix(why, "_address") {
				t.Errorf("%s: %s itself = %d %s", p.Mode, a, code, why)
			}
			if code, why, _ := b.get("http://" + host + "/"); code != 403 || !strings.HasSuffix(why, "_address") {
				t.Errorf("%s: %s by HTTP = %d %s", p.Mode, a, code, why)
			}
		}
		if _, _, code, why := b.tunnel("mixed.test:443"); code != 403 || why != "private_address" {
			t.Errorf("%s: a name with a public and a private address = %d %s", p.Mode, code, why)
		}
	}
	if n := w.dialled(); n != 0 {
		t.Errorf("%d connections were tried", n)
	}
}

func TestAddressesOfThisHostAreRefused(t *testing.T) {
	t.Parallel()
	list, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, newWorld().config(), openPolicy)
	for _, at := range list {
		p, err := netip.ParsePrefix(at.String())
		if err != nil {
			t.Fatal(err)
		}
		a := p.Addr().WithZone("").String()
		if _, _, code, why := b.tunnel(net.JoinHostPort(a, "80")); code != 403 {
			t.Errorf("%s = %d %s", a, code, why)
		}
	}
}

func TestOddSpellingsOfHostsAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld()
	b := open(t, w.config(), openPolicy)
	for _, host := range []string{
		"127.1", "0x7f.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.0.0.1.", "1.2.3", "a.0x1", "[::1%25lo]", "[fe80::1%eth0]",
		"a..test", "-a.test", "a_b.test@c.test", "a test", "bücher.example", "a.test/", "a.test#b.test", "*", "*.test", ".", "",
		"[a.test]", "a.test:80:80", strings.Repeat("a", 64) + ".test",
	} {
		conn := b.connect()
		fmt.Fprintf(conn, "CONNECT %s:443 HTTP/1.1\r\nHost: x\r\n\r\n", host)
		resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
		if err != nil {
			t.Errorf("CONNECT %q: %v", host, err)
			continue
		}
		if resp.StatusCode < 400 || resp.StatusCode == http.StatusBadGateway {
			t.Errorf("CONNECT %q = %d %s", host, resp.StatusCode, resp.Header.Get("Sojourn-Refused"))
		}
	}
	if n := len(w.lookups); n != 0 {
		t.Errorf("looked up %q", w.lookups)
	}
}

func TestTargetsThatAreNoneAreRefused(t *testing.T) {
	t.Parallel()
	b := open(t, newWorld().config(), openPolicy)
	for _, line := range []string{
		"CONNECT a.test HTTP/1.1", "CONNECT a.test:0 HTTP/1.1", "CONNECT a.test:65536 HTTP/1.1", "CONNECT a.test:+80 HTTP/1.1",
		"CONNECT a.test:http HTTP/1.1", "CONNECT /a.test:80 HTTP/1.1", "GET https://a.test/ HTTP/1.1", "GET ftp://a.test/ HTTP/1.1",
		"GET http://u:p@a.test/ HTTP/1.1", "GET http:///x HTTP/1.1", "GET http://a.test:0/ HTTP/1.1", "GET file:///etc/passwd HTTP/1.1",
	} {
		conn := b.connect()
		fmt.Fprintf(conn, "%s\r\nHost: a.test\r\nConnection: close\r\n\r\n", line)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode < 400 || resp.StatusCode >= 500 {
			t.Errorf("%s: %v, %v", line, resp, err)
		}
	}
}

// TestAddressIsCheckedAndDialledOnce: a name that answers differently the second time
// gets no second time.
func TestAddressIsCheckedAndDialledOnce(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := echoHost(t)
	w.serve("a.test", 80, addrOf(s))
	w.serve("a.test", 443, addrOf(s))
	b := open(t, w.config(), allow("a.test"))
	for _, target := range []string{"http", "tunnel"} {
		before := len(w.lookups)
		if target == "http" {
			b.get("http://a.test/")
		} else {
			b.tunnel("a.test:443")
		}
		w.mu.Lock()
		if got := w.lookups[before:]; !slices.Equal(got, []string{"a.test."}) {
			t.Errorf("%s: looked up %q, want the name once and without search domains", target, got)
		}
		if last := w.dials[len(w.dials)-1]; !strings.HasPrefix(last, public+":") {
			t.Errorf("%s: dialled %s, want the address that was checked", target, last)
		}
		w.mu.Unlock()
	}
	w.name("a.test", "127.0.0.1") // rebinding
	if _, _, code, why := b.tunnel("a.test:443"); code != 403 || why != "private_address" {
		t.Errorf("after the name was bound to loopback: %d %s", code, why)
	}
}

func TestRedirectsAreJudgedAnew(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := httptest.NewServer(http.RedirectHandler("http://b.test:81/", http.StatusFound))
	t.Cleanup(s.Close)
	w.serve("a.test", 80, addrOf(s))
	w.serve("b.test", 81, addrOf(echoHost(t)))
	b := open(t, w.config(), allow("a.test"))
	if code, why, body := b.get("http://a.test/"); code != 403 || why != "no_rule" {
		t.Errorf("a redirect to a host without a rule = %d %s %q", code, why, body)
	}
}

func TestHostFieldCannotNameAnotherHost(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := echoHost(t)
	w.serve("a.test", 80, addrOf(s))
	w.serve("b.test", 80, addrOf(s))
	w.serve("a.test", 8080, addrOf(s))
	b := open(t, w.config(), allow("a.test", "a.test:8080"))

	conn := b.connect()
	fmt.Fprint(conn, "GET http://a.test/ HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n")
	if _, body := readReply(t, bufio.NewReader(conn)); body != "GET a.test/" {
		t.Errorf("absolute form with another Host = %q, want the host that was judged", body)
	}
	for _, target := range []string{"a.test:80", "a.test:8080"} {
		for _, c := range []struct{ request, want string }{
			{"GET / HTTP/1.1\r\nHost: " + target + "\r\n\r\n", "200 "},
			{"GET / HTTP/1.1\r\nHost: b.test\r\n\r\n", "403 host_mismatch"},
			{"\r\n\r\nGET / HTTP/1.1\r\nHost: b.test\r\n\r\n", ""}, // cut or refused, never answered
			{"GET http://b.test/ HTTP/1.1\r\nHost: " + target + "\r\n\r\n", "403 host_mismatch"},
			{"get / HTTP/1.1\r\nHost: b.test\r\n\r\n", "403 host_mismatch"},
			{"CONNECT b.test:80 HTTP/1.1\r\nHost: b.test:80\r\n\r\n", "403 bad_request"},
			{"GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n", "400 "},
			{"GET / HTTP/1.1\r\n\r\n", "400 "},
			{"GET / HTTP/1.0\r\n\r\n", "403 bad_request"},
			{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""},
		} {
			conn, r, code, why := b.tunnel(target)
			if code != 200 {
				t.Fatalf("CONNECT %s = %d %s", target, code, why)
			}
			if _, err := io.WriteString(conn, c.request); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(r, nil)
			switch {
			case c.want == "":
				if err == nil && resp.StatusCode < 400 {
					t.Errorf("%s: %q = %d", target, c.request, resp.StatusCode)
				}
			case err != nil:
				t.Errorf("%s: %q: %v", target, c.request, err)
			default:
				if got := fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Sojourn-Refused")); got != c.want {
					t.Errorf("%s: %q = %s, want %s", target, c.request, got, c.want)
				}
			}
		}
		// A second request on a connection is judged as the first one was.
		conn, r, _, _ := b.tunnel(target)
		fmt.Fprintf(conn, "GET /1 HTTP/1.1\r\nHost: %[1]s\r\n\r\nGET /2 HTTP/1.1\r\nHost: b.test\r\n\r\n", target)
		if code, _ := readReply(t, r); code != 200 {
			t.Errorf("%s: first request = %d", target, code)
		}
		if code, _ := readReply(t, r); code != 403 {
			t.Errorf("%s: second request, for another host = %d", target, code)
		}
	}
}

func readReply(t *testing.T, r *bufio.Reader) (code int, body string) {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// TestServerNameMustBeTheTunnelsHost: one address serves two names, and the policy
// allows one of them.
func TestServerNameMustBeTheTunnelsHost(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.TLS.ServerName) }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // what was cut is no news
	s.StartTLS()
	t.Cleanup(s.Close)
	for _, port := range []int{443, 8443} {
		w.serve("a.test", port, addrOf(s))
		w.serve("b.test", port, addrOf(s))
	}
	policy := allow("a.test", "a.test:8443", public)
	for _, c := range []struct {
		name, target, sni string
		reached           bool
		want              string // reason
	}{
		{"same", "a.test:443", "a.test", true, ""},
		{"same at a port with a rule", "a.test:8443", "a.test", true, ""},
		{"case", "A.TEST:443", "a.Test", true, ""},
		{"other", "a.test:443", "b.test", false, "sni_mismatch"},
		{"other at a port with a rule", "a.test:8443", "b.test", false, "sni_mismatch"},
		{"none", "a.test:443", "", false, "sni_missing"},
		{"address, none", public + ":443", "", true, ""},
		{"address, some", public + ":443", "b.test", false, "sni_mismatch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := open(t, w.config(), policy)
			conn, _, code, why := b.tunnel(c.target)
			if code != 200 {
				t.Fatalf("CONNECT = %d %s", code, why)
			}
			tc := tls.Client(conn, &tls.Config{ServerName: c.sni, InsecureSkipVerify: true})
			err := tc.HandshakeContext(t.Context())
			if (err == nil) != c.reached {
				t.Errorf("handshake = %v, want reached %v", err, c.reached)
			}
			if err != nil && !strings.Contains(err.Error(), "unrecognized name") {
				t.Errorf("handshake = %v, want an alert that says why", err)
			}
			tc.Close()
			got := strings.Join(b.decided(), "\n")
			if c.want == "" && strings.Contains(got, "refused") || c.want != "" && !strings.Contains(got, c.want) {
				t.Errorf("decisions: %s, want %q", got, c.want)
			}
		})
	}
}

func TestWebRulesCarryOnlyTheWeb(t *testing.T) {
	t.Parallel()
	w := newWorld()
	raw := listenEcho(t)
	for _, port := range []int{80, 443, 22} {
		w.serve("a.test", port, raw)
	}
	b := open(t, w.config(), allow("a.test", "*.test:22"))
	conn, r, _, _ := b.tunnel("a.test:443")
	fmt.Fprint(conn, "SSH-2.0-x\r\n")
	if got, err := r.ReadString('\n'); err == nil {
		t.Errorf("SSH through 443 by a rule for the web answered %q", got)
	}
	conn, r, _, _ = b.tunnel("a.test:22")
	fmt.Fprint(conn, "SSH-2.0-x\r\n")
	if got, err := r.ReadString('\n'); err != nil || got != "SSH-2.0-x\r\n" {
		t.Errorf("SSH by a rule with the port = %q, %v", got, err)
	}
	if got := strings.Join(b.decided(), "\n"); !strings.Contains(got, "refused a.test:443 not_tls") {
		t.Errorf("decisions: %s", got)
	}
}

// listenEcho is a server that sends back what it gets.
func listenEcho(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() { // ends with the listener
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c) // until the other side has enough
				_ = c.(*net.TCPConn).CloseWrite()
			}()
		}
	}()
	return ln.Addr().String()
}

func TestBadHellosAreCut(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.serve("a.test", 443, listenEcho(t))
	b := open(t, w.config(), allow("a.test"))
	for name, hello := range map[string]string{
		"not a hello":   "\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00",
		"huge record":   "\x16\x03\x01\xff\xff" + strings.Repeat("x", 70_000),
		"huge hello":    "\x16\x03\x01\x40\x00\x01\xff\xff\xff" + strings.Repeat("x", 70_000),
		"empty records": strings.Repeat("\x16\x03\x01\x00\x00", 10_000),
	} {
		conn, r, _, _ := b.tunnel("a.test:443")
		go io.WriteString(conn, hello) // the other side may close first
		back, _ := io.ReadAll(r)       // an alert, or nothing
		if len(back) > 7 {
			t.Errorf("%s: the server answered %d bytes", name, len(back))
		}
	}
	if got := strings.Join(b.decided(), "\n"); !strings.Contains(got, "refused a.test:443 bad_client_hello") || strings.Contains(got, "allowed") {
		t.Errorf("decisions: %s", got)
	}
}

func TestHeadersAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.serve("a.test", 80, addrOf(echoHost(t)))
	b := open(t, w.config(), allow("a.test"))
	conn := b.connect()
	go func() { // the other side stops reading
		fmt.Fprint(conn, "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n")
		for i := range 100_000 {
			if _, err := fmt.Fprintf(conn, "X-%d: %s\r\n", i, strings.Repeat("x", 100)); err != nil {
				return
			}
		}
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil && resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("ten megabytes of header = %d", resp.StatusCode)
	}
	if n := w.dialled(); n != 0 {
		t.Errorf("%d connections were made for it", n)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	cfg := newWorld().config()
	cfg.MaxConns = 4
	b := open(t, cfg, openPolicy)
	var held []net.Conn
	for range cfg.MaxConns {
		c := b.connect()
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		readReply(t, bufio.NewReader(c)) // it is served, and stays open
		held = append(held, c)
	}
	c := b.connect()
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if code, body := readReply(t, bufio.NewReader(c)); code != 503 || !strings.Contains(body, "too many connections") {
		t.Errorf("one more = %d %q", code, body)
	}
	held[0].Close()
	for deadline := time.Now().Add(time.Minute); ; {
		c := b.connect()
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if code, _ := readReply(t, bufio.NewReader(c)); code == 404 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a closed connection gave no room")
		}
	}
}

func TestExceptionsLetInAndNeverToTheServerItself(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := echoHost(t)
	mine := netip.MustParseAddrPort(addrOf(s))
	w.mu.Lock()
	w.servers["10.1.2.3:80"] = addrOf(s)
	w.servers[addrOf(s)] = addrOf(s)
	w.mu.Unlock()
	w.name("inside.test", "10.1.2.3")
	cfg := w.config()
	for _, text := range []string{"10.1.2.0/24:80", "127.0.0.0/8", "0.0.0.0"} {
		x, err := egress.ParseException(text)
		if err != nil {
			t.Fatal(err)
		}
		cfg.AllowPrivate = append(cfg.AllowPrivate, x)
	}
	if _, err := egress.ParseException("a.test"); err == nil {
		t.Error("a name is an exception")
	}
	at := fmt.Sprintf("127.0.0.1:%d", mine.Port())
	b := open(t, cfg, openPolicy)
	if code, _, body := b.get("http://inside.test/"); code != 200 {
		t.Errorf("an exception = %d %q", code, body)
	}
	if _, _, code, why := b.tunnel("10.1.2.3:81"); code != 403 || why != "private_address" {
		t.Errorf("its other port = %d %s", code, why)
	}
	if code, _, body := b.get("http://" + at + "/"); code != 200 {
		t.Errorf("an exception for loopback = %d %q", code, body)
	}
	for _, own := range []netip.AddrPort{mine, netip.AddrPortFrom(netip.IPv4Unspecified(), mine.Port()), netip.AddrPortFrom(netip.IPv6Unspecified(), mine.Port())} {
		cfg.Own = func() []netip.AddrPort { return []netip.AddrPort{own} }
		b := open(t, cfg, openPolicy)
		for _, at := range []string{at, fmt.Sprintf("0.0.0.0:%d", mine.Port())} {
			if _, _, code, why := b.tunnel(at); code != 403 || why != "own_listener" {
				t.Errorf("%s, where the server listens on %v = %d %s", at, own, code, why)
			}
		}
	}
}

func TestNoneRefusesEverythingAndSaysWhatToDo(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.serve("a.test", 80, addrOf(echoHost(t)))
	local := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "model ", r.URL.Path) })
	for _, p := range []sojourn.NetworkPolicy{{}, {Mode: sojourn.NetworkNone}} {
		b := open(t, w.config(), p, func(s *egress.Spec) { s.Local = local })
		code, why, body := b.get("http://a.test/")
		if code != 403 || why != "mode_none" || !strings.HasPrefix(body, `sojourn: network policy "none"`) || !strings.Contains(body, "allow") {
			t.Errorf("%v: %d %s %q", p, code, why, body)
		}
		if _, _, code, _ := b.tunnel("a.test:443"); code != 403 {
			t.Errorf("%v: a tunnel = %d", p, code)
		}
		c := b.connect()
		fmt.Fprint(c, "POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1:3128\r\nContent-Length: 0\r\n\r\n")
		if code, body := readReply(t, bufio.NewReader(c)); code != 200 || body != "model /v1/messages" {
			t.Errorf("%v: the local handler = %d %q", p, code, body)
		}
		if got := strings.Join(b.decided(), "\n"); !strings.Contains(got, "refused a.test:80 mode_none") {
			t.Errorf("%v: decisions %s", p, got)
		}
	}
	if len(w.lookups) != 0 {
		t.Errorf("looked up %q", w.lookups)
	}
}

// pool trusts the certificate of a test server.
func pool(s *httptest.Server) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(s.Certificate())
	return p
}
