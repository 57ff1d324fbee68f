package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// life is what a bench remembers about the sandboxes of its session between two
// steps. Nothing of it must survive: the facts say where to go on.
type life struct {
	job     *job      // in flight, or landed and not looked at
	tries   int       // to provide or drain a sandbox that failed in a row, outside a rotation
	retryAt time.Time // no sandbox is made or drained before
	reachAt time.Time // none is taken over before
	ending  time.Time // when execs were told to end that stand in the way; zero for none

	captures captures
}

// job is the making, draining or taking over of a sandbox, beside the steps of its
// bench: those stay short, so that execs are looked after meanwhile.
type job struct {
	what jobKind
	over chan struct{} // closed when err is set
	err  error
}

type jobKind int

const (
	jobEnsure jobKind = iota + 1
	jobDrain
	jobReach
)

// begin starts a job. Only a step may do so, and only when none is in flight.
func (b *bench) begin(what jobKind, f func(context.Context) error) {
	j := &job{what: what, over: make(chan struct{})}
	b.life.job = j
	b.wg.Go(func() {
		j.err = f(b.ctx)
		close(j.over)
		raise(b.wake)
	})
}

// flying reports whether a job is in flight.
func (b *bench) flying() bool {
	j := b.life.job
	if j == nil {
		return false
	}
	select {
	case <-j.over:
		return false
	default:
		return true
	}
}

// landed returns why the last job has failed, once and if it was of one of the kinds.
func (b *bench) landed(kinds ...jobKind) error {
	j := b.life.job
	if j == nil || b.flying() {
		return nil
	}
	b.life.job = nil
	if !slices.Contains(kinds, j.what) {
		return nil // the session has gone on to something else
	}
	return j.err
}

// waiting returns when the next try is due, if that is not now.
func (b *bench) waiting() (look, bool) {
	at := b.life.retryAt
	return look{at: at}, b.e.Now().Before(at)
}

// maxStartsInARow is how often a sandbox is tried to be provided before the session
// fails. A rotation has its own count.
const maxStartsInARow = 3

// serve looks after an open session: it has a sandbox, execs start in their turn,
// checkpoints are made, and its rotation begins in time.
func (b *bench) serve(ctx context.Context, f sojourn.Facts) (look, error) {
	if b.flying() {
		return look{}, nil
	}
	if err := b.landed(jobEnsure); err != nil {
		return b.notProvided(ctx, err)
	}
	now, l := b.e.Now(), f.Lease
	switch {
	case b.e.live(l, now) != nil:
		b.life.tries, b.life.retryAt, b.life.ending = 0, time.Time{}, time.Time{}
		return b.attend(ctx, f)
	case l != nil && l.Live(now):
		return b.reach(f)
	case !replaceable(l):
		return b.provide()
	}
	// It is over, and whoever has ended it did not begin what follows.
	return look{}, b.replace(ctx, l.Epoch, nil)
}

// replaceable reports whether the end of a lease is the beginning of a rotation: a
// sandbox that never came up, or was given back, is followed by another start.
func replaceable(l *sojourn.Lease) bool {
	return l != nil && !l.GrantedAt.IsZero() && l.EndReason != drainedForSuspend
}

// attend starts what may run in the sandbox that is at hand, and replaces it in time.
func (b *bench) attend(ctx context.Context, f sojourn.Facts) (look, error) {
	at := f.RotateAt()
	if !b.e.Now().Before(at) {
		return look{}, b.commit(ctx, func(_ *store.Tx, d *sojourn.Decision) error {
			d.BeginRotation(sojourn.RotatePlanned)
			return nil
		})
	}
	if b.hasNext(f) {
		return look{}, b.startNext(ctx)
	}
	return look{at: at}.sooner(b.checkpoint(f)), nil
}

// hasNext reports whether an exec that waits is to be started or refused now. Without
// it a step would write to look.
func (b *bench) hasNext(f sojourn.Facts) bool {
	if !slices.ContainsFunc(f.Execs, func(x sojourn.Exec) bool { return x.State == sojourn.ExecQueued }) {
		return false
	}
	d := f.Decide(b.e.Now())
	d.StartExecs(b.e.rateOf(f.Session))
	return len(d.Change().Execs) > 0
}

// provide has a sandbox made, or one in the making waited for.
func (b *bench) provide() (look, error) {
	if at, wait := b.waiting(); wait {
		return at, nil
	}
	b.begin(jobEnsure, func(ctx context.Context) error {
		_, err := b.e.ensure(ctx, b.id)
		return err
	})
	return look{}, nil
}

// notProvided waits for another try, or ends the session when no other would help.
func (b *bench) notProvided(ctx context.Context, err error) (look, error) {
	if ctx.Err() != nil {
		return look{}, context.Cause(ctx)
	}
	b.life.tries++
	if sojourn.CodeOf(err) == sojourn.CodeWorkspaceStarting && b.life.tries < 2*maxStartsInARow { // an earlier one is being cleared away
		b.life.retryAt = b.e.Now().Add(500 * time.Millisecond)
		return look{at: b.life.retryAt}, nil
	}
	if b.life.tries < maxStartsInARow && !final(err) {
		b.life.retryAt = b.e.Now().Add(time.Duration(b.life.tries) * time.Second / 2)
		return look{at: b.life.retryAt}, nil
	}
	b.e.log.Error("no sandbox for a session", "session", b.id, "error", err)
	b.e.failWatches(b.id, err)
	return look{}, b.commit(ctx, func(_ *store.Tx, d *sojourn.Decision) error {
		if d.Facts().Session.State != sojourn.SessionOpen {
			return nil
		}
		return d.Close(sojourn.CloseFailed, sojourn.StopNoSandbox, messageOf(err))
	})
}

// final reports whether a refusal stays the same however often it is asked for.
func final(err error) bool {
	switch sojourn.CodeOf(err) {
	case sojourn.CodeInvalid, sojourn.CodeResumeUnavailable, sojourn.CodeComputeOutdated, sojourn.CodeComputeMissing,
		sojourn.CodeIsolationUnavailable, sojourn.CodeSessionArchived:
		return true
	}
	return false
}

// reach takes over the sandbox of a live lease that is not at hand: the server was
// started anew. One that is gone is replaced; one that cannot be reached is kept.
func (b *bench) reach(f sojourn.Facts) (look, error) {
	l, now := *f.Lease, b.e.Now()
	if now.Before(b.life.reachAt) {
		return look{at: b.life.reachAt}, nil
	}
	b.life.reachAt = now.Add(time.Second)
	if c := b.e.at(l); c != nil { // it has ended: its watcher is about to say so
		return look{at: b.life.reachAt}, nil
	}
	b.begin(jobReach, func(ctx context.Context) error {
		err := sandbox.ErrGone
		if d := b.e.cfg.Driver; d != nil && d.Name() == l.Driver {
			_, err = b.e.adopt(ctx, l)
		}
		if errors.Is(err, sandbox.ErrGone) {
			return b.replace(ctx, l.Epoch, err)
		}
		if err != nil && ctx.Err() == nil {
			b.e.log.Warn("reach a sandbox", "session", l.Session, "lease_epoch", l.Epoch, "error", err)
		}
		return nil
	})
	return look{at: b.life.reachAt}, nil
}

// drainJob has a draining lease drained, or joins who does.
func (b *bench) drainJob() (look, error) {
	if at, wait := b.waiting(); wait {
		return at, nil
	}
	b.begin(jobDrain, func(ctx context.Context) error { return b.e.drain(ctx, b.id) })
	return look{}, nil
}

// replace gives a lease up, if that was not done, and begins the rotation that
// follows.
func (b *bench) replace(ctx context.Context, epoch int64, why error) error {
	return b.commit(ctx, func(_ *store.Tx, d *sojourn.Decision) error {
		l := d.Facts().Lease
		if l == nil || l.Epoch != epoch {
			return nil
		}
		if !l.State.Terminal() {
			if err := b.e.giveUp(d, *l, why); err != nil {
				return err
			}
		}
		rotateAfter(d)
		return nil
	})
}

// rotateAfter begins the rotation that follows on the end of a bare session's lease which
// nobody has asked for. In the same change as the end, so that no caller can get a
// sandbox in between that is not told of as a rotation.
func rotateAfter(d *sojourn.Decision) {
	l := d.Facts().Lease
	if !d.Facts().Session.Bare() || !replaceable(l) || l.State == sojourn.LeaseHeld {
		return
	}
	why := sojourn.RotateLost
	if l.EndReason == endedByCeiling {
		why = sojourn.RotatePlanned
	}
	d.BeginRotation(why)
}
