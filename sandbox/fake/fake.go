package fake

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// Name is the driver's name in handles and settings.
const Name = "fake"

// Config says what the sandboxes are made of.
type Config struct {
	// Dir is where the directories of the sandboxes are, absolute.
	Dir string
	// Programs are the programs that can be started, by argv[0]. Nothing else
	// can.
	Programs map[string]keeper.Program
	// Host makes the keepers run programs of the host instead, as processes of their
	// own: those see the host's paths, but for their working directory.
	Host bool
	// Isolation is the wall that the sandboxes claim to have; "" is none, the truth.
	Isolation sandbox.Isolation
}

// Faults says what goes wrong. In the zero value nothing does.
type Faults struct {
	// CreateDelay is how long Create takes.
	CreateDelay time.Duration
	// CreateErr is what Create fails with after the delay; nothing is left behind.
	CreateErr error
	// CreateHalf makes Create leave a half-made sandbox behind when it fails, as
	// a server does that is killed during it. Without CreateErr it fails with an
	// error of its own.
	CreateHalf bool
	// RecoverErr is what Recover fails with: sandbox.ErrGone, or another error for
	// "cannot tell now".
	RecoverErr error
	// DialErr is what Dial fails with.
	DialErr error
	// NoKeeper makes Dial wait as for a keeper that never calls.
	NoKeeper bool
	// DestroyFailures is how many of the next calls of Destroy and Remove fail,
	// with DestroyErr if there is one.
	DestroyFailures int
	DestroyErr      error
	// KillErr is what a sandbox's Kill fails with; it goes on.
	KillErr error
	// SnapshotErr is what Snapshot fails with; the sandbox goes on.
	SnapshotErr error
	// ResumeErr is what Prepare fails with.
	ResumeErr error
	// ResumeHangs makes Prepare wait until its context ends.
	ResumeHangs bool
	// ListErr is what List fails with.
	ListErr error
}

// Driver is a sandbox.Driver and the machine behind it.
type Driver struct {
	cfg Config

	mu      sync.Mutex
	faults  Faults
	created []sandbox.Spec
	boxes   map[key]*box
	saved   map[string]saved
	started int                   // programs
	making  map[key]chan struct{} // closed when the Create is over
}

type key struct {
	session string
	epoch   int64
}

var _ sandbox.Driver = (*Driver)(nil)

// New returns a driver with no sandboxes.
func New(cfg Config) *Driver {
	d := &Driver{
		cfg: cfg, boxes: make(map[key]*box), saved: make(map[string]saved), making: make(map[key]chan struct{}),
	}
	d.cfg.Programs = maps.Clone(cfg.Programs)
	for name, p := range d.cfg.Programs {
		d.cfg.Programs[name] = func(ctx context.Context, proc keeper.Proc) int {
			d.mu.Lock()
			d.started++
			d.mu.Unlock()
			return p(ctx, proc)
		}
	}
	return d
}

// Name is "fake".
func (d *Driver) Name() string { return Name }

// Capabilities says that the driver does everything but isolate.
func (d *Driver) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{
		Isolation: cmp.Or(d.cfg.Isolation, sandbox.IsolationNone),
		Exec:      true,
		PTY:       true,
		Limits:    sandbox.LimitSupport{Memory: true, Processes: true, CPU: true, Disk: true, OpenFiles: true, How: "It says so and enforces nothing."},
		Images:    true,

		ProcessSnapshot: true,
		Networks:        []sandbox.Network{sandbox.NetworkNone},
		Unprivileged:    true,
	}
}

// Create makes a sandbox; see sandbox.Driver.
func (d *Driver) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := d.Capabilities().Check(spec); err != nil {
		return nil, err
	}
	k := key{spec.Session, spec.Epoch}
	for {
		d.mu.Lock()
		b, running := d.boxes[k], d.making[k]
		if running == nil && b != nil && !b.half {
			d.mu.Unlock()
			if err := b.Err(); err != nil {
				return nil, err
			}
			return b, nil
		}
		if running == nil {
			over := make(chan struct{})
			d.making[k] = over
			d.mu.Unlock()
			defer func() {
				d.mu.Lock()
				delete(d.making, k)
				d.mu.Unlock()
				close(over)
			}()
			return d.make(ctx, k, spec)
		}
		d.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// make makes a sandbox in a place where nothing or something half-made is.
func (d *Driver) make(ctx context.Context, k key, spec sandbox.Spec) (sandbox.Sandbox, error) {
	f := d.Faults()
	if err := pause(ctx, f.CreateDelay); err != nil {
		return nil, fmt.Errorf("create sandbox %s: %w", k.session, err)
	}
	b := d.newBox(k, spec)
	if f.CreateErr != nil && !f.CreateHalf {
		return nil, fmt.Errorf("create sandbox %s: %w", k.session, f.CreateErr)
	}
	if spec.Resume != nil {
		if err := d.resume(b, *spec.Resume); err != nil {
			return nil, fmt.Errorf("resume sandbox %s: %w", k.session, err)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.boxes[k] = b
		d.created = append(d.created, spec)
		return b, nil
	}
	if err := b.makeDirs(); err != nil {
		return nil, errors.Join(fmt.Errorf("create sandbox %s: %w", k.session, err), os.RemoveAll(b.dir))
	}
	b.half = f.CreateHalf
	if !b.half {
		b.start(d.cfg)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.boxes[k] = b
	if b.half {
		err := f.CreateErr
		if err == nil {
			err = errors.New("interrupted")
		}
		return nil, fmt.Errorf("create sandbox %s: %w", k.session, err)
	}
	d.created = append(d.created, spec)
	return b, nil
}

func (d *Driver) newBox(k key, spec sandbox.Spec) *box {
	return &box{driver: d, key: k, dir: d.dir(k), layers: spec.Layers, done: make(chan struct{})}
}

// Recover returns a sandbox that runs; see sandbox.Driver.
func (d *Driver) Recover(_ context.Context, h sandbox.Handle) (sandbox.Sandbox, error) {
	if h.Driver != Name {
		return nil, fmt.Errorf("handle of driver %.40q: %w", h.Driver, sandbox.ErrUnsupported)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.faults.RecoverErr; err != nil {
		return nil, fmt.Errorf("recover sandbox %s: %w", h.Session, err)
	}
	b := d.boxes[key{h.Session, h.Epoch}]
	if b == nil || b.half {
		return nil, fmt.Errorf("recover sandbox %s: %w", h.Session, sandbox.ErrGone)
	}
	if err := b.Err(); err != nil {
		return nil, err
	}
	return b, nil
}

// List returns all sandboxes, also half-made and ended ones.
func (d *Driver) List(context.Context) ([]sandbox.Handle, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.faults.ListErr; err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	var hs []sandbox.Handle
	for _, b := range d.boxes {
		hs = append(hs, b.Handle())
	}
	slices.SortFunc(hs, func(a, b sandbox.Handle) int {
		if c := strings.Compare(a.Session, b.Session); c != 0 {
			return c
		}
		return int(a.Epoch - b.Epoch)
	})
	return hs, nil
}

// Remains returns the directories of a sandbox that was not removed; see sandbox.Driver.
func (d *Driver) Remains(_ context.Context, h sandbox.Handle) (sandbox.Dirs, error) {
	if h.Driver != Name {
		return sandbox.Dirs{}, fmt.Errorf("handle of driver %.40q: %w", h.Driver, sandbox.ErrUnsupported)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.boxes[key{h.Session, h.Epoch}]
	if b == nil || b.half {
		return sandbox.Dirs{}, fmt.Errorf("files of sandbox %s: %w", h.Session, sandbox.ErrGone)
	}
	return b.Dirs(), nil
}

// Remove destroys what is left of a sandbox; see sandbox.Driver.
func (d *Driver) Remove(_ context.Context, h sandbox.Handle) error {
	if h.Driver != Name {
		return fmt.Errorf("handle of driver %.40q: %w", h.Driver, sandbox.ErrUnsupported)
	}
	k := key{h.Session, h.Epoch}
	d.mu.Lock()
	b := d.boxes[k]
	var fault error
	if d.faults.DestroyFailures > 0 {
		d.faults.DestroyFailures--
		if fault = d.faults.DestroyErr; fault == nil {
			fault = errors.New("refused")
		}
	}
	d.mu.Unlock()
	if fault != nil {
		return fmt.Errorf("destroy sandbox %s: %w", h.Session, fault)
	}
	if b == nil {
		return nil
	}
	b.finish(sandbox.EndDestroyed, "it was destroyed")
	b.removal.Lock() // by the end of one its paths may be those of a sandbox that goes on
	defer b.removal.Unlock()
	d.mu.Lock()
	removed := d.boxes[k] != b
	d.mu.Unlock()
	if removed {
		return nil
	}
	for _, dir := range append(b.aliases, b.dir) {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("destroy sandbox %s: %w", h.Session, err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.boxes[k] == b {
		delete(d.boxes, k)
	}
	return nil
}

// Close cuts all connections and ends no sandbox. The driver can be used again after
// it, as a new driver of the same machine.
func (d *Driver) Close() error {
	for _, b := range d.all() {
		b.cut()
	}
	return nil
}

// Shutdown ends all sandboxes, as a machine that is turned off, and waits for their
// goroutines. Their directories stay.
func (d *Driver) Shutdown() {
	for _, b := range d.all() {
		b.finish(sandbox.EndExited, "its machine was turned off")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, s := range d.saved {
		_ = s.keeper.Close()
		delete(d.saved, name)
	}
}

// SetFaults says what goes wrong from now on.
func (d *Driver) SetFaults(f Faults) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = f
}

// Faults is what goes wrong now.
func (d *Driver) Faults() Faults {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.faults
}

// Created returns the specs of all sandboxes that were ever made, oldest first.
func (d *Driver) Created() []sandbox.Spec {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.created)
}

// Started is how many programs were ever started.
func (d *Driver) Started() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.started
}

// Kill ends the sandboxes of a session as if their host had killed them. It returns
// how many there were.
func (d *Driver) Kill(session string) int {
	return d.each(session, func(b *box) { b.finish(sandbox.EndExited, "it was killed") })
}

// Freeze lets the sandboxes of a session go on without answering: connections stay
// open, and nothing comes through them until Thaw.
func (d *Driver) Freeze(session string) int { return d.each(session, (*box).freeze) }

// Thaw undoes Freeze.
func (d *Driver) Thaw(session string) int { return d.each(session, (*box).thaw) }

// Cut breaks the connections to the sandboxes of a session; the next Dial works.
func (d *Driver) Cut(session string) int { return d.each(session, (*box).cut) }

// each calls do for the sandboxes of a session that run.
func (d *Driver) each(session string, do func(*box)) int {
	n := 0
	for _, b := range d.all() {
		if b.key.session == session && !b.half && b.Err() == nil {
			do(b)
			n++
		}
	}
	return n
}

func (d *Driver) all() []*box {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.boxes))
}

func (d *Driver) dir(k key) string {
	return filepath.Join(d.cfg.Dir, fmt.Sprintf("%s-%d", k.session, k.epoch))
}

// handleData is what a handle of this driver carries.
func handleData(dir string) json.RawMessage {
	b, err := json.Marshal(map[string]string{"dir": dir})
	if err != nil {
		panic(err) // strings
	}
	return b
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
