package engine

import (
	"context"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

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

// StartSession opens a new bare session and waits for its sandbox, at most wait:
// after that it comes up all the same. The codes are invalid_state, and those of
// EnsureWorkspace when no sandbox can be provided.
func (e *Engine) StartSession(ctx context.Context, ref Ref, wait time.Duration) (sojourn.Facts, error) {
	return e.bringUp(ctx, ref, wait, (*sojourn.Decision).Start)
}

// ResumeSession lets a paused session go on and waits for its sandbox, at most wait.
func (e *Engine) ResumeSession(ctx context.Context, ref Ref, wait time.Duration) (sojourn.Facts, error) {
	return e.bringUp(ctx, ref, wait, (*sojourn.Decision).Resume)
}

// bringUp has a session get a sandbox, and waits for it. A caller who waits no
// longer gets the facts as they are.
func (e *Engine) bringUp(ctx context.Context, ref Ref, wait time.Duration, by func(*sojourn.Decision) error) (sojourn.Facts, error) {
	w := e.watchSession(ref.ID)
	defer w.stop()
	facts, err := e.update(ctx, ref, func(_ *store.Tx, d *sojourn.Decision) error { return by(d) })
	if err != nil || wait <= 0 {
		return facts, err
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	f, err := e.awaitSandbox(waiting, ref, w)
	switch {
	case err == nil:
		return f, nil
	case ctx.Err() != nil:
		return facts, context.Cause(ctx)
	case waiting.Err() != nil:
		return e.Session(ctx, ref)
	}
	return facts, err
}

// awaitSandbox waits until the sandbox of an open session is at hand and is not
// being replaced. It returns why there will be none, or the cause of ctx. Facts that
// are no longer those of an open session come back without an error.
func (e *Engine) awaitSandbox(ctx context.Context, ref Ref, w *sessionWatch) (sojourn.Facts, error) {
	for {
		f, err := e.Session(ctx, ref)
		switch s := f.Session; {
		case err != nil:
			return f, err
		case s.State != sojourn.SessionOpen:
			return f, w.failure()
		case !s.Rotating() && e.live(f.Lease, e.Now()) != nil:
			return f, nil
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			return f, context.Cause(ctx)
		}
	}
}

// PauseSession holds a session: see [sojourn.Decision.Pause].
func (e *Engine) PauseSession(ctx context.Context, ref Ref) (sojourn.Facts, error) {
	return e.update(ctx, ref, func(_ *store.Tx, d *sojourn.Decision) error { return d.Pause() })
}

// StopSession ends a session as completed: what runs may take its grace. text is the
// caller's words. A session that has ended comes back unchanged.
func (e *Engine) StopSession(ctx context.Context, ref Ref, text string) (sojourn.Facts, error) {
	if len(text) > sojourn.MaxStopText {
		return sojourn.Facts{}, sojourn.Errorf(sojourn.CodeInvalid, "reason: at most %d bytes.", sojourn.MaxStopText)
	}
	return e.update(ctx, ref, func(_ *store.Tx, d *sojourn.Decision) error {
		return d.Close(sojourn.CloseCompleted, sojourn.StopRequested, text)
	})
}

// CancelSession ends a session as cancelled and kills what runs.
func (e *Engine) CancelSession(ctx context.Context, ref Ref) (sojourn.Facts, error) {
	return e.update(ctx, ref, func(_ *store.Tx, d *sojourn.Decision) error {
		return d.Close(sojourn.CloseCancelled, sojourn.StopCancelled, "")
	})
}

// DeleteSession makes an ended session go, with all that it has left.
func (e *Engine) DeleteSession(ctx context.Context, ref Ref) error {
	return e.cfg.Store.Update(ctx, func(tx *store.Tx) error {
		facts, err := seen(tx, ref)
		if err != nil {
			return err
		}
		return e.apply(tx, facts, func(_ *store.Tx, d *sojourn.Decision) error { return d.Delete() })
	})
}

// RotateSession begins to replace the sandbox of an open session. It does not wait.
func (e *Engine) RotateSession(ctx context.Context, ref Ref) (sojourn.Facts, error) {
	return e.update(ctx, ref, func(_ *store.Tx, d *sojourn.Decision) error { return d.RequestRotation() })
}

// Heartbeat records a sign of life of a session's client.
func (e *Engine) Heartbeat(ctx context.Context, ref Ref) (sojourn.Facts, error) {
	return e.update(ctx, ref, func(_ *store.Tx, d *sojourn.Decision) error { return d.Seen() })
}

// Reattach returns the live session of a client and records that it is there. The
// ID of ref is not looked at. The code is not_found.
func (e *Engine) Reattach(ctx context.Context, ref Ref, client string) (facts sojourn.Facts, err error) {
	if client == "" || len(client) > sojourn.MaxClientBytes {
		return facts, sojourn.Errorf(sojourn.CodeInvalid, "clientId: must be text of at most %d bytes.", sojourn.MaxClientBytes)
	}
	err = e.cfg.Store.Update(ctx, func(tx *store.Tx) error {
		s, err := tx.SessionOfClient(ref.Project, client)
		if err != nil {
			return err
		}
		ref.ID = s.ID
		before, err := seen(tx, ref)
		if err != nil {
			return err
		}
		if err := e.apply(tx, before, func(_ *store.Tx, d *sojourn.Decision) error { return d.Reattach() }); err != nil {
			return err
		}
		facts, err = tx.Facts(s.ID)
		return err
	})
	return facts, err
}

// SetBudget changes what a session may use: change returns the limits that are to
// follow those that it has. Nothing comes between, so that of two changes at once
// neither is lost.
func (e *Engine) SetBudget(ctx context.Context, ref Ref, change func(sojourn.Limits) sojourn.Limits) (sojourn.Facts, error) {
	return e.update(ctx, ref, func(_ *store.Tx, d *sojourn.Decision) error {
		return d.SetLimits(change(d.Facts().Session.Budget.Limits))
	})
}

// BareSessions returns a page of bare sessions. The code is invalid.
func (e *Engine) BareSessions(ctx context.Context, q BareQuery) (page BarePage, err error) {
	if q.Limit == 0 {
		q.Limit = 50
	}
	if q.Limit < 1 || q.Limit > 200 || q.Offset < 0 {
		return page, sojourn.Errorf(sojourn.CodeInvalid, "limit: between 1 and 200; offset: not negative.")
	}
	err = e.cfg.Store.View(ctx, func(tx *store.Tx) (err error) {
		page.Sessions, page.Total, err = tx.SessionsWhere(store.BareQuery{
			Project: q.Project, Contract: q.Contract, State: q.State, CloseReason: q.CloseReason,
			Rotating: q.Rotating, Limit: q.Limit, Offset: q.Offset,
		})
		return err
	})
	return page, err
}

// EventsOf returns a session's events of some types (none for all) behind after, at
// most limit, and the number of its last event. The code is invalid_cursor.
func (e *Engine) EventsOf(ctx context.Context, ref Ref, after int64, limit int, types []sojourn.EventType) (events []sojourn.Event, head int64, err error) {
	err = e.view(ctx, ref, func(tx *store.Tx, f sojourn.Facts) (err error) {
		head = f.Session.LastSeq
		if err := checkCursor(after, head); err != nil {
			return err
		}
		events, err = tx.Events(ref.ID, after, limit, types...)
		return err
	})
	return events, head, err
}
