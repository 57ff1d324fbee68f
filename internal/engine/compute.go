package engine

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/checkpoint"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// compute is a lease's sandbox and the link to its keeper.
type compute struct {
	session sojourn.SessionID
	epoch   int64
	box     sandbox.Sandbox
	peer    *link.Peer
	strays  sync.Once                 // see clearStrays
	info    atomic.Pointer[link.Info] // see about; nil until it was asked for
	gate    *gate                     // its way to the network
	felt    sandbox.Usage             // what was reported of limits that were reached; under Engine.mu
}

// close lets go of the sandbox, which goes on.
func (c *compute) close() {
	c.peer.Close()
	c.gate.close()
}

// flight is the making of a compute. done is closed when c or err is set.
type flight struct {
	done chan struct{}
	c    *compute
	err  error
}

// ensure returns the session's compute, making it when there is none. Callers of
// one session share one flight; a caller that gives up leaves it flying.
func (e *Engine) ensure(ctx context.Context, id sojourn.SessionID) (*compute, error) {
	e.mu.Lock()
	f := e.flights[id]
	if f == nil {
		if e.closed {
			e.mu.Unlock()
			return nil, errStopping
		}
		f = &flight{done: make(chan struct{})}
		e.flights[id] = f
		e.wg.Go(func() {
			fly, cancel := context.WithTimeout(e.base, e.cfg.StartTimeout)
			defer cancel()
			f.c, f.err = e.fly(fly, id)
			e.mu.Lock()
			delete(e.flights, id)
			e.mu.Unlock()
			close(f.done)
		})
	}
	e.mu.Unlock()
	select {
	case <-f.done:
		return f.c, f.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// live returns the compute of a session's lease when it is at hand.
func (e *Engine) live(l *sojourn.Lease, now time.Time) *compute {
	if l == nil || !l.Live(now) {
		return nil
	}
	c := e.at(*l)
	if c == nil || ended(c.box) {
		return nil
	}
	return c
}

// at returns the compute of a lease that is known, whether its sandbox runs or not.
func (e *Engine) at(l sojourn.Lease) *compute {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.computes[l.Session]; c != nil && c.epoch == l.Epoch {
		return c
	}
	return nil
}

func ended(b sandbox.Sandbox) bool {
	select {
	case <-b.Done():
		return true
	default:
		return false
	}
}

// fly makes a compute, or finds that there is one.
func (e *Engine) fly(ctx context.Context, id sojourn.SessionID) (*compute, error) {
	select {
	case <-e.ready: // recovery may be adopting the same sandbox
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	facts, err := e.facts(ctx, id)
	if err != nil {
		return nil, err
	}
	if c := e.live(facts.Lease, e.Now()); c != nil {
		return c, nil
	}
	if e.cfg.Driver == nil {
		return nil, sojourn.Errorf(sojourn.CodeComputeMissing, "There is nowhere to run. An administrator has to add compute.")
	}
	if l := facts.Lease; l != nil && l.Live(e.Now()) {
		c, err := e.adopt(ctx, *l)
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, sandbox.ErrGone) {
			return nil, unreachable(err)
		}
	}
	if err := e.endOld(ctx, id); err != nil {
		return nil, err
	}
	return e.grant(ctx, id)
}

func unreachable(err error) error {
	return &sojourn.Error{
		Code: sojourn.CodeWorkspaceUnavailable, RetryAfter: 2 * time.Second, Cause: err,
		Message: "The sandbox cannot be reached at the moment. It is kept.",
	}
}

// endOld ends a lease that is over in fact but not yet in its row, saves what only
// its sandbox has, and destroys what is left of earlier leases: there are never two
// sandboxes of a session. A sandbox whose files are being sealed is none of them.
func (e *Engine) endOld(ctx context.Context, id sojourn.SessionID) error {
	var refusal error
	draining := false
	err := e.decide(ctx, id, func(_ *store.Tx, d *sojourn.Decision) error {
		if l := d.Facts().Lease; l != nil {
			if err := e.giveUp(d, *l, nil); err != nil {
				return err
			}
			draining = d.Facts().Lease.State == sojourn.LeaseDraining
		}
		if refusal = nil; !draining {
			refusal = d.AdmitsLease()
		}
		return nil
	})
	if err = cmp.Or(err, refusal); err != nil {
		return err
	}
	if draining {
		err = e.drain(ctx, id)
	} else {
		err = e.destroyEnded(ctx, id)
	}
	if err != nil {
		return unreachable(err)
	}
	return nil
}

func endState(l sojourn.Lease, now time.Time) sojourn.LeaseState {
	if l.State == sojourn.LeaseHeld && !l.Live(now) {
		return sojourn.LeaseExpired
	}
	return sojourn.LeaseLost
}

// The reasons of a lease that has run out.
const (
	endedByCeiling = "ceiling"
	endedByHold    = "idle_hold"
)

func endReason(l sojourn.Lease, now time.Time) string {
	switch {
	case l.State == sojourn.LeaseRequested:
		return "sandbox_not_started"
	case l.Live(now):
		return "sandbox_ended"
	case l.Deadline().Equal(l.GrantedAt.Add(l.Ceiling)):
		return endedByCeiling
	default:
		return endedByHold
	}
}

// grant makes a sandbox under a new lease and restores the head checkpoint into
// it while its keeper boots. After a failure nothing is left of it.
func (e *Engine) grant(ctx context.Context, id sojourn.SessionID) (*compute, error) {
	var facts sojourn.Facts
	var lease sojourn.Lease
	err := e.decide(ctx, id, func(_ *store.Tx, d *sojourn.Decision) (err error) {
		facts = d.Facts()
		if c := facts.Continuation(d.Now()); !c.CanContinue {
			return notCarried(c)
		}
		lease, err = d.RequestLease(e.cfg.Driver.Name(), string(e.cfg.Driver.Capabilities().Isolation), e.terms(facts.Session))
		return err
	})
	if err != nil {
		return nil, err
	}
	c, err := e.provide(ctx, facts, lease)
	if err == nil {
		return c, nil
	}
	e.abandon(id, lease.Epoch, err)
	if errors.Is(err, checkpoint.ErrCorrupt) {
		return nil, e.condemn(ctx, id, facts.Session.Head)
	}
	if sojourn.CodeOf(err) != sojourn.CodeInternal {
		return nil, err
	}
	return nil, &sojourn.Error{
		Code: sojourn.CodeWorkspaceUnavailable, RetryAfter: 5 * time.Second, Cause: err,
		Message: "No sandbox could be provided.",
	}
}

// terms are the numbers of a session's next lease. That of a bare session ends at its
// sandbox's timeout only: what its callers have left running in the background is no
// sign of use that could be seen, and must live as long as was promised.
func (e *Engine) terms(s sojourn.Session) sojourn.Terms {
	t := e.cfg.Terms
	if s.Bare() {
		t.Ceiling = orDefault(s.Sandbox.Timeout, t.Ceiling)
		t.Hold = t.Ceiling
	}
	return t
}

// notCarried refuses a sandbox that would not carry the previous work.
func notCarried(c sojourn.Continuation) error {
	return &sojourn.Error{
		Code: sojourn.CodeResumeUnavailable, Details: map[string]string{"reason": string(c.Reason)},
		Message: "The previous state cannot be restored (" + string(c.Reason) + ").",
	}
}

// condemn records that a head checkpoint is damaged, so that nothing is promised
// of it any more, and returns the refusal that follows.
func (e *Engine) condemn(ctx context.Context, id sojourn.SessionID, head sojourn.CheckpointID) error {
	e.log.Error("a checkpoint is damaged", "session", id, "checkpoint", head)
	var after sojourn.Facts
	err := e.decide(ctx, id, func(_ *store.Tx, d *sojourn.Decision) error {
		if d.Facts().Session.Head == head {
			if err := d.CondemnHead(newID[sojourn.CheckpointID]()); err != nil {
				return err
			}
		}
		after = d.Facts()
		return nil
	})
	if err != nil {
		return err
	}
	return notCarried(after.Continuation(e.Now()))
}

// abandon ends a lease whose sandbox did not come up. It must succeed even when
// the flight's time is over.
func (e *Engine) abandon(id sojourn.SessionID, epoch int64, why error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.base), 30*time.Second)
	defer cancel()
	e.log.Warn("sandbox did not start", "session", id, "lease_epoch", epoch, "error", why)
	err := e.decide(ctx, id, func(_ *store.Tx, d *sojourn.Decision) error {
		return d.EndLease(epoch, sojourn.LeaseLost, "sandbox_not_started")
	})
	if err == nil {
		err = e.destroyEnded(ctx, id)
	}
	if err != nil {
		e.log.Error("abandon a lease", "session", id, "lease_epoch", epoch, "error", err)
	}
}

// register makes a compute known and watches its sandbox. When the sandbox is
// known already, it returns the compute that is used.
func (e *Engine) register(c *compute) *compute {
	e.mu.Lock()
	old := e.computes[c.session]
	if old != nil && old.epoch == c.epoch && !ended(old.box) {
		e.mu.Unlock()
		c.close()
		return old
	}
	e.computes[c.session] = c
	for _, w := range e.awaited[c.session] { // the commit that told of the lease came before
		raise(w.changed)
	}
	closed := e.closed
	if !closed {
		e.wg.Go(func() { e.watch(c) })
	}
	e.mu.Unlock()
	if old != nil {
		old.close()
	}
	if closed {
		c.close()
	}
	return c
}

// watch ends the lease when its sandbox ends by itself, and the sandbox when its keeper
// does not answer any more.
func (e *Engine) watch(c *compute) {
	running, over := context.WithCancel(e.base)
	var vigil sync.WaitGroup
	vigil.Go(func() { e.vigil(running, c) })
	select {
	case <-e.base.Done():
	case <-c.box.Done():
	}
	over()
	vigil.Wait()
	if e.base.Err() != nil {
		return
	}
	e.mu.Lock()
	mine := e.computes[c.session] == c
	e.mu.Unlock()
	if !mine { // destroyed on purpose
		return
	}
	if sandbox.ReasonOf(c.box.Err()) == sandbox.EndSnapshot {
		return // on purpose, by the drain that ends the lease
	}
	e.log.Warn("sandbox ended", "session", c.session, "lease_epoch", c.epoch, "error", c.box.Err())
	for {
		err := e.decide(e.base, c.session, func(_ *store.Tx, d *sojourn.Decision) error {
			l := d.Facts().Lease
			if l == nil || l.Epoch != c.epoch {
				return nil
			}
			return e.giveUp(d, *l, c.box.Err())
		})
		if err == nil {
			return
		}
		e.log.Error("end a lost lease", "session", c.session, "lease_epoch", c.epoch, "error", err)
		select { // the disk may be full: what was lost must still be said
		case <-e.base.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

// endLease ends a lease and, in the same change, the run that it carried: the
// cause is told before its effect. A sealing run goes on: its agent is done and
// its files are still there.
func endLease(d *sojourn.Decision, l sojourn.Lease, to sojourn.LeaseState, why string) error {
	if l.State.Terminal() {
		return nil
	}
	if err := d.EndLease(l.Epoch, to, why); err != nil {
		return err
	}
	r := d.Facts().Active
	if r == nil || r.State != sojourn.RunActive || r.Epoch != l.Epoch {
		return nil
	}
	stop, code, text := sojourn.StopWorkspaceLost, sojourn.StopWorkspaceLost, "The sandbox was lost."
	switch {
	case to == sojourn.LeaseExpired:
		stop, code, text = sojourn.StopExecutionDeadline, sojourn.StopExecutionDeadline, "The lease of the sandbox ended ("+why+")."
	case why == string(sandbox.EndOutOfMemory):
		code, text = why, "The sandbox was ended at its memory limit."
	case why == string(sandbox.EndDiskFull):
		code, text = why, "The sandbox was ended at its disk limit."
	case why == endedUnresponsive:
		text = "The sandbox did not answer any more and was ended."
	}
	return d.EndRun(r.ID, sojourn.RunCrashed, stop, &sojourn.RunError{Code: code, Message: text})
}

// giveUp ends a lease that has run out, or whose sandbox has ended by itself with
// err. Where its directory holds what no checkpoint does, or its processes are to be
// kept, the lease is drained rather than ended: it is over for everybody, and ends
// when that is saved.
func (e *Engine) giveUp(d *sojourn.Decision, l sojourn.Lease, err error) error {
	if l.State == sojourn.LeaseDraining {
		return nil
	}
	to, why := endState(l, d.Now()), endReason(l, d.Now())
	if to == sojourn.LeaseLost {
		switch r := sandbox.ReasonOf(err); r {
		case sandbox.EndOutOfMemory, sandbox.EndDiskFull:
			why = string(r)
		case sandbox.EndKilled:
			why = endedUnresponsive
		}
	}
	if l.State == sojourn.LeaseHeld {
		files, processes := e.saves(d.Facts())
		processes = processes && to == sojourn.LeaseExpired // of a sandbox that has ended there are none
		if files || processes {
			if err := d.DrainLease(l.Epoch, why, processes); err != nil {
				return err
			}
			rotateAfter(d)
			return nil
		}
	}
	return endLease(d, l, to, why)
}

func bounded(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
