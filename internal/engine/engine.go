package engine

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/checkpoint"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/hub"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/work"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// The caps that contract C advertises for what a checkpoint holds.
const (
	DefaultWorkspaceMaxBytes    = 256 << 20
	DefaultConversationMaxBytes = 256 << 20
)

// Config is what an engine works with. Store, Hub and Checkpoints are needed;
// the rest has a meaning when it is zero.
type Config struct {
	Store       store.Store
	Hub         *hub.Hub
	Checkpoints *checkpoint.Store
	// Cache remembers which files a capture need not read again; nil reads all.
	Cache *checkpoint.Cache
	// Driver makes sandboxes; nil means that there is nowhere to run.
	Driver sandbox.Driver
	// DriverReason says why this driver was chosen, or why there is none.
	DriverReason string
	// Sandbox is what the sandboxes of sessions get that do not say otherwise.
	// Its limits apply as far as the driver can enforce them.
	Sandbox sojourn.SandboxSpec
	// CheckImage refuses images that sessions may not name; nil refuses all.
	CheckImage func(reference string) error
	// Tidy is called when the engine tidies up, once a day; nil is nothing.
	Tidy func(context.Context) error
	// Egress is the way of sandboxes to the network; nil means that there is none.
	Egress Egress
	// Models are those that runtimes may use; nil means that there are none.
	Models Models
	// MCPServers are given to every agent, each as ACP writes it.
	MCPServers []json.RawMessage
	// Processes keeps saved processes, and SnapshotDir is where they are unpacked,
	// absolute; without them none are saved.
	Processes   ProcessStore
	SnapshotDir string
	// Outputs keeps what execs write; without it no exec is accepted.
	Outputs *output.Store
	// Rates are what the execs of bare sessions cost.
	Rates    Rates
	Harness  harness.Harness
	Runtimes []harness.Runtime // the first is the default
	Terms    sojourn.Terms     // of new leases
	// TurnDeadline bounds one turn; 0 leaves the lease's ceiling as the bound.
	TurnDeadline time.Duration
	// CancelGrace is how long an agent may take to obey a cancel; 0 means 10 s.
	CancelGrace time.Duration
	// SweepEvery is the reconciliation interval; 0 means one minute.
	SweepEvery time.Duration
	// StartTimeout bounds the making of a sandbox; 0 means two minutes.
	StartTimeout time.Duration
	// UnresponsiveAfter is how long the keeper of a sandbox may answer nothing before
	// the sandbox is ended; 0 means DefaultUnresponsiveAfter.
	UnresponsiveAfter    time.Duration
	WorkspaceMaxBytes    int64 // 0 means DefaultWorkspaceMaxBytes
	ConversationMaxBytes int64 // 0 means DefaultConversationMaxBytes
	Log                  *slog.Logger
}

// Engine runs sessions. Make one with [New].
type Engine struct {
	cfg   Config
	log   *slog.Logger
	work  *work.Engine
	ready chan struct{}
	tag   string // tells the passing processes of this engine from those of an earlier one

	machine machine

	base context.Context // ends when Run ends; parent of flights and watchers
	stop context.CancelCauseFunc
	wg   sync.WaitGroup // flights and watchers

	policies keyed // held while a policy is put on a gate
	adopting keyed // held while a sandbox is taken over: it has one gate

	mu       sync.Mutex
	closed   bool // no flight or watcher starts any more
	computes map[sojourn.SessionID]*compute
	gates    map[sojourn.SessionID]*gate
	flights  map[sojourn.SessionID]*flight
	drains   map[sojourn.SessionID]*draining
	drives   map[sojourn.RunID]*drive
	benches  map[sojourn.SessionID]*bench
	watched  map[sojourn.ExecID][]*execWatch // told of each change of an exec
	awaited  map[sojourn.SessionID][]*sessionWatch
	shells   map[string]*context.CancelCauseFunc // by session and process: ends the visitor's hold
}

// New makes an engine. It does nothing until [Engine.Run].
func New(c Config) (*Engine, error) {
	if c.Store == nil || c.Hub == nil || c.Checkpoints == nil || c.Harness == nil || len(c.Runtimes) == 0 {
		return nil, errors.New("engine: store, hub, checkpoints, harness and a runtime are needed")
	}
	c.CancelGrace = orDefault(c.CancelGrace, 10*time.Second)
	c.SweepEvery = orDefault(c.SweepEvery, time.Minute)
	c.StartTimeout = orDefault(c.StartTimeout, 2*time.Minute)
	c.UnresponsiveAfter = orDefault(c.UnresponsiveAfter, DefaultUnresponsiveAfter)
	c.WorkspaceMaxBytes = orDefault(c.WorkspaceMaxBytes, DefaultWorkspaceMaxBytes)
	c.ConversationMaxBytes = orDefault(c.ConversationMaxBytes, DefaultConversationMaxBytes)
	c.Terms.Ceiling = orDefault(c.Terms.Ceiling, sojourn.DefaultCeiling)
	c.Terms.Hold = orDefault(c.Terms.Hold, sojourn.DefaultHold)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{
		cfg: c, log: c.Log, ready: make(chan struct{}), tag: strings.ToLower(rand.Text()[:12]), machine: thisMachine(),
		computes: map[sojourn.SessionID]*compute{},
		gates:    map[sojourn.SessionID]*gate{},
		flights:  map[sojourn.SessionID]*flight{},
		drains:   map[sojourn.SessionID]*draining{},
		drives:   map[sojourn.RunID]*drive{},
		benches:  map[sojourn.SessionID]*bench{},
		watched:  map[sojourn.ExecID][]*execWatch{},
		awaited:  map[sojourn.SessionID][]*sessionWatch{},
		shells:   map[string]*context.CancelCauseFunc{},
	}
	e.base, e.stop = context.WithCancelCause(context.Background())
	e.work = work.New(c.Store, work.Config{
		Log: c.Log,
		Handlers: map[string]work.HandlerPolicy{
			sojourn.WorkRun: {
				Handler: work.HandlerFunc(e.driveRun),
				Policy:  work.Policy{Lease: 10 * time.Second, Concurrency: 4096},
			},
			sojourn.WorkLease: {
				Handler: work.HandlerFunc(e.tendLease),
				Policy:  work.Policy{Lease: 30 * time.Second, Concurrency: 16},
			},
			sojourn.WorkBench: {
				Handler: work.HandlerFunc(e.driveBench),
				Policy:  work.Policy{Lease: 10 * time.Second, Concurrency: 4096},
			},
			sojourn.WorkClock:       timer(e.checkClock),
			sojourn.WorkPresence:    timer(e.checkPresence),
			sojourn.WorkInteraction: timer(e.expireInteraction),
			sojourn.WorkPurge:       timer(e.purge),
		},
	})
	return e, nil
}

func orDefault[T comparable](v, fallback T) T {
	var zero T
	if v == zero {
		return fallback
	}
	return v
}

// errStopping is the cause of every context that ends because the engine does.
var errStopping = sojourn.Errorf(sojourn.CodeUnavailable, "The server is stopping.")

// Run recovers what an earlier process left, then works until ctx ends. It
// returns when every goroutine of the engine has; sandboxes keep running.
func (e *Engine) Run(ctx context.Context) error {
	defer e.wg.Wait()
	defer e.close()
	if err := e.recover(ctx); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	close(e.ready)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.work.Run(ctx) })
	g.Go(func() error { return e.sweepLoop(ctx) })
	return g.Wait()
}

// close ends flights and watchers. The links to sandboxes are dropped; the
// sandboxes stay.
func (e *Engine) close() {
	e.stop(errStopping)
	e.mu.Lock()
	e.closed = true
	all := slices.Collect(maps.Values(e.computes))
	e.mu.Unlock()
	for _, c := range all { // without the lock: a gate says first what it has decided
		c.close()
	}
}

// Ready is closed when recovery is done and work is being taken.
func (e *Engine) Ready() <-chan struct{} { return e.ready }

// Now is the engine's clock.
func (e *Engine) Now() time.Time { return time.Now().UTC() }

// decide runs one decision on a session as a transaction of its own.
func (e *Engine) decide(ctx context.Context, id sojourn.SessionID, f func(*store.Tx, *sojourn.Decision) error) error {
	return e.cfg.Store.Update(ctx, func(tx *store.Tx) error {
		facts, err := tx.Facts(id)
		if err != nil {
			return err
		}
		return e.apply(tx, facts, f)
	})
}

// apply makes one decision on facts read in tx and writes its change. A drive
// whose run it concerns is told after the commit.
func (e *Engine) apply(tx *store.Tx, facts sojourn.Facts, f func(*store.Tx, *sojourn.Decision) error) error {
	if err := e.measure(tx, &facts); err != nil {
		return err
	}
	d := facts.Decide(tx.Now())
	if err := f(tx, d); err != nil {
		return err
	}
	if r := facts.Active; r != nil {
		over := d.Facts().Active == nil
		tx.OnCommit(func() { e.tell(r.ID, over) })
	}
	c := d.Change()
	if c.Session.Bare() {
		after := d.Facts()
		tx.OnCommit(func() { e.tellBench(c, after) })
	}
	return tx.Apply(c)
}

// facts reads a session.
func (e *Engine) facts(ctx context.Context, id sojourn.SessionID) (f sojourn.Facts, err error) {
	err = e.cfg.Store.View(ctx, func(tx *store.Tx) error {
		f, err = tx.Facts(id)
		return err
	})
	return f, err
}

// runtime returns the row of a runtime.
func (e *Engine) runtime(id string) (harness.Runtime, bool) {
	for _, r := range e.cfg.Runtimes {
		if r.ID == id {
			return r, true
		}
	}
	return harness.Runtime{}, false
}

// newID makes an id that sorts by time.
func newID[T ~string]() T {
	id, err := uuid.NewV7()
	if err != nil { // the system has no randomness: nothing can go on
		panic(err)
	}
	return T(id.String())
}
