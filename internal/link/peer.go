package link

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// The pauses between attempts to reach the far side.
const (
	minBackoff = 20 * time.Millisecond
	maxBackoff = time.Second
)

// Peer is the far side as one long conversation. It dials when a call needs a
// connection and dials again when that one breaks; a call that a break
// interrupted is repeated on the next connection until its context ends.
//
// A call ends early with ErrGone when dial says so, with ErrStaleEpoch when
// the server knows a newer epoch, and with ErrUnknownSession (which then also
// is ErrGone) when the server has lost the session that this peer had.
type Peer struct {
	dial func(context.Context) (Transport, error)
	o    Options

	mu     sync.Mutex
	client *Client // the last one opened; it may have ended
	cur    *attempt
	resume string
	closed bool
	// forgotten are the ids last given to Forget: one that was on its way when a
	// connection broke is said again on the next.
	forgotten []string
	wg        sync.WaitGroup

	attention attention
}

// attempt is one search for a connection, shared by all callers that wait.
type attempt struct {
	done    chan struct{} // closed when client or err is set
	client  *Client
	err     error
	last    error // why the latest dial came to nothing; guarded by Peer.mu
	cancel  context.CancelFunc
	waiters int // guarded by Peer.mu
}

// NewPeer returns a peer that dials with dial. It does not dial by itself
// before the first call.
func NewPeer(dial func(context.Context) (Transport, error), o Options) *Peer {
	return &Peer{dial: dial, o: o, resume: o.Resume, attention: attention{asked: make(chan struct{}, 1)}}
}

// errPeerClosed answers calls after Close.
var errPeerClosed = errors.New("link: peer is closed")

// openTimeout bounds the introduction on a new connection.
const openTimeout = 10 * time.Second

// Close ends the connection, stops dialing and waits for both.
func (p *Peer) Close() error {
	p.mu.Lock()
	p.closed = true
	if p.cur != nil {
		p.cur.cancel()
	}
	client := p.client
	p.mu.Unlock()
	p.attention.raise()
	if client != nil {
		_ = client.Close() // a search that has ended may still be saying something
	}
	p.wg.Wait() // no attempt starts any more, so p.client is final
	p.mu.Lock()
	client = p.client
	p.mu.Unlock()
	if client == nil {
		return nil
	}
	return client.Close()
}

// connect returns a live client, waiting for one if need be.
func (p *Peer) connect(ctx context.Context) (*Client, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errPeerClosed
	}
	if p.client != nil && p.client.Err() == nil {
		defer p.mu.Unlock()
		return p.client, nil
	}
	a := p.cur
	if a == nil {
		a = p.beginLocked()
	}
	a.waiters++
	p.mu.Unlock()

	select {
	case <-a.done:
		return a.client, a.err
	case <-ctx.Done():
		return nil, p.abandon(ctx, a)
	}
}

// beginLocked starts an attempt. It outlives the call that starts it, since
// others may wait for it too, and ends when nobody does.
func (p *Peer) beginLocked() *attempt {
	ctx, cancel := context.WithCancel(context.Background())
	a := &attempt{done: make(chan struct{}), cancel: cancel}
	p.cur = a
	p.wg.Go(func() { p.search(ctx, a) })
	return a
}

// abandon takes one waiter off an attempt and says what stood in the way.
func (p *Peer) abandon(ctx context.Context, a *attempt) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	a.waiters--
	if a.waiters == 0 {
		a.cancel()
		if p.cur == a {
			p.cur = nil
		}
	}
	if a.last != nil {
		return fmt.Errorf("connect link: %w (last attempt: %w)", context.Cause(ctx), a.last)
	}
	return fmt.Errorf("connect link: %w", context.Cause(ctx))
}

// search looks for a connection until there is one, or none is to be had, or
// nobody waits any more.
func (p *Peer) search(ctx context.Context, a *attempt) {
	defer a.cancel()
	for pause := minBackoff; ; pause = min(2*pause, maxBackoff) {
		client, err := p.open(ctx)
		if err == nil || final(err) || ctx.Err() != nil {
			p.finish(a, client, err)
			return
		}
		p.mu.Lock()
		a.last = err
		p.mu.Unlock()
		if err := sleep(ctx, pause); err != nil {
			p.finish(a, nil, err)
			return
		}
	}
}

// open makes one connection and resumes the session of the one before.
func (p *Peer) open(ctx context.Context) (*Client, error) {
	t, err := p.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial link: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	o := p.o
	p.mu.Lock()
	o.Resume = p.resume
	p.mu.Unlock()
	client, err := Open(ctx, t, o)
	if errors.Is(err, ErrUnknownSession) {
		err = fmt.Errorf("%w: %w", ErrGone, err)
	}
	return client, err
}

// final reports whether trying again cannot help.
func final(err error) bool {
	return errors.Is(err, ErrGone) || errors.Is(err, ErrStaleEpoch)
}

// finish publishes the outcome of an attempt. A connection that came too late
// for anyone to want it is closed again.
func (p *Peer) finish(a *attempt, client *Client, err error) {
	p.mu.Lock()
	unwanted := client
	if p.cur == a {
		p.cur = nil
		if client != nil && !p.closed {
			unwanted = p.client // ended; its goroutines are still to be waited for
			p.client, p.resume = client, client.SessionID()
		}
	}
	if client == unwanted && client != nil {
		client, err = nil, errPeerClosed
	}
	a.client, a.err = client, err
	close(a.done)
	forgotten := slices.Clone(p.forgotten) // later ones find the new connection
	p.mu.Unlock()
	if unwanted != nil {
		// Both kinds have nothing left to say: one has ended, one did nothing.
		_ = unwanted.Close()
	}
	if client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
		defer cancel()
		// It fails when this connection breaks, too; then the next one is told.
		_ = p.forgetOn(ctx, client, forgotten...)
	}
}

// retry makes a call on the peer's connection and repeats it on the next one
// when the connection breaks. again tells call that an earlier attempt may
// have been carried out although its answer was lost.
func retry[T any](ctx context.Context, p *Peer, call func(c *Client, again bool) (T, error)) (v T, err error) {
	p.attention.begin()
	defer func() { p.attention.end(err) }()
	for n := 0; ; n++ {
		c, err := p.connect(ctx)
		if err != nil {
			return v, err
		}
		v, err := call(c, n > 0)
		if err == nil || !errors.Is(err, ErrDisconnected) {
			return v, err
		}
		if n == 0 {
			continue // one break is ordinary
		}
		pause := min(minBackoff<<min(n, 10), maxBackoff)
		if stop := sleep(ctx, pause); stop != nil {
			return v, errors.Join(stop, err)
		}
	}
}

// do is retry for calls without a result.
func do(ctx context.Context, p *Peer, call func(c *Client, again bool) error) error {
	_, err := retry(ctx, p, func(c *Client, again bool) (struct{}, error) {
		return struct{}{}, call(c, again)
	})
	return err
}
