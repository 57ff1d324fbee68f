package work

import (
	"context"
	"crypto/rand"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn/internal/store"
)

// Config is who works on what.
type Config struct {
	Owner    string // of the claims; random when "", which is right
	Handlers map[string]HandlerPolicy
	Poll     time.Duration // the longest sleep; 0 means 5 s
	Log      *slog.Logger  // nil means slog.Default
}

// Engine claims work that is due and has it done.
type Engine struct {
	store store.Store
	cfg   Config
	kinds []*kind
	freed chan struct{} // of one: a slot has become free

	mu      sync.Mutex
	held    map[*held]struct{}
	working map[Key]*held // the latest claim of each key that is held
}

// kind is one kind of work with its slots.
type kind struct {
	name    string
	handler Handler
	policy  Policy
	running int // under Engine.mu
}

// claimsAtOnce bounds one transaction that claims.
const claimsAtOnce = 64

// New makes an engine. It starts nothing.
func New(s store.Store, c Config) *Engine {
	if c.Owner == "" {
		c.Owner = rand.Text()
	}
	if c.Poll <= 0 {
		c.Poll = 5 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	e := &Engine{
		store: s, cfg: c, freed: make(chan struct{}, 1),
		held: map[*held]struct{}{}, working: map[Key]*held{},
	}
	for _, name := range slices.Sorted(maps.Keys(c.Handlers)) {
		h := c.Handlers[name]
		e.kinds = append(e.kinds, &kind{name: name, handler: h.Handler, policy: h.Policy.withDefaults(name)})
	}
	return e
}

// Run works until ctx ends and all handlers have returned, then returns why ctx
// ended. Where this process is the only one on the database, claims that an
// earlier one left behind are due at once.
func (e *Engine) Run(ctx context.Context) error {
	var handlers, keeper sync.WaitGroup
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	keeper.Go(func() { e.keep(keeping) })
	e.loop(ctx, &handlers)
	handlers.Wait() // their claims are kept until then
	stop()
	keeper.Wait()
	return context.Cause(ctx)
}

// loop claims and sleeps in turn.
func (e *Engine) loop(ctx context.Context, handlers *sync.WaitGroup) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	released := false
	for ctx.Err() == nil {
		e.store.Signals().Awake()
		wake := time.Now().Add(e.cfg.Poll)
		err := error(nil)
		if !released {
			err = e.releaseOrphans(ctx)
			released = err == nil
		}
		if err == nil {
			wake, err = e.look(ctx, handlers, wake)
		}
		if err != nil && ctx.Err() == nil {
			e.cfg.Log.Error("work cannot be claimed", "error", err)
			wake = time.Now().Add(min(e.cfg.Poll, time.Second))
		}
		e.store.Signals().Sleep(wake)
		timer.Reset(time.Until(wake))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-e.freed:
		case <-e.store.Signals().Scheduled:
		}
	}
}

func (e *Engine) releaseOrphans(ctx context.Context) error {
	var n int64
	err := e.store.Update(ctx, func(tx *store.Tx) (err error) {
		n, err = tx.ReleaseOrphanedClaims(e.cfg.Owner)
		return err
	})
	if err == nil && n > 0 {
		e.cfg.Log.Info("took up work that an earlier process left behind", "claims", n)
	}
	return err
}

// look claims what is due, as far as there are free slots, and returns when to
// look again: latest at the given time.
func (e *Engine) look(ctx context.Context, handlers *sync.WaitGroup, latest time.Time) (time.Time, error) {
	free := e.freeSlots()
	next := make([]time.Time, len(e.kinds))
	var now time.Time
	err := e.store.View(ctx, func(tx *store.Tx) error {
		now = tx.Now()
		for i, k := range e.kinds {
			next[i] = latest
			if free[i] == 0 {
				continue // a slot that becomes free wakes us
			}
			due, any, err := tx.NextWork(k.name)
			if err != nil {
				return err
			}
			if any && due.Before(latest) {
				next[i] = due
			}
		}
		return nil
	})
	if err != nil {
		return latest, err
	}
	wake := latest
	for i, k := range e.kinds {
		if next[i].After(now) || free[i] == 0 {
			if next[i].Before(wake) {
				wake = next[i]
			}
			continue
		}
		if err := e.claim(ctx, handlers, k, min(free[i], claimsAtOnce)); err != nil {
			return latest, err
		}
		wake = now // there may be more
	}
	return wake, nil
}

func (e *Engine) freeSlots() []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	free := make([]int, len(e.kinds))
	for i, k := range e.kinds {
		free[i] = k.policy.Concurrency - k.running
	}
	return free
}

// claim takes up to n pieces of work and starts their handlers.
func (e *Engine) claim(ctx context.Context, handlers *sync.WaitGroup, k *kind, n int) error {
	begun := time.Now() // before the store's own now: what we trust ends first
	var claims []store.Work
	err := e.store.Update(ctx, func(tx *store.Tx) (err error) {
		claims, err = tx.ClaimWork(k.name, e.cfg.Owner, k.policy.Lease, n)
		return err
	})
	if err != nil {
		return err
	}
	for _, w := range claims {
		h := e.hold(ctx, k, w, begun)
		handlers.Go(func() { e.work(ctx, h) })
	}
	return nil
}
