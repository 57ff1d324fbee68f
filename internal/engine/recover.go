package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// recover adopts the sandboxes of open leases and ends the leases whose sandbox
// is gone. What no lease owns is removed by the first sweep, and runs are taken
// up by the work engine, both right after it.
func (e *Engine) recover(ctx context.Context) error {
	var open []sojourn.Lease
	err := e.cfg.Store.View(ctx, func(tx *store.Tx) (err error) {
		open, err = tx.OpenLeases()
		return err
	})
	if err != nil {
		return fmt.Errorf("read leases: %w", err)
	}
	if err := e.clearSnapshots(open); err != nil {
		e.log.Error("remove what is left of process snapshots", "error", err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for _, l := range open {
		g.Go(func() error { return e.recoverLease(gctx, l) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return e.orderDestruction(ctx)
}

// recoverLease adopts one lease's sandbox, or ends the lease.
func (e *Engine) recoverLease(ctx context.Context, l sojourn.Lease) error {
	if l.State == sojourn.LeaseDraining {
		return nil // its work is due, and goes on where it stopped
	}
	if l.Live(e.Now()) && e.cfg.Driver != nil && l.Driver == e.cfg.Driver.Name() {
		_, err := e.adopt(ctx, l)
		switch {
		case err == nil:
			e.log.Info("sandbox adopted", "session", l.Session, "lease_epoch", l.Epoch)
			return nil
		case !errors.Is(err, sandbox.ErrGone):
			// Unreachable is not gone: the lease is kept, the next use tries again.
			e.log.Warn("adopt a sandbox", "session", l.Session, "lease_epoch", l.Epoch, "error", err)
			return nil
		}
	}
	return e.decide(ctx, l.Session, func(_ *store.Tx, d *sojourn.Decision) error {
		if now := d.Facts().Lease; now != nil && now.Epoch == l.Epoch {
			return e.giveUp(d, *now, nil)
		}
		return nil
	})
}

// adopt takes a running sandbox over from the process that made it, once.
func (e *Engine) adopt(ctx context.Context, l sojourn.Lease) (*compute, error) {
	defer e.adopting.lock(l.Session)()
	if c := e.at(l); c != nil && !ended(c.box) {
		return c, nil
	}
	var h sandbox.Handle
	if err := json.Unmarshal(l.Handle, &h); err != nil {
		return nil, fmt.Errorf("decode the sandbox handle: %w", err)
	}
	box, err := e.cfg.Driver.Recover(ctx, h)
	if err != nil {
		return nil, err
	}
	c, err := e.compute(ctx, l, box)
	if err != nil {
		return nil, err
	}
	return e.register(c), nil
}

// orderDestruction makes the destruction of sandboxes whose leases are over due.
func (e *Engine) orderDestruction(ctx context.Context) error {
	return e.cfg.Store.Update(ctx, func(tx *store.Tx) error {
		ended, err := tx.UndestroyedLeases()
		if err != nil {
			return err
		}
		for _, l := range ended {
			if err := tx.ScheduleWork(sojourn.WorkLease, string(l.Session), tx.Now(), nil); err != nil {
				return err
			}
		}
		return nil
	})
}
