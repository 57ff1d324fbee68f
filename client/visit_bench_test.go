package client_test

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// benchServer is a server with a session that has a sandbox.
func benchServer(b *testing.B) (*client.Client, string) {
	b.Helper()
	s := servertest.Start(b, servertest.Config{Programs: programs})
	c, err := client.New(client.Config{URL: s.URL, Key: servertest.AdminKey})
	if err != nil {
		b.Fatal(err)
	}
	made, err := c.CreateSession(b.Context(), client.CreateSession{})
	if err == nil {
		_, err = c.EnsureWorkspace(b.Context(), made.Session.ID)
	}
	if err != nil {
		b.Fatal(err)
	}
	return c, made.Session.ID
}

// BenchmarkCopyOut copies 64 MiB out of a sandbox, beside reading such a file.
func BenchmarkCopyOut(b *testing.B) {
	c, id := benchServer(b)
	const size = 64 << 20
	plain := filepath.Join(b.TempDir(), "f")
	if err := os.WriteFile(plain, make([]byte, size), 0o600); err != nil {
		b.Fatal(err)
	}
	if _, err := c.CopyIn(b.Context(), id, "d", "", bytes.NewReader(archive(b, "f", string(make([]byte, size))))); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(size)
	var floor, ours time.Duration
	for b.Loop() {
		began := time.Now()
		if _, err := os.ReadFile(plain); err != nil {
			b.Fatal(err)
		}
		floor += time.Since(began)
		began = time.Now()
		d, err := c.CopyOut(b.Context(), id, "d")
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, d); err != nil || n < size {
			b.Fatalf("%d bytes came (%v)", n, err)
		}
		d.Close()
		ours += time.Since(began)
	}
	b.ReportMetric(ours.Seconds()/floor.Seconds(), "x-of-ReadFile")
}

// BenchmarkPortRoundTrip sends one byte to a port of a sandbox and waits for its
// return, beside doing the same without a sandbox in between.
func BenchmarkPortRoundTrip(b *testing.B) {
	c, id := benchServer(b)
	port := echo(b)
	near, far := net.Pipe()
	defer near.Close()
	go func() { defer far.Close(); _ = c.Forward(b.Context(), id, port, far) }()
	direct, err := net.DialTCP("tcp", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		b.Fatal(err)
	}
	defer direct.Close()
	var floor, ours time.Duration
	for b.Loop() {
		floor += roundTrip(b, direct)
		ours += roundTrip(b, near)
	}
	b.ReportMetric(ours.Seconds()/floor.Seconds(), "x-of-loopback")
	b.ReportMetric(float64(ours.Microseconds())/float64(b.N), "µs/trip")
}

func roundTrip(b *testing.B, conn net.Conn) time.Duration {
	began := time.Now()
	one := []byte{1}
	if _, err := conn.Write(one); err != nil {
		b.Fatal(err)
	}
	if _, err := io.ReadFull(conn, one); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}
