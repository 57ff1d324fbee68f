package engine

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// overrunEvery is how often the cost of execs that nobody waits for is looked at.
const overrunEvery = time.Second

// tend looks after execs: those that run are followed, those that are to end are
// ended, what waited for longer than it may run is refused, and a session whose
// detached execs have used up its budget is closed.
func (b *bench) tend(ctx context.Context, f sojourn.Facts) (look, error) {
	for _, x := range f.Running() {
		b.take(x)
	}
	for _, x := range f.Execs { // after a restart nobody has told of those that wait
		if x.State == sojourn.ExecQueued {
			b.wait.note(x)
		}
	}
	b.wakeFollows()
	b.clearEnded(f)
	next, late := b.wait.look(busyNow(f, b.e.Now()), b.e.Now())
	if len(late) > 0 {
		if err := b.refuseLate(ctx, late); err != nil {
			return look{}, err
		}
	}
	again, err := b.overrun(ctx, f)
	return look{at: next, over: len(f.Running()) == 0}.sooner(look{at: again, over: true}), err
}

// clearEnded makes a keeper forget the processes of execs that are over, once for each
// sandbox: an earlier server may have been killed before it could.
func (b *bench) clearEnded(f sojourn.Facts) {
	c := b.e.live(f.Lease, b.e.Now())
	if c == nil || c.epoch == b.cleared {
		return
	}
	b.cleared = c.epoch
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left {
		return
	}
	b.wg.Go(func() {
		if err := b.e.forgetEnded(b.ctx, c); err != nil && b.ctx.Err() == nil && !b.e.letGo(c) {
			b.e.log.Warn("forget the processes of execs that are over", "session", b.id, "lease_epoch", c.epoch, "error", err)
		}
	})
}

func (e *Engine) forgetEnded(ctx context.Context, c *compute) error {
	list, err := c.peer.Processes(ctx)
	if err != nil {
		return err
	}
	for _, p := range list {
		id, ours := strings.CutPrefix(p.ProcessID, execPrefix)
		if !ours {
			continue
		}
		over := false
		err := e.cfg.Store.View(ctx, func(tx *store.Tx) error {
			x, err := tx.Exec(sojourn.ExecID(id))
			over = err == nil && x.State.Terminal()
			return err
		})
		if err != nil && sojourn.CodeOf(err) != sojourn.CodeNotFound {
			return err
		}
		if over {
			if err := c.peer.Forget(ctx, p.ProcessID); err != nil {
				return err
			}
		}
	}
	return nil
}

// wakeFollows tells the follows that something about the session has changed: one may
// be waiting for its sandbox.
func (b *bench) wakeFollows() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.follows {
		raise(f.wake)
	}
}

// overrun closes a session whose detached execs have come to its limit. It returns
// when to look again; zero for never.
func (b *bench) overrun(ctx context.Context, f sojourn.Facts) (time.Time, error) {
	now := b.e.Now()
	if f.Session.State != sojourn.SessionOpen || f.Session.Budget.Limits.Cost == 0 || len(f.Running()) == 0 {
		return time.Time{}, nil
	}
	if !f.Decide(now).Overrun() { // nothing is written to find that out
		return now.Add(overrunEvery), nil
	}
	return time.Time{}, b.commit(ctx, func(_ *store.Tx, d *sojourn.Decision) error {
		d.Overrun()
		return nil
	})
}

// refuseLate refuses execs that have waited for too long.
func (b *bench) refuseLate(ctx context.Context, late []sojourn.ExecID) error {
	return b.commit(ctx, func(tx *store.Tx, d *sojourn.Decision) error {
		for _, id := range late {
			x, err := tx.Exec(id)
			if err != nil {
				return err
			}
			if x.State == sojourn.ExecQueued {
				d.RefuseExec(x, sojourn.ExecBusy)
			}
		}
		return nil
	})
}

// busyNow reports whether execs that wait do so for another exec, and not for a
// sandbox.
func busyNow(f sojourn.Facts, now time.Time) bool {
	s := f.Session
	if s.State != sojourn.SessionOpen || s.Rotating() || f.Lease == nil || !f.Lease.Live(now) {
		return false
	}
	running := f.Running()
	return len(running) > 0 && running[0].Foreground()
}

// waiting counts for how long each foreground exec has waited for others. Its clock
// runs only while one runs: what waits for a sandbox is not late.
type waiting struct {
	mu    sync.Mutex
	clock time.Duration // time in which a foreground exec ran
	since time.Time     // when the clock was last read; zero while it stands
	all   map[sojourn.ExecID]waiter
}

// waiter is an exec that waits for its turn.
type waiter struct {
	from    time.Duration // on the clock
	patient time.Duration
}

// note takes over an exec's new state.
func (w *waiting) note(x sojourn.Exec) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x.State != sojourn.ExecQueued || !x.Foreground() {
		delete(w.all, x.ID)
		return
	}
	if _, known := w.all[x.ID]; known {
		return
	}
	if w.all == nil {
		w.all = map[sojourn.ExecID]waiter{}
	}
	from := w.clock
	if !w.since.IsZero() && x.QueuedAt.After(w.since) {
		from += x.QueuedAt.Sub(w.since)
	}
	w.all[x.ID] = waiter{from: from, patient: x.Spec.Timeout}
}

// look reads the clock, which runs from here on while busy. It returns the execs that
// are late, and when the next one may be; zero for never.
func (w *waiting) look(busy bool, now time.Time) (next time.Time, late []sojourn.ExecID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.since.IsZero() {
		w.clock += max(0, now.Sub(w.since))
		w.since = time.Time{}
	}
	if busy {
		w.since = now
	}
	for id, x := range w.all {
		left := x.from + x.patient - w.clock
		if left <= 0 {
			late = append(late, id)
			continue
		}
		if at := now.Add(left); busy && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next, late
}
