package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/checkpoint"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// provide makes the sandbox of a lease, with what the session carries in it: its
// files and conversation, and its processes where they were saved and can go on. The
// sandbox is bound to the lease once it is whole, and never replaced after that was
// tried: a commit that failed may have happened all the same, and who reads that the
// lease is held takes whatever sandbox there is for the one with the work.
func (e *Engine) provide(ctx context.Context, facts sojourn.Facts, lease sojourn.Lease) (*compute, error) {
	spec, err := e.spec(facts.Session, lease.Epoch)
	if err != nil {
		return nil, err
	}
	c, lost, err := e.revive(ctx, facts, lease, spec)
	if err == nil && c == nil {
		c, err = e.furnish(ctx, facts, lease, spec)
	}
	if err != nil {
		return nil, err
	}
	if err := e.hold(ctx, facts, c, lost); err != nil {
		c.close()
		return nil, err
	}
	return e.register(c), nil
}

// revive makes the sandbox in which the saved processes of the head go on. Without
// an error, no compute means that they cannot: there were none, or lost says why, and
// nothing is left of the try.
func (e *Engine) revive(ctx context.Context, facts sojourn.Facts, lease sojourn.Lease, spec sandbox.Spec) (c *compute, lost string, err error) {
	if h := facts.Head; h == nil || h.Processes == nil {
		return nil, "", nil
	}
	// What hangs must leave the time for a cold start.
	resuming, cancel := context.WithTimeout(ctx, e.cfg.StartTimeout/2)
	c, err = e.provideResumed(resuming, facts, spec)
	cancel()
	if err == nil {
		return c, "", nil
	}
	if errors.Is(err, checkpoint.ErrCorrupt) || ctx.Err() != nil {
		return nil, "", err
	}
	e.log.Warn("saved processes cannot go on", "session", lease.Session, "lease_epoch", lease.Epoch, "error", err)
	if err := e.cfg.Driver.Remove(ctx, handleOf(e.cfg.Driver, lease)); err != nil {
		return nil, "", fmt.Errorf("clear a sandbox that could not be resumed: %w", err)
	}
	return nil, coldReason(err), nil
}

// refusedSpec tells what no driver can do from what went wrong.
func refusedSpec(err error) error {
	if errors.Is(err, sandbox.ErrUnsupported) || errors.Is(err, sandbox.ErrInvalidSpec) {
		return &sojourn.Error{
			Code: sojourn.CodeComputeOutdated, Cause: err,
			Message: "The installation cannot make the sandbox that the session asks for: " + bounded(err.Error(), 500) + ".",
		}
	}
	return fmt.Errorf("create a sandbox: %w", err)
}

func handleOf(d sandbox.Driver, l sojourn.Lease) sandbox.Handle {
	return sandbox.Handle{Driver: d.Name(), Session: string(l.Session), Epoch: l.Epoch}
}

// compute joins a sandbox with the links to it.
func (e *Engine) compute(ctx context.Context, l sojourn.Lease, box sandbox.Sandbox) (*compute, error) {
	g, err := e.openGate(ctx, l.Session, l.Epoch, l.ProcessEpoch(), box.Dirs())
	if err != nil {
		return nil, err
	}
	return &compute{session: l.Session, epoch: l.Epoch, box: box, gate: g, peer: newPeer(box, l.Epoch)}, nil
}

// furnish makes a sandbox and restores into it what the session carries, while its
// keeper boots.
func (e *Engine) furnish(ctx context.Context, facts sojourn.Facts, lease sojourn.Lease, spec sandbox.Spec) (*compute, error) {
	box, err := e.cfg.Driver.Create(ctx, spec)
	if err != nil {
		return nil, refusedSpec(err)
	}
	c, err := e.compute(ctx, lease, box)
	if err != nil {
		return nil, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.greet(gctx) })
	if h := facts.Head; h != nil {
		g.Go(func() error { return e.restore(gctx, c.box.Dirs(), *h) })
	}
	if err := g.Wait(); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// greet waits for the keeper.
func (c *compute) greet(ctx context.Context) error {
	_, err := c.about(ctx)
	return err
}

// hold binds a sandbox to its lease. lost says why the saved processes of the head
// are not in it; with none lost, they are.
func (e *Engine) hold(ctx context.Context, facts sojourn.Facts, c *compute, lost string) error {
	handle, err := json.Marshal(c.box.Handle())
	if err != nil {
		return fmt.Errorf("encode the sandbox handle: %w", err)
	}
	restored, conversation := sojourn.CheckpointID(""), ""
	var processes *sojourn.ProcessState
	if h := facts.Head; h != nil {
		restored, conversation, processes = h.ID, h.AgentConversation, h.Processes
	}
	return e.decide(ctx, c.session, func(tx *store.Tx, d *sojourn.Decision) error {
		if err := d.HoldLease(c.epoch, handle, restored); err != nil {
			return err
		}
		if err := d.SetConversation(c.epoch, conversation); err != nil {
			return err
		}
		if lost != "" {
			d.LoseProcesses(c.epoch, lost)
		}
		if lost != "" || processes == nil {
			return nil
		}
		if err := d.ResumeProcesses(c.epoch); err != nil || processes.Harness == nil {
			return err
		}
		return tx.PutLeaseState(c.session, c.epoch, processes.Harness)
	})
}

// provideResumed makes a sandbox in which the saved processes of the head go on.
func (e *Engine) provideResumed(ctx context.Context, facts sojourn.Facts, spec sandbox.Spec) (*compute, error) {
	h := *facts.Head
	resumer, ok := e.cfg.Driver.(sandbox.Resumer)
	if !ok || e.cfg.Processes == nil {
		return nil, fmt.Errorf("driver %s: %w", e.cfg.Driver.Name(), sandbox.ErrUnsupported)
	}
	spec.Resume = &sandbox.Resume{}
	if err := json.Unmarshal(h.Processes.Snapshot, &spec.Resume.Snapshot); err != nil {
		return nil, fmt.Errorf("decode a process snapshot: %w", err)
	}
	dir, discard, err := e.snapshotDir(spec)
	if err != nil {
		return nil, err
	}
	defer discard()
	spec.Resume.Dir = dir
	dirs, err := resumer.Prepare(ctx, spec)
	if err != nil {
		return nil, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.restore(gctx, dirs, h) })
	g.Go(func() error { return e.cfg.Processes.Load(gctx, h.Processes.Object, dir) })
	if err := g.Wait(); err != nil {
		return nil, err
	}
	// The way out is there before the first process goes on.
	gate, err := e.openGate(ctx, facts.Session.ID, spec.Epoch, h.Processes.Epoch, dirs)
	if err != nil {
		return nil, err
	}
	box, err := e.cfg.Driver.Create(ctx, spec)
	if err != nil {
		gate.close()
		return nil, err
	}
	c := &compute{session: facts.Session.ID, epoch: spec.Epoch, box: box, gate: gate, peer: newPeer(box, spec.Epoch)}
	if err := c.greet(ctx); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// coldReason is why processes are started anew, for people.
func coldReason(err error) string {
	switch {
	case errors.Is(err, sandbox.ErrUnsupported):
		return bounded(err.Error(), 500)
	case errors.Is(err, sandbox.ErrGone):
		return "The sandbox ended before its processes were saved."
	case errors.Is(err, context.DeadlineExceeded):
		return "The saved processes took too long to come back."
	}
	return "The saved processes could not be brought back."
}

// restore puts the trees of a checkpoint into the directories of a sandbox.
func (e *Engine) restore(ctx context.Context, dirs sandbox.Dirs, h sojourn.Checkpoint) error {
	report, err := e.cfg.Checkpoints.Restore(ctx, checkpoint.Ref{ID: checkpoint.RootID(h.Root), Bytes: h.RootBytes}, checkpoint.Target{
		Workspace: dirs.Workspace, Home: dirs.Home, Empty: true, Cache: e.cfg.Cache,
	})
	if err != nil {
		return fmt.Errorf("restore checkpoint %s: %w", h.ID, err)
	}
	if !report.Workspace.Captured || !report.Conversation.Captured { // an empty tree is never taken for a restored one
		return fmt.Errorf("restore checkpoint %s: it does not hold both trees", h.ID)
	}
	return nil
}

func newPeer(box sandbox.Sandbox, epoch int64) *link.Peer {
	return link.NewPeer(func(ctx context.Context) (link.Transport, error) {
		rwc, err := box.Dial(ctx)
		if errors.Is(err, sandbox.ErrGone) {
			return nil, fmt.Errorf("%w: %w", link.ErrGone, err)
		}
		if err != nil {
			return nil, err
		}
		return link.Framed(rwc), nil
	}, link.Options{ClientName: "sojourn", Epoch: epoch})
}
