package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/work"
)

// bench is one worker driving a bare session for as long as it is open: its
// sandbox, its execs and its rotations. It is known by session while it lasts, so
// that commands can hand it what they have started.
type bench struct {
	e       *Engine
	id      sojourn.SessionID
	claim   work.Claim
	ctx     context.Context // ends with the claim, and with the bench
	stop    context.CancelFunc
	wake    chan struct{}  // of one: something about the session has changed
	wg      sync.WaitGroup // the follows
	wait    waiting        // the execs that wait for their turn
	cleared int64          // the epoch whose keeper knows no execs that are over; see clearEnded

	mu      sync.Mutex
	left    bool // no follow starts any more
	follows map[sojourn.ExecID]*follow

	life    life // its sandboxes
	capture atomic.Pointer[captureFlight]
}

// driveBench drives a bare session. It is the handler of the work kind "bench",
// and is called again for the same session after a crash.
func (e *Engine) driveBench(ctx context.Context, claim work.Claim) (work.Next, error) {
	b := &bench{
		e: e, id: sojourn.SessionID(claim.ID), claim: claim,
		wake: make(chan struct{}, 1), follows: map[sojourn.ExecID]*follow{},
	}
	b.ctx, b.stop = context.WithCancel(ctx)
	e.mu.Lock()
	e.benches[b.id] = b
	e.mu.Unlock()
	defer b.leave()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-b.wake:
		case <-timer.C:
		case <-ctx.Done():
			return work.Next{}, context.Cause(ctx)
		}
		next, err := b.step(ctx)
		if sojourn.CodeOf(err) == sojourn.CodeNotFound {
			return work.Done(), nil
		}
		if err != nil {
			return work.Next{}, err
		}
		if next.over {
			return work.Done(), nil
		}
		if !next.at.IsZero() {
			timer.Reset(max(0, next.at.Sub(e.Now())))
		}
	}
}

// leave lets go of the session: its execs go on in their sandbox.
func (b *bench) leave() {
	b.mu.Lock()
	b.left = true
	b.mu.Unlock()
	b.e.mu.Lock()
	if b.e.benches[b.id] == b {
		delete(b.e.benches, b.id)
	}
	b.e.mu.Unlock()
	b.stop()
	b.wg.Wait()
}

// look is when a bench looks at its session again: at the time, if there is one,
// and whenever something changes. over says that there is nothing left to drive.
type look struct {
	at   time.Time
	over bool
}

// sooner returns the earlier of two looks.
func (l look) sooner(o look) look {
	if l.at.IsZero() || !o.at.IsZero() && o.at.Before(l.at) {
		l.at = o.at
	}
	l.over = l.over && o.over
	return l
}

// step does what is due for the session. It must not block for long but in the
// making and the draining of a sandbox.
func (b *bench) step(ctx context.Context) (look, error) {
	facts, err := b.e.facts(ctx, b.id)
	if err != nil {
		return look{}, err
	}
	execs, err := b.tend(ctx, facts) // those that run, and those that wait too long
	if err != nil {
		return look{}, err
	}
	var next look
	switch s := facts.Session; {
	case s.State == sojourn.SessionClosed, s.State == sojourn.SessionPaused:
		next, err = b.wind(ctx, facts)
	case s.State != sojourn.SessionOpen:
		return look{over: true}, nil
	case s.Rotating():
		next, err = b.rotate(ctx, facts)
	default:
		next, err = b.serve(ctx, facts)
	}
	return next.sooner(execs), err
}

// commit makes one decision under the bench's claim.
func (b *bench) commit(ctx context.Context, f func(*store.Tx, *sojourn.Decision) error) error {
	return b.claim.Commit(ctx, b.e.cfg.Store, func(tx *store.Tx) error {
		facts, err := tx.Facts(b.id)
		if err != nil {
			return err
		}
		return b.e.apply(tx, facts, f)
	})
}

// startNext starts the execs that wait and may run now. When there are none it writes
// nothing, so that it may be called at every step.
func (b *bench) startNext(ctx context.Context) error {
	start := func(_ *store.Tx, d *sojourn.Decision) error {
		d.StartExecs(b.e.rateOf(d.Facts().Session))
		return nil
	}
	facts, err := b.e.facts(ctx, b.id)
	if err != nil {
		return err
	}
	if d := facts.Decide(b.e.Now()); start(nil, d) == nil && len(d.Change().Execs) == 0 {
		return nil
	}
	return b.commit(ctx, start)
}

// tellBench tells whoever waits for the execs of a change, and the bench of its
// session. after is what the change has left. It is called after the commit, in the
// order of commits, and must not block.
func (e *Engine) tellBench(c sojourn.Change, after sojourn.Facts) {
	e.mu.Lock()
	b := e.benches[c.Session.ID]
	for _, x := range c.Execs {
		for _, w := range e.watched[x.ID] {
			w.last = &execChange{x: x, facts: after}
			raise(w.changed)
		}
	}
	for _, w := range e.awaited[c.Session.ID] {
		raise(w.changed)
	}
	e.mu.Unlock()
	if b == nil {
		return
	}
	for _, x := range c.Execs {
		if x.State == sojourn.ExecRunning {
			b.disturb()
		}
		b.note(x)
	}
	raise(b.wake)
}

// benched reports whether this process drives the session.
func (e *Engine) benched(id sojourn.SessionID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.benches[id] != nil
}

// raise leaves a value in a channel of one, if there is none.
func raise(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// execWatch is somebody who waits for an exec to change.
type execWatch struct {
	changed chan struct{} // of one
	last    *execChange   // the latest change since the watch began; guarded by Engine.mu
}

// execChange is an exec as a commit has left it, and its session.
type execChange struct {
	x     sojourn.Exec
	facts sojourn.Facts
}

// latest returns the latest change that a watch was told of; nil for none.
func (e *Engine) latest(w *execWatch) *execChange {
	e.mu.Lock()
	defer e.mu.Unlock()
	return w.last
}

// watchExec returns a watch that is told of each change of an exec until stop is
// called. It must be taken before the exec is read that the caller waits to change.
func (e *Engine) watchExec(id sojourn.ExecID) (w *execWatch, stop func()) {
	w = &execWatch{changed: make(chan struct{}, 1)}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watched[id] = append(e.watched[id], w)
	return w, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		all := e.watched[id]
		for i, other := range all {
			if other == w {
				all = append(all[:i:i], all[i+1:]...)
				break
			}
		}
		if e.watched[id] = all; len(all) == 0 {
			delete(e.watched, id)
		}
	}
}
