package engine

import (
	"context"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// enterTries is how often a sandbox is entered that is replaced just then.
const enterTries = 4

// saved reports whether the files of a session are to be read from its latest
// checkpoint: it is a bare session that is paused or has ended. It waits, at most
// wait, until all that its last sandbox held is in there.
func (e *Engine) saved(ctx context.Context, ref Ref, wait time.Duration) (facts sojourn.Facts, saved bool, err error) {
	saving := &sojourn.Error{
		Code: sojourn.CodeUnavailable, RetryAfter: 2 * time.Second, Message: "The files of the session are still being saved. Retry.",
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, saving)
	defer cancel()
	for {
		if facts, err = e.Session(ctx, ref); err != nil {
			return facts, false, err
		}
		s, l := facts.Session, facts.Lease
		if !s.Bare() || s.State != sojourn.SessionPaused && s.State != sojourn.SessionClosed {
			return facts, false, nil
		}
		if l == nil || l.State.Terminal() {
			return facts, true, nil
		}
		// Every step of a lease is an event.
		c := e.cfg.Hub.Subscribe(s.ID, s.LastSeq)
		_, err := c.Next(ctx)
		c.Close()
		if err != nil {
			return facts, false, err
		}
	}
}

// glance enters the sandbox of a session to look at it: as [Engine.Visit] does, but
// where it runs already nothing is written down.
func (e *Engine) glance(ctx context.Context, ref Ref, wait time.Duration) (*Visit, error) {
	facts, err := e.Session(ctx, ref)
	if err != nil {
		return nil, err
	}
	// The hold of other leases has to be moved.
	s := facts.Session
	if c := e.live(facts.Lease, e.Now()); c != nil && s.Bare() && s.State == sojourn.SessionOpen && !s.Rotating() {
		return e.stay(ctx, c)
	}
	return e.Visit(ctx, ref, wait)
}

// within calls do in the sandbox of a session, and again in the next one when that
// is replaced meanwhile: do must be able to begin anew. Visits that do leaves open
// are the ones of its result.
func (e *Engine) within(ctx context.Context, enter func() (*Visit, error), do func(*Visit) error) error {
	for try := 1; ; try++ {
		v, err := enter()
		if err == nil {
			if err = do(v); err == nil {
				return nil
			}
			v.Close()
		}
		if !replaced(err) || try == enterTries || ctx.Err() != nil {
			return err
		}
	}
}

// replaced reports whether a visit failed because its sandbox ended, so that
// another one takes its place.
func replaced(err error) bool {
	switch sojourn.CodeOf(err) {
	case sojourn.CodeExecutionLost, sojourn.CodeWorkspaceExpired:
		return true
	}
	return false
}
