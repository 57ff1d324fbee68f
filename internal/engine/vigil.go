package engine

import (
	"context"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// DefaultUnresponsiveAfter is how long a keeper may answer nothing before its sandbox is
// ended. It answers beside all that it does, is never frozen with the others, and what
// stands still to be saved is excused: what is left is a keeper that gets no processor.
// Without a limit that takes seconds at worst, however many processes compete; where the
// sandbox is at its own limit there are starvedRounds. A minute is far beyond the one,
// and still as long as somebody waits for an exec to be cancelled.
const DefaultUnresponsiveAfter = time.Minute

// starvedRounds is how many times that long a sandbox may take which its processor limit
// keeps from running: 300 busy processes at a tenth of a processor leave a keeper in
// gVisor without a turn for more than two minutes.
const starvedRounds = 5

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
	silence, err := e.awaitSilence(ctx, c)
	if err != nil {
		return
	}
	e.log.Error("a keeper does not answer: its sandbox is ended", "session", c.session, "lease_epoch", c.epoch, "silent", silence)
	err = e.decide(ctx, c.session, func(_ *store.Tx, d *sojourn.Decision) error {
		d.NoteSilence(c.epoch, silence)
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

// awaitSilence waits until the keeper has answered nothing for longer than it may, and
// returns for how long.
func (e *Engine) awaitSilence(ctx context.Context, c *compute) (time.Duration, error) {
	var since time.Time
	for rounds := 0; ; {
		if err := c.peer.AwaitSilence(ctx, e.cfg.UnresponsiveAfter); err != nil {
			return 0, err
		}
		if heard := c.peer.Heard(); !heard.Equal(since) { // it has answered in between
			rounds, since = 0, heard
		}
		rounds++
		if rounds == starvedRounds || !e.starved(ctx, c) {
			return time.Duration(rounds) * e.cfg.UnresponsiveAfter, nil
		}
	}
}

// The bounds of looking whether a sandbox is starved.
const (
	starvedLook  = time.Second
	usagePatient = 2 * time.Second // its own kernel may not answer either
)

// starved reports whether its processor limit keeps the sandbox from running now.
func (e *Engine) starved(ctx context.Context, c *compute) bool {
	m, ok := c.box.(sandbox.Meter)
	if !ok {
		return false
	}
	throttled := func() time.Duration {
		ctx, cancel := context.WithTimeout(ctx, usagePatient)
		defer cancel()
		u, _ := m.Usage(ctx) // what the host has counted is there all the same
		return u.CPUThrottled
	}
	before := throttled()
	select {
	case <-time.After(starvedLook):
	case <-ctx.Done():
		return false
	}
	return throttled() > before
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
