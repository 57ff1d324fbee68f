package engine

import (
	"context"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// DefaultUnresponsiveAfter is how long a keeper may answer nothing before its sandbox is
// ended. A keeper needs a sliver of a processor to answer, which it also gets where
// hundreds of processes fight for a tenth of one, within seconds; it is never frozen
// with the others, and what stands still to be saved is excused. A minute is far beyond
// all of that, and still what somebody who waits for an exec to be cancelled may wait.
const DefaultUnresponsiveAfter = time.Minute

// endedUnresponsive is the reason of a lease whose sandbox was ended because its keeper
// did not answer any more.
const endedUnresponsive = "unresponsive"

// The bounds of ending such a sandbox: how long one try may take, and how often it is
// tried before the sandbox is given up with its files.
const (
	killPatience = 30 * time.Second
	killPause    = 2 * time.Second
	maxKills     = 3
)

// vigil ends a sandbox whose keeper does not answer any more, whatever the reason: it was
// stopped from outside, waits for a disk that is gone, or the way to it is broken for
// good. What follows is what follows on every end of a sandbox. It returns when ctx ends,
// which it must when the sandbox has ended.
func (e *Engine) vigil(ctx context.Context, c *compute) {
	if c.peer.AwaitSilence(ctx, e.cfg.UnresponsiveAfter) != nil {
		return
	}
	e.log.Error("a keeper does not answer: its sandbox is ended", "session", c.session, "lease_epoch", c.epoch, "silent", e.cfg.UnresponsiveAfter)
	err := e.decide(ctx, c.session, func(_ *store.Tx, d *sojourn.Decision) error {
		d.NoteSilence(c.epoch, e.cfg.UnresponsiveAfter)
		return nil
	})
	if err != nil && ctx.Err() == nil {
		e.log.Error("tell that a keeper does not answer", "session", c.session, "lease_epoch", c.epoch, "error", err)
	}
	for range maxKills {
		killing, cancel := context.WithTimeout(ctx, killPatience)
		err := c.box.Kill(killing)
		cancel()
		if err == nil || ctx.Err() != nil {
			return
		}
		e.log.Error("end a sandbox that does not answer", "session", c.session, "lease_epoch", c.epoch, "error", err)
		select {
		case <-time.After(killPause):
		case <-ctx.Done():
			return
		}
	}
	e.forsake(ctx, c)
}

// forsake ends the lease of a sandbox that neither answers nor can be ended, because the
// host's kernel holds its processes. What it holds is lost: nobody could tell whether it
// is still being changed. No other sandbox takes its place before it can be removed,
// which is tried again and again.
func (e *Engine) forsake(ctx context.Context, c *compute) {
	err := e.decide(ctx, c.session, func(_ *store.Tx, d *sojourn.Decision) error {
		l := d.Facts().Lease
		if l == nil || l.Epoch != c.epoch {
			return nil
		}
		if err := endLease(d, *l, sojourn.LeaseLost, endedUnresponsive); err != nil {
			return err
		}
		rotateAfter(d)
		return nil
	})
	if err != nil && ctx.Err() == nil {
		e.log.Error("give up a sandbox that does not answer", "session", c.session, "lease_epoch", c.epoch, "error", err)
	}
}
