package exec

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/google/uuid"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

// inputPiece is how much of an input is handed on at once.
const inputPiece = 256 << 10

type stdinInput struct {
	ExecutionPath
	Offset int64 `query:"offset" minimum:"-1" default:"-1" doc:"Where the body lies in all that is sent with an offset: what was taken already is not taken again, and a body behind that is refused with 409 and the expectedOffset in details. Without it the body is appended."`
	Close  bool  `query:"close" doc:"The input ends after the body."`
}

// StdinBody says how much was taken.
type StdinBody struct {
	Bytes  int64  `json:"bytes"`
	Offset *int64 `json:"offset,omitempty" doc:"Where the next body lies, with an offset."`
	Closed bool   `json:"closed"`
}

type stdinOutput struct{ Body StdinBody }

type resizeInput struct {
	ExecutionPath
	Body ResizeBody
}

// ResizeBody is the size of a terminal.
type ResizeBody struct {
	Rows uint16 `json:"rows" minimum:"1" maximum:"65535"`
	Cols uint16 `json:"cols" minimum:"1" maximum:"65535"`
}

func (h *handler) input(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "writeStdin", Method: http.MethodPost, Path: executionPath + "/stdin", Upload: api.AnyType,
		Scope: ScopeWrite, Summary: "Send input to an execution with stdinStream",
		Description: "The body is raw bytes of any length. The call returns when the program's side has taken them. After a cut, repeat it with the same offset.",
	}, h.writeStdin)
	api.Register(s, api.Operation{
		ID: "resize", Method: http.MethodPost, Path: executionPath + "/resize",
		Scope: ScopeWrite, Summary: "Set the size of an execution's terminal",
	}, h.resize)
}

func (h *handler) writeStdin(ctx context.Context, in *stdinInput) (*stdinOutput, error) {
	at, id := ref(ctx, in.SessionID), sojourn.ExecID(in.ExecutionID)
	lasting, end := api.Lasting(ctx)
	defer end()
	who, offset := engine.NumberedInput, in.Offset
	if offset < 0 {
		who, offset = uuid.NewString(), 0
	}
	from, body := offset, api.Upload(ctx)
	piece := make([]byte, inputPiece)
	for over := false; !over; {
		n, err := io.ReadFull(body, piece)
		over = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !over {
			return nil, sojourn.Errorf(sojourn.CodeInvalid, "The request body could not be read to its end.")
		}
		if n == 0 && !in.Close && (who != engine.NumberedInput || offset > from) {
			break
		}
		if err := h.engine.WriteExec(lasting, at, id, who, offset, piece[:n], over && in.Close); err != nil {
			return nil, api.Ended(cause(lasting, err))
		}
		offset += int64(n)
	}
	out := StdinBody{Bytes: offset - from, Closed: in.Close}
	if who == engine.NumberedInput {
		out.Offset = new(offset)
	}
	return &stdinOutput{Body: out}, nil
}

func (h *handler) resize(ctx context.Context, in *resizeInput) (*successOutput, error) {
	err := h.engine.ResizeExec(ctx, ref(ctx, in.SessionID), sojourn.ExecID(in.ExecutionID), in.Body.Rows, in.Body.Cols)
	if err != nil {
		return nil, err
	}
	return &successOutput{Body: SuccessBody{true}}, nil
}
