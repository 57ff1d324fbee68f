package engine

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// drainGrace is how long a rotation waits for a sandbox that cannot be reached before
// that counts as a failed try: giving it up would lose its files.
const drainGrace = 2 * time.Minute

// rotate takes the rotation under way one step further: it empties the sandbox that is
// replaced, drains it, and has a fresh one made. The domain completes the rotation with
// the lease of that. Each step finds out from the facts where the last one, which may
// have been that of a dead process, has left off.
func (b *bench) rotate(ctx context.Context, f sojourn.Facts) (look, error) {
	if b.flying() {
		return look{}, nil
	}
	if err := b.landed(jobDrain, jobEnsure); err != nil {
		return b.notRotated(ctx, f, err)
	}
	switch l := f.Lease; {
	case l.State == sojourn.LeaseDraining:
		return b.drainJob()
	case l.State != sojourn.LeaseHeld:
		return b.provide()
	case !l.Live(b.e.Now()):
		return look{}, b.replace(ctx, l.Epoch, nil)
	case b.e.live(l, b.e.Now()) == nil:
		return b.reach(f)
	}
	return b.vacate(ctx, f)
}

// vacate brings the sandbox that is replaced to where it can be drained: the hook has
// run, the foreground exec has ended or had its time, and nothing runs that is not
// carried.
func (b *bench) vacate(ctx context.Context, f sojourn.Facts) (look, error) {
	if at, wait := b.waiting(); wait { // the last drain was called off
		return at, nil
	}
	r, by := f.Session.Rotation, lastCall(f)
	inTime := b.e.Now().Before(by)
	if wait, err := b.hook(ctx, f, by); wait && inTime || err != nil {
		return look{at: by}, err
	}
	running := f.Running()
	if len(running) > 0 && running[0].Foreground() && inTime && !(r.Processes && r.Why == sojourn.RotateRequested) {
		return look{at: by}, nil
	}
	if !r.Processes {
		if next, wait, err := b.endExecs(ctx, f, sojourn.ExecRotated, false); wait || err != nil {
			return next, err
		}
	}
	if b.stopCapture() {
		return look{}, nil
	}
	return look{}, b.commit(ctx, func(_ *store.Tx, d *sojourn.Decision) error {
		s, l := d.Facts().Session, d.Facts().Lease
		if !s.Rotating() || l.Epoch != s.Rotation.From || l.State != sojourn.LeaseHeld {
			return nil
		}
		return d.DrainLease(l.Epoch, drainedForRotation, r.Processes)
	})
}

// hook has the session's hook run in the sandbox that is replaced, once in each
// rotation, for as long as the session's buffer, and until by. It reports true while
// it runs. A hook that fails, or for which no time is left, does not stop the rotation.
func (b *bench) hook(ctx context.Context, f sojourn.Facts, by time.Time) (wait bool, err error) {
	r := f.Session.Rotation
	if len(r.Hook) == 0 {
		return false, nil
	}
	id := hookID(f.Session)
	var x sojourn.Exec
	err = b.e.cfg.Store.View(ctx, func(tx *store.Tx) (err error) {
		x, err = tx.Exec(id)
		return err
	})
	if sojourn.CodeOf(err) != sojourn.CodeNotFound {
		return x.State == sojourn.ExecRunning, err
	}
	left := min(by.Sub(b.e.Now()), f.Lease.Deadline().Sub(f.RotateAt()), sojourn.MaxExecTimeout)
	if left < sojourn.MinExecTimeout {
		return false, b.skipHook(ctx, id)
	}
	err = b.commit(ctx, func(tx *store.Tx, d *sojourn.Decision) error {
		s, l := d.Facts().Session, d.Facts().Lease
		if !s.Rotating() || !l.Live(d.Now()) { // it would be queued, and run in the next sandbox
			return nil
		}
		open, err := tx.CountOpenExecs(b.id)
		if err != nil {
			return err
		}
		_, err = d.Execute(sojourn.NewExec{ID: id, Spec: sojourn.ExecSpec{
			Argv: r.Hook, Timeout: left, Grace: sojourn.DefaultExecGrace, Hook: true,
		}}, open, b.e.rateOf(s))
		return err
	})
	if code := sojourn.CodeOf(err); code != "" && code != sojourn.CodeInternal {
		b.e.log.Warn("the hook before a rotation does not run", "session", b.id, "error", err)
		return false, b.skipHook(ctx, id)
	}
	return err == nil, err
}

// skipHook records that the hook of the rotation under way does not run.
func (b *bench) skipHook(ctx context.Context, id sojourn.ExecID) error {
	return b.commit(ctx, func(_ *store.Tx, d *sojourn.Decision) error {
		if s := d.Facts().Session; s.Rotating() && hookID(s) == id {
			d.SkipHook(id)
		}
		return nil
	})
}

// hookID is the id of the hook of the rotation under way, which finds it again after a
// crash.
func hookID(s sojourn.Session) sojourn.ExecID {
	name := "hook " + string(s.ID) + " " + strconv.FormatInt(s.Rotation.BegunAt.UnixMicro(), 10)
	return sojourn.ExecID(uuid.NewSHA1(uuid.NameSpaceOID, []byte(name)).String())
}

// notRotated records that a try to replace the sandbox has failed.
func (b *bench) notRotated(ctx context.Context, f sojourn.Facts, why error) (look, error) {
	if ctx.Err() != nil {
		return look{}, context.Cause(ctx)
	}
	now, r := b.e.Now(), f.Session.Rotation
	b.e.log.Warn("replace a sandbox", "session", b.id, "attempt", r.Tries+1, "error", why)
	patient := f.Lease.State == sojourn.LeaseDraining && !errors.Is(why, errCalledOff) && now.Before(r.BegunAt.Add(drainGrace))
	if patient || sojourn.CodeOf(why) == sojourn.CodeWorkspaceStarting {
		b.life.retryAt = now.Add(pauseAfter(1))
		return look{at: b.life.retryAt}, nil
	}
	b.life.retryAt = now.Add(pauseAfter(r.Tries + 1))
	text := messageOf(why)
	if f.Lease.State == sojourn.LeaseDraining && sojourn.CodeOf(why) == sojourn.CodeInternal {
		text = "The sandbox cannot be reached, or its files cannot be captured."
	}
	return look{at: b.life.retryAt}, b.commit(ctx, func(_ *store.Tx, d *sojourn.Decision) error {
		if final(why) {
			d.GiveUpRotation(text)
		} else {
			d.FailRotation(text)
		}
		return nil
	})
}
