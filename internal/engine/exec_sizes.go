package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// measured returns x with the sizes of its output. A record has those of an exec that
// has ended; one that runs grows, and one that was lost ended in a commit that knew
// nothing of what was still being read. That one may have written more than anybody
// has seen, and says so.
func (e *Engine) measured(tx *store.Tx, x sojourn.Exec) (sojourn.Exec, error) {
	running, lost := x.State == sojourn.ExecRunning, x.State == sojourn.ExecLost
	if !running && !lost || e.cfg.Outputs == nil {
		return x, nil
	}
	var inline []byte
	if lost {
		var err error
		if inline, err = tx.ExecOutput(x.ID); err != nil {
			return x, err
		}
	}
	r, err := e.cfg.Outputs.Reader(string(x.Session), string(x.ID), inline)
	switch {
	case err == nil:
		s, _ := r.Sizes()
		x.Result = sized(x.Result, s)
		if err := r.Close(); err != nil {
			e.log.Warn("close the output of an exec", "session", x.Session, "exec", x.ID, "error", err)
		}
	case !errors.Is(err, output.ErrNotFound): // the exec can be shown without it
		e.log.Error("measure the output of an exec", "session", x.Session, "exec", x.ID, "error", err)
	}
	if lost && x.Result.KeptNote == "" {
		x.Result.KeptNote = string(output.CutLost)
	}
	return x, nil
}

// measure puts the sizes of what runs into facts, for a decision that may lose it.
func (e *Engine) measure(tx *store.Tx, f *sojourn.Facts) (err error) {
	if !f.Session.Bare() || len(f.Execs) == 0 {
		return nil
	}
	f.Execs = slices.Clone(f.Execs)
	for i, x := range f.Execs {
		if f.Execs[i], err = e.measured(tx, x); err != nil {
			return err
		}
	}
	return nil
}

// settlePatience is how long the end of a lost exec is waited for.
const settlePatience = 2 * time.Second

// settleOutput waits until what a lost exec has written is kept: its follow may be at that.
// It gives up when that takes long, as on a full disk.
func (e *Engine) settleOutput(ctx context.Context, x sojourn.Exec) {
	f := e.followed(x)
	if f == nil || x.State != sojourn.ExecLost {
		return
	}
	t := time.NewTimer(settlePatience)
	defer t.Stop()
	select {
	case <-f.done:
	case <-t.C:
	case <-ctx.Done():
	}
}
