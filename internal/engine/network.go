package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// Egress is the way of sandboxes to the network.
type Egress interface {
	// Check refuses a policy that the installation cannot carry out, such as one
	// that names credentials it does not have.
	Check(p sojourn.NetworkPolicy) error
	// Open serves the way out of one sandbox until the gate is closed. It takes
	// the place of one that an earlier server has left.
	Open(ctx context.Context, s EgressSpec) (Gate, error)
}

// EgressSpec says whose way out it is.
type EgressSpec struct {
	Session sojourn.SessionID
	Project sojourn.ProjectID
	Epoch   int64
	// ProcessEpoch is the epoch under which the sandbox's processes were started:
	// what they were told then still holds.
	ProcessEpoch int64
	Dir          string // where the socket is made: [sandbox.Dirs.Sockets]
	Policy       sojourn.NetworkPolicy
	// Report is told what was decided. It may block.
	Report func([]sojourn.NetworkDecision)
}

// Gate is an open way out.
type Gate interface {
	// SetPolicy takes effect at once: what is no longer allowed is cut.
	SetPolicy(p sojourn.NetworkPolicy)
	// Env are the variables that programs in the sandbox find the way with.
	Env() map[string]string
	Close() error
}

// notePatience bounds the writing of network decisions, also while the engine ends.
const notePatience = 10 * time.Second

// gate is a compute's way out. It is known to the engine by session from before it
// opens until it is closed, so that no change of policy can miss it.
type gate struct {
	Gate
	gone func()
}

// close lets go of the way out; nil has none.
func (g *gate) close() {
	if g != nil {
		_ = g.Close() // the sandbox is being let go of; its socket is replaced by the next server
		g.gone()
	}
}

// env are the variables of programs in the sandbox.
func (g *gate) env() map[string]string {
	if g == nil {
		return nil
	}
	return g.Env()
}

// openGate serves the way out of a sandbox; nil when the installation has none. The
// policy is read while no change of it can be under way: one that was made earlier
// is in it, and one that is made later finds the gate. processes is the epoch under
// which the processes of the sandbox were, or will be, started.
func (e *Engine) openGate(ctx context.Context, id sojourn.SessionID, epoch, processes int64, dirs sandbox.Dirs) (*gate, error) {
	if e.cfg.Egress == nil || dirs.Sockets == "" {
		return nil, nil
	}
	defer e.policies.lock(id)()
	facts, err := e.facts(ctx, id)
	if err != nil {
		return nil, err
	}
	s := facts.Session
	opened, err := e.cfg.Egress.Open(ctx, EgressSpec{
		Session: id, Project: s.Project, Epoch: epoch, ProcessEpoch: processes, Dir: dirs.Sockets, Policy: e.policy(s),
		Report: func(decided []sojourn.NetworkDecision) { e.noteNetwork(id, epoch, decided) },
	})
	if err != nil {
		return nil, fmt.Errorf("open the way to the network: %w", err)
	}
	g := &gate{Gate: opened}
	g.gone = func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.gates[id] == g {
			delete(e.gates, id)
		}
	}
	e.mu.Lock()
	e.gates[id] = g
	e.mu.Unlock()
	return g, nil
}

// policy is what applies to a session.
func (e *Engine) policy(s sojourn.Session) sojourn.NetworkPolicy {
	p := s.Sandbox.Network
	if p.IsZero() {
		p = e.cfg.Sandbox.Network
	}
	if p.Mode == "" {
		p.Mode = sojourn.NetworkNone
	}
	return p
}

// noteNetwork writes the proxy's decisions into the session's log, the last ones
// while the engine ends.
func (e *Engine) noteNetwork(id sojourn.SessionID, epoch int64, decided []sojourn.NetworkDecision) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.base), notePatience)
	defer cancel()
	err := e.decide(ctx, id, func(_ *store.Tx, d *sojourn.Decision) error {
		d.NoteNetwork(epoch, decided)
		return nil
	})
	if err != nil {
		e.log.Error("write network decisions", "session", id, "lease_epoch", epoch, "error", err)
	}
}

// SetNetwork changes what the sandboxes of a session may reach. It has taken
// effect when it returns.
func (e *Engine) SetNetwork(ctx context.Context, ref Ref, p sojourn.NetworkPolicy) (sojourn.Facts, error) {
	if err := p.Validate(); err != nil {
		return sojourn.Facts{}, err
	}
	if err := e.checkNetwork(p); err != nil {
		return sojourn.Facts{}, err
	}
	facts, err := e.update(ctx, ref, func(_ *store.Tx, d *sojourn.Decision) error { return d.SetNetwork(p) })
	if err != nil {
		return facts, err
	}
	return facts, e.enforce(context.WithoutCancel(ctx), ref.ID)
}

// enforce puts a session's policy on the gate of its sandbox. What is read under
// the lock is never older than what an earlier call has put there.
func (e *Engine) enforce(ctx context.Context, id sojourn.SessionID) error {
	defer e.policies.lock(id)()
	e.mu.Lock()
	g := e.gates[id]
	e.mu.Unlock()
	if g == nil {
		return nil
	}
	facts, err := e.facts(ctx, id)
	if err != nil {
		return err
	}
	g.SetPolicy(e.policy(facts.Session))
	return nil
}
