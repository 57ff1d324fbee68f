package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// callTime is how long the keeper of a sandbox that is made ahead may take to call.
const callTime = 60 * time.Second

// Resolver is a Launcher that knows images.
type Resolver interface {
	// Resolve returns the digest of the image that a reference means now.
	Resolve(ctx context.Context, reference string) (digest string, err error)
}

// spare is a sandbox that runs, whose keeper has called, and that belongs to no session
// yet.
type spare struct {
	cell Cell
	door *Door
	kind kind

	unwatch context.CancelFunc
	watched chan struct{} // closed when nobody watches it any more
}

// kind says for which specs a spare can be used.
type kind struct {
	asked string // the spec in words
	// What the words meant when it was made: the digest of the image, and the
	// directories of the layers.
	image, layers string
}

// askedOf is all of a spec but whose it is.
func askedOf(spec sandbox.Spec) string {
	spec.Session, spec.Epoch, spec.Resume = "", 0, nil
	if len(spec.Layers) == 0 {
		spec.Layers = nil
	}
	b, err := json.Marshal(spec)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(b)
}

// kindOf finds out what a spec means at the moment: a tag of an image can be moved, and
// a layer be replaced by another directory with the same path.
func (m *Machine) kindOf(ctx context.Context, spec sandbox.Spec) (kind, error) {
	k := kind{asked: askedOf(spec), layers: "|"} // never ""
	if spec.Image != "" {
		r, ok := m.launcher.(Resolver)
		if !ok {
			return kind{}, fmt.Errorf("warm sandbox of image %.100q: %w", spec.Image, sandbox.ErrUnsupported)
		}
		var err error
		if k.image, err = r.Resolve(ctx, spec.Image); err != nil {
			return kind{}, err
		}
	}
	for _, l := range spec.Layers {
		var st unix.Stat_t
		if err := unix.Stat(l.Source, &st); err != nil {
			return kind{}, fmt.Errorf("layer %s: %w", l.Source, err)
		}
		k.layers += fmt.Sprintf("%d:%d|", st.Dev, st.Ino)
	}
	return k, nil
}

// Warm makes there be n spares for a spec; see sandbox.Warmer.
func (m *Machine) Warm(ctx context.Context, spec sandbox.Spec, n int) error {
	spec.Session, spec.Epoch, spec.Resume = "warm", 0, nil
	if err := spec.Validate(); err != nil {
		return err
	}
	if err := m.caps.Check(spec); err != nil {
		return err
	}
	spec.Session = ""
	if !m.begin() {
		return errDoorClosed
	}
	defer m.operations.Done()
	ctx, cancel := m.within(ctx)
	defer cancel()
	select {
	case m.warming <- struct{}{}:
		defer func() { <-m.warming }()
	case <-ctx.Done():
		return fmt.Errorf("wait for another to warm sandboxes: %w", context.Cause(ctx))
	}
	k := kind{asked: askedOf(spec)} // which fits no spare
	if n > 0 {
		var err error
		if k, err = m.kindOf(ctx, spec); err != nil {
			return err
		}
	}
	for _, w := range m.surplus(k, n) {
		w.stop()
		m.discard(ctx, w)
	}
	for m.count(k) < n {
		if err := m.makeSpare(ctx, spec, k); err != nil {
			return err
		}
	}
	return nil
}

// Ready is how many spares there are for a spec; see sandbox.Warmer.
func (m *Machine) Ready(spec sandbox.Spec) int {
	asked := askedOf(spec)
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, w := range m.spares {
		if w.kind.asked == asked {
			n++
		}
	}
	return n
}

// begin counts an operation in that is on no cell; it reports false when the machine is
// closed.
func (m *Machine) begin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.operations.Add(1)
	}
	return !m.closed
}

// makeSpare makes one spare and waits until its keeper has called.
func (m *Machine) makeSpare(ctx context.Context, spec sandbox.Spec, k kind) error {
	c := newWarmCell(m.root)
	door, err := m.launch(ctx, c, spec)
	if err == nil {
		err = m.awaitCall(ctx, c, door)
		if err == nil && c.Record.Image != k.image {
			err = fmt.Errorf("image %.100q has become another meanwhile", spec.Image)
		}
		if err != nil {
			door.Close()
		}
	}
	if err != nil {
		return m.undo(ctx, c, fmt.Errorf("create warm sandbox: %w", err))
	}
	watch, unwatch := context.WithCancel(m.life)
	w := &spare{cell: *c, door: door, kind: k, unwatch: unwatch, watched: make(chan struct{})}
	m.mu.Lock()
	m.spares = append(m.spares, w)
	m.mu.Unlock()
	m.watchers.Go(func() { m.watchSpare(watch, w) })
	return nil
}

// errNoCall reports a sandbox that ended before its keeper called.
var errNoCall = errors.New("it ended before its keeper called")

func (m *Machine) awaitCall(ctx context.Context, c *Cell, door *Door) error {
	ctx, cancel := context.WithTimeoutCause(ctx, callTime, fmt.Errorf("its keeper has not called for %v", callTime))
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer end(nil)
	watch.Go(func() {
		if c.Record.Process.Wait(ctx) == nil {
			end(errNoCall)
		}
	})
	select {
	case <-door.called:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// watchSpare removes a spare that has ended by itself.
func (m *Machine) watchSpare(ctx context.Context, w *spare) {
	defer close(w.watched)
	if w.cell.Record.Process.Wait(ctx) != nil {
		return
	}
	m.mu.Lock()
	i := slices.Index(m.spares, w)
	if i >= 0 {
		m.spares = slices.Delete(m.spares, i, i+1)
	}
	m.mu.Unlock()
	if i >= 0 {
		m.discard(ctx, w)
	}
}

// stop ends the watching of a spare that was taken out of the list.
func (w *spare) stop() {
	w.unwatch()
	<-w.watched
}

// takeSpare gives a spare to a session in whose place nothing is. Both results are nil
// when there is none that fits.
func (m *Machine) takeSpare(ctx context.Context, c *Cell, s *slot, spec sandbox.Spec) (*box, error) {
	if spec.Resume != nil || m.Ready(spec) == 0 {
		return nil, nil
	}
	k, err := m.kindOf(ctx, spec)
	if err != nil {
		return nil, nil // the sandbox is made the usual way, which says what is wrong
	}
	// What was made when the words meant something else is of no use to anybody. It must
	// not count as ready, or nobody would make others.
	for _, w := range m.surplus(k, math.MaxInt) {
		m.watchers.Go(func() {
			w.stop()
			m.discard(m.life, w)
		})
	}
	for w := m.pop(k); w != nil; w = m.pop(k) {
		w.stop()
		if !w.cell.Record.Process.Alive() {
			m.discard(ctx, w)
			continue
		}
		bound, err := w.cell.bind(c.Session, c.Epoch)
		if err != nil {
			m.discard(ctx, w)
			return nil, err
		}
		return m.keep(bound, s, w.door), nil
	}
	return nil, nil
}

// pop takes the oldest spare of a kind out of the list.
func (m *Machine) pop(k kind) *spare {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.spares, func(w *spare) bool { return w.kind == k })
	if i < 0 {
		return nil
	}
	w := m.spares[i]
	m.spares = slices.Delete(m.spares, i, i+1)
	return w
}

// surplus takes out of the list what is more than n of a kind, and what was made for
// the same words when they meant something else.
func (m *Machine) surplus(k kind, n int) []*spare {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*spare
	seen := 0
	m.spares = slices.DeleteFunc(m.spares, func(w *spare) bool {
		if w.kind == k {
			seen++
		}
		drop := w.kind.asked == k.asked && (w.kind != k || seen > n)
		if drop {
			out = append(out, w)
		}
		return drop
	})
	return out
}

func (m *Machine) count(k kind) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, w := range m.spares {
		if w.kind == k {
			n++
		}
	}
	return n
}

// discard ends and removes a spare that is in the list no more. If that fails Close
// tries again, and so does the next Open.
func (m *Machine) discard(ctx context.Context, w *spare) {
	w.door.Close()
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	if m.clear(clean, &w.cell) != nil {
		m.mu.Lock()
		m.stuck = append(m.stuck, w)
		m.mu.Unlock()
	}
}

// endSpares ends all spares, when nothing else goes on any more.
func (m *Machine) endSpares() error {
	m.mu.Lock()
	all := append(m.spares, m.stuck...)
	m.spares, m.stuck = nil, nil
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), cleanTime)
	defer cancel()
	errs := make([]error, len(all))
	var each sync.WaitGroup
	for i, w := range all {
		each.Go(func() {
			w.door.Close()
			errs[i] = m.clear(ctx, &w.cell)
		})
	}
	each.Wait()
	return errors.Join(errs...)
}

// undo ends and removes a cell whose creation has failed, and returns why.
func (m *Machine) undo(ctx context.Context, c *Cell, err error) error {
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	return errors.Join(err, m.clear(clean, c))
}

// endWarm ends the spares of an earlier machine: warm cells that no link leads to.
func (m *Machine) endWarm(ctx context.Context) error {
	entries, err := os.ReadDir(m.root)
	if err != nil {
		return fmt.Errorf("end warm sandboxes: %w", err)
	}
	bound := make(map[string]bool)
	var free []string
	for _, e := range entries {
		if id, ok := parseWarm(e.Name()); ok {
			free = append(free, id)
		} else if session, epoch, ok := parseName(e.Name()); ok {
			bound[newCell(m.root, session, epoch).ID] = true
		}
	}
	var errs []error
	for _, id := range free {
		if bound[id] {
			continue
		}
		c := warmCell(m.root, id)
		errs = append(errs, m.clear(ctx, c))
	}
	return errors.Join(errs...)
}
