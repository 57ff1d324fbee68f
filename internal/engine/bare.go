package engine

import (
	"context"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/work"
)

// SECTION E2 fills in everything in this file.

var errUnfinished = sojourn.Errorf(sojourn.CodeUnavailable, "This is not there yet.")

// clientFree refuses a client's handle that a live session of the project has.
func clientFree(tx *store.Tx, project sojourn.ProjectID, client string) error {
	if client == "" {
		return nil
	}
	s, err := tx.SessionOfClient(project, client)
	switch {
	case sojourn.CodeOf(err) == sojourn.CodeNotFound:
		return nil
	case err != nil:
		return err
	}
	return &sojourn.Error{
		Code: sojourn.CodeClientInUse, Details: map[string]string{"sessionId": string(s.ID)},
		Message: "A live session has this clientId already: reattach to it, or end it first.",
	}
}

// timer makes the handler of a work kind that looks at something when it is due.
func timer(f work.HandlerFunc) work.HandlerPolicy {
	return work.HandlerPolicy{Handler: f, Policy: work.Policy{Lease: 30 * time.Second, Concurrency: 16}}
}

func (e *Engine) checkClock(ctx context.Context, claim work.Claim) (work.Next, error) {
	return work.Done(), errUnfinished
}

func (e *Engine) checkPresence(ctx context.Context, claim work.Claim) (work.Next, error) {
	return work.Done(), errUnfinished
}

func (e *Engine) expireInteraction(ctx context.Context, claim work.Claim) (work.Next, error) {
	return work.Done(), errUnfinished
}

func (e *Engine) purge(ctx context.Context, claim work.Claim) (work.Next, error) {
	return work.Done(), errUnfinished
}

// wind brings a paused or closed session to rest: execs that wait are refused, those
// that run end (a paused session's foreground exec may finish), the sandbox is drained.
func (b *bench) wind(ctx context.Context, f sojourn.Facts) (look, error) {
	return look{over: true}, nil
}

// rotate takes the rotation under way one step further.
func (b *bench) rotate(ctx context.Context, f sojourn.Facts) (look, error) { return look{}, nil }

// serve looks after an open session: it has a sandbox, execs start in their turn,
// checkpoints are made, and its rotation begins in time.
func (b *bench) serve(ctx context.Context, f sojourn.Facts) (look, error) { return look{}, nil }

// StartSession opens a new bare session and waits for its sandbox, at most wait:
// after that it comes up all the same. The codes are invalid_state, and those of
// EnsureWorkspace when no sandbox can be provided.
func (e *Engine) StartSession(ctx context.Context, ref Ref, wait time.Duration) (sojourn.Facts, error) {
	return sojourn.Facts{}, errUnfinished
}

// PauseSession holds a session: see [sojourn.Decision.Pause].
func (e *Engine) PauseSession(ctx context.Context, ref Ref) (sojourn.Facts, error) {
	return sojourn.Facts{}, errUnfinished
}

// ResumeSession lets a paused session go on and waits for its sandbox, at most wait.
func (e *Engine) ResumeSession(ctx context.Context, ref Ref, wait time.Duration) (sojourn.Facts, error) {
	return sojourn.Facts{}, errUnfinished
}

// StopSession ends a session as completed: what runs may take its grace. text is the
// caller's words. A session that has ended comes back unchanged.
func (e *Engine) StopSession(ctx context.Context, ref Ref, text string) (sojourn.Facts, error) {
	return sojourn.Facts{}, errUnfinished
}

// CancelSession ends a session as cancelled and kills what runs.
func (e *Engine) CancelSession(ctx context.Context, ref Ref) (sojourn.Facts, error) {
	return sojourn.Facts{}, errUnfinished
}

// DeleteSession makes an ended session go, with all that it has left.
func (e *Engine) DeleteSession(ctx context.Context, ref Ref) error { return errUnfinished }

// RotateSession begins to replace the sandbox of an open session. It does not wait.
func (e *Engine) RotateSession(ctx context.Context, ref Ref) (sojourn.Facts, error) {
	return sojourn.Facts{}, errUnfinished
}

// Heartbeat records a sign of life of a session's client.
func (e *Engine) Heartbeat(ctx context.Context, ref Ref) (sojourn.Facts, error) {
	return sojourn.Facts{}, errUnfinished
}

// Reattach returns the live session of a client and records that it is there. The
// ID of ref is not looked at. The code is not_found.
func (e *Engine) Reattach(ctx context.Context, ref Ref, client string) (sojourn.Facts, error) {
	return sojourn.Facts{}, errUnfinished
}

// SetBudget changes what a session may use.
func (e *Engine) SetBudget(ctx context.Context, ref Ref, l sojourn.Limits) (sojourn.Facts, error) {
	return sojourn.Facts{}, errUnfinished
}

// Carryover returns what a session's execs start from.
func (e *Engine) Carryover(ctx context.Context, ref Ref) (sojourn.Carryover, error) {
	return sojourn.Carryover{}, errUnfinished
}

// UpdateCarryover changes what a session's execs start from.
func (e *Engine) UpdateCarryover(ctx context.Context, ref Ref, p sojourn.CarryoverPatch) (sojourn.Facts, sojourn.Carryover, error) {
	return sojourn.Facts{}, sojourn.Carryover{}, errUnfinished
}

// Tools returns the tools of a session, by name.
func (e *Engine) Tools(ctx context.Context, ref Ref) ([]sojourn.Tool, error) {
	return nil, errUnfinished
}

// RegisterTool registers a tool, in place of one of the same name.
func (e *Engine) RegisterTool(ctx context.Context, ref Ref, t sojourn.Tool) (sojourn.Tool, error) {
	return t, errUnfinished
}

// BareSessions returns a page of bare sessions.
func (e *Engine) BareSessions(ctx context.Context, q BareQuery) (BarePage, error) {
	return BarePage{}, errUnfinished
}

// EventsOf returns a session's events of some types (none for all) behind after, at
// most limit, and the number of its last event.
func (e *Engine) EventsOf(ctx context.Context, ref Ref, after int64, limit int, types []sojourn.EventType) ([]sojourn.Event, int64, error) {
	return nil, 0, errUnfinished
}
