package egress_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sojourn-dev/sojourn"
)

// TestNarrowerTermsEndWhatWasNotLookedAt: a tunnel that an open policy let through could
// carry requests for other hosts than the new rule names.
func TestNarrowerTermsEndWhatWasNotLookedAt(t *testing.T) {
	t.Parallel()
	w := newWorld()
	plain := echoHost(t)
	secure := httptest.NewUnstartedServer(plain.Config.Handler)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	w.serve("a.test", 80, addrOf(plain))
	w.serve("a.test", 443, addrOf(secure))
	w.serve("a.test", 8443, addrOf(plain))
	ask := func(conn net.Conn, r *bufio.Reader, host string) error {
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host) // the answer says if it went wrong
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	for _, c := range []struct {
		name, target, sni string
		now               sojourn.NetworkPolicy
		lives             bool
	}{
		{"plain HTTP", "a.test:80", "", allow("a.test"), false},
		{"plain HTTP at a port with a rule", "a.test:8443", "", allow("a.test:8443"), false},
		{"TLS without a name", "a.test:443", "-", allow("a.test"), false},
		{"TLS", "a.test:443", "a.test", allow("a.test"), true},
		{"still open", "a.test:80", "", openPolicy, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := open(t, w.config(), openPolicy)
			conn, r, code, why := b.tunnel(c.target)
			if code != 200 {
				t.Fatalf("CONNECT = %d %s", code, why)
			}
			if c.sni != "" {
				cfg := &tls.Config{InsecureSkipVerify: true}
				if c.sni != "-" {
					cfg.ServerName = c.sni
				}
				tc := tls.Client(conn, cfg)
				conn, r = tc, bufio.NewReader(tc)
			}
			if err := ask(conn, r, "a.test"); err != nil {
				t.Fatalf("before the change: %v", err)
			}
			b.gate.SetPolicy(c.now)
			if err := ask(conn, r, "other.test"); (err == nil) != c.lives {
				t.Errorf("after it: %v, want that the tunnel lives: %v", err, c.lives)
			}
		})
	}
}
