package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/work"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// maxDrives is how often a run is taken up after drives that failed for a reason
// of ours, over some twenty minutes, before it is given up.
const maxDrives = 12

// maxStarts is how often one drive tries to bring a sandbox up.
const maxStarts = 3

// lossShows is how soon after the end of its link the end of a sandbox shows.
const lossShows = 5 * time.Second

// drive is one worker taking one run to its end. It is known by run while it
// lasts, so that commands can tell it what they changed.
type drive struct {
	claim work.Claim
	run   sojourn.RunID
	stop  context.CancelCauseFunc

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when something about the run changed
}

// errOver is the cause of a drive's context when its run was ended by another.
var errOver = errors.New("the run is over")

// tell wakes the drive of a run; when the run is over it also ends it.
func (e *Engine) tell(run sojourn.RunID, over bool) {
	e.mu.Lock()
	d := e.drives[run]
	e.mu.Unlock()
	if d == nil {
		return
	}
	d.mu.Lock()
	close(d.changed)
	d.changed = make(chan struct{})
	d.mu.Unlock()
	if over {
		d.stop(errOver)
	}
}

// change returns a channel that is closed at the next change. It must be taken
// before the state is read that the caller waits to change.
func (d *drive) change() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// driveRun takes a run to its end. It is the handler of the work kind "run", and
// is called again for the same run after a crash.
func (e *Engine) driveRun(ctx context.Context, claim work.Claim) (work.Next, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	d := &drive{claim: claim, run: sojourn.RunID(claim.ID), stop: stop, changed: make(chan struct{})}
	e.mu.Lock()
	e.drives[d.run] = d
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.drives, d.run)
		e.mu.Unlock()
	}()
	err := e.drive(ctx, d)
	switch {
	case err == nil:
		return work.Done(), nil
	case ctx.Err() != nil:
		if errors.Is(context.Cause(ctx), errOver) {
			return work.Done(), nil // ended by another, and durably so
		}
		return work.Next{}, context.Cause(ctx)
	case claim.Attempt >= maxDrives:
		e.log.Error("give a run up", "run", d.run, "attempt", claim.Attempt, "error", err)
		return work.Done(), e.endRun(ctx, d, sojourn.RunCrashed, "", &sojourn.RunError{
			Code: string(sojourn.CodeInternal), Message: "The server could not drive the run to its end.",
		})
	}
	return work.Next{}, err
}

// drive goes on from the state that the run is in.
func (e *Engine) drive(ctx context.Context, d *drive) error {
	var facts sojourn.Facts
	err := e.commit(ctx, d, func(tx *store.Tx, dec *sojourn.Decision) error {
		facts = dec.Facts()
		r := facts.Active
		if r == nil || r.ID != d.run {
			return nil
		}
		if r.State == sojourn.RunQueued {
			return dec.StartRun(d.run)
		}
		return dec.RecoverRun(d.run)
	})
	if sojourn.CodeOf(err) == sojourn.CodeNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	r := facts.Active
	switch {
	case r == nil || r.ID != d.run:
		return nil
	case r.State == sojourn.RunSealing:
		return e.seal(ctx, d, facts)
	case r.State == sojourn.RunActive:
		return e.resume(ctx, d, facts)
	default:
		return e.start(ctx, d, facts)
	}
}

// commit makes one decision under the drive's claim.
func (e *Engine) commit(ctx context.Context, d *drive, f func(*store.Tx, *sojourn.Decision) error) error {
	return d.claim.Commit(ctx, e.cfg.Store, func(tx *store.Tx) error {
		facts, err := tx.FactsOfRun(d.run)
		if err != nil {
			return err
		}
		return e.apply(tx, facts, f)
	})
}

// start brings compute up and drives the run from its beginning. A sandbox that
// dies before the agent has the prompt is replaced: nothing was lost with it.
func (e *Engine) start(ctx context.Context, d *drive, facts sojourn.Facts) error {
	row, ok := e.runtime(facts.Session.Runtime)
	if !ok {
		return e.fail(ctx, d, sojourn.CodeRuntimeUnavailable, "Runtime "+facts.Session.Runtime+" is not configured.")
	}
	if s := facts.Session.Sandbox; row.Unavailable != "" && s.Image == "" && e.cfg.Sandbox.Image == "" {
		return e.fail(ctx, d, sojourn.CodeRuntimeUnavailable, row.Unavailable)
	}
	for attempt := 1; ; attempt++ {
		c, err := e.ensureForRun(ctx, d, facts.Session.ID)
		if err == nil {
			var again bool
			if again, err = e.driveOn(ctx, d, c, row); !again {
				return err
			}
		}
		switch code := sojourn.CodeOf(err); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errCancelled):
			return e.endRun(ctx, d, sojourn.RunCancelled, sojourn.StopCancelled, nil)
		case code == sojourn.CodeWorkspaceUnavailable && attempt < maxStarts, err == nil && attempt < maxStarts:
			if err := e.pause(ctx, d, time.Duration(attempt)*time.Second/2); err != nil {
				return err
			}
		case err == nil:
			return e.fail(ctx, d, sojourn.CodeWorkspaceUnavailable, "The sandbox ended again and again while the agent started.")
		case code != sojourn.CodeInternal:
			return e.fail(ctx, d, code, messageOf(err))
		default:
			return err
		}
	}
}

// errCancelled ends the start of a run that a caller has cancelled.
var errCancelled = errors.New("cancelled")

// ensureForRun is ensure for a run that may be cancelled meanwhile.
func (e *Engine) ensureForRun(ctx context.Context, d *drive, id sojourn.SessionID) (*compute, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer e.onCancel(ctx, d, func() { cancel(errCancelled) })()
	return e.ensure(ctx, id)
}

// onCancel calls f once a caller has asked to cancel the run, until stop is
// called, which waits for it.
func (e *Engine) onCancel(ctx context.Context, d *drive, f func()) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if e.awaitCancel(ctx, d, done) {
			f()
		}
	})
	return func() { close(done); wg.Wait() }
}

// awaitCancel waits until a caller has asked to cancel the run. It reports false
// when done is closed or ctx ends first.
func (e *Engine) awaitCancel(ctx context.Context, d *drive, done <-chan struct{}) bool {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		again.Stop()
		changed := d.change()
		f, err := e.factsOfRun(ctx, d.run)
		if err == nil && f.Active != nil && f.Active.ID == d.run && !f.Active.CancelAt.IsZero() {
			return true
		}
		if err != nil { // what could not be read may be the cancel
			again.Reset(time.Second)
		}
		select {
		case <-changed:
		case <-again.C:
		case <-done:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

func (e *Engine) factsOfRun(ctx context.Context, run sojourn.RunID) (f sojourn.Facts, err error) {
	err = e.cfg.Store.View(ctx, func(tx *store.Tx) error {
		f, err = tx.FactsOfRun(run)
		return err
	})
	return f, err
}

// pause waits, unless the run is cancelled first.
func (e *Engine) pause(ctx context.Context, d *drive, wait time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	e.awaitCancel(waiting, d, nil)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// resume goes on with a run whose prompt was given under an earlier drive. Only
// the sandbox that has it will do.
func (e *Engine) resume(ctx context.Context, d *drive, facts sojourn.Facts) error {
	row, ok := e.runtime(facts.Session.Runtime)
	if !ok {
		return e.fail(ctx, d, sojourn.CodeRuntimeUnavailable, "Runtime "+facts.Session.Runtime+" is not configured.")
	}
	c, err := e.reach(ctx, facts)
	if errors.Is(err, sandbox.ErrGone) {
		return e.lose(ctx, d)
	}
	if err != nil { // unreachable is not gone
		return fmt.Errorf("reach the sandbox of run %s: %w", d.run, err)
	}
	again, err := e.driveOn(ctx, d, c, row)
	if again {
		return e.lose(ctx, d)
	}
	return err
}

// reach returns the compute that the active run has been given to: the one at
// hand, or one taken over from an earlier process. The error is ErrGone when it
// is over.
func (e *Engine) reach(ctx context.Context, facts sojourn.Facts) (*compute, error) {
	l := facts.Lease
	if l == nil || l.Epoch != facts.Active.Epoch || !l.Live(e.Now()) {
		return nil, sandbox.ErrGone
	}
	if c := e.live(l, e.Now()); c != nil {
		return c, nil
	}
	return e.adopt(ctx, *l)
}

// lose ends a run whose sandbox is not there any more, with the lease if that is
// still open.
func (e *Engine) lose(ctx context.Context, d *drive) error {
	return e.commit(ctx, d, func(_ *store.Tx, dec *sojourn.Decision) error {
		r, l := dec.Facts().Active, dec.Facts().Lease
		if r == nil || r.ID != d.run {
			return nil
		}
		if l != nil && l.Epoch == r.Epoch && !l.State.Terminal() {
			return endLease(dec, *l, endState(*l, dec.Now()), endReason(*l, dec.Now()))
		}
		return dec.EndRun(d.run, sojourn.RunCrashed, sojourn.StopWorkspaceLost,
			&sojourn.RunError{Code: sojourn.StopWorkspaceLost, Message: "The sandbox was lost."})
	})
}

func (e *Engine) fail(ctx context.Context, d *drive, code sojourn.Code, message string) error {
	return e.endRun(ctx, d, sojourn.RunFailed, "", &sojourn.RunError{Code: string(code), Message: message})
}

func (e *Engine) endRun(ctx context.Context, d *drive, to sojourn.RunState, stop string, why *sojourn.RunError) error {
	return e.commit(ctx, d, func(_ *store.Tx, dec *sojourn.Decision) error {
		if r := dec.Facts().Active; r == nil || r.ID != d.run {
			return nil
		}
		return dec.EndRun(d.run, to, stop, why)
	})
}

func messageOf(err error) string {
	var e *sojourn.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return "An internal error occurred."
}

// driveOn hands the run to the harness on c, and ends the run by the outcome. It
// reports true when the run is to be started again on another sandbox.
func (e *Engine) driveOn(ctx context.Context, d *drive, c *compute, row harness.Runtime) (again bool, err error) {
	job, err := e.job(ctx, d, c, row)
	if err != nil {
		return false, err
	}
	p, stop := e.newPort(ctx, d, c)
	untouch := e.touchUntil(ctx, c, (*sojourn.Decision).TouchLease)
	killed := e.memoryKills(c)
	out, err := e.cfg.Harness.Drive(ctx, job, p)
	untouch()
	stop()
	e.noteLimits(ctx, c)
	if out.State == sojourn.RunCrashed && out.Error != nil && e.memoryKills(c) > killed {
		out.Error.Code = string(sandbox.EndOutOfMemory)
		out.Error.Message = "A process was ended at the sandbox's memory limit. " + out.Error.Message
	}
	if err != nil {
		return e.interrupted(ctx, d, c, err)
	}
	return e.conclude(ctx, d, c, out)
}

// interrupted sorts out why a drive came back without an outcome.
func (e *Engine) interrupted(ctx context.Context, d *drive, c *compute, err error) (again bool, _ error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	f, unread := e.factsOfRun(ctx, d.run)
	if unread != nil {
		return false, errors.Join(err, unread)
	}
	l := f.Lease
	over := l == nil || l.Epoch != c.epoch || l.State != sojourn.LeaseHeld // its last words may be any error
	if !over && !ended(c.box) && !errors.Is(err, link.ErrGone) && sojourn.CodeOf(err) != sojourn.CodeWorkspaceExpired {
		return false, fmt.Errorf("drive run %s: %w", d.run, err)
	}
	if f.Active != nil && f.Active.ID == d.run && f.Active.State == sojourn.RunStarting {
		return true, nil
	}
	// The watcher of the sandbox ends run and lease in one change, unless the
	// sandbox is alive and only the way to it is lost for good.
	select {
	case <-time.After(lossShows):
		return false, e.lose(ctx, d)
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// job reads what the harness needs.
func (e *Engine) job(ctx context.Context, d *drive, c *compute, row harness.Runtime) (harness.Job, error) {
	job := harness.Job{Run: d.run, Epoch: c.epoch, Runtime: row, Env: c.gate.env(), Grace: e.cfg.CancelGrace}
	var session sojourn.Session
	err := e.cfg.Store.View(ctx, func(tx *store.Tx) error {
		f, err := tx.FactsOfRun(d.run)
		if err != nil {
			return err
		}
		if f.Active == nil || f.Active.ID != d.run {
			return errOver
		}
		turn, err := tx.Turn(f.Active.Turn)
		if err != nil {
			return err
		}
		job.Session, job.Input = f.Session.ID, turn.Input
		session = f.Session
		if f.Lease != nil && f.Lease.Epoch == c.epoch {
			job.Conversation, job.ProcessEpoch = f.Lease.Conversation, f.Lease.ProcessEpoch()
		}
		if e.cfg.TurnDeadline > 0 {
			job.Deadline = f.Active.StartedAt.Add(e.cfg.TurnDeadline)
		}
		if job.Worked, err = tx.LeaseWorked(job.Session, c.epoch); err != nil {
			return err
		}
		job.State, err = tx.LeaseState(job.Session, c.epoch)
		return err
	})
	e.offerModel(&job, session)
	return job, err
}

// conclude ends the run as the outcome says.
func (e *Engine) conclude(ctx context.Context, d *drive, c *compute, out harness.Outcome) (again bool, err error) {
	switch {
	case out.ConversationLost:
		return e.conversationLost(ctx, d, c, out)
	case out.State == sojourn.RunCompleted, out.State == sojourn.RunCancelled && !out.Killed:
		var facts sojourn.Facts
		err := e.commit(ctx, d, func(_ *store.Tx, dec *sojourn.Decision) error {
			if r := dec.Facts().Active; r != nil && r.State == sojourn.RunStarting {
				return dec.EndRun(d.run, sojourn.RunCancelled, sojourn.StopCancelled, nil)
			}
			err := dec.FinishRun(d.run, out.State, out.StopReason)
			facts = dec.Facts()
			return err
		})
		if err != nil || facts.Active == nil {
			return false, err
		}
		return false, e.seal(ctx, d, facts)
	default:
		return false, e.endRun(ctx, d, out.State, out.StopReason, out.Error)
	}
}

// conversationLost handles an agent that could not go on with its conversation.
// In a sandbox where it had been running, the checkpoint is the next best: the
// run is started again from it. From the checkpoint itself there is no other.
func (e *Engine) conversationLost(ctx context.Context, d *drive, c *compute, out harness.Outcome) (again bool, err error) {
	fresh := false
	err = e.commit(ctx, d, func(tx *store.Tx, dec *sojourn.Decision) error {
		f := dec.Facts()
		l, h := f.Lease, f.Head
		fresh, again = false, false
		if h != nil && l != nil && l.Restored == h.ID {
			worked, err := tx.LeaseWorked(f.Session.ID, l.Epoch)
			if err != nil {
				return err
			}
			fresh = !worked
		}
		if fresh {
			if err := dec.RefuseHead(newID[sojourn.CheckpointID]()); err != nil {
				return err
			}
		}
		if fresh || h == nil || !h.Restorable(f.Session.Base) {
			if err := dec.EndRun(d.run, sojourn.RunFailed, "", out.Error); err != nil {
				return err
			}
		} else {
			again = true
		}
		if l == nil || l.Epoch != c.epoch {
			return nil
		}
		return dec.EndLease(c.epoch, sojourn.LeaseReleased, "conversation_lost")
	})
	return again, err
}
