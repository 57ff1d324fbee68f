package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/work"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// processAge is how old saved processes must be before they may be taken for
// those of a drain that was never sealed.
const processAge = time.Hour

// tendLease ends a session's lease when its deadline has passed, and destroys
// the sandboxes of leases that are over. It is the handler of the work kind
// "lease".
func (e *Engine) tendLease(ctx context.Context, claim work.Claim) (work.Next, error) {
	id := sojourn.SessionID(claim.ID)
	var facts sojourn.Facts
	err := claim.Commit(ctx, e.cfg.Store, func(tx *store.Tx) error {
		f, err := tx.Facts(id)
		if err != nil {
			return err
		}
		return e.apply(tx, f, func(_ *store.Tx, d *sojourn.Decision) error {
			if l := d.Facts().Lease; l != nil && l.State == sojourn.LeaseHeld && !l.Live(d.Now()) {
				if err := e.giveUp(d, *l, nil); err != nil {
					return err
				}
			}
			facts = d.Facts()
			return nil
		})
	})
	if sojourn.CodeOf(err) == sojourn.CodeNotFound {
		return work.Done(), nil
	}
	if err != nil {
		return work.Next{}, err
	}
	l := facts.Lease
	if l != nil && l.State == sojourn.LeaseHeld {
		return work.Again(l.Deadline()), nil
	}
	if l != nil && l.State == sojourn.LeaseDraining {
		err := e.drain(ctx, id)
		if errors.Is(err, errCalledOff) {
			err = nil
		}
		return work.Done(), err
	}
	if r := facts.Active; r != nil && r.State == sojourn.RunSealing {
		return work.Again(e.Now().Add(200 * time.Millisecond)), nil // its files are being captured
	}
	return work.Done(), e.destroyEnded(ctx, id)
}

// destroyEnded destroys the sandboxes of a session's leases that are over.
func (e *Engine) destroyEnded(ctx context.Context, id sojourn.SessionID) error {
	var ended []sojourn.Lease
	err := e.cfg.Store.View(ctx, func(tx *store.Tx) (err error) {
		ended, err = tx.UndestroyedLeasesOf(id)
		return err
	})
	if err != nil {
		return err
	}
	for _, l := range ended {
		if err := e.destroy(ctx, l); err != nil {
			return fmt.Errorf("destroy the sandbox of lease epoch %d: %w", l.Epoch, err)
		}
		err := e.cfg.Store.Update(ctx, func(tx *store.Tx) error { return tx.MarkDestroyed(l.Session, l.Epoch) })
		if err != nil {
			return err
		}
	}
	return nil
}

// destroy removes the sandbox of a lease that is over. It is no error when there
// is none.
func (e *Engine) destroy(ctx context.Context, l sojourn.Lease) error {
	e.mu.Lock()
	c := e.computes[l.Session]
	if c != nil && c.epoch == l.Epoch {
		delete(e.computes, l.Session)
	} else {
		c = nil
	}
	e.mu.Unlock()
	if c != nil {
		err := c.box.Destroy(ctx)
		if err == nil { // and not before: whoever uses the link learns that the sandbox is gone
			c.close()
			return nil
		}
		e.mu.Lock()
		if e.computes[l.Session] == nil { // so that the next try finds it
			e.computes[l.Session] = c
		}
		e.mu.Unlock()
		return err
	}
	if e.cfg.Driver == nil || e.cfg.Driver.Name() != l.Driver {
		return nil // another driver's: whoever opens the driver removes those of others
	}
	h := sandbox.Handle{Driver: l.Driver, Session: string(l.Session), Epoch: l.Epoch}
	if len(l.Handle) > 0 {
		if err := json.Unmarshal(l.Handle, &h); err != nil {
			return fmt.Errorf("decode the sandbox handle: %w", err)
		}
	}
	return e.cfg.Driver.Remove(ctx, h)
}

// sweepLoop reconciles at once and at every interval until ctx ends.
func (e *Engine) sweepLoop(ctx context.Context) error {
	tick := time.NewTicker(e.cfg.SweepEvery)
	defer tick.Stop()
	tidyAt := e.Now().Add(time.Hour) // not in the rush of a start
	for {
		if now := e.Now(); now.After(tidyAt) {
			tidyAt = now.Add(24 * time.Hour)
			e.tidy(ctx)
		}
		if err := e.sweep(ctx); err != nil && ctx.Err() == nil {
			e.log.Error("reconcile sandboxes", "error", err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// tidy deletes what nobody needs any more.
func (e *Engine) tidy(ctx context.Context) {
	if err := e.removeOrphans(ctx); err != nil && ctx.Err() == nil {
		e.log.Error("remove orphans of the blob store", "error", err)
	}
	if e.cfg.Tidy != nil {
		if err := e.cfg.Tidy(ctx); err != nil && ctx.Err() == nil {
			e.log.Error("tidy up", "error", err)
		}
	}
	if err := e.sweepProcesses(ctx); err != nil && ctx.Err() == nil {
		e.log.Error("remove saved processes", "error", err)
	}
	err := e.cfg.Store.Update(ctx, func(tx *store.Tx) error {
		_, err := tx.ForgetExpired()
		return err
	})
	if err != nil && ctx.Err() == nil {
		e.log.Error("forget idempotency keys", "error", err)
	}
}

// sweepProcesses deletes saved processes that no session goes on with any more.
func (e *Engine) sweepProcesses(ctx context.Context) error {
	if e.cfg.Processes == nil {
		return nil
	}
	// Listed before the rows are read: what is stored meanwhile is not in the list.
	old, err := e.cfg.Processes.Older(ctx, e.Now().Add(-processAge))
	if err != nil || len(old) == 0 {
		return err
	}
	var wanted []string
	err = e.cfg.Store.View(ctx, func(tx *store.Tx) (err error) {
		wanted, err = tx.ProcessObjects()
		return err
	})
	if err != nil {
		return err
	}
	for _, key := range old {
		if slices.Contains(wanted, key) {
			continue
		}
		if err := e.cfg.Processes.Delete(ctx, key); err != nil {
			return err
		}
		e.log.Info("removed saved processes that no session goes on with", "object", key)
	}
	return nil
}

// endForgotten ends a lease whose sandbox nobody is making any more: when its
// flight failed, that could not be written down.
func (e *Engine) endForgotten(ctx context.Context, l sojourn.Lease) error {
	e.mu.Lock()
	flying := e.flights[l.Session] != nil
	e.mu.Unlock()
	if l.State != sojourn.LeaseRequested || flying {
		return nil
	}
	return e.decide(ctx, l.Session, func(_ *store.Tx, d *sojourn.Decision) error {
		if now := d.Facts().Lease; now == nil || now.Epoch != l.Epoch || now.State != sojourn.LeaseRequested {
			return nil
		}
		return d.EndLease(l.Epoch, sojourn.LeaseLost, "sandbox_not_started")
	})
}

// sweep removes every sandbox that no open lease owns. The sandboxes are listed
// before the leases are read, so that one which was made in between has its
// lease in the answer.
func (e *Engine) sweep(ctx context.Context) error {
	if e.cfg.Driver == nil {
		return nil
	}
	boxes, err := e.cfg.Driver.List(ctx)
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	var open []sojourn.Lease
	sealing := map[sojourn.SessionID]int64{}
	err = e.cfg.Store.View(ctx, func(tx *store.Tx) (err error) {
		if open, err = tx.OpenLeases(); err != nil {
			return err
		}
		runs, err := tx.SealingRuns()
		for _, r := range runs {
			sealing[r.Session] = r.Epoch
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("read leases: %w", err)
	}
	owned := map[string]int64{}
	for id, epoch := range sealing {
		owned[string(id)] = epoch
	}
	var errs []error
	for _, l := range open {
		owned[string(l.Session)] = l.Epoch
		if err := e.endForgotten(ctx, l); err != nil {
			errs = append(errs, fmt.Errorf("end lease %s/%d: %w", l.Session, l.Epoch, err))
		}
	}
	for _, h := range boxes {
		if epoch, ok := owned[h.Session]; ok && epoch == h.Epoch {
			continue
		}
		e.log.Info("remove a sandbox that no lease owns", "session", h.Session, "lease_epoch", h.Epoch)
		l := sojourn.Lease{Session: sojourn.SessionID(h.Session), Epoch: h.Epoch, Driver: h.Driver}
		if err := e.destroy(ctx, l); err != nil {
			errs = append(errs, fmt.Errorf("remove sandbox %s/%d: %w", h.Session, h.Epoch, err))
		}
	}
	return errors.Join(errs...)
}
