package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/cgroup"
	"github.com/sojourn-dev/sojourn/sandbox/internal/quota"
)

// cleanTime is how long ending and removing a sandbox whose creation failed may
// take, whatever the caller's context says.
const cleanTime = 30 * time.Second

// Launcher starts and ends the processes of cells. It is what differs between
// drivers.
type Launcher interface {
	// Launch starts the sandbox and returns the process whose life is the
	// sandbox's life. What it leaves when it fails is ended by Kill.
	Launch(ctx context.Context, c *Cell, spec sandbox.Spec) (Process, error)
	// Kill ends all processes of the cell, in whatever state they are, and
	// returns when they are gone.
	Kill(ctx context.Context, c *Cell) error
}

// Machine keeps the sandboxes of one directory. Its methods are those of
// sandbox.Driver.
type Machine struct {
	name     string
	root     string // the directory with one subdirectory a cell
	caps     sandbox.Capabilities
	launcher Launcher
	saver    Saver        // the launcher, or nil
	groups   *cgroup.Tree // of the cells
	disks    *quota.Disks // nil when the launcher bounds its sandboxes by itself

	life     context.Context // ends with Close
	end      context.CancelCauseFunc
	watchers sync.WaitGroup

	mu         sync.Mutex
	closed     bool
	operations sync.WaitGroup   // grows under mu and only while not closed
	slots      map[string]*slot // by the name of the cell
	spares     []*spare         // oldest first
	stuck      []*spare         // could not be ended

	warming chan struct{} // one deep: holds a value while Warm runs
	left    error         // what an earlier server left and Open could not remove
}

// slot is the place of one cell. A slot without users and box is forgotten.
type slot struct {
	turn  chan struct{} // one deep: holds a value while an operation runs
	users int           // operations that run or wait; under Machine.mu
	box   *box          // what is known to have run; belongs to the holder of turn
}

// Open returns the machine for a directory, which it makes if it must.
func Open(name, dir string, caps sandbox.Capabilities, l Launcher) (*Machine, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("open %s driver: directory %q is not absolute", name, dir)
	}
	root := filepath.Join(dir, "sandboxes")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("open %s driver: %w", name, err)
	}
	// Ids follow from the path, so it must be the same whichever link leads to it.
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, fmt.Errorf("open %s driver: %w", name, err)
	}
	// Files that a sandbox makes may be set-user-id files of the server's user: no
	// other user of the host may reach them.
	if err := os.Chmod(root, 0o700); err != nil {
		return nil, fmt.Errorf("open %s driver: %w", name, err)
	}
	m := &Machine{name: name, root: root, caps: caps, launcher: l, slots: make(map[string]*slot), warming: make(chan struct{}, 1)}
	m.saver, _ = l.(Saver)
	m.life, m.end = context.WithCancelCause(context.Background())
	m.boundCells(dir)
	m.left = m.reconcile(m.life)
	return m, nil
}

// Name is the driver's name.
func (m *Machine) Name() string { return m.name }

// Capabilities is what the driver can do here.
func (m *Machine) Capabilities() sandbox.Capabilities { return m.caps }

// Create makes a sandbox, or returns the one that exists. Its error wraps ErrGone
// when that sandbox ran and has ended: an epoch is not used again. With a snapshot it
// goes on from what Prepare made.
func (m *Machine) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := m.caps.Check(spec); err != nil {
		return nil, err
	}
	c := newCell(m.root, spec.Session, spec.Epoch)
	ctx, s, leave, err := m.enter(ctx, c)
	if err != nil {
		return nil, err
	}
	defer leave()

	b, err := m.adopt(ctx, c, s)
	if !errors.Is(err, errUnfinished) {
		return m.sandbox(b, err)
	}
	if spec.Resume == nil {
		err = m.clear(ctx, c) // what an earlier server left half made
	} else {
		err = m.awaits(ctx, c, spec)
	}
	if err != nil {
		return nil, err
	}
	if b, err := m.takeSpare(ctx, c, s, spec); b != nil || err != nil {
		return m.sandbox(b, err)
	}
	return m.sandbox(m.make(ctx, c, s, spec))
}

// Recover takes a sandbox over that an earlier machine on the directory made.
func (m *Machine) Recover(ctx context.Context, h sandbox.Handle) (sandbox.Sandbox, error) {
	c, err := m.cellOf(h)
	if err != nil {
		return nil, err
	}
	ctx, s, leave, err := m.enter(ctx, c)
	if err != nil {
		return nil, err
	}
	defer leave()
	b, err := m.adopt(ctx, c, s)
	if errors.Is(err, errUnfinished) {
		return nil, fmt.Errorf("recover sandbox %s: it was never finished: %w", c.name(), sandbox.ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("recover sandbox %s: %w", c.name(), err)
	}
	var r Record
	if len(h.Data) > 0 && (json.Unmarshal(h.Data, &r) != nil || r.Token != b.cell.Record.Token) {
		return nil, fmt.Errorf("recover sandbox %s: another one has its place: %w", c.name(), sandbox.ErrGone)
	}
	return m.sandbox(b, nil)
}

// List returns everything that the directory holds.
func (m *Machine) List(context.Context) ([]sandbox.Handle, error) {
	entries, err := os.ReadDir(m.root)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	var hs []sandbox.Handle
	for _, e := range entries {
		session, epoch, ok := parseName(e.Name())
		if !ok || !e.IsDir() && e.Type() != os.ModeSymlink {
			continue
		}
		c := newCell(m.root, session, epoch)
		_ = c.load() // it exists, whatever its record says
		hs = append(hs, c.handle(m.name))
	}
	return hs, nil
}

// Remains returns the directories of a sandbox that has not been removed.
func (m *Machine) Remains(ctx context.Context, h sandbox.Handle) (sandbox.Dirs, error) {
	c, err := m.cellOf(h)
	if err != nil {
		return sandbox.Dirs{}, err
	}
	_, _, leave, err := m.enter(ctx, c) // its disk may have to be mounted, and not by two at once
	if err != nil {
		return sandbox.Dirs{}, err
	}
	defer leave()
	err = c.load()
	if err == nil && !c.Record.Ready {
		err = sandbox.ErrGone
	}
	if err == nil {
		err = m.rebind(c)
	}
	if err != nil {
		return sandbox.Dirs{}, fmt.Errorf("files of sandbox %s: %w", c.name(), err)
	}
	return c.dirs(), nil
}

// Remove ends and removes whatever there is of a sandbox.
func (m *Machine) Remove(ctx context.Context, h sandbox.Handle) error {
	c, err := m.cellOf(h)
	if err != nil {
		return err
	}
	ctx, s, leave, err := m.enter(ctx, c)
	if err != nil {
		return err
	}
	defer leave()
	if s.box != nil {
		s.box.intend(sandbox.EndDestroyed, "it was destroyed")
	}
	if err := m.clear(ctx, c); err != nil {
		return err
	}
	if s.box != nil {
		s.box.finish(sandbox.EndDestroyed, "it was destroyed")
		s.box = nil
	}
	return nil
}

// Close lets go of all sandboxes and ends those that belong to no session. Operations
// that run are broken off, which ends the sandbox that a Create is about to make; Close
// waits for them and for the goroutines that watch sandboxes.
func (m *Machine) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.end(errDoorClosed)
	m.operations.Wait()
	for _, s := range m.slots { // nobody else is left to change it
		if s.box != nil {
			s.box.door.Close()
		}
	}
	m.watchers.Wait()
	err := m.endSpares()
	m.groups.Close()
	return err
}

func (m *Machine) cellOf(h sandbox.Handle) (*Cell, error) {
	if h.Driver != m.name {
		return nil, fmt.Errorf("handle of driver %.40q: %w", h.Driver, sandbox.ErrUnsupported)
	}
	if err := sandbox.ValidateSession(h.Session, h.Epoch); err != nil {
		return nil, err
	}
	return newCell(m.root, h.Session, h.Epoch), nil
}

// enter waits until no other operation on the cell runs. The context that it returns
// also ends when the machine is closed. The caller calls leave when it is done.
func (m *Machine) enter(ctx context.Context, c *Cell) (_ context.Context, _ *slot, leave func(), _ error) {
	s, err := m.queue(c)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := m.within(ctx)
	out := func() {
		cancel()
		m.dequeue(c, s)
	}
	select {
	case s.turn <- struct{}{}:
		c.find() // an operation before this one may have changed where it is
		return ctx, s, func() { <-s.turn; out() }, nil
	case <-ctx.Done():
		err := fmt.Errorf("wait for sandbox %s: %w", c.name(), context.Cause(ctx))
		out()
		return nil, nil, nil, err
	}
}

// within returns a context that also ends when the machine is closed.
func (m *Machine) within(ctx context.Context) (_ context.Context, cancel func()) {
	ctx, end := context.WithCancelCause(ctx)
	detach := context.AfterFunc(m.life, func() { end(context.Cause(m.life)) })
	return ctx, func() {
		detach()
		end(nil)
	}
}

// queue counts an operation in, unless the machine is closed.
func (m *Machine) queue(c *Cell) (*slot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errDoorClosed
	}
	m.operations.Add(1)
	s := m.slots[c.name()]
	if s == nil {
		s = &slot{turn: make(chan struct{}, 1)}
		m.slots[c.name()] = s
	}
	s.users++
	return s, nil
}

// dequeue counts an operation out and forgets a slot that nobody needs.
func (m *Machine) dequeue(c *Cell, s *slot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.users--
	if s.users == 0 && s.box == nil {
		delete(m.slots, c.name())
	}
	m.operations.Done()
}

// errUnfinished reports a cell that is not there or was never finished.
var errUnfinished = errors.New("sandbox was never finished")

// adopt returns the box of a sandbox that runs, from this machine or an earlier one.
func (m *Machine) adopt(ctx context.Context, c *Cell, s *slot) (*box, error) {
	if s.box != nil {
		return s.box, s.box.Err()
	}
	if err := c.load(); err != nil {
		return nil, err
	}
	switch {
	case !c.Record.Ready:
		return nil, errUnfinished
	case !c.Record.Process.Alive():
		return nil, fmt.Errorf("sandbox %s has ended: %w", c.name(), sandbox.ErrGone)
	}
	if err := m.rebind(c); err != nil {
		return nil, err
	}
	if c.Record.Saving { // an earlier server died over a snapshot
		if err := m.proceed(ctx, c); err != nil {
			return nil, fmt.Errorf("sandbox %s was ended: %w: %w", c.name(), err, sandbox.ErrGone)
		}
	}
	door, err := Listen(c.Run(), c.Record.Token)
	if err != nil {
		return nil, err
	}
	return m.keep(c, s, door), nil
}

// make makes a sandbox where nothing is, or where it was prepared.
func (m *Machine) make(ctx context.Context, c *Cell, s *slot, spec sandbox.Spec) (*box, error) {
	door, err := m.launch(ctx, c, spec)
	if err == nil {
		return m.keep(c, s, door), nil
	}
	return nil, m.undo(ctx, c, fmt.Errorf("create sandbox %s: %w", c.name(), err))
}

func (m *Machine) launch(ctx context.Context, c *Cell, spec sandbox.Spec) (*Door, error) {
	var err error
	if spec.Resume == nil {
		err = m.furnish(ctx, c, spec.Limits, Record{Token: NewToken(), KeeperEpoch: c.Epoch})
	} else {
		c.Record.Prepared = false // what comes now is not tried twice on the same files
		err = c.save()
	}
	if err == nil {
		err = m.bound(c)
	}
	if err != nil {
		return nil, err
	}
	door, err := Listen(c.Run(), c.Record.Token)
	if err != nil {
		return nil, err
	}
	p, err := m.launcher.Launch(ctx, c, spec)
	if err == nil {
		c.Record.Process, c.Record.Ready = p, true
		err = c.save()
	}
	if err != nil {
		door.Close()
		return nil, err
	}
	return door, nil
}

// keep watches a sandbox that runs.
func (m *Machine) keep(c *Cell, s *slot, door *Door) *box {
	b := &box{machine: m, cell: *c, door: door, done: make(chan struct{})}
	s.box = b
	m.watchers.Go(func() {
		if killed, err := b.cell.Record.Process.wait(m.life); err == nil {
			b.saving.Lock() // a snapshot knows better why
			defer b.saving.Unlock()
			b.finish(b.verdict(killed))
		}
	})
	if c.Record.Disk == quota.Watch {
		m.watchers.Go(b.watchDisk)
	}
	return b
}

// clear ends the processes of a cell and removes its files.
func (m *Machine) clear(ctx context.Context, c *Cell) error {
	if !exists(c.Dir) && !exists(c.place()) {
		return nil
	}
	if err := c.load(); err != nil { // which says what has to be ended
		return fmt.Errorf("end sandbox %s: %w", c.name(), err)
	}
	if err := m.launcher.Kill(ctx, c); err != nil {
		return fmt.Errorf("end sandbox %s: %w", c.name(), err)
	}
	if err := m.unbind(ctx, c); err != nil {
		return fmt.Errorf("end sandbox %s: %w", c.name(), err)
	}
	if err := unmountBelow(c.Dir); err != nil {
		return fmt.Errorf("end sandbox %s: %w", c.name(), err)
	}
	if err := c.remove(); err != nil {
		return fmt.Errorf("end sandbox %s: %w", c.name(), err)
	}
	if c.Session != "" {
		c.find() // the next one in this place starts anew
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// sandbox is what callers get of a box: with the methods for what the launcher can do, and
// never a nil box in an interface that is not nil.
func (m *Machine) sandbox(b *box, err error) (sandbox.Sandbox, error) {
	switch {
	case err != nil:
		return nil, err
	case m.saver != nil:
		return savable{b}, nil
	}
	return b, nil
}
