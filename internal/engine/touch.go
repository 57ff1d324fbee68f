package engine

import (
	"context"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// touching is how a sign of use is written down.
type touching func(d *sojourn.Decision, epoch int64) bool

// touchUntil keeps the lease of a compute that is in use until stop is called or
// ctx ends. stop waits for the goroutine that does it.
func (e *Engine) touchUntil(ctx context.Context, c *compute, how touching) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var touching sync.WaitGroup
	touching.Go(func() { e.touchWhile(ctx, c, how) })
	return func() { cancel(); touching.Wait() }
}

// touchWhile keeps the lease while the keeper answers: a live run is a sign of
// use, a sandbox that no longer reports is not.
func (e *Engine) touchWhile(ctx context.Context, c *compute, how touching) {
	every := touchEvery(e.cfg.Terms.Hold)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		ask, cancel := context.WithTimeout(ctx, every)
		_, err := c.peer.Info(ask)
		cancel()
		if err == nil {
			e.touch(ctx, c, how)
			e.noteLimits(ctx, c)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// touchEvery is how often a lease with a hold is touched that is in use.
func touchEvery(hold time.Duration) time.Duration {
	return min(max(hold/5, 50*time.Millisecond), time.Minute)
}

func (e *Engine) touch(ctx context.Context, c *compute, how touching) {
	err := e.decide(ctx, c.session, func(_ *store.Tx, d *sojourn.Decision) error {
		how(d, c.epoch)
		return nil
	})
	if err != nil && ctx.Err() == nil {
		e.log.Warn("touch a lease", "session", c.session, "lease_epoch", c.epoch, "error", err)
	}
}
