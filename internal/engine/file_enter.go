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
	w := e.watchSession(ref.ID)
	defer w.stop()
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
		select {
		case <-w.changed:
		case <-ctx.Done():
			return facts, false, context.Cause(ctx)
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

// lookInto reads files: with live from the sandbox of a session, or with rest from
// the latest checkpoint of one that has none. Both may be called again, when the
// sandbox is replaced or given up meanwhile. A visit is live's to close when that
// succeeds.
func (e *Engine) lookInto(ctx context.Context, ref Ref, wait time.Duration, live func(*Visit) error, rest func(sojourn.Facts) error) error {
	for try := 1; ; try++ {
		facts, saved, err := e.saved(ctx, ref, wait)
		if err != nil {
			return err
		}
		if saved {
			return rest(facts)
		}
		v, err := e.glance(ctx, ref, wait)
		if err == nil {
			if err = live(v); err == nil {
				return nil
			}
			v.Close()
		}
		ended := sojourn.CodeOf(err) == sojourn.CodeInvalidState && facts.Session.State == sojourn.SessionOpen
		if !replaced(err) && !ended || try == enterTries || ctx.Err() != nil {
			return err
		}
	}
}

// writeInto calls do in the sandbox of a session, and again in the next one when
// that is replaced meanwhile.
func (e *Engine) writeInto(ctx context.Context, ref Ref, wait time.Duration, do func(*Visit) error) error {
	for try := 1; ; try++ {
		v, err := e.Visit(ctx, ref, wait)
		if err == nil {
			err = do(v)
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
