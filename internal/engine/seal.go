package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/checkpoint"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// maxCaptures is how often a capture is tried before the run is completed with
// its result only.
const maxCaptures = 5

// seal captures conversation and files of a sealing run at one boundary and
// makes them the session's head in the change that ends the run. What cannot be
// captured is said in the checkpoint's record; the run ends all the same.
func (e *Engine) seal(ctx context.Context, d *drive, facts sojourn.Facts) error {
	r := facts.Active
	row, _ := e.runtime(facts.Session.Runtime)
	c, gone := e.remains(ctx, facts)
	if gone != nil && !errors.Is(gone, sandbox.ErrGone) { // unreachable is not gone
		return fmt.Errorf("reach the files of run %s: %w", r.ID, gone)
	}
	var ck sojourn.Checkpoint
	err := e.commit(ctx, d, func(tx *store.Tx, dec *sojourn.Decision) error {
		old, err := tx.CapturingCheckpoints(facts.Session.ID)
		if err != nil {
			return err
		}
		for _, c := range old { // left by a drive that died while it captured
			dec.AbandonCheckpoint(c)
		}
		ck, err = dec.BeginCheckpoint(newID[sojourn.CheckpointID](), r.ID, r.Epoch)
		return err
	})
	if err != nil {
		return err
	}
	if facts.Lease != nil && facts.Lease.Epoch == r.Epoch {
		ck.AgentConversation = facts.Lease.Conversation
	}
	var got checkpoint.Capture
	if err = gone; err == nil {
		got, err = e.captureAgain(ctx, c, facts, row)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var notes sojourn.CaptureNotes
	if err != nil {
		e.log.Error("capture a checkpoint", "session", facts.Session.ID, "run", r.ID, "error", err)
		ck.Conversation, ck.ConversationReason = sojourn.FidelityResultOnly, "capture_failed"
		ck.Workspace, ck.WorkspaceReason = sojourn.FidelityNone, "capture_failed"
	} else {
		notes = describe(&ck, got, true, len(row.State) > 0)
	}
	err = e.commit(ctx, d, func(_ *store.Tx, dec *sojourn.Decision) error {
		if l := dec.Facts().Lease; gone != nil && l != nil && l.Epoch == r.Epoch {
			if err := endLease(dec, *l, endState(*l, dec.Now()), endReason(*l, dec.Now())); err != nil {
				return err
			}
		}
		return dec.Seal(ck, notes)
	})
	if err == nil {
		e.forgetProcesses(facts)
	}
	return err
}

// describe writes what was captured into the record, and returns what there is to tell
// besides. worked says that an agent has been there, and stateful that the runtime has
// its conversations in files.
func describe(ck *sojourn.Checkpoint, got checkpoint.Capture, worked, stateful bool) (notes sojourn.CaptureNotes) {
	ck.Root, ck.RootBytes = string(got.Ref.ID), got.Ref.Bytes
	for _, p := range got.Packs {
		ck.Packs = append(ck.Packs, string(p.ID))
	}
	ck.Conversation, ck.ConversationReason = sojourn.FidelityResultOnly, string(got.Conversation.Reason)
	if got.Conversation.Exact && ck.AgentConversation != "" {
		ck.Conversation, ck.ConversationReason = sojourn.FidelityExact, ""
	}
	if got.Conversation.Exact && got.Conversation.Bytes == 0 && stateful {
		// An agent that keeps it elsewhere, or that has lost it, would not find it
		// again: nothing is not an exact copy of a conversation.
		ck.Conversation, ck.ConversationReason = sojourn.FidelityResultOnly, "missing"
	}
	if got.Conversation.Exact && !worked { // nothing is all of it
		ck.Conversation, ck.ConversationReason = sojourn.FidelityExact, ""
	}
	ck.Workspace, ck.WorkspaceReason = sojourn.FidelityNone, string(got.Workspace.Reason)
	if got.Workspace.Exact {
		ck.Workspace, ck.WorkspaceReason = sojourn.FidelityPortableTree, ""
	}
	ck.TreeDigest = got.Workspace.Digest
	ck.Entries = got.Workspace.Entries + got.Conversation.Entries
	ck.Bytes = got.Workspace.Bytes + got.Conversation.Bytes
	ck.Stored = got.Stored
	notes.ConversationDetail = bounded(got.Conversation.Detail, 1000)
	notes.WorkspaceDetail = bounded(got.Workspace.Detail, 1000)
	for kind, n := range got.Counts {
		if n > 0 {
			if notes.Skipped == nil {
				notes.Skipped = map[string]int64{}
			}
			notes.Skipped[string(kind)] = n
		}
	}
	return notes
}

// captureAgain captures, and tries again after a passing fault.
func (e *Engine) captureAgain(ctx context.Context, c *compute, facts sojourn.Facts, row harness.Runtime) (got checkpoint.Capture, err error) {
	defer e.touchUntil(ctx, c, (*sojourn.Decision).TouchLease)()
	for attempt := 1; ; attempt++ {
		got, err = e.capture(ctx, c, facts, row)
		if err == nil || attempt == maxCaptures || ctx.Err() != nil {
			return got, err
		}
		select {
		case <-time.After(time.Second << (attempt - 1)):
		case <-ctx.Done():
			return got, context.Cause(ctx)
		}
	}
}

// remains returns the compute whose files a sealing run is to keep, also when
// its lease or its sandbox is over: until the run is sealed they are not removed.
// The error is ErrGone when the files are gone.
func (e *Engine) remains(ctx context.Context, facts sojourn.Facts) (*compute, error) {
	if l := facts.Lease; l != nil && l.Epoch == facts.Active.Epoch {
		return e.ruins(ctx, *l)
	}
	return nil, sandbox.ErrGone
}

// captureSpec says what a checkpoint of the session's files in the sandbox holds.
func (e *Engine) captureSpec(c *compute, facts sojourn.Facts, row harness.Runtime) checkpoint.Spec {
	dirs := c.box.Dirs()
	spec := checkpoint.Spec{
		Workspace: dirs.Workspace, Home: dirs.Home, State: row.State, Cache: e.cfg.Cache,
		WorkspaceMaxBytes: e.cfg.WorkspaceMaxBytes, ConversationMaxBytes: e.cfg.ConversationMaxBytes,
	}
	if h := facts.Head; h != nil && h.Root != "" {
		spec.Parent = &checkpoint.Ref{ID: checkpoint.RootID(h.Root), Bytes: h.RootBytes}
	}
	if l := facts.Lease; l != nil {
		spec.Agent, _ = json.Marshal(map[string]string{"conversation": l.Conversation, "runtime": facts.Session.Runtime})
	}
	return spec
}

// capture makes a checkpoint of the files of a sandbox and reads it back. Nothing in
// the sandbox can write meanwhile.
func (e *Engine) capture(ctx context.Context, c *compute, facts sojourn.Facts, row harness.Runtime) (checkpoint.Capture, error) {
	return e.captureBy(ctx, e.captureSpec(c, facts, row), c, func(spec checkpoint.Spec) (checkpoint.Capture, error) {
		return e.captureStill(ctx, c, spec, row)
	})
}

// captureBy captures with by on top of the parent, if there is one and it is whole.
// What is sealed has been read back; the parent was, when it was sealed.
func (e *Engine) captureBy(ctx context.Context, spec checkpoint.Spec, c *compute, by func(checkpoint.Spec) (checkpoint.Capture, error)) (checkpoint.Capture, error) {
	got, err := e.captureOn(ctx, spec, by)
	if spec.Parent != nil && (errors.Is(err, checkpoint.ErrCorrupt) || errors.Is(err, checkpoint.ErrMissing)) {
		e.log.Error("capture without the parent", "session", c.session, "checkpoint", spec.Parent.ID, "error", err)
		spec.Parent = nil // the sandbox has all that it had
		return e.captureOn(ctx, spec, by)
	}
	return got, err
}

func (e *Engine) captureOn(ctx context.Context, spec checkpoint.Spec, by func(checkpoint.Spec) (checkpoint.Capture, error)) (checkpoint.Capture, error) {
	got, err := by(spec)
	switch {
	case err != nil:
	case spec.Parent != nil:
		err = e.cfg.Checkpoints.VerifyNew(ctx, got.Ref, *spec.Parent)
	default:
		err = e.cfg.Checkpoints.Verify(ctx, got.Ref)
	}
	return got, err
}

// captureStill reads the files while nothing in the sandbox can write. A sandbox
// that has died since holds still by itself.
func (e *Engine) captureStill(ctx context.Context, c *compute, spec checkpoint.Spec, row harness.Runtime) (got checkpoint.Capture, err error) {
	if !ended(c.box) {
		if err := e.settle(ctx, c, row); err != nil {
			return got, err
		}
		thaw, err := e.freeze(ctx, c)
		if err != nil {
			return got, err
		}
		defer thaw()
	}
	return e.cfg.Checkpoints.Capture(ctx, spec)
}

// settle waits until the agent has its conversation on disk.
func (e *Engine) settle(ctx context.Context, c *compute, row harness.Runtime) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := harness.Settle(ctx, c.peer, row); err != nil && !ended(c.box) {
		return fmt.Errorf("wait for the conversation to rest: %w", err)
	}
	return nil
}

// freezeAgain is how often a freeze is renewed: a keeper ends one that was
// forgotten after a minute, and a capture may take longer.
const freezeAgain = 20 * time.Second

// freezePatience is how long a freeze may take: a keeper gives up a little
// earlier.
const freezePatience = 50 * time.Second

// freeze stops every process of the sandbox until thaw is called.
func (e *Engine) freeze(ctx context.Context, c *compute) (thaw func(), err error) {
	if err := e.stopAll(ctx, c); err != nil {
		e.thaw(ctx, c) // the order may have arrived all the same
		return nil, err
	}
	renewing, stop := context.WithCancel(ctx)
	var renewal sync.WaitGroup
	renewal.Go(func() {
		tick := time.NewTicker(freezeAgain)
		defer tick.Stop()
		for {
			select {
			case <-renewing.Done():
				return
			case <-tick.C:
			}
			if err := e.stopAll(ctx, c); err != nil { // the capture sees for itself what moved
				e.log.Warn("renew a freeze", "session", c.session, "lease_epoch", c.epoch, "error", err)
			}
		}
	})
	return func() {
		stop()
		renewal.Wait() // an order to stop must not come after the thaw
		e.thaw(ctx, c)
	}, nil
}

// stopAll has the keeper stop every process, or nothing when the sandbox is gone.
// The order is waited for also when ctx ends, so that a thaw cannot overtake it.
func (e *Engine) stopAll(ctx context.Context, c *compute) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freezePatience)
	defer cancel()
	if _, err := c.peer.Freeze(ctx); err != nil && !ended(c.box) {
		return fmt.Errorf("freeze the sandbox: %w", err)
	}
	return nil
}

// thaw lets the sandbox go on. Where it fails the keeper does so by itself.
func (e *Engine) thaw(ctx context.Context, c *compute) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := c.peer.Thaw(ctx); err != nil && !ended(c.box) {
		e.log.Error("thaw a sandbox", "session", c.session, "lease_epoch", c.epoch, "error", err)
	}
}
