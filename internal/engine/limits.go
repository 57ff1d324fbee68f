package engine

import (
	"context"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// meterPatience bounds a look at the meter of a sandbox.
const meterPatience = 5 * time.Second

// noteLimits writes into the log which limits of a sandbox were reached since it
// was last looked at, and returns how much more each was. The log has totals, so
// that a repetition after a crash says nothing wrong.
func (e *Engine) noteLimits(ctx context.Context, c *compute) (more sandbox.Usage) {
	m, ok := c.box.(sandbox.Meter)
	if !ok {
		return more
	}
	ask, cancel := context.WithTimeout(ctx, meterPatience)
	defer cancel()
	now, err := m.Usage(ask)
	if err != nil {
		return more // a sandbox that has ended says so elsewhere
	}
	e.mu.Lock()
	was := c.felt
	c.felt = now
	e.mu.Unlock()
	totals := map[string]int64{}
	for _, l := range []struct {
		name     string
		was, now int64
		more     *int64
	}{
		{"memory", was.MemoryKills, now.MemoryKills, &more.MemoryKills},
		{"processes", was.ProcessDenied, now.ProcessDenied, &more.ProcessDenied},
		{"disk", was.DiskDenied, now.DiskDenied, &more.DiskDenied},
	} {
		if l.now > l.was {
			totals[l.name], *l.more = l.now, l.now-l.was
		}
	}
	if len(totals) == 0 {
		return more
	}
	err = e.decide(ctx, c.session, func(_ *store.Tx, d *sojourn.Decision) error {
		d.NoteLimits(c.epoch, totals)
		return nil
	})
	if err != nil && ctx.Err() == nil {
		e.log.Warn("write reached limits", "session", c.session, "lease_epoch", c.epoch, "error", err)
	}
	return more
}

// memoryKills is how often the sandbox was seen to reach its memory limit.
func (e *Engine) memoryKills(c *compute) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return c.felt.MemoryKills
}
