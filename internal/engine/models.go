package engine

import (
	"context"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// AdmitModelCall refuses a call of a model from the sandbox of epoch that must not
// be made. The codes are not_found, session_archived and workspace_expired.
func (e *Engine) AdmitModelCall(ctx context.Context, id sojourn.SessionID, epoch int64) error {
	facts, err := e.facts(ctx, id)
	if err != nil {
		return err
	}
	return facts.AdmitModelCall(epoch, e.Now())
}

// NoteModelCall writes a call of a model that has ended into the session's log. It
// was made and has to be paid for, so it is also noted when its sandbox is gone.
func (e *Engine) NoteModelCall(ctx context.Context, id sojourn.SessionID, epoch int64, c sojourn.ModelCall) error {
	return e.decide(ctx, id, func(_ *store.Tx, d *sojourn.Decision) error {
		d.NoteModelCall(epoch, c)
		return nil
	})
}
