package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/checkpoint"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// A bare session is captured while its sandbox goes on, so that an unplanned loss costs
// little: when its execs leave a pause, and at the latest at every interval while they
// do not. A capture stops every process for as long as files are read. In a pause it
// gives way: an exec that starts has it given up at once.

// The numbers of captures.
const (
	capturesAfter = 300 * time.Millisecond // of quiet
	capturesRest  = 4                      // times what the last one took; at most
	capturesMost  = 10 * time.Second       // this
	captureRetry  = 10 * time.Second       // after one that failed
	// keptCheckpoints is how many of a session's checkpoints are kept.
	keptCheckpoints = 3
)

// errDisturbed is the cause of a capture that was given up for something else.
var errDisturbed = errors.New("the sandbox is wanted")

// captures is what a bench remembers of its captures. Only its steps use it.
type captures struct {
	begun   time.Time     // when the last one that came to its end began
	dirty   time.Time     // since when the sandbox holds what none has; zero for not
	took    time.Duration // the last one
	retryAt time.Time     // none is begun before
}

// captureFlight is a capture under way.
type captureFlight struct {
	idle   bool // gives way to execs
	giveUp context.CancelCauseFunc
	begun  time.Time
	over   chan struct{} // closed when the rest is set
	took   time.Duration
	whole  bool
	err    error
}

// disturb gives up a capture that an exec must not wait for. It must not block.
func (b *bench) disturb() {
	if f := b.capture.Load(); f != nil && f.idle {
		f.giveUp(errDisturbed)
	}
}

// stopCapture gives up a capture in flight, and reports true while it lasts: a thaw of
// it must not let go what another one has stopped.
func (b *bench) stopCapture() bool {
	f := b.capture.Load()
	if f == nil || b.captured(sojourn.Facts{}) {
		return false
	}
	f.giveUp(errDisturbed)
	return true
}

// checkpoint has the sandbox captured when that is due, and returns when it will be.
func (b *bench) checkpoint(f sojourn.Facts) look {
	if b.capture.Load() != nil && !b.captured(f) {
		return look{}
	}
	at, idle := b.captureAt(f)
	if at.IsZero() || b.e.Now().Before(at) {
		return look{at: at}
	}
	if c := b.e.live(f.Lease, b.e.Now()); c != nil {
		b.beginCapture(c, idle)
	}
	return look{}
}

// captureAt returns when the sandbox is to be captured next, zero for never, and
// whether that is one for a pause.
func (b *bench) captureAt(f sojourn.Facts) (at time.Time, idle bool) {
	l, r, m := f.Lease, f.Session.Rotation, &b.life.captures
	since := m.begun
	if h := f.Head; h != nil && h.CapturingAt.After(since) {
		since = h.CapturingAt
	}
	running := f.Running()
	used := l.VisitedAt.After(l.GrantedAt) && !l.VisitedAt.Before(since)
	if !used && len(running) == 0 {
		m.dirty = time.Time{}
		return time.Time{}, false
	}
	if m.dirty.IsZero() {
		m.dirty = b.e.Now()
	}
	at = m.dirty.Add(orDefault(r.Checkpoint, sojourn.DefaultCheckpoint))
	if busy := len(running) > 0 && running[0].Foreground(); used && !busy && !r.NoIdleCheckpoint {
		quiet := min(max(capturesAfter, capturesRest*m.took), capturesMost)
		if pause := l.VisitedAt.Add(quiet); pause.Before(at) {
			at, idle = pause, true
		}
	}
	if at.Before(m.retryAt) {
		at = m.retryAt
	}
	return at, idle
}

// beginCapture starts a capture beside the steps of the bench.
func (b *bench) beginCapture(c *compute, idle bool) {
	still, giveUp := context.WithCancelCause(b.ctx)
	f := &captureFlight{idle: idle, giveUp: giveUp, begun: b.e.Now(), over: make(chan struct{})}
	b.capture.Store(f) // before the facts are read: from here on an exec that starts is told of
	b.wg.Go(func() {
		defer giveUp(nil)
		f.whole, f.err = b.captureNow(still, c, f)
		f.took = b.e.Now().Sub(f.begun)
		close(f.over)
		raise(b.wake)
	})
}

// captured takes note of a capture in flight that has come to its end, and reports
// whether it has.
func (b *bench) captured(facts sojourn.Facts) bool {
	f := b.capture.Load()
	select {
	case <-f.over:
	default:
		return false
	}
	b.capture.Store(nil)
	m := &b.life.captures
	switch {
	case errors.Is(f.err, errDisturbed), b.ctx.Err() != nil:
	case sojourn.CodeOf(f.err) == sojourn.CodeWorkspaceExpired: // whoever has ended the lease has its files captured
	case f.err != nil:
		b.e.log.Warn("capture a sandbox that goes on", "session", b.id, "error", f.err)
		m.retryAt = b.e.Now().Add(captureRetry)
	default:
		m.begun, m.took, m.dirty = f.begun, f.took, time.Time{}
		if !f.whole { // what is too much stays so for a while
			m.retryAt = b.e.Now().Add(orDefault(facts.Session.Rotation.Checkpoint, sojourn.DefaultCheckpoint))
		}
	}
	return true
}

// captureNow captures the sandbox and makes what it holds the session's head, if that
// is whole and not what the head is already. The sandbox stands still until still ends,
// at most: what follows the reading of files is done beside the next execs.
func (b *bench) captureNow(still context.Context, c *compute, f *captureFlight) (whole bool, err error) {
	facts, err := b.e.facts(b.ctx, b.id)
	if err != nil {
		return false, err
	}
	if r := facts.Running(); f.idle && len(r) > 0 && r[0].Foreground() {
		return false, errDisturbed
	}
	if s := facts.Session; s.State != sojourn.SessionOpen || s.Rotating() {
		return false, errDisturbed
	}
	ck, err := facts.Decide(f.begun.Truncate(time.Microsecond)).BeginCapture(newID[sojourn.CheckpointID](), c.epoch)
	if err != nil {
		return false, err
	}
	got, err := b.e.captureBy(b.ctx, b.e.captureSpec(c, facts, harness.Runtime{}), c, func(spec checkpoint.Spec) (checkpoint.Capture, error) {
		return b.e.captureBriefly(still, c, spec)
	})
	if err != nil {
		if ended(c.box) {
			err = errDisturbed // its drain captures what is left
		}
		return false, err
	}
	notes := describe(&ck, got, facts.Session.Worked, false)
	if err := b.sealCapture(ck, notes); err != nil {
		return false, err
	}
	b.e.forgetProcesses(facts)
	return ck.Whole(facts.Session.Base), nil
}

// sealCapture makes a capture the session's head, and deletes the records of those
// from which nobody goes on any more.
func (b *bench) sealCapture(ck sojourn.Checkpoint, notes sojourn.CaptureNotes) error {
	return b.claim.Commit(b.ctx, b.e.cfg.Store, func(tx *store.Tx) error {
		facts, err := tx.Facts(b.id)
		if err != nil {
			return err
		}
		err = b.e.apply(tx, facts, func(_ *store.Tx, d *sojourn.Decision) error { return d.SealCapture(ck, notes) })
		if err != nil {
			return err
		}
		return tx.PruneCheckpoints(b.id, keptCheckpoints)
	})
}

// captureBriefly reads the files while nothing in the sandbox can write. When ctx ends
// the sandbox goes on at once, before the capture has cleared up behind itself.
func (e *Engine) captureBriefly(ctx context.Context, c *compute, spec checkpoint.Spec) (checkpoint.Capture, error) {
	if ended(c.box) {
		return checkpoint.Capture{}, sandbox.ErrGone
	}
	thaw, err := e.freeze(ctx, c)
	if err != nil {
		return checkpoint.Capture{}, err
	}
	thaw = sync.OnceFunc(thaw)
	defer thaw() // or waits for the other
	defer context.AfterFunc(ctx, thaw)()
	got, err := e.cfg.Checkpoints.Capture(ctx, spec)
	if ctx.Err() != nil { // the sandbox may have moved before it was read to the end
		return got, context.Cause(ctx)
	}
	return got, err
}
