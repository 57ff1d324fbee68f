package work

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/sojourn-dev/sojourn/internal/store"
)

// errLapsing ends a handler whose claim could not be kept.
var errLapsing = fmt.Errorf("heartbeats did not reach the store: %w", ErrLost)

// held is a claim in this process. It is what heartbeats are sent for: a claim
// whose handler is gone is not kept alive.
type held struct {
	kind   *kind
	work   store.Work
	ctx    context.Context // of the handler
	cancel context.CancelCauseFunc
	lapse  *time.Timer     // ends ctx before the claim can lapse
	before <-chan struct{} // closed when the handler of an earlier claim of the key has returned; nil for none
	done   chan struct{}   // closed when the handler has returned
	keepAt time.Time       // when the next heartbeat is due; under Engine.mu
	over   bool            // cancelled by its own handler; under Engine.mu
}

func (h *held) key() Key { return Key{Kind: h.work.Kind, ID: h.work.ID} }

// hold registers a claim that was asked for at begun.
func (e *Engine) hold(ctx context.Context, k *kind, w store.Work, begun time.Time) *held {
	h := &held{kind: k, work: w, done: make(chan struct{})}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	h.lapse = time.AfterFunc(time.Until(begun.Add(trusted(k.policy.Lease))), func() { h.cancel(errLapsing) })
	e.mu.Lock()
	defer e.mu.Unlock()
	k.running++
	e.held[h] = struct{}{}
	if earlier := e.working[h.key()]; earlier != nil {
		h.before = earlier.done
	}
	e.working[h.key()] = h
	h.keepAt = begun.Add(k.policy.Lease / 3)
	return h
}

// trusted is how long after a claim or a heartbeat a handler may go on: less
// than the lease, so that it stops before another can start.
func trusted(lease time.Duration) time.Duration { return lease - lease/5 }

// drop forgets a claim whose handler has returned.
func (e *Engine) drop(h *held) {
	h.lapse.Stop()
	h.cancel(nil)
	e.mu.Lock()
	delete(e.held, h)
	if e.working[h.key()] == h {
		delete(e.working, h.key())
	}
	h.kind.running--
	e.mu.Unlock()
	close(h.done)
	select {
	case e.freed <- struct{}{}:
	default:
	}
}

// settled records that a handler has cancelled its own work.
func (e *Engine) settled(h *held) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h.over = true
	h.lapse.Stop()
}

// work runs the handler of a claim and writes down how it ended.
func (e *Engine) work(ctx context.Context, h *held) {
	defer e.drop(h)
	if h.before != nil {
		<-h.before // it has lost its claim, and its context has ended
	}
	next, err := e.run(h)
	e.mu.Lock()
	over := h.over
	e.mu.Unlock()
	if over {
		if err != nil {
			e.cfg.Log.Warn("work failed after its end", "kind", h.work.Kind, "id", h.work.ID, "error", err)
		}
		return
	}
	end := e.outcome(h, next, err, ctx.Err() != nil)
	err = e.store.Update(context.WithoutCancel(ctx), end)
	if err != nil && !errors.Is(err, ErrLost) {
		// The claim lapses, and the work is done again.
		e.cfg.Log.Error("the end of work was not recorded", "kind", h.work.Kind, "id", h.work.ID, "error", err)
	}
}

// outcome decides what becomes of work whose handler has returned. An attempt
// that we ended ourselves, by stopping or for want of heartbeats, does not count.
func (e *Engine) outcome(h *held, next Next, failure error, stopping bool) func(*store.Tx) error {
	w, p := h.work, h.kind.policy
	log := e.cfg.Log.With("kind", w.Kind, "id", w.ID, "attempt", w.Attempt, "error", failure)
	switch {
	case failure == nil && next.again.IsZero():
		return func(tx *store.Tx) error { return tx.CompleteWork(w) }
	case failure == nil:
		return func(tx *store.Tx) error { return tx.AgainWork(w, next.again) }
	case stopping || errors.Is(context.Cause(h.ctx), ErrLost):
		return func(tx *store.Tx) error { return tx.ReleaseWork(w, tx.Now(), w.LastError, false) }
	case p.MaxAttempts > 0 && w.Attempt >= p.MaxAttempts:
		log.Error("work was given up")
		return func(tx *store.Tx) error { return tx.BuryWork(w, failure.Error()) }
	}
	log.Warn("work failed")
	wait := p.Backoff(w.Attempt)
	return func(tx *store.Tx) error { return tx.ReleaseWork(w, tx.Now().Add(wait), failure.Error(), true) }
}

// run calls the handler. A panic is an error; so is a claim after the last
// attempt, which means that the process died during the others.
func (e *Engine) run(h *held) (next Next, err error) {
	w := h.work
	if h.ctx.Err() != nil {
		return Next{}, context.Cause(h.ctx)
	}
	if most := h.kind.policy.MaxAttempts; most > 0 && w.Attempt > most {
		return Next{}, fmt.Errorf("no attempt of %d has ended; before: %s", most, w.LastError)
	}
	defer func() {
		if v := recover(); v != nil {
			e.cfg.Log.Error("handler panicked", "kind", w.Kind, "id", w.ID, "panic", v, "stack", string(debug.Stack()))
			err = fmt.Errorf("handler panicked: %v", v)
		}
	}()
	return h.kind.handler.Run(h.ctx, Claim{
		Key: h.key(), Attempt: w.Attempt, Fence: w.Fence, Payload: w.Payload,
		settle: func() { e.settled(h) },
	})
}
