package engine

import (
	"context"
	"errors"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// The reasons for which a lease is drained on request.
const (
	drainedForSuspend  = "suspended"
	drainedForRotation = "rotated"
)

// Suspend saves what a session's sandbox holds and gives the sandbox back: files
// and conversation always, processes where they can be saved. A session without
// a sandbox comes back unchanged. The error code is run_active while an agent
// works, and too_large or workspace_unavailable when files cannot be saved: then
// the sandbox is kept.
func (e *Engine) Suspend(ctx context.Context, ref Ref) (sojourn.Facts, error) {
	if err := e.release(ctx, ref, drainedForSuspend, e.checkProcesses("") == nil); err != nil {
		return sojourn.Facts{}, err
	}
	return e.Session(context.WithoutCancel(ctx), ref)
}

// Rotate replaces a session's sandbox by a fresh one that carries files and
// conversation, and with processes the running processes, too. A session without
// a sandbox gets one. It waits like EnsureWorkspace. The error codes are those of
// EnsureWorkspace and Suspend, and invalid when processes cannot be carried here.
func (e *Engine) Rotate(ctx context.Context, ref Ref, processes bool, wait time.Duration) (sojourn.Facts, error) {
	if processes {
		if err := e.checkProcesses("processes"); err != nil {
			return sojourn.Facts{}, err
		}
	}
	if err := e.release(ctx, ref, drainedForRotation, processes); err != nil {
		return sojourn.Facts{}, err
	}
	return e.EnsureWorkspace(ctx, ref, wait)
}

// release drains a session's lease, if it holds one, and waits for it.
func (e *Engine) release(ctx context.Context, ref Ref, why string, processes bool) error {
	facts, err := e.update(ctx, ref, func(_ *store.Tx, d *sojourn.Decision) error {
		switch l := d.Facts().Lease; {
		case d.Facts().Session.Bare():
			return sojourn.Errorf(sojourn.CodeInvalid, "The session has no agent: it is paused and rotated by its own contract.")
		case d.Facts().Session.Archived():
			return sojourn.Errorf(sojourn.CodeSessionArchived, "The session is archived.")
		case l != nil && l.State == sojourn.LeaseRequested:
			return &sojourn.Error{
				Code: sojourn.CodeWorkspaceStarting, RetryAfter: 2 * time.Second, Message: "A sandbox is coming up. Retry.",
			}
		case l != nil && l.Live(d.Now()):
			return d.DrainLease(l.Epoch, why, processes)
		}
		return nil
	})
	if err != nil || facts.Lease == nil || facts.Lease.State != sojourn.LeaseDraining {
		return err
	}
	err = e.drain(ctx, ref.ID)
	if err == nil || errors.Is(err, context.Cause(ctx)) || sojourn.CodeOf(err) != sojourn.CodeInternal {
		return err
	}
	return unreachable(err)
}

// saves reports what is to be saved of a lease that is over: files, when its sandbox
// may have some that no checkpoint has, because they were put there outside a run or
// could not be captured at the end of the last one, and processes, when the session
// keeps them.
func (e *Engine) saves(f sojourn.Facts) (files, processes bool) {
	if f.Session.Bare() { // nobody says when its files are as they should be
		return true, f.Session.Rotation.Processes && e.checkProcesses("") == nil
	}
	if r := f.Active; r != nil && (r.State == sojourn.RunActive || r.State == sojourn.RunSealing) {
		return false, false
	}
	idle := f.Session.Sandbox.Idle
	if idle == "" {
		idle = e.cfg.Sandbox.Idle
	}
	h := f.Head
	torn := h != nil && h.Run == f.Session.LastRun && !h.Restorable(f.Session.Base)
	return torn || f.Unsaved(), idle == sojourn.IdleSnapshot && e.checkProcesses("") == nil
}
