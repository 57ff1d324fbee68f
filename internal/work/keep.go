package work

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sojourn-dev/sojourn/internal/store"
)

// keep sends heartbeats for the claims that are held, and ends the handlers of
// those that were lost, until ctx ends.
func (e *Engine) keep(ctx context.Context) {
	every := 5 * time.Second
	for _, k := range e.kinds {
		every = min(every, k.policy.Lease/6)
	}
	ticker := time.NewTicker(max(every, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			e.heartbeat(ctx)
		case <-e.store.Signals().Cancelled:
			e.findLost(ctx)
		}
	}
}

// due returns the claims that are due a heartbeat at now.
func (e *Engine) due(now time.Time) (all []*held) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for h := range e.held {
		if !h.over && !now.Before(h.keepAt) {
			all = append(all, h)
		}
	}
	return all
}

// cancelled returns the claims that are held for the keys.
func (e *Engine) cancelled(keys []Key) (all []*held) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, key := range keys {
		if h := e.working[key]; h != nil && !h.over {
			all = append(all, h)
		}
	}
	return all
}

// heartbeat moves the ends of all claims that are due it, in one transaction.
func (e *Engine) heartbeat(ctx context.Context) {
	begun := time.Now()
	due := e.due(begun)
	if len(due) == 0 {
		return
	}
	var lost []*held
	err := e.store.Update(ctx, func(tx *store.Tx) error {
		lost = nil
		for _, h := range due {
			err := tx.HeartbeatWork(h.work.Kind, h.work.ID, h.work.Fence, h.kind.policy.Lease)
			if errors.Is(err, ErrLost) {
				lost = append(lost, h)
			} else if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		if ctx.Err() == nil {
			e.cfg.Log.Error("heartbeats of work failed", "claims", len(due), "error", err)
		}
		return // each claim's own timer ends its handler in time
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range due {
		h.keepAt = begun.Add(h.kind.policy.Lease / 3)
		if _, working := e.held[h]; working && !h.over && !slices.Contains(lost, h) {
			h.lapse.Reset(time.Until(begun.Add(trusted(h.kind.policy.Lease))))
		}
	}
	e.endLocked(lost)
}

// findLost ends the handlers whose work was cancelled, without waiting for
// their next heartbeat.
func (e *Engine) findLost(ctx context.Context) {
	all := e.cancelled(e.store.Signals().TakeCancelled())
	if len(all) == 0 {
		return
	}
	var lost []*held
	err := e.store.View(ctx, func(tx *store.Tx) error {
		for _, h := range all {
			err := tx.CheckFence(h.work.Kind, h.work.ID, h.work.Fence)
			if errors.Is(err, ErrLost) {
				lost = append(lost, h)
			} else if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return // the next heartbeat finds out
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endLocked(lost)
}

// endLocked ends the handlers of claims that were lost, but for those that have
// cancelled their own work.
func (e *Engine) endLocked(lost []*held) {
	for _, h := range lost {
		if !h.over {
			h.cancel(ErrLost)
		}
	}
}
