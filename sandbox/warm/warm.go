package warm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
)

const (
	// defaultWindow is how long a demand is remembered unless Config says otherwise.
	defaultWindow = 10 * time.Minute
	// settleTime is how long after a Create the next fill begins: what the session
	// does first in its sandbox is waited for, too.
	settleTime = 250 * time.Millisecond
	// fillTime bounds one fill.
	fillTime = 2 * time.Minute
)

// Config says how many sandboxes are kept ready. Without Max there are none.
type Config struct {
	// Default is the spec of which Min sandboxes are ready whatever the demand. Of
	// all others there are as many as the demand asks for.
	Default sandbox.Spec
	Min     int
	// Max is how many may be ready over all specs.
	Max int
	// Window is how long a demand is remembered; 0 is ten minutes.
	Window time.Duration
	// ReserveBytes is how much of the host's memory must be available for a
	// sandbox to be made ready; 0 is an eighth of all. Below half of it, what is
	// ready is given back.
	ReserveBytes int64
	Log          *slog.Logger // nil is no log
}

// Pool is a driver that keeps sandboxes of another one ready. What that driver can do
// beside the contract goes through.
type Pool struct {
	sandbox.Driver
	sandbox.Warmer

	cfg    Config
	log    *slog.Logger
	memory func() (memory, error)

	end  context.CancelFunc
	loop sync.WaitGroup
	wake chan struct{} // one deep: something has changed for the loop

	mu       sync.Mutex
	demand   demand
	creating int       // Creates that run
	settled  time.Time // when the last one will have had its quiet
	fill     *fill     // what the loop makes at the moment
}

var (
	_ sandbox.Driver  = (*Pool)(nil)
	_ sandbox.Warmer  = (*Pool)(nil)
	_ sandbox.Resumer = (*Pool)(nil)
	_ sandbox.Cleaner = (*Pool)(nil)
)

// fill is one sandbox that is being made ready.
type fill struct {
	key     string
	claimed bool // a Create waits for it
	cancel  context.CancelFunc
	done    chan struct{} // closed when it is ready or failed
}

// Open returns a driver that keeps sandboxes of d ready. It is d itself if that is no
// sandbox.Warmer or cfg asks for none. Closing it closes d.
func Open(d sandbox.Driver, cfg Config) sandbox.Driver {
	w, ok := d.(sandbox.Warmer)
	if !ok || cfg.Max <= 0 {
		return d
	}
	return open(d, w, cfg, hostMemory)
}

func open(d sandbox.Driver, w sandbox.Warmer, cfg Config, mem func() (memory, error)) *Pool {
	cfg.Min = max(0, min(cfg.Min, cfg.Max))
	cfg.Window = cmp.Or(max(0, cfg.Window), defaultWindow)
	p := &Pool{
		Driver: d, Warmer: w, cfg: cfg, log: cfg.Log, memory: mem,
		wake: make(chan struct{}, 1), demand: newDemand(cfg),
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	ctx, end := context.WithCancel(context.Background())
	p.end = end
	p.loop.Go(func() { p.run(ctx) })
	return p
}

// Create makes a sandbox, or takes one that is ready.
func (p *Pool) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if spec.Resume == nil { // what is ready has no processes of anybody's
		p.arrive(ctx, spec)
		defer p.leave()
	}
	return p.Driver.Create(ctx, spec)
}

// arrive notes that a sandbox is asked for. If none is ready, it makes room for the one
// to be made: it waits for a fill of the same kind, and ends any other.
func (p *Pool) arrive(ctx context.Context, spec sandbox.Spec) {
	key := keyOf(spec)
	cold := p.Ready(spec) == 0
	p.mu.Lock()
	p.creating++
	p.demand.note(key, spec, time.Now())
	f, wait := p.fill, false
	if f != nil && cold {
		if wait = f.key == key && !f.claimed; wait {
			f.claimed = true
		} else if !f.claimed {
			f.cancel()
		}
	}
	p.mu.Unlock()
	if wait {
		select {
		case <-f.done:
		case <-ctx.Done():
		}
	}
}

// leave notes that a Create has ended, however it went.
func (p *Pool) leave() {
	p.mu.Lock()
	p.creating--
	p.settled = time.Now().Add(settleTime)
	p.mu.Unlock()
	p.nudge()
}

func (p *Pool) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Prepare passes on to the driver; see sandbox.Resumer.
func (p *Pool) Prepare(ctx context.Context, spec sandbox.Spec) (sandbox.Dirs, error) {
	if r, ok := p.Driver.(sandbox.Resumer); ok {
		return r.Prepare(ctx, spec)
	}
	return sandbox.Dirs{}, fmt.Errorf("driver %s starts no sandbox from a snapshot: %w", p.Name(), sandbox.ErrUnsupported)
}

// Leftovers passes on to the driver; see sandbox.Cleaner.
func (p *Pool) Leftovers() error {
	if c, ok := p.Driver.(sandbox.Cleaner); ok {
		return c.Leftovers()
	}
	return nil
}

// Close stops filling and closes the driver, which ends what is ready.
func (p *Pool) Close() error {
	p.end()
	p.loop.Wait()
	return p.Driver.Close()
}

// run fills until ctx ends.
func (p *Pool) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
		timer.Reset(p.step(ctx))
	}
}

// step ends what is too much, makes at most one sandbox ready and returns after what
// time there may be something to do again.
func (p *Pool) step(ctx context.Context) time.Duration {
	now := time.Now()
	mem, err := p.memory()
	if err != nil {
		p.log.Debug("available memory is unknown", "error", err) // so nothing is known to be short
	}
	reserve := cmp.Or(p.cfg.ReserveBytes, mem.total/8)
	total := p.cfg.Max
	if mem.short(reserve / 2) {
		total = 0
	}
	p.mu.Lock()
	plan := p.demand.plan(now, total)
	p.mu.Unlock()

	all := 0
	for _, w := range plan {
		n := p.Ready(w.spec)
		if n > w.count {
			p.warm(ctx, w, w.count)
			n = p.Ready(w.spec)
		}
		all += n
		if n == 0 && w.count == 0 {
			p.mu.Lock()
			p.demand.forget(w.key)
			p.mu.Unlock()
		}
	}
	rest := p.cfg.Window / 16
	if mem.short(reserve) || all >= p.cfg.Max {
		return rest
	}
	for _, w := range plan {
		n, pause := p.Ready(w.spec), w.retryAt.Sub(now)
		switch {
		case n >= w.count:
		case pause > 0:
			rest = min(rest, pause)
		default:
			return p.fillOne(ctx, w, n)
		}
	}
	return rest
}

// fillOne makes one more sandbox of a kind ready, unless something is more urgent.
func (p *Pool) fillOne(ctx context.Context, w want, ready int) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, fillTime)
	defer cancel()
	f := &fill{key: w.key, cancel: cancel, done: make(chan struct{})}
	p.mu.Lock()
	if quiet := time.Until(p.settled); p.creating > 0 || quiet > 0 {
		p.mu.Unlock()
		return max(quiet, settleTime) // the end of a Create wakes the loop earlier
	}
	p.fill = f
	p.mu.Unlock()
	p.warm(ctx, w, ready+1)
	p.mu.Lock()
	p.fill = nil
	p.mu.Unlock()
	close(f.done)
	return 0
}

// warm makes there be n ready sandboxes of a kind and remembers whether that worked.
func (p *Pool) warm(ctx context.Context, w want, n int) {
	err := p.Warm(ctx, w.spec, n)
	if err != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return // broken off for something more urgent
	}
	p.mu.Lock()
	pause := p.demand.outcome(w.key, time.Now(), err == nil)
	p.mu.Unlock()
	if err != nil {
		p.log.Warn("no sandbox could be made ready", "driver", p.Name(), "image", w.spec.Image, "again_in", pause, "error", err)
	}
}
