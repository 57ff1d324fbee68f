package engine

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// inputPiece is how much of the input that came with a request is written at once.
const inputPiece = 256 << 10

// feed gives the process the input that came with its request, and ends the input of
// one that has none. A piece that is given again is taken once.
func (f *follow) feed(ctx context.Context, p place) {
	switch s := p.x.Spec; {
	case s.Stdin == sojourn.StdinStream:
		return
	case s.Stdin == sojourn.StdinGiven:
		for at := 0; at < len(p.input); at += inputPiece {
			piece := p.input[at:min(at+inputPiece, len(p.input))]
			if err := p.c.peer.Write(ctx, execPrefix+string(f.id), "given-"+strconv.Itoa(at), piece); err != nil {
				return // it reads no more, or it is found again
			}
		}
	}
	_ = p.c.peer.CloseStdin(ctx, execPrefix+string(f.id)) // a process that is over takes no end
}

// errNoInput refuses input that an exec does not take.
func errNoInput(why string) error {
	return sojourn.Errorf(sojourn.CodeInvalidState, "The exec takes no input: %s", why)
}

// WriteExec gives input to an exec with a streamed stdin, and returns when its
// sandbox has taken it, which waits for an exec that has not started and for one that
// does not read. at is where data lies in the input of the writer called who: the
// same piece given twice is taken once. The writer [NumberedInput] is one, whoever
// writes for it: of its pieces, what was taken before is left out, and one that lies
// behind what was taken is refused with invalid_state and the offset that is expected.
// The keeper counts, so that a restart of the server changes nothing. eof ends the input after data. The code is
// invalid_state for an exec that takes no input, or no more.
func (e *Engine) WriteExec(ctx context.Context, ref Ref, id sojourn.ExecID, who string, at int64, data []byte, eof bool) error {
	if len(data) > link.MaxWriteBytes {
		return sojourn.Errorf(sojourn.CodeTooLarge, "stdin: at most %d bytes at a time.", link.MaxWriteBytes)
	}
	return e.atExec(ctx, ref, id, func(ctx context.Context, x sojourn.Exec, c *compute) error {
		if x.Spec.Stdin != sojourn.StdinStream {
			return errNoInput("it was not started with a streamed stdin.")
		}
		name := execPrefix + string(id)
		if len(data) > 0 || who == NumberedInput {
			err := c.write(ctx, name, who, at, data)
			if gap, ok := errors.AsType[*link.GapError](err); ok {
				return &sojourn.Error{
					Code:    sojourn.CodeInvalidState,
					Message: "offset: the input was taken up to byte " + strconv.FormatInt(gap.Taken, 10) + ", so something is missing.",
					Details: map[string]string{"expectedOffset": strconv.FormatInt(gap.Taken, 10)},
				}
			}
			if errors.Is(err, link.ErrStdinClosed) {
				return errNoInput("its input has ended.")
			}
			if err != nil {
				return err
			}
		}
		if !eof {
			return nil
		}
		return c.peer.CloseStdin(ctx, name)
	})
}

// NumberedInput is the writer of all pieces that say where they lie.
const NumberedInput = "numbered"

func (c *compute) write(ctx context.Context, name, who string, at int64, data []byte) error {
	if who == NumberedInput {
		return c.peer.WriteAt(ctx, name, at, data)
	}
	return c.peer.Write(ctx, name, who+"-"+strconv.FormatInt(at, 10), data)
}

// ResizeExec sets the size of an exec's terminal.
func (e *Engine) ResizeExec(ctx context.Context, ref Ref, id sojourn.ExecID, rows, cols uint16) error {
	if rows == 0 || cols == 0 {
		return sojourn.Errorf(sojourn.CodeInvalid, "A terminal has at least one row and one column.")
	}
	return e.atExec(ctx, ref, id, func(ctx context.Context, x sojourn.Exec, c *compute) error {
		if !x.Spec.TTY {
			return sojourn.Errorf(sojourn.CodeInvalid, "The exec has no terminal.")
		}
		return c.peer.Resize(ctx, execPrefix+string(id), rows, cols)
	})
}

// SignalExec sends a signal, such as SIGINT, to an exec's process group.
func (e *Engine) SignalExec(ctx context.Context, ref Ref, id sojourn.ExecID, name string) error {
	return e.atExec(ctx, ref, id, func(ctx context.Context, _ sojourn.Exec, c *compute) error {
		err := c.peer.Signal(ctx, execPrefix+string(id), name, link.TargetGroup)
		if e, ok := errors.AsType[*link.Error](err); ok && e.Code == link.CodeInvalidParams {
			return sojourn.Errorf(sojourn.CodeInvalid, "signal: %q is no name of a signal, such as SIGINT.", bounded(name, 40))
		}
		return err
	})
}

// atExec makes a call to the keeper that an exec runs under, once it runs: again
// after its sandbox was replaced, until ctx ends. The code is invalid_state for an
// exec that is over.
func (e *Engine) atExec(ctx context.Context, ref Ref, id sojourn.ExecID, call func(context.Context, sojourn.Exec, *compute) error) error {
	for {
		_, x, err := e.waitExec(ctx, ref, id, func(x sojourn.Exec) bool {
			return x.State.Terminal() || x.State == sojourn.ExecRunning
		})
		if err != nil {
			return err
		}
		if x.State.Terminal() {
			return sojourn.Errorf(sojourn.CodeInvalidState, "The exec is over (%s).", x.State)
		}
		wait := startingPause
		if c := e.placeOf(x); c != nil {
			err := e.callAt(ctx, c, x, call)
			var word *sojourn.Error
			switch {
			case err == nil, errors.As(err, &word):
				return err
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case !errors.Is(err, link.ErrUnknownProcess): // the way to its sandbox is gone
				wait = execRetry / 4
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-e.base.Done():
			return errStopping
		}
	}
}

// callAt makes a call that ends with its exec.
func (e *Engine) callAt(ctx context.Context, c *compute, x sojourn.Exec, call func(context.Context, sojourn.Exec, *compute) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if f := e.followed(x); f != nil {
		defer context.AfterFunc(f.ctx, cancel)()
	}
	return call(ctx, x, c)
}

// placeOf returns where an exec was last followed; nil when that is not known.
func (e *Engine) placeOf(x sojourn.Exec) *compute {
	f := e.followed(x)
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at
}
