package link_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/sojourn-dev/sojourn/internal/link"
)

// webSocketPair returns both ends of a WebSocket over a network connection.
func webSocketPair(t *testing.T, dial func(far func(net.Conn)) net.Conn) (near, far link.Transport) {
	t.Helper()
	accepted := make(chan *websocket.Conn, 1)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Errorf("accept: %v", err)
		}
		accepted <- c
	})}
	t.Cleanup(func() { srv.Close() })
	client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return dial(func(c net.Conn) {
			go func() { _ = srv.Serve(&oneListener{c: c}) }() // it ends when there is no second connection
		}), nil
	}}}
	c, _, err := websocket.Dial(t.Context(), "ws://far/", &websocket.DialOptions{HTTPClient: client})
	if err != nil {
		t.Fatal(err)
	}
	return link.WebSocket(c), link.WebSocket(<-accepted)
}

// oneListener accepts one connection.
type oneListener struct{ c net.Conn }

func (l *oneListener) Accept() (net.Conn, error) {
	if c := l.c; c != nil {
		l.c = nil
		return c, nil
	}
	return nil, io.EOF
}
func (l *oneListener) Close() error   { return nil }
func (l *oneListener) Addr() net.Addr { return &net.UnixAddr{} }

func overPipe(far func(net.Conn)) net.Conn {
	a, b := net.Pipe()
	far(b)
	return a
}

func TestWebSocketCarriesMessages(t *testing.T) {
	near, far := webSocketPair(t, overPipe)
	defer near.Close()
	defer far.Close()
	for _, msg := range [][]byte{[]byte("{}"), bytes.Repeat([]byte("x"), 5<<20), {}} {
		sent := make(chan error, 1)
		go func() { sent <- near.Write(msg) }()
		got, err := far.Read()
		if err != nil || !bytes.Equal(got, msg) || <-sent != nil {
			t.Fatalf("read %d bytes, %v; want %d", len(got), err, len(msg))
		}
	}
	if err := near.Write(make([]byte, link.MaxFrameBytes+1)); !errors.Is(err, link.ErrFrameTooLarge) {
		t.Fatalf("oversized write = %v, want ErrFrameTooLarge", err)
	}
	near.Close()
	near.Close()
	if _, err := far.Read(); err == nil {
		t.Fatal("read from a closed connection")
	}
}

// TestWebSocketNoticesDeadNetwork: bytes vanish without an error.
func TestWebSocketNoticesDeadNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hole *blackHole
		near, far := webSocketPair(t, func(give func(net.Conn)) net.Conn {
			a, b := net.Pipe()
			give(b)
			hole = &blackHole{Conn: a, dead: make(chan struct{})}
			return hole
		})
		go func() {
			for { // answers pings
				if _, err := far.Read(); err != nil {
					return
				}
			}
		}()
		ended := make(chan time.Time, 1)
		go func() {
			if _, err := near.Read(); err == nil {
				t.Error("read succeeded")
			}
			ended <- time.Now()
		}()
		time.Sleep(10 * time.Minute)
		select {
		case <-ended:
			t.Fatal("a quiet connection was dropped")
		default:
		}
		close(hole.dead)
		began := time.Now()
		if d := (<-ended).Sub(began); d > 2*time.Minute {
			t.Fatalf("noticed after %v", d)
		}
		near.Close()
		far.Close()
	})
}

// blackHole takes writes and loses them once dead.
type blackHole struct {
	net.Conn
	dead chan struct{}
}

func (b *blackHole) Write(p []byte) (int, error) {
	select {
	case <-b.dead:
		return len(p), nil
	default:
		return b.Conn.Write(p)
	}
}
