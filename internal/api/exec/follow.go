package exec

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/output"
)

// ExitFrame says how an execution ended.
type ExitFrame struct {
	Type   string `json:"type"` // exit
	Code   *int   `json:"code"`
	Signal string `json:"signal,omitempty"`
}

// DoneFrame is the last one: the reply, without the output that came before it.
type DoneFrame struct {
	Type string `json:"type"` // done
	Outcome
	Budget ReplyBudget `json:"budget"`
}

// ErrorFrame is the last one of an execution that was refused.
type ErrorFrame struct {
	Type  string `json:"type"` // error
	Error string `json:"error"`
	Code  string `json:"code"`
}

// pieceBytes bounds what one frame has.
const pieceBytes = 256 << 10

// follower streams the output of one exec and its end.
type follower struct {
	h        *handler
	request  context.Context // of the call
	at       engine.Ref
	id       sojourn.ExecID
	which    output.Stream
	always64 bool
	offset   int64  // of both streams, from which on it reads
	buffer   []byte // of the last frame, for the next one

	reader *output.Reader // nil before the exec has started
	// over says that the exec was terminal before the reader was opened.
	over bool
}

func (f *follower) close() {
	if f.reader != nil {
		f.reader.Close()
	}
}

// stream answers an exec call with what the exec does.
func (h *handler) stream(ctx context.Context, x sojourn.Exec, s shape) (*huma.StreamResponse, error) {
	if err := engine.ExecRefusal(x); err != nil {
		return nil, err
	}
	return h.follow(ctx, x.ID, &follower{
		at: ref(ctx, string(x.Session)), which: output.All, always64: s.always64,
	}), nil
}

// follow answers with a follower's stream.
func (h *handler) follow(ctx context.Context, id sojourn.ExecID, f *follower) *huma.StreamResponse {
	f.h, f.request, f.id = h, ctx, id
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer f.close()
		r, w := humago.Unwrap(hc)
		w.Header().Set(executionHeader, string(id))
		api.Feed(w, r, f.next)
	}}
}

// next waits for what comes next and writes it. It returns [io.EOF] after the end.
func (f *follower) next(ctx context.Context, write func([]byte) error) error {
	if f.reader == nil {
		if err := f.open(ctx); err != nil {
			return err
		}
	}
	pieces, end, err := f.reader.Next(ctx, f.offset, pieceBytes)
	if err != nil {
		return err
	}
	for i, p := range pieces {
		if err := f.write(p, i == len(pieces)-1, write); err != nil {
			return err
		}
	}
	if !end {
		return nil
	}
	if _, finished := f.reader.Sizes(); finished || f.over {
		if size := f.reader.Stream(output.All).Size(); f.offset > size {
			return f.refuse(beyond(size), write)
		}
		return f.end(ctx, write)
	}
	// Whoever wrote the output has let go of it. It is taken up again, or the exec is
	// over.
	f.reader.Close()
	f.reader = nil
	return nil
}

// write sends a piece. Of the last one it leaves the beginning of a character to
// the next.
func (f *follower) write(p output.Piece, last bool, write func([]byte) error) error {
	if last && !f.always64 {
		if short := whole(p.Data); len(short) > 0 && utf8.Valid(short) {
			p.Data = short
		}
	}
	f.offset = p.Offset + int64(len(p.Data))
	if f.which != output.All && p.Stderr != (f.which == output.Stderr) {
		return nil
	}
	f.buffer = appendOutput(f.buffer[:0], p, f.always64, api.Snake(f.request))
	return write(f.buffer)
}

// frame writes one event. Its id is where to go on.
func (f *follower) frame(v any, write func([]byte) error) error {
	data, err := api.Encode(f.request, v)
	if err != nil {
		return fmt.Errorf("encode a frame: %w", err)
	}
	b := make([]byte, 0, len(data)+40)
	b = append(b, "id: "...)
	b = strconv.AppendInt(b, f.offset, 10)
	b = append(b, "\ndata: "...)
	b = append(b, data...)
	return write(append(b, "\n\n"...))
}

// open opens the output once the exec has started.
func (f *follower) open(ctx context.Context) error {
	x, err := f.h.engine.ExecByID(ctx, f.at, f.id)
	if err != nil {
		return err
	}
	f.over = x.State.Terminal()
	f.reader, err = f.h.engine.ExecOutput(ctx, f.at, f.id)
	return err
}

// end writes how the exec ended.
func (f *follower) end(ctx context.Context, write func([]byte) error) error {
	facts, x, err := f.h.engine.WaitExec(ctx, f.at, f.id)
	if err != nil {
		return err
	}
	if err := engine.ExecRefusal(x); err != nil {
		return f.refuse(err, write)
	}
	now := f.h.engine.Now()
	o := outcomeOf(x, now)
	if err := f.frame(ExitFrame{Type: "exit", Code: o.ExitCode, Signal: o.Signal}, write); err != nil {
		return err
	}
	if err := f.frame(DoneFrame{Type: "done", Outcome: o, Budget: replyBudget(facts, now)}, write); err != nil {
		return err
	}
	return io.EOF
}

// refuse writes an error in place of an end.
func (f *follower) refuse(why error, write func([]byte) error) error {
	code, message := api.Told(f.request, why)
	if err := f.frame(ErrorFrame{Type: "error", Error: message, Code: code}, write); err != nil {
		return err
	}
	return io.EOF
}
