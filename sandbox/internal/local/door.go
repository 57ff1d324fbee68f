package local

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

const (
	tokenBytes = 32
	// tokenLine is how long the first line on a connection is: the token in
	// hexadecimal and a newline.
	tokenLine = 2*tokenBytes + 1
	// tokenTime is how long a connection may take to send it.
	tokenTime = 5 * time.Second
	// maxUnproven is how many connections may be without a token at a time; one
	// more closes the oldest, so that others in the sandbox can neither use up the
	// host's descriptors nor keep the keeper out.
	maxUnproven = 32
)

// errDoorClosed is what Dial reports after Close.
var errDoorClosed = errors.New("driver is closed")

// NewToken returns a fresh secret for a keeper, in hexadecimal.
func NewToken() string {
	b := make([]byte, tokenBytes)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// Door is the host's end of a keeper's socket. Any process in the sandbox can knock;
// only connections that send the token first are let in, and of those the newest.
type Door struct {
	ln    *net.UnixListener
	token string
	wake  chan struct{} // one deep: there may be a new ready connection
	shut  chan struct{}
	// called is closed when the keeper has proven itself for the first time.
	called chan struct{}
	tasks  sync.WaitGroup

	mu       sync.Mutex
	unproven []net.Conn // oldest first
	ready    net.Conn   // verified, not yet asked for
	current  net.Conn   // what the last Dial returned
	first    bool       // called is closed
	resting  bool
	closed   bool
}

// Listen makes the keeper's socket in dir, in place of one that an earlier server
// left there.
func Listen(dir, token string) (*Door, error) {
	ln, err := makeSocket(dir)
	if err != nil {
		return nil, err
	}
	d := &Door{ln: ln, token: token, wake: make(chan struct{}, 1), shut: make(chan struct{}), called: make(chan struct{})}
	d.tasks.Go(func() { d.accept(ln) })
	return d, nil
}

// makeSocket listens at the keeper's socket in dir.
func makeSocket(dir string) (*net.UnixListener, error) {
	// The path of a socket is limited to 107 bytes; through the descriptor of its
	// directory it is short wherever the directory is.
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open socket directory: %w", err)
	}
	defer f.Close()
	if err := unix.Unlinkat(int(f.Fd()), sandbox.SocketName, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("remove old keeper socket: %w", err)
	}
	path := "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) + "/" + sandbox.SocketName
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for keeper: %w", err)
	}
	ln.SetUnlinkOnClose(false) // the path would be another directory by then
	if err := os.Chmod(path, 0o600); err != nil {
		ln.Close()
		return nil, fmt.Errorf("close keeper socket to others: %w", err)
	}
	return ln, nil
}

// Dial waits for the keeper to call and returns the connection. It closes the one
// that it returned before.
func (d *Door) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("wait for keeper: %w", context.Cause(ctx))
	}
	d.mu.Lock()
	if d.current != nil {
		d.current.Close()
		d.current = nil
	}
	d.mu.Unlock()
	for {
		if c := d.take(); c != nil {
			return c, nil
		}
		select {
		case <-d.wake:
		case <-d.shut:
			return nil, errDoorClosed
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for keeper: %w", context.Cause(ctx))
		}
	}
}

// Shut closes the socket and all connections but the one that Dial returned last, whose
// reader still gets what the keeper wrote before it ended. It waits for the door's
// goroutines and may be called twice.
func (d *Door) Shut() { d.close(false) }

// Close is Shut, and closes that connection too.
func (d *Door) Close() { d.close(true) }

func (d *Door) close(all bool) {
	d.mu.Lock()
	if !d.closed {
		d.closed = true
		close(d.shut)
		d.sendAwayLocked()
	}
	if all && d.current != nil {
		d.current.Close()
		d.current = nil
	}
	d.mu.Unlock()
	d.tasks.Wait()
}

// Rest closes the socket and all connections until Wake; Dial waits meanwhile.
func (d *Door) Rest() {
	d.mu.Lock()
	d.resting = true
	d.sendAwayLocked()
	if d.current != nil {
		d.current.Close()
		d.current = nil
	}
	d.mu.Unlock()
	d.tasks.Wait()
}

// Wake makes the socket in dir again, after Rest.
func (d *Door) Wake(dir string) error {
	ln, err := makeSocket(dir)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		ln.Close()
		return errDoorClosed
	}
	d.ln, d.resting = ln, false
	d.tasks.Go(func() { d.accept(ln) })
	return nil
}

// sendAwayLocked closes the socket and all connections that nobody has asked for.
func (d *Door) sendAwayLocked() {
	d.ln.Close()
	for _, c := range append(d.unproven, d.ready) {
		if c != nil {
			c.Close()
		}
	}
	d.unproven, d.ready = nil, nil
}

func (d *Door) take() net.Conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.ready
	d.ready = nil
	if c != nil {
		d.current = c
	}
	return c
}

func (d *Door) accept(ln *net.UnixListener) {
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: let others finish
			pause := time.NewTimer(100 * time.Millisecond)
			select {
			case <-d.shut:
			case <-pause.C:
			}
			pause.Stop()
			continue
		}
		if !d.knock(c) {
			c.Close()
			return
		}
		d.tasks.Go(func() { d.verify(c) })
	}
}

// knock notes a connection that has not proven itself; it reports false when the
// door is closed or rests.
func (d *Door) knock(c net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.resting {
		return false
	}
	if len(d.unproven) >= maxUnproven {
		d.unproven[0].Close()
		d.unproven = slices.Delete(d.unproven, 0, 1)
	}
	d.unproven = append(d.unproven, c)
	return true
}

func (d *Door) verify(c net.Conn) {
	line := make([]byte, tokenLine)
	_ = c.SetReadDeadline(time.Now().Add(tokenTime))
	_, err := io.ReadFull(c, line)
	_ = c.SetReadDeadline(time.Time{})
	proven := err == nil && subtle.ConstantTimeCompare(line, []byte(d.token+"\n")) == 1

	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.Index(d.unproven, c)
	if i < 0 || !proven || d.closed { // not there: it was closed to make room
		c.Close()
	}
	if i < 0 {
		return
	}
	d.unproven = slices.Delete(d.unproven, i, i+1)
	if !proven || d.closed {
		return
	}
	if d.ready != nil {
		d.ready.Close()
	}
	d.ready = c
	if !d.first {
		d.first = true
		close(d.called)
	}
	select {
	case d.wake <- struct{}{}:
	default:
	}
}
