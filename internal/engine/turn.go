package engine

import (
	"context"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/hub"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// Submit accepts a turn. When it returns the turn is durable and will reach
// exactly one end; its run starts later.
func (e *Engine) Submit(ctx context.Context, ref Ref, in Submit) (Submitted, error) {
	ids := remembered{Session: ref.ID, Turn: newID[sojourn.TurnID](), Run: newID[sojourn.RunID]()}
	var out Submitted
	err := e.cfg.Store.Update(ctx, func(tx *store.Tx) error {
		facts, err := seen(tx, ref)
		if err != nil {
			return err
		}
		made, err := once(tx, ref.Project, in.Idempotency, func() (remembered, error) {
			return ids, e.apply(tx, facts, func(_ *store.Tx, d *sojourn.Decision) error {
				if err := d.Submit(ids.Turn, ids.Run, in.Input); err != nil {
					return err
				}
				if l := d.Facts().Lease; l != nil {
					d.TouchLease(l.Epoch) // a turn is a sign of use
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
		c, err := readCreated(tx, made)
		if err != nil {
			return err
		}
		out = Submitted{Facts: c.Facts, Turn: *c.Turn, Run: *c.Run}
		return nil
	})
	return out, err
}

// Turns returns a session's turns with numbers above after, oldest first.
func (e *Engine) Turns(ctx context.Context, ref Ref, after int64, limit int) (turns []sojourn.Turn, err error) {
	err = e.view(ctx, ref, func(tx *store.Tx, _ sojourn.Facts) (err error) {
		turns, err = tx.Turns(ref.ID, after, limit)
		return err
	})
	return turns, err
}

// Turn returns one turn of a session.
func (e *Engine) Turn(ctx context.Context, ref Ref, id sojourn.TurnID) (turn sojourn.Turn, err error) {
	err = e.view(ctx, ref, func(tx *store.Tx, _ sojourn.Facts) (err error) {
		turn, err = tx.Turn(id)
		return ofSession(err, turn.Session, ref, "turn")
	})
	return turn, err
}

// ofSession refuses what belongs to another session, as if it were not there.
func ofSession(err error, owner sojourn.SessionID, ref Ref, what string) error {
	if err == nil && owner != ref.ID {
		return sojourn.Errorf(sojourn.CodeNotFound, "There is no such %s.", what)
	}
	return err
}

// Runs returns a session's runs after the one given, oldest first. The error
// code is invalid_cursor when that is none of them.
func (e *Engine) Runs(ctx context.Context, ref Ref, after sojourn.RunID, limit int) (runs []sojourn.Run, err error) {
	err = e.view(ctx, ref, func(tx *store.Tx, _ sojourn.Facts) (err error) {
		if after != "" {
			run, err := tx.Run(after)
			if err = ofSession(err, run.Session, ref, "run"); sojourn.CodeOf(err) == sojourn.CodeNotFound {
				return sojourn.Errorf(sojourn.CodeInvalidCursor, "cursor: use one that a page gave out.")
			} else if err != nil {
				return err
			}
		}
		runs, err = tx.Runs(ref.ID, after, limit)
		return err
	})
	return runs, err
}

// RunByID returns one run of a session.
func (e *Engine) RunByID(ctx context.Context, ref Ref, id sojourn.RunID) (run sojourn.Run, err error) {
	err = e.view(ctx, ref, func(tx *store.Tx, _ sojourn.Facts) (err error) {
		run, err = tx.Run(id)
		return ofSession(err, run.Session, ref, "run")
	})
	return run, err
}

// Cancel asks a run to end. A run that is over comes back unchanged.
func (e *Engine) Cancel(ctx context.Context, ref Ref, id sojourn.RunID) (run sojourn.Run, err error) {
	err = e.cfg.Store.Update(ctx, func(tx *store.Tx) error {
		facts, err := seen(tx, ref)
		if err != nil {
			return err
		}
		run, err = tx.Run(id)
		if err := ofSession(err, run.Session, ref, "run"); err != nil {
			return err
		}
		err = e.apply(tx, facts, func(_ *store.Tx, d *sojourn.Decision) error {
			_, err := d.CancelRun(id)
			return err
		})
		if err != nil {
			return err
		}
		run, err = tx.Run(id)
		return err
	})
	return run, err
}

// Interactions returns a session's interactions in a state, "" for all, oldest
// first.
func (e *Engine) Interactions(ctx context.Context, ref Ref, state sojourn.InteractionState) (list []sojourn.Interaction, err error) {
	err = e.view(ctx, ref, func(tx *store.Tx, _ sojourn.Facts) (err error) {
		list, err = tx.Interactions(ref.ID, state)
		return err
	})
	return list, err
}

// Answer decides an open interaction. The same answer again is accepted and
// changes nothing.
func (e *Engine) Answer(ctx context.Context, ref Ref, id sojourn.InteractionID, a sojourn.Answer) (i sojourn.Interaction, err error) {
	_, err = e.update(ctx, ref, func(tx *store.Tx, d *sojourn.Decision) error {
		i, err = tx.Interaction(id)
		if err := ofSession(err, i.Session, ref, "interaction"); err != nil {
			return err
		}
		return d.Answer(i, a)
	})
	if err != nil {
		return sojourn.Interaction{}, err
	}
	err = e.cfg.Store.View(ctx, func(tx *store.Tx) (err error) {
		i, err = tx.Interaction(id)
		return err
	})
	return i, err
}

// Events returns events with numbers above after, oldest first, and the number
// of the session's last event. The error code is invalid_cursor for a cursor
// that the session never gave out.
func (e *Engine) Events(ctx context.Context, ref Ref, after int64, limit int) (events []sojourn.Event, head int64, err error) {
	err = e.view(ctx, ref, func(tx *store.Tx, f sojourn.Facts) (err error) {
		head = f.Session.LastSeq
		if err := checkCursor(after, head); err != nil {
			return err
		}
		events, err = tx.Events(ref.ID, after, limit)
		return err
	})
	return events, head, err
}

func checkCursor(after, head int64) error {
	if after < 0 || after > head {
		return sojourn.Errorf(sojourn.CodeInvalidCursor, "The cursor must be between 0 and %d, the number of the last event.", head)
	}
	return nil
}

// Follow returns a cursor on a session's log that starts behind after and waits
// for events to come. The caller closes it. Connecting is a sign of use and
// touches the lease once; staying connected is not.
func (e *Engine) Follow(ctx context.Context, ref Ref, after int64) (*hub.Cursor, error) {
	var facts sojourn.Facts
	err := e.view(ctx, ref, func(_ *store.Tx, f sojourn.Facts) error {
		facts = f
		return checkCursor(after, f.Session.LastSeq)
	})
	if err != nil {
		return nil, err
	}
	if l := facts.Lease; l != nil && l.Live(e.Now()) {
		_, err := e.update(ctx, ref, func(_ *store.Tx, d *sojourn.Decision) error {
			d.TouchLease(l.Epoch)
			return nil
		})
		if err != nil {
			e.log.Warn("touch a lease", "session", ref.ID, "lease_epoch", l.Epoch, "error", err)
		}
	}
	return e.cfg.Hub.Subscribe(ref.ID, after), nil
}
