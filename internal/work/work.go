// Package work runs timers, jobs and claims from the work table.
package work

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/sojourn-dev/sojourn/internal/store"
)

// ErrLost is a claim whose fence no longer holds.
var ErrLost = store.ErrLost

// Key names one piece of work; at most one row exists per key.
type Key struct{ Kind, ID string }

// Claim is the right to do one piece of work until its fence is overtaken.
type Claim struct {
	Key
	Attempt int   // 1 for the first
	Fence   int64 // grows with each claim
	Payload json.RawMessage
}

// Commit runs fn in a transaction while the claim's fence holds, else it
// returns ErrLost.
func (c Claim) Commit(ctx context.Context, s store.Store, fn func(*store.Tx) error) error {
	panic("soon")
}

// Next says what becomes of the work after a run. The zero value is done.
type Next struct{ Again time.Time }

// Done removes the work, unless it was scheduled again meanwhile.
func Done() Next { return Next{} }

// Again keeps the work and runs it at t, counting attempts from zero.
func Again(t time.Time) Next { return Next{Again: t} }

// Handler does the work of one kind. An error retries it after the policy's
// backoff. ctx ends, with a cause, before the claim can lapse.
type Handler interface {
	Run(ctx context.Context, c Claim) (Next, error)
}

// HandlerFunc is a function that is a Handler.
type HandlerFunc func(ctx context.Context, c Claim) (Next, error)

// Run calls f.
func (f HandlerFunc) Run(ctx context.Context, c Claim) (Next, error) { return f(ctx, c) }

// Policy bounds the work of one kind.
type Policy struct {
	Lease       time.Duration           // how long a claim lasts without a heartbeat; 0 means 15 s
	MaxAttempts int                     // 0 means no bound
	Concurrency int                     // 0 means 16, and 4,096 for the kind "run"
	Backoff     func(int) time.Duration // of the attempt that failed; nil means 1 s doubling to 5 min, with jitter
}

// HandlerPolicy is a handler under a policy.
type HandlerPolicy struct {
	Handler Handler
	Policy  Policy
}

// Config is who works on what.
type Config struct {
	Owner    string // random when ""
	Handlers map[string]HandlerPolicy
	Poll     time.Duration // the longest sleep; 0 means 5 s
	Log      *slog.Logger  // nil means slog.Default
}

// Engine claims work that is due and runs it.
type Engine struct{}

// New makes an engine. It starts nothing.
func New(s store.Store, c Config) *Engine { panic("soon") }

// Run works until ctx ends and all handlers have returned.
func (e *Engine) Run(ctx context.Context) error { panic("soon") }

// Schedule asks for work at due inside the caller's transaction: it makes the
// row or moves its due time.
func Schedule(tx *store.Tx, k Key, due time.Time, payload any) error { panic("soon") }

// Cancel withdraws work. A holder's claim is lost.
func Cancel(tx *store.Tx, k Key) error { panic("soon") }
