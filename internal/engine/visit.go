package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// Visit is a stay of a person or a tool in the sandbox of a session: a shell, a
// copy, a connection to a port. While it lasts the sandbox is in use, so the hold
// of its lease does not run out; the ceiling still ends it, and no visit brings a
// lease back that is over. What was started may outlive the visit, and the server.
type Visit struct {
	e    *Engine
	c    *compute
	ctx  context.Context // ends with the visit, and then has its cause
	end  context.CancelCauseFunc
	stop func() // of the touching; nil for a visit that leaves no trace
	once sync.Once
}

// leavePatience bounds what is written down at the end of a visit.
const leavePatience = 5 * time.Second

// errLeft is the cause of a visit that its visitor ended.
var errLeft = errors.New("the visit is over")

// Visit enters the sandbox of a session, which is made when there is none: as
// [Engine.EnsureWorkspace] does, with its refusals, within wait. The visit must be
// closed. It ends by itself with its sandbox and with the engine.
func (e *Engine) Visit(ctx context.Context, ref Ref, wait time.Duration) (*Visit, error) {
	facts, err := e.EnsureWorkspace(ctx, ref, wait)
	if err != nil {
		return nil, err
	}
	c := e.live(facts.Lease, e.Now())
	if c == nil {
		return nil, unreachable(errors.New("the sandbox ended while it was entered"))
	}
	// Before anything is written there, so that no crash can lose that it was.
	err = e.decide(ctx, c.session, func(_ *store.Tx, d *sojourn.Decision) error {
		if !d.VisitLease(c.epoch) {
			return sojourn.Errorf(sojourn.CodeWorkspaceExpired, "The lease of the sandbox has ended.")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	v, err := e.stay(ctx, c)
	if err != nil {
		return nil, err
	}
	v.stop = e.touchUntil(v.ctx, c, (*sojourn.Decision).VisitLease)
	return v, nil
}

// stay makes a visit in a compute, which does not touch its lease.
func (e *Engine) stay(ctx context.Context, c *compute) (*Visit, error) {
	v := &Visit{e: e, c: c}
	v.ctx, v.end = context.WithCancelCause(e.base)
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		v.end(errStopping)
		return nil, errStopping
	}
	e.wg.Add(1) // until Close: the engine waits for its visitors
	e.wg.Go(v.watch)
	e.mu.Unlock()
	e.clearStrays(ctx, c)
	return v, nil
}

// watch ends the visit with its sandbox.
func (v *Visit) watch() {
	select {
	case <-v.c.box.Done():
		v.end(v.lost())
	case <-v.ctx.Done():
	}
}

// lost says why the sandbox is not there any more.
func (v *Visit) lost() error {
	if v.leased(v.ctx) {
		return &sojourn.Error{Code: sojourn.CodeExecutionLost, Cause: v.c.box.Err(), Message: "The sandbox has ended."}
	}
	return sojourn.Errorf(sojourn.CodeWorkspaceExpired, "The lease of the sandbox has ended.")
}

// leased reports whether the lease of the sandbox goes on, or was lost in mid-life.
// When that cannot be read it has not ended as far as we know.
func (v *Visit) leased(ctx context.Context) bool {
	facts, err := v.e.facts(ctx, v.c.session)
	l := facts.Lease
	return err != nil || l != nil && l.Epoch == v.c.epoch && (l.Live(v.e.Now()) || lostState(*l))
}

// Context ends with the visit; its cause is why.
func (v *Visit) Context() context.Context { return v.ctx }

// Close leaves the sandbox and waits for what belongs to the visit. It may be
// called twice.
func (v *Visit) Close() {
	v.once.Do(func() {
		v.end(errLeft)
		defer v.e.wg.Done()
		if v.stop == nil {
			return
		}
		v.stop()
		// A run may have been sealed since the last touch, and not what was written
		// after that.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(v.ctx), leavePatience)
		defer cancel()
		v.e.touch(ctx, v.c, (*sojourn.Decision).VisitLease)
		v.e.noteLimits(ctx, v.c)
	})
}

// bound returns a context that ends with ctx and with the visit, each with its
// own cause.
func (v *Visit) bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(v.ctx, func() { cancel(context.Cause(v.ctx)) })
	return ctx, func() { stop(); cancel(nil) }
}

// told gives what a call to the keeper came back with its meaning for a visitor:
// when visit or caller have ended that is why, whatever the call says.
func (v *Visit) told(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case context.Cause(v.ctx) != nil:
		return context.Cause(v.ctx)
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case errors.Is(err, link.ErrGone), errors.Is(err, link.ErrStaleEpoch):
		return v.lost()
	case errors.Is(err, link.ErrLimit):
		return &sojourn.Error{Code: sojourn.CodeUnavailable, Cause: err, RetryAfter: 5 * time.Second, Message: "The sandbox has no room for another process now."}
	case !v.leased(ctx): // whoever ended it has closed the link, and the sandbox goes next
		return v.lost()
	}
	return err
}

// The processes of visits have names that say what they are. Only shells are
// meant to be found again; the others end with the visit that started them, or
// are cleared away at the next one when the server was killed in between.
const (
	shellPrefix = "shell-"
	copyPrefix  = "copy-"
	portPrefix  = "port-"
)

// visitSeq numbers the passing processes of this server process.
var visitSeq atomic.Int64

// passing names a process that ends with its visit.
func (e *Engine) passing(prefix string) string {
	return fmt.Sprintf("%s%s-%d", prefix, e.tag, visitSeq.Add(1))
}
