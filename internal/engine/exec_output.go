package engine

import (
	"context"
	"errors"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// openOutput opens the exec's output for writing; nil when the follow is over first.
func (f *follow) openOutput() *output.Writer {
	e, session, exec := f.b.e, string(f.b.id), string(f.id)
	for f.ctx.Err() == nil {
		w, err := e.cfg.Outputs.Writer(session, exec)
		if err == nil {
			e.tellWatchers(f.id)
			return w
		}
		e.log.Error("open the output of an exec", "session", session, "exec", exec, "error", err)
		if errors.Is(err, output.ErrCorrupt) { // what the keeper has is kept, with a word on what is missing
			if err := e.cfg.Outputs.Remove(session, exec); err == nil {
				continue
			}
		}
		f.pause()
	}
	return nil
}

func (f *follow) closeOutput(w *output.Writer) {
	if err := w.Close(); err != nil {
		f.b.e.log.Warn("close the output of an exec", "session", f.b.id, "exec", f.id, "error", err)
	}
}

// tellWatchers tells whoever waits for an exec to look again.
func (e *Engine) tellWatchers(id sojourn.ExecID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.watched[id] {
		raise(w.changed)
	}
}

// ExecOutput opens what an exec has written, and writes. For one that has not started
// it waits until ctx ends. The reader must be closed. When it ends and is not
// finished, the server has stopped following the exec, which may go on: open it again.
// One that never started has written nothing.
func (e *Engine) ExecOutput(ctx context.Context, ref Ref, id sojourn.ExecID) (*output.Reader, error) {
	if e.cfg.Outputs == nil {
		return nil, sojourn.Errorf(sojourn.CodeUnavailable, "This installation keeps no output of execs.")
	}
	watch, stop := e.watchExec(id)
	defer stop()
	for {
		r, x, err := e.openReader(ctx, ref, id)
		if err == nil || !errors.Is(err, output.ErrNotFound) {
			return r, err
		}
		if x.State.Terminal() {
			e.settleOutput(ctx, x)
			// Between the two looks its writer may have left it to the database.
			if r, _, err = e.openReader(ctx, ref, id); errors.Is(err, output.ErrNotFound) {
				return output.None(), nil
			}
			return r, err
		}
		select {
		case <-watch.changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-e.base.Done():
			return nil, errStopping
		}
	}
}

// openReader opens the output of an exec where it is now.
func (e *Engine) openReader(ctx context.Context, ref Ref, id sojourn.ExecID) (r *output.Reader, x sojourn.Exec, err error) {
	var inline []byte
	err = e.view(ctx, ref, func(tx *store.Tx, _ sojourn.Facts) error {
		if x, err = execOf(tx, ref.ID, id); err != nil {
			return err
		}
		inline, err = tx.ExecOutput(id)
		return err
	})
	if err != nil {
		return nil, x, err
	}
	if x.State == sojourn.ExecRunning && e.followed(x) == nil {
		return nil, x, output.ErrNotFound // its follow is on its way: what it opens goes on
	}
	r, err = e.cfg.Outputs.Reader(string(x.Session), string(id), inline)
	return r, x, err
}
