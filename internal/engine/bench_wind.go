package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// drainedForClose is the reason of the lease of a bare session that has ended.
const drainedForClose = "closed"

// The bounds of capturing the files of a session that has ended, for which nobody
// waits any more: how often, when they are such that they cannot be captured, and how
// long, when something else stands in the way.
const (
	maxCloseDrains = 3
	closePatience  = 10 * time.Minute
)

// endPatience is how long after they were told to end execs are waited for, beyond
// their grace: the keeper sees to it, unless it hangs.
const endPatience = 30 * time.Second

// wind brings a paused or closed session to rest: execs that wait are refused, those
// that run end (a paused session's foreground exec may finish), the sandbox is drained.
func (b *bench) wind(ctx context.Context, f sojourn.Facts) (look, error) {
	if b.flying() {
		return look{}, nil
	}
	if b.refusable(f) {
		return look{}, b.refuseWaiting(ctx)
	}
	l := f.Lease
	if l == nil || l.State.Terminal() {
		return look{over: len(f.Running()) == 0}, nil
	}
	switch l.State {
	case sojourn.LeaseRequested: // its flight ends it, or it is held: either wakes
		return look{at: b.e.Now().Add(time.Second)}, nil
	case sojourn.LeaseDraining:
		return b.windDrain(ctx, f)
	}
	if next, wait, err := b.windExecs(ctx, f); wait || err != nil {
		return next, err
	}
	return b.windDrain(ctx, f)
}

// refusable reports whether execs wait that will never start.
func (b *bench) refusable(f sojourn.Facts) bool {
	return slices.ContainsFunc(f.Execs, func(x sojourn.Exec) bool {
		return x.State == sojourn.ExecQueued || x.State == sojourn.ExecParked && f.Session.State == sojourn.SessionClosed
	})
}

// refuseWaiting refuses the execs that wait, as far as the facts have them.
func (b *bench) refuseWaiting(ctx context.Context) error {
	return b.commit(ctx, func(_ *store.Tx, d *sojourn.Decision) error {
		s := d.Facts().Session
		d.StartExecs(b.e.rateOf(s)) // starts none now
		if s.State != sojourn.SessionClosed {
			return nil
		}
		for _, x := range slices.Clone(d.Facts().Execs) {
			if x.State == sojourn.ExecParked {
				d.RefuseExec(x, sojourn.ExecClosed)
			}
		}
		return nil
	})
}

// windExecs ends what runs and may not go on. It reports true while the sandbox must
// be kept for it.
func (b *bench) windExecs(ctx context.Context, f sojourn.Facts) (look, bool, error) {
	running := f.Running()
	if len(running) == 0 {
		return look{}, false, nil
	}
	s, by := f.Session, lastCall(f)
	paused := s.State == sojourn.SessionPaused
	if paused && b.e.Now().Before(by) {
		if running[0].Foreground() { // what runs beside it may be what it needs
			return look{at: by}, true, nil
		}
		if s.Rotation.Processes {
			return look{}, false, nil // carried with the sandbox
		}
	}
	why, kill := sojourn.ExecClosed, false
	switch {
	case paused:
		why = sojourn.ExecPaused
	case s.Ending.Reason == sojourn.StopBudget:
		why = sojourn.ExecBudget
	default:
		kill = s.CloseReason == sojourn.CloseCancelled
	}
	return b.endExecs(ctx, f, why, kill)
}

// endExecs tells what runs to end, and reports true while that is worth waiting for.
// Close to the deadline of the sandbox no grace is left. What does not end in time ends
// with its sandbox.
func (b *bench) endExecs(ctx context.Context, f sojourn.Facts, why sojourn.ExecReason, kill bool) (look, bool, error) {
	now := b.e.Now()
	deadline := f.Lease.Deadline()
	killAt := deadline.Add(-min(time.Second, deadline.Sub(f.RotateAt())/8))
	kill = kill || !now.Before(killAt)
	told, grace := true, time.Duration(0)
	for _, x := range f.Running() {
		told = told && x.Ending != "" && (x.Kill || !kill)
		grace = max(grace, x.Spec.Grace)
	}
	if !told {
		b.life.ending = now
		return look{}, true, b.commit(ctx, func(_ *store.Tx, d *sojourn.Decision) error {
			for _, x := range d.Facts().Running() {
				d.CancelExec(x, why, kill)
			}
			return nil
		})
	}
	if b.life.ending.IsZero() { // told by an earlier process, or by a caller
		b.life.ending = now
	}
	if by := b.life.ending.Add(grace + endPatience); len(f.Running()) > 0 && now.Before(by) {
		next := look{at: by}
		if !kill {
			next = next.sooner(look{at: killAt})
		}
		return next, true, nil
	}
	b.life.ending = time.Time{}
	return look{}, false, nil
}

// windDrain saves what the sandbox holds and gives it back, or goes on with that. The
// files of a session that has ended are captured, too: they stay readable. One whose
// files cannot be captured does not keep its sandbox for ever.
func (b *bench) windDrain(ctx context.Context, f sojourn.Facts) (look, error) {
	s, now := f.Session, b.e.Now()
	giveIn := !s.DeletedAt.IsZero()
	if err := b.landed(jobDrain); err != nil && ctx.Err() == nil {
		if errors.Is(err, errCalledOff) {
			b.life.tries++
		}
		b.life.retryAt = now.Add(pauseAfter(b.life.tries))
		giveIn = giveIn || b.life.tries >= maxCloseDrains || now.After(s.Ending.At.Add(closePatience))
		b.e.log.Warn("drain the sandbox of a session at rest", "session", b.id, "error", err)
	}
	if giveIn && s.State == sojourn.SessionClosed {
		return look{}, b.commit(ctx, func(_ *store.Tx, d *sojourn.Decision) error {
			return d.EndLease(f.Lease.Epoch, sojourn.LeaseReleased, drainedForClose)
		})
	}
	if f.Lease.State == sojourn.LeaseDraining {
		return b.drainJob()
	}
	if at, wait := b.waiting(); wait {
		return at, nil
	}
	if b.stopCapture() {
		return look{}, nil
	}
	return look{}, b.commit(ctx, func(_ *store.Tx, d *sojourn.Decision) error {
		l, s := d.Facts().Lease, d.Facts().Session
		if l.State != sojourn.LeaseHeld || s.State == sojourn.SessionOpen {
			return nil
		}
		why, processes := drainedForClose, false
		if s.State == sojourn.SessionPaused {
			why, processes = drainedForSuspend, s.Rotation.Processes
		}
		return d.DrainLease(l.Epoch, why, processes)
	})
}

// pauseAfter is how long after that many failures in a row the next try follows.
func pauseAfter(failures int) time.Duration {
	if failures <= 1 {
		return time.Second
	}
	return 5 * time.Second
}

// lastCall is when what still runs in the held sandbox is told to end, so that the
// deadline finds its files at rest.
func lastCall(f sojourn.Facts) time.Time {
	deadline := f.Lease.Deadline()
	return deadline.Add(-min(5*time.Second, deadline.Sub(f.RotateAt())/2))
}
