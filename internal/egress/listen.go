package egress

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// maxTurnedAway is how many connections beyond the limit are told so at a time; more
// are closed at once.
const maxTurnedAway = 32

// listener is the gate's socket. It keeps the number of open connections bounded.
type listener struct {
	net.Listener
	slots  chan struct{}
	excess chan struct{}
	shut   chan struct{}
	once   sync.Once
	wg     sync.WaitGroup
}

// listen makes the socket in dir, in place of one that an earlier server left there.
func listen(dir string, conns int) (*listener, error) {
	// The path of a socket is limited to 107 bytes; through the descriptor of its
	// directory it is short wherever the directory is.
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open socket directory: %w", err)
	}
	defer f.Close()
	if err := unix.Unlinkat(int(f.Fd()), sandbox.EgressSocketName, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	path := "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) + "/" + sandbox.EgressSocketName
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	ln.SetUnlinkOnClose(false) // the path would be another directory by then
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("close socket to others: %w", err), ln.Close())
	}
	return &listener{
		Listener: ln, slots: make(chan struct{}, conns), excess: make(chan struct{}, maxTurnedAway),
		shut: make(chan struct{}),
	}, nil
}

// Accept returns the next connection for which there is room.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil, err
		case err != nil: // out of descriptors: let others finish
			pause := time.NewTimer(50 * time.Millisecond)
			select {
			case <-l.shut:
			case <-pause.C:
			}
			pause.Stop()
			continue
		}
		select {
		case l.slots <- struct{}{}:
			return &slotConn{UnixConn: c.(*net.UnixConn), slots: l.slots}, nil
		default:
		}
		select {
		case l.excess <- struct{}{}:
			l.wg.Go(func() {
				defer func() { <-l.excess }()
				turnAway(c)
			})
		default:
			c.Close()
		}
	}
}

// turnAway tells a client that there are too many. It reads what the client has sent
// first, because closing over unread bytes would take the answer back.
func turnAway(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	_, _ = io.ReadAtLeast(c, make([]byte, 4<<10), 1)
	_, _ = io.WriteString(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"+
		"sojourn: this sandbox has too many connections open.\n")
}

// Close ends listening and waits for those who are being turned away.
func (l *listener) Close() error {
	var err error
	l.once.Do(func() {
		close(l.shut)
		err = l.Listener.Close()
	})
	l.wg.Wait()
	return err
}

// slotConn is a connection that gives its place back when it is closed.
type slotConn struct {
	*net.UnixConn
	slots chan struct{}
	once  sync.Once
}

func (c *slotConn) Close() error {
	err := c.UnixConn.Close()
	c.once.Do(func() { <-c.slots })
	return err
}
