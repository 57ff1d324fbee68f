package work

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// ErrLost is a claim whose fence no longer holds.
var ErrLost = store.ErrLost

// Key names one piece of work; at most one row exists for it.
type Key = store.WorkKey

// Claim is the right to do one piece of work until its fence is overtaken.
type Claim struct {
	Key
	Attempt int             // 1 for the first
	Fence   int64           // grows with each claim, never used twice
	Payload json.RawMessage // nil when the work was scheduled without

	settle func() // told when a commit has cancelled the work itself
}

// Commit runs fn in a transaction while the claim's fence holds, else it returns
// [ErrLost]. fn may cancel the work itself: then the claim is over, the
// handler's context goes on, and nothing remains to be done when it returns.
func (c Claim) Commit(ctx context.Context, s store.Store, fn func(*store.Tx) error) error {
	return s.Update(ctx, func(tx *store.Tx) error {
		if err := tx.CheckFence(c.Kind, c.ID, c.Fence); err != nil {
			return fmt.Errorf("%s %s: %w", c.Kind, c.ID, err)
		}
		if err := fn(tx); err != nil {
			return err
		}
		if c.settle != nil && tx.WorkCancelled(c.Kind, c.ID) {
			tx.OnCommit(c.settle)
		}
		return nil
	})
}

// Next says what becomes of the work after a run. The zero value is done.
type Next struct{ again time.Time }

// Done removes the work, unless it was scheduled again meanwhile.
func Done() Next { return Next{} }

// Again keeps the work and has it done at t, or earlier if it was scheduled so
// meanwhile. Attempts start anew.
func Again(t time.Time) Next { return Next{again: t} }

// Handler does the work of one kind. An error has it done again after the
// policy's backoff. ctx ends, with a cause, before the claim can lapse.
type Handler interface {
	Run(ctx context.Context, c Claim) (Next, error)
}

// HandlerFunc is a function that is a Handler.
type HandlerFunc func(ctx context.Context, c Claim) (Next, error)

// Run calls f.
func (f HandlerFunc) Run(ctx context.Context, c Claim) (Next, error) { return f(ctx, c) }

// Policy bounds the work of one kind.
type Policy struct {
	Lease       time.Duration // how long a claim lasts without a heartbeat; 0 means 15 s
	MaxAttempts int           // 0 means no bound
	Concurrency int           // 0 means 16, and 4,096 for the kind "run"
	// Backoff is how long to wait after the given attempt has failed; nil means
	// a second, doubling to five minutes, with jitter.
	Backoff func(attempt int) time.Duration
}

// HandlerPolicy is a handler under a policy.
type HandlerPolicy struct {
	Handler Handler
	Policy  Policy
}

func (p Policy) withDefaults(kind string) Policy {
	if p.Lease <= 0 {
		p.Lease = 15 * time.Second
	}
	if p.Concurrency <= 0 {
		p.Concurrency = 16
		if kind == sojourn.WorkRun {
			p.Concurrency = 4096
		}
	}
	if p.Backoff == nil {
		p.Backoff = backoff
	}
	return p
}

// backoff doubles from a second to five minutes, give or take a fifth.
func backoff(attempt int) time.Duration {
	d := min(5*time.Minute, time.Second<<min(max(attempt, 1)-1, 16))
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// Schedule asks for work at due, inside the caller's transaction: it makes the
// row, or moves its due time and replaces its payload, which is stored as JSON
// (nil for none).
func Schedule(tx *store.Tx, k Key, due time.Time, payload any) error {
	if payload == nil {
		return tx.ScheduleWork(k.Kind, k.ID, due, nil)
	}
	b, err := json.Marshal(payload)
	if err != nil {
		return fmt.Errorf("schedule %s %s: %w", k.Kind, k.ID, err)
	}
	return tx.ScheduleWork(k.Kind, k.ID, due, b)
}

// Cancel withdraws work. Whoever is doing it loses the claim, and its context
// ends.
func Cancel(tx *store.Tx, k Key) error { return tx.CancelWork(k.Kind, k.ID) }
