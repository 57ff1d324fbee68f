package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"time"
)

// recordHandshake is the first byte of a TLS connection.
const recordHandshake = 0x16

var errHelloRead = errors.New("hello was read")

// readHello returns the server name in the ClientHello that r begins with, in lower
// case, or "" when it has none. It consumes nothing. With encrypted hellos it is the
// outer name, which is the one that decides where they lead.
func readHello(r *bufio.Reader) (name string, err error) {
	seen := false
	conn := tls.Server(&peekConn{r: r}, &tls.Config{
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name, seen = strings.ToLower(hello.ServerName), true
			return nil, errHelloRead
		},
	})
	if err := conn.HandshakeContext(context.Background()); !seen {
		return "", err
	}
	return name, nil
}

// peekConn reads from r ahead of who consumes it, and writes nowhere. It ends where
// the buffer of r is full.
type peekConn struct {
	r   *bufio.Reader
	off int
}

func (c *peekConn) Read(b []byte) (int, error) {
	if _, err := c.r.Peek(c.off + 1); err != nil {
		return 0, err
	}
	ahead, err := c.r.Peek(c.r.Buffered())
	n := copy(b, ahead[c.off:])
	c.off += n
	return n, err
}

func (c *peekConn) Write(b []byte) (int, error)      { return len(b), nil }
func (c *peekConn) Close() error                     { return nil }
func (c *peekConn) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (c *peekConn) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (c *peekConn) SetDeadline(time.Time) error      { return nil }
func (c *peekConn) SetReadDeadline(time.Time) error  { return nil }
func (c *peekConn) SetWriteDeadline(time.Time) error { return nil }

// maxMethod is longer than any method of HTTP that is in use.
const maxMethod = 32

// looksLikeHTTP reports whether r begins as a request of HTTP/1 does: line breaks that
// servers skip, letters, a space. SSH and git, which clients speak first in, do not.
func looksLikeHTTP(r *bufio.Reader) bool {
	letters := 0
	for i := range maxMethod {
		b, err := r.Peek(i + 1)
		if err != nil {
			return false
		}
		switch c := b[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '-', c == '_':
			letters++
		case (c == '\r' || c == '\n') && letters == 0:
		default:
			return (c == ' ' || c == '\t') && letters > 0
		}
	}
	return true // no other protocol begins so either
}
