package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/checkpoint"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// ProcessStore keeps saved processes, encrypted, beside the checkpoints.
type ProcessStore interface {
	// Save stores the files of dir as one object and returns its key and size.
	Save(ctx context.Context, dir string) (key string, stored int64, err error)
	// Load puts the files of an object into the empty directory dir, and fails if
	// a byte of them is not what was stored.
	Load(ctx context.Context, key, dir string) error
	// Delete removes an object. It is no error when there is none.
	Delete(ctx context.Context, key string) error
	// Older returns the keys of all objects that were stored before t.
	Older(ctx context.Context, t time.Time) ([]string, error)
}

// forgetPatience bounds the deletion of one object.
const forgetPatience = 30 * time.Second

// drainPatience bounds one try to drain a lease.
const drainPatience = 10 * time.Minute

// capturePatience is how long after its deadline a lease is still drained again
// when its files cannot be captured, because the disk is full, for one.
const capturePatience = time.Hour

// draining is a drain in flight. done is closed when err is set.
type draining struct {
	done chan struct{}
	err  error
}

// drain ends a draining lease: it saves its processes if it is to, captures its
// files, seals them with the lease's end, and destroys its sandbox. Callers of one
// session share one drain; a caller that gives up leaves it going.
func (e *Engine) drain(ctx context.Context, id sojourn.SessionID) error {
	e.mu.Lock()
	f := e.drains[id]
	if f == nil {
		if e.closed {
			e.mu.Unlock()
			return errStopping
		}
		f = &draining{done: make(chan struct{})}
		e.drains[id] = f
		e.wg.Go(func() {
			work, cancel := context.WithTimeout(e.base, drainPatience)
			defer cancel()
			f.err = e.drainNow(work, id)
			e.mu.Lock()
			delete(e.drains, id)
			e.mu.Unlock()
			close(f.done)
		})
	}
	e.mu.Unlock()
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (e *Engine) drainNow(ctx context.Context, id sojourn.SessionID) error {
	facts, err := e.facts(ctx, id)
	if err != nil || facts.Lease == nil || facts.Lease.State != sojourn.LeaseDraining {
		return err
	}
	l := *facts.Lease
	c, err := e.ruins(ctx, l)
	if errors.Is(err, sandbox.ErrGone) {
		return e.drained(ctx, facts, func(_ *store.Tx, d *sojourn.Decision) error {
			return d.EndLease(l.Epoch, sojourn.LeaseLost, "sandbox_ended")
		})
	}
	if err != nil {
		return fmt.Errorf("reach the sandbox of a draining lease: %w", err)
	}
	if !ended(c.box) {
		e.noteLimits(ctx, c) // nobody can ask it any more
	}
	f, err := e.beginDrain(ctx, facts, c)
	if err != nil {
		return err
	}
	// What was asked for and is not due yet is not worth the loss of files.
	asked := drainedState(l.EndReason) == sojourn.LeaseReleased && !ended(c.box)
	if asked || !l.SaveProcesses {
		if err := f.capture(ctx); err != nil {
			return err
		}
		if asked && !f.ck.Whole(facts.Session.Base) && f.holdsWork() {
			return f.callOff(ctx)
		}
	}
	lost := ""
	if l.SaveProcesses {
		var saved *sojourn.ProcessState
		if saved, lost = e.saveProcesses(ctx, facts, c); ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := f.capture(ctx); err != nil { // what they have written since
			return err
		}
		f.ck.Processes = saved
	}
	if f.err != nil && e.Now().Before(l.Deadline().Add(capturePatience)) {
		return f.err
	}
	return e.drained(ctx, facts, func(_ *store.Tx, d *sojourn.Decision) error {
		if lost != "" {
			d.LoseProcesses(l.Epoch, lost)
		}
		return d.SealDrain(f.ck, f.notes, drainedState(l.EndReason))
	})
}

// drainedFiles are the files of a draining lease on their way into a checkpoint.
type drainedFiles struct {
	e     *Engine
	facts sojourn.Facts // its head is what the next capture builds on
	c     *compute
	begun sojourn.Checkpoint
	ck    sojourn.Checkpoint // as of the last capture
	notes sojourn.CaptureNotes
	err   error // why there was none
}

func (e *Engine) beginDrain(ctx context.Context, facts sojourn.Facts, c *compute) (*drainedFiles, error) {
	l := *facts.Lease
	f := &drainedFiles{e: e, facts: facts, c: c}
	err := e.decide(ctx, l.Session, func(tx *store.Tx, d *sojourn.Decision) error {
		old, err := tx.CapturingCheckpoints(l.Session)
		if err != nil {
			return err
		}
		for _, c := range old {
			d.AbandonCheckpoint(c)
		}
		f.begun, err = d.BeginDrain(newID[sojourn.CheckpointID](), l.Epoch)
		return err
	})
	return f, err
}

// capture captures the files as they are now. A later one takes the place of an
// earlier one, and stores no byte a second time. The error is that of ctx; what
// cannot be captured is said in the checkpoint.
func (f *drainedFiles) capture(ctx context.Context) error {
	l, stored := *f.facts.Lease, f.ck.Stored
	row, _ := f.e.runtime(f.facts.Session.Runtime)
	f.ck, f.notes, f.err = f.begun, sojourn.CaptureNotes{}, nil
	got, err := f.e.captureAgain(ctx, f.c, f.facts, row)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		f.err = fmt.Errorf("capture a draining lease: %w", err)
		f.e.log.Error("capture a draining lease", "session", l.Session, "lease_epoch", l.Epoch, "error", err)
		f.ck.Conversation, f.ck.ConversationReason = sojourn.FidelityResultOnly, "capture_failed"
		f.ck.Workspace, f.ck.WorkspaceReason = sojourn.FidelityNone, "capture_failed"
		return nil
	}
	f.ck.AgentConversation = l.Conversation
	f.notes = describe(&f.ck, got, f.facts.Session.Worked, len(row.State) > 0)
	f.ck.Stored += stored
	f.facts.Head = &sojourn.Checkpoint{Root: f.ck.Root, RootBytes: f.ck.RootBytes}
	return nil
}

// holdsWork reports whether the sandbox may hold anything that could be lost.
func (f *drainedFiles) holdsWork() bool {
	return f.facts.Session.Worked || f.facts.Session.Head != "" || f.facts.Unsaved()
}

// callOff gives the lease back, and returns why.
func (f *drainedFiles) callOff(ctx context.Context) error {
	err := f.e.decide(ctx, f.c.session, func(_ *store.Tx, d *sojourn.Decision) error {
		return d.CallOffDrain(f.ck, f.notes)
	})
	if err != nil {
		return err
	}
	why, detail := f.ck.WorkspaceReason, f.notes.WorkspaceDetail
	if why == "" {
		why, detail = f.ck.ConversationReason, f.notes.ConversationDetail
	}
	code := sojourn.CodeWorkspaceUnavailable
	if why == string(checkpoint.ReasonTooLarge) {
		code = sojourn.CodeTooLarge
	}
	text := why
	if detail != "" {
		text += ": " + detail
	}
	return &sojourn.Error{
		Code: code, Cause: errCalledOff, Details: map[string]string{"reason": why},
		Message: "The sandbox is kept, because what it holds cannot be saved (" + text + ").",
	}
}

// errCalledOff is the cause of a drain that gave its lease back.
var errCalledOff = errors.New("the lease is held as before")

// lostState reports whether a lease has ended, or is being drained, because its
// sandbox ended by itself.
func lostState(l sojourn.Lease) bool {
	return l.State == sojourn.LeaseLost || l.State == sojourn.LeaseDraining && drainedState(l.EndReason) == sojourn.LeaseLost
}

// drainedState is how a lease ends that was drained for a reason.
func drainedState(why string) sojourn.LeaseState {
	switch why {
	case drainedForSuspend, drainedForRotation, drainedForClose:
		return sojourn.LeaseReleased
	case endedByHold, endedByCeiling:
		return sojourn.LeaseExpired
	default:
		return sojourn.LeaseLost
	}
}

// drained ends a draining lease with end, and clears up behind it.
func (e *Engine) drained(ctx context.Context, before sojourn.Facts, end func(*store.Tx, *sojourn.Decision) error) error {
	id, epoch := before.Session.ID, before.Lease.Epoch
	if err := e.decide(ctx, id, end); err != nil {
		return err
	}
	dir := e.savedDir(id, epoch)
	if err := e.destroyEnded(ctx, id); err != nil {
		return err
	}
	e.forgetProcesses(before)
	return errors.Join(os.RemoveAll(dir), os.RemoveAll(dir+savedSuffix))
}

// forgetProcesses deletes the saved processes of a head that was replaced. What
// is left when it fails is swept later.
func (e *Engine) forgetProcesses(before sojourn.Facts) {
	h := before.Head
	if h == nil || h.Processes == nil || e.cfg.Processes == nil {
		return
	}
	ctx, cancel := context.WithTimeout(e.base, forgetPatience) // a drive's context has ended with its run
	defer cancel()
	now, err := e.facts(ctx, before.Session.ID)
	if err == nil && (now.Head == nil || now.Head.ID != h.ID) {
		err = e.cfg.Processes.Delete(ctx, h.Processes.Object)
	}
	if err != nil && ctx.Err() == nil {
		e.log.Warn("delete saved processes", "session", before.Session.ID, "error", err)
	}
}

// ruins returns the compute of a lease whose files are wanted, whether its sandbox
// runs or not. The error is ErrGone when the files are gone.
func (e *Engine) ruins(ctx context.Context, l sojourn.Lease) (*compute, error) {
	if c := e.at(l); c != nil {
		if ended(c.box) { // and its files may have gone with it
			if _, err := e.cfg.Driver.Remains(ctx, c.box.Handle()); errors.Is(err, sandbox.ErrGone) {
				return nil, err
			}
		}
		return c, nil
	}
	if e.cfg.Driver == nil || e.cfg.Driver.Name() != l.Driver {
		return nil, sandbox.ErrGone
	}
	c, err := e.adopt(ctx, l)
	if !errors.Is(err, sandbox.ErrGone) {
		return c, err
	}
	h := handleOf(e.cfg.Driver, l)
	dirs, err := e.cfg.Driver.Remains(ctx, h)
	if err != nil {
		return nil, err
	}
	box := ruin{handle: h, dirs: dirs}
	return &compute{session: l.Session, epoch: l.Epoch, box: box, peer: newPeer(box, l.Epoch)}, nil
}

// ruin is a sandbox of which only the files are left.
type ruin struct {
	handle sandbox.Handle
	dirs   sandbox.Dirs
}

var (
	_        sandbox.Sandbox = ruin{}
	overSign                 = closedChannel()
)

func closedChannel() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func (r ruin) Handle() sandbox.Handle { return r.handle }
func (r ruin) Dirs() sandbox.Dirs     { return r.dirs }
func (r ruin) Done() <-chan struct{}  { return overSign }
func (r ruin) Err() error             { return sandbox.ErrGone }

func (r ruin) Dial(context.Context) (io.ReadWriteCloser, error) { return nil, sandbox.ErrGone }

// Kill has nothing to end.
func (r ruin) Kill(context.Context) error { return nil }

// Destroy is not how a ruin is removed: the lease's end does that.
func (r ruin) Destroy(context.Context) error { return sandbox.ErrUnsupported }

// savedSuffix is the name of the description beside a saved directory. Once it is
// there the directory is whole.
const savedSuffix = ".json"

// savedDir is where the processes of a lease are saved before they are stored.
func (e *Engine) savedDir(id sojourn.SessionID, epoch int64) string {
	return filepath.Join(e.cfg.SnapshotDir, fmt.Sprintf("save-%s-%d", id, epoch))
}

// clearSnapshots removes what an earlier process has left in the place of
// snapshots, but for what the leases that are still draining have saved.
func (e *Engine) clearSnapshots(open []sojourn.Lease) error {
	if e.cfg.SnapshotDir == "" {
		return nil
	}
	wanted := map[string]bool{}
	for _, l := range open {
		if l.State == sojourn.LeaseDraining {
			dir := filepath.Base(e.savedDir(l.Session, l.Epoch))
			wanted[dir], wanted[dir+savedSuffix] = true, true
		}
	}
	entries, err := os.ReadDir(e.cfg.SnapshotDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if !wanted[entry.Name()] {
			err = errors.Join(err, os.RemoveAll(filepath.Join(e.cfg.SnapshotDir, entry.Name())))
		}
	}
	return err
}

// snapshotDir makes an empty directory for a snapshot to be restored from.
func (e *Engine) snapshotDir(spec sandbox.Spec) (dir string, discard func(), err error) {
	dir = filepath.Join(e.cfg.SnapshotDir, fmt.Sprintf("load-%s-%d", spec.Session, spec.Epoch))
	if err := os.RemoveAll(dir); err != nil {
		return "", nil, fmt.Errorf("clear the place of a process snapshot: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("make a place for a process snapshot: %w", err)
	}
	return dir, func() {
		if err := os.RemoveAll(dir); err != nil {
			e.log.Warn("remove an unpacked process snapshot", "session", spec.Session, "error", err)
		}
	}, nil
}

// saveProcesses saves the processes of a draining lease, if it is to. It returns
// nil when there are none, and why it could not.
func (e *Engine) saveProcesses(ctx context.Context, facts sojourn.Facts, c *compute) (*sojourn.ProcessState, string) {
	if !facts.Lease.SaveProcesses || e.cfg.Processes == nil {
		return nil, ""
	}
	snap, dir, err := e.snapshot(ctx, facts, c)
	if err == nil {
		var p *sojourn.ProcessState
		if p, err = e.storeProcesses(ctx, facts, snap, dir); err == nil {
			return p, ""
		}
	}
	e.log.Error("save the processes of a session", "session", c.session, "lease_epoch", c.epoch, "error", err)
	return nil, coldReason(err)
}

// snapshot saves the processes on this machine, or finds that they were before
// the server was killed.
func (e *Engine) snapshot(ctx context.Context, facts sojourn.Facts, c *compute) (snap sandbox.Snapshot, dir string, err error) {
	dir = e.savedDir(c.session, c.epoch)
	if b, err := os.ReadFile(dir + savedSuffix); err == nil && json.Unmarshal(b, &snap) == nil {
		return snap, dir, nil
	}
	s, ok := c.box.(sandbox.Snapshotter)
	if !ok || ended(c.box) {
		return snap, "", fmt.Errorf("the sandbox has ended: %w", sandbox.ErrGone)
	}
	row, _ := e.runtime(facts.Session.Runtime)
	// One that does not answer could not be saved, and would keep whoever tries.
	if _, err := c.peer.Info(ctx); err != nil {
		return snap, "", err
	}
	if err := e.settle(ctx, c, row); err != nil {
		return snap, "", err
	}
	if err := os.RemoveAll(dir); err != nil { // broken off
		return snap, "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return snap, "", err
	}
	// What is saved must not believe in connections that this process will end.
	c.gate.close()
	defer c.peer.Excuse()() // it stands still, for as long as its memory takes to be written
	if snap, err = s.Snapshot(ctx, dir); err != nil {
		return snap, "", err
	}
	b, err := json.Marshal(snap)
	if err == nil {
		err = os.WriteFile(dir+savedSuffix+".new", b, 0o600)
	}
	if err == nil {
		err = os.Rename(dir+savedSuffix+".new", dir+savedSuffix)
	}
	return snap, dir, err
}

// storeProcesses puts saved processes into the blob store.
func (e *Engine) storeProcesses(ctx context.Context, facts sojourn.Facts, snap sandbox.Snapshot, dir string) (*sojourn.ProcessState, error) {
	p := sojourn.ProcessState{Epoch: facts.Lease.ProcessEpoch(), Bytes: snap.Bytes}
	var err error
	if p.Snapshot, err = json.Marshal(snap); err != nil {
		return nil, err
	}
	err = e.cfg.Store.View(ctx, func(tx *store.Tx) (err error) {
		p.Harness, err = tx.LeaseState(facts.Session.ID, facts.Lease.Epoch)
		return err
	})
	if err != nil {
		return nil, err
	}
	p.Object, p.Stored, err = e.cfg.Processes.Save(ctx, dir)
	return &p, err
}
