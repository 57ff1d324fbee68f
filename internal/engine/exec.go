package engine

import (
	"context"

	"github.com/sojourn-dev/sojourn"
)

// SECTION E1 fills in everything in this file.

// follow drives one running exec: its process, its output and its end.
type follow struct{}

// take makes the bench follow an exec that was started in the database, once.
func (b *bench) take(x sojourn.Exec) {}

// tend looks after execs: those that run are followed, those that are to end are
// ended, and what waited for longer than it may run is refused.
func (b *bench) tend(ctx context.Context, f sojourn.Facts) (look, error) {
	return look{over: true}, nil
}

// rateOf is what the execs of a session cost.
func (e *Engine) rateOf(s sojourn.Session) sojourn.ExecRate { return sojourn.ExecRate{} }

// StartExec accepts an exec: durable, and certain to reach an end. It does not
// wait for it. The codes are those of [sojourn.Decision.Execute], and not_found for
// a tool that there is not.
func (e *Engine) StartExec(ctx context.Context, ref Ref, in ExecRequest) (sojourn.Facts, sojourn.Exec, error) {
	return sojourn.Facts{}, sojourn.Exec{}, errUnfinished
}

// WaitExec returns an exec once it is terminal, or parked.
func (e *Engine) WaitExec(ctx context.Context, ref Ref, id sojourn.ExecID) (sojourn.Facts, sojourn.Exec, error) {
	return sojourn.Facts{}, sojourn.Exec{}, errUnfinished
}

// ExecByID returns an exec.
func (e *Engine) ExecByID(ctx context.Context, ref Ref, id sojourn.ExecID) (sojourn.Exec, error) {
	return sojourn.Exec{}, errUnfinished
}

// Execs returns execs with a number below before (0 for the newest), newest first.
func (e *Engine) Execs(ctx context.Context, ref Ref, before int64, limit int) ([]sojourn.Exec, error) {
	return nil, errUnfinished
}

// CancelExec ends an exec; with kill at once. One that is over comes back unchanged.
func (e *Engine) CancelExec(ctx context.Context, ref Ref, id sojourn.ExecID, kill bool) (sojourn.Exec, error) {
	return sojourn.Exec{}, errUnfinished
}

// WriteExec gives input to an exec with a streamed stdin, and returns when its
// sandbox has taken it. at is where data lies in the input of the writer called who:
// the same piece given twice is taken once. eof ends the input after data.
func (e *Engine) WriteExec(ctx context.Context, ref Ref, id sojourn.ExecID, who string, at int64, data []byte, eof bool) error {
	return errUnfinished
}

// ResizeExec sets the size of an exec's terminal.
func (e *Engine) ResizeExec(ctx context.Context, ref Ref, id sojourn.ExecID, rows, cols uint16) error {
	return errUnfinished
}

// SignalExec sends a signal, such as SIGINT, to an exec's process group.
func (e *Engine) SignalExec(ctx context.Context, ref Ref, id sojourn.ExecID, name string) error {
	return errUnfinished
}
