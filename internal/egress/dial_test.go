package egress_test

import (
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/egress"
)

// TestDialReachesWhatSandboxesCould: what the server fetches for somebody leads to no
// place that a sandbox could not reach, also by a redirect.
func TestDialReachesWhatSandboxesCould(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := echoHost(t)
	w.serve("a.test", 80, addrOf(s))
	w.name("inside.test", "10.0.0.1")
	e, err := egress.New(w.config())
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{DialContext: e.Dial}}
	t.Cleanup(c.CloseIdleConnections)
	resp, err := c.Get("http://a.test/x")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "GET a.test/x" {
		t.Errorf("a public host said %q, %v", text, err)
	}
	before := w.dialled()
	for _, host := range append(forbidden, "inside.test", "localhost", "127.1", "0x7f000001", "fe80::1%lo", "") {
		for _, port := range []string{"80", "0", "65536", ""} {
			if conn, err := e.Dial(t.Context(), "tcp", net.JoinHostPort(host, port)); err == nil {
				conn.Close()
				t.Errorf("%s at %q was reached", host, port)
			}
		}
	}
	if n := w.dialled() - before; n != 0 {
		t.Errorf("%d connections were tried", n)
	}
}
