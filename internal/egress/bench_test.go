package egress_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/egress"
)

// benchBox is a gate for a benchmark, over the world w.
func benchBox(b *testing.B, w *world, rules ...string) *box {
	b.Helper()
	e, err := egress.New(w.config())
	if err != nil {
		b.Fatal(err)
	}
	x := &box{t: b, dir: b.TempDir()}
	if x.gate, err = e.Open(b.Context(), egress.Spec{Session: "s", Dir: x.dir, Policy: allow(rules...), Report: x.report}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := x.gate.Close(); err != nil {
			b.Error(err)
		}
	})
	return x
}

// BenchmarkTunnel moves 256 MiB through a tunnel, and as much over a plain socket in
// the same run: "x-direct" is how many times longer the tunnel takes.
func BenchmarkTunnel(b *testing.B) {
	const size = 256 << 20
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ln.Close() })
	go func() { // ends with the listener
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 128<<10)
				for left := size; left > 0; left -= len(buf) {
					if _, err := c.Write(buf); err != nil {
						return
					}
				}
			}()
		}
	}()
	w := newWorld()
	w.serve("a.test", 9418, ln.Addr().String())
	x := benchBox(b, w, "a.test:9418")
	read := func(c net.Conn) time.Duration {
		began := time.Now()
		buf := make([]byte, 128<<10)
		n := 0
		for {
			k, err := c.Read(buf)
			if n += k; err == io.EOF {
				break
			} else if err != nil {
				b.Fatal(err)
			}
		}
		if n < size {
			b.Fatalf("%d bytes came, want %d", n, size)
		}
		return time.Since(began)
	}
	var direct, through time.Duration
	b.SetBytes(size)
	for b.Loop() {
		b.StopTimer()
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		direct += read(c)
		c.Close()
		b.StartTimer()
		if c, err = x.dial(b.Context(), "", ""); err != nil {
			b.Fatal(err)
		}
		fmt.Fprint(c, "CONNECT a.test:9418 HTTP/1.1\r\nHost: a.test:9418\r\n\r\n")
		through += read(c)
		c.Close()
	}
	b.ReportMetric(float64(through)/float64(direct), "x-direct")
}

// BenchmarkRequests sends small requests one after another over a connection that is
// kept, through the proxy and directly.
func BenchmarkRequests(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	b.Cleanup(s.Close)
	w := newWorld()
	w.serve("a.test", 80, addrOf(s))
	x := benchBox(b, w, "a.test")
	get := func(c *http.Client, url string) {
		resp, err := c.Get(url)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
			b.Fatal(resp.Status, err)
		}
		resp.Body.Close()
	}
	client := x.client()
	var direct, through time.Duration
	for b.Loop() {
		b.StopTimer()
		began := time.Now()
		get(s.Client(), s.URL)
		direct += time.Since(began)
		b.StartTimer()
		began = time.Now()
		get(client, "http://a.test/")
		through += time.Since(began)
	}
	b.ReportMetric(float64(through)/float64(direct), "x-direct")
}
