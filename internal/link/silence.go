package link

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// silenceSteps is in how many steps AwaitSilence listens. In each but the first it
// asks for a sign of life, and before the second half for a new connection.
const silenceSteps = 6

// attention is what a peer remembers of the answers that are waited for.
type attention struct {
	asked chan struct{} // of one: a call has begun, or the peer is closed

	mu      sync.Mutex
	calls   int       // under way
	givenUp time.Time // when a call last ended without an answer
	excuses int       // that hold
	excused time.Time // when the last one ended
}

// begin counts a call in.
func (a *attention) begin() {
	a.mu.Lock()
	a.calls++
	a.mu.Unlock()
	a.raise()
}

// end counts a call out that ended with err.
func (a *attention) end(err error) {
	_, answered := errors.AsType[*Error](err)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls--
	if err != nil && !answered {
		a.givenUp = time.Now()
	}
}

// raise wakes who waits for a call, if anybody does.
func (a *attention) raise() {
	select {
	case a.asked <- struct{}{}:
	default:
	}
}

// awaited reports whether an answer is waited for, or was when nothing had come since
// heard.
func (a *attention) awaited(heard time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls > 0 || a.givenUp.After(heard)
}

// pardons reports whether an excuse holds or has held since a time.
func (a *attention) pardons(since time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.excuses > 0 || !a.excused.Before(since)
}

// Excuse says that the far side cannot answer at the moment, until stop is called. Its
// silence does not count, nor does that of before.
func (p *Peer) Excuse() (stop func()) {
	a := &p.attention
	a.mu.Lock()
	defer a.mu.Unlock()
	a.excuses++
	return sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.excuses--
		a.excused = time.Now()
	})
}

// AwaitSilence returns nil when the far side was asked for something and then has said
// nothing whatever for patience, or a sixth of it longer: no answer, no sign of life
// that it was asked for again and again, and in the second half not by a new connection
// either. Otherwise it returns why ctx ended, or that the peer was closed. While nobody
// asks the far side for anything it does nothing.
//
// The time is counted in steps that each end later on a machine that stands still, so
// that a server which was stopped for an hour takes nobody else for silent. It is for
// far sides that answer calls beside each other, as a keeper does and a stock
// exec-server does not.
func (p *Peer) AwaitSilence(ctx context.Context, patience time.Duration) error {
	step := patience / silenceSteps
	for missed := 0; missed < silenceSteps; {
		if missed == 0 {
			if err := p.awaitCall(ctx); err != nil {
				return err
			}
		}
		if missed == silenceSteps/2 {
			p.hangUp(fmt.Errorf("nothing heard for %v", patience/2))
		}
		began := time.Now()
		if err := p.listen(ctx, step, missed > 0); err != nil {
			return err
		}
		heard := p.Heard()
		switch {
		case !heard.Before(began), p.attention.pardons(began):
			missed = 0
		case missed > 0, p.attention.awaited(heard):
			missed++
		}
	}
	return nil
}

// awaitCall waits until an answer is waited for.
func (p *Peer) awaitCall(ctx context.Context) error {
	for {
		p.mu.Lock()
		closed := p.closed
		p.mu.Unlock()
		if closed {
			return errPeerClosed
		}
		if p.attention.awaited(p.Heard()) {
			return nil
		}
		select {
		case <-p.attention.asked:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// listen waits for a while; with ask it asks for a sign of life meanwhile, and returns
// at once when there is one.
func (p *Peer) listen(ctx context.Context, step time.Duration, ask bool) error {
	during, cancel := context.WithTimeout(ctx, step)
	defer cancel()
	if ask {
		c, err := p.connect(during)
		if err == nil {
			err = c.call(during, MethodEnvironmentInfo, nil, nil)
		}
		if err == nil {
			return nil
		}
	}
	<-during.Done()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// Heard is when the far side last said something; zero for never.
func (p *Peer) Heard() time.Time {
	p.mu.Lock()
	c := p.client
	p.mu.Unlock()
	if c == nil {
		return time.Time{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heardAt
}

// hangUp ends the connection, so that the next call makes a new one.
func (p *Peer) hangUp(why error) {
	p.mu.Lock()
	c := p.client
	p.mu.Unlock()
	if c != nil {
		c.fail(why)
	}
}
