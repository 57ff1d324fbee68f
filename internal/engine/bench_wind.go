package engine

import (
	"context"
	"slices"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// drainedForClose is the reason of the lease of a bare session that has ended.
const drainedForClose = "closed"

// maxCloseDrains is how often the files of a session that has ended are tried to be
// captured: nobody waits for its sandbox any more.
const maxCloseDrains = 3

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
		b.life.ending = time.Time{}
		return look{}, false, nil
	}
	s, by := f.Session, lastCall(*f.Lease)
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
// What does not end in time ends with its sandbox.
func (b *bench) endExecs(ctx context.Context, f sojourn.Facts, why sojourn.ExecReason, kill bool) (look, bool, error) {
	now := b.e.Now()
	told := true
	most := time.Duration(0)
	for _, x := range f.Running() {
		told = told && x.Ending != "" && (x.Kill || !kill)
		most = max(most, x.Spec.Grace)
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
	if by := b.life.ending.Add(most + endPatience); now.Before(by) {
		return look{at: by}, true, nil
	}
	return look{}, false, nil
}

// windDrain saves what the sandbox holds and gives it back, or goes on with that. The
// files of a session that has ended are captured, too: they stay readable. One that
// cannot be captured does not keep a session from ending for ever.
func (b *bench) windDrain(ctx context.Context, f sojourn.Facts) (look, error) {
	if err := b.landed(jobDrain); err != nil {
		b.life.tries++
		b.life.retryAt = b.e.Now().Add(rotationPause(b.life.tries))
		b.e.log.Warn("drain the sandbox of a session at rest", "session", b.id, "attempt", b.life.tries, "error", err)
	}
	s := f.Session
	if s.State == sojourn.SessionClosed && (b.life.tries >= maxCloseDrains || !s.DeletedAt.IsZero()) {
		return look{}, b.commit(ctx, func(_ *store.Tx, d *sojourn.Decision) error {
			return d.EndLease(f.Lease.Epoch, sojourn.LeaseReleased, drainedForClose)
		})
	}
	if at, wait := b.waiting(); wait {
		return at, nil
	}
	if f.Lease.State == sojourn.LeaseHeld {
		return look{}, b.commit(ctx, func(_ *store.Tx, d *sojourn.Decision) error {
			if l := d.Facts().Lease; l == nil || l.State != sojourn.LeaseHeld || d.Facts().Session.State == sojourn.SessionOpen {
				return nil
			}
			why, processes := drainedForClose, false
			if d.Facts().Session.State == sojourn.SessionPaused {
				why, processes = drainedForSuspend, s.Rotation.Processes
			}
			return d.DrainLease(f.Lease.Epoch, why, processes)
		})
	}
	b.begin(jobDrain, func(ctx context.Context) error { return b.e.drain(ctx, b.id) })
	return look{}, nil
}

// rotationPause is how long after that many failures in a row the next try follows.
func rotationPause(failures int) time.Duration {
	if failures <= 1 {
		return time.Second
	}
	return 5 * time.Second
}

// lastCall is when what still runs in the sandbox of a lease is told to end, so that
// the lease's deadline finds its files at rest.
func lastCall(l sojourn.Lease) time.Time {
	return l.GrantedAt.Add(l.Ceiling - min(5*time.Second, l.Ceiling/8))
}
