package engine

import (
	"context"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/work"
)

// timer makes the handler of a work kind that looks at something when it is due.
func timer(f work.HandlerFunc) work.HandlerPolicy {
	return work.HandlerPolicy{Handler: f, Policy: work.Policy{Lease: 30 * time.Second, Concurrency: 16}}
}

// checkClock looks at the duration limit of the session of a claim.
func (e *Engine) checkClock(ctx context.Context, claim work.Claim) (work.Next, error) {
	return e.checkSession(ctx, claim, func(d *sojourn.Decision) (time.Time, error) { return d.CheckClock(), nil })
}

// checkPresence looks for the heartbeats of a session's client.
func (e *Engine) checkPresence(ctx context.Context, claim work.Claim) (work.Next, error) {
	return e.checkSession(ctx, claim, (*sojourn.Decision).CheckPresence)
}

// checkSession makes a decision on a session under a claim, and again when that says.
func (e *Engine) checkSession(ctx context.Context, claim work.Claim, check func(*sojourn.Decision) (time.Time, error)) (work.Next, error) {
	return again(func(at *time.Time) error {
		return claim.Commit(ctx, e.cfg.Store, func(tx *store.Tx) error {
			facts, err := tx.Facts(sojourn.SessionID(claim.ID))
			if err != nil {
				return err
			}
			return e.apply(tx, facts, func(_ *store.Tx, d *sojourn.Decision) (err error) {
				*at, err = check(d)
				return err
			})
		})
	})
}

// expireInteraction ends an approval that was not answered in time.
func (e *Engine) expireInteraction(ctx context.Context, claim work.Claim) (work.Next, error) {
	return again(func(at *time.Time) error {
		return claim.Commit(ctx, e.cfg.Store, func(tx *store.Tx) error {
			i, err := tx.Interaction(sojourn.InteractionID(claim.ID))
			if err != nil || i.Exec == "" {
				return err
			}
			x, err := tx.Exec(i.Exec)
			if err != nil {
				return err
			}
			facts, err := tx.Facts(i.Session)
			if err != nil {
				return err
			}
			return e.apply(tx, facts, func(_ *store.Tx, d *sojourn.Decision) error {
				*at = d.ExpireInteraction(i, x)
				return nil
			})
		})
	})
}

// again does a piece of timed work, which says when it is due again; zero is never.
// What it is about may be gone.
func again(f func(at *time.Time) error) (work.Next, error) {
	var at time.Time
	err := f(&at)
	switch {
	case sojourn.CodeOf(err) == sojourn.CodeNotFound:
		return work.Done(), nil
	case err != nil:
		return work.Next{}, err
	case at.IsZero():
		return work.Done(), nil
	}
	return work.Again(at), nil
}
