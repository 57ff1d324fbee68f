package operator

import (
	"context"
	"io"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/output"
)

// outputType is the media type of what an exec wrote.
const outputType = "application/octet-stream"

type outputInput struct {
	ExecutionPath
	Stream string `query:"stream" enum:"stdout,stderr,all" default:"all" doc:"Which bytes; all is both in the order they came."`
	Offset int64  `query:"offset" minimum:"0" doc:"Where to begin, in bytes of that stream."`
	Follow bool   `query:"follow" doc:"Go on until the execution is over; else the answer ends with what there is."`
}

func (h *handler) executionOutput(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "readExecutionOutput", Method: http.MethodGet, Path: "/operator/v1/sessions/{sessionId}/executions/{executionId}/output", Download: outputType,
		Summary: "Read what an execution wrote, byte for byte",
		Description: "With follow the answer grows while the execution runs. When it breaks off, go on from the offset behind what came. " +
			"An offset beyond what was written is answered with nothing.",
	}, h.readOutput)
}

func (h *handler) readOutput(ctx context.Context, in *outputInput) (*huma.StreamResponse, error) {
	at := ref(ctx, in.SessionID)
	x, err := h.engine.ExecByID(ctx, at, in.id())
	if err != nil {
		return nil, err
	}
	which := output.Stream(in.Stream)
	if !in.Follow {
		return h.keptOutput(ctx, at, x, which, in.Offset)
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		r, w := humago.Unwrap(hc)
		lasting, end := api.Lasting(r.Context())
		defer end()
		to := api.Download(lasting, w, outputType)
		if r.Method == http.MethodHead {
			return
		}
		if err := h.followOutput(lasting, at, in.id(), which, in.Offset, to); err != nil {
			api.Told(r.Context(), err)
			panic(http.ErrAbortHandler) // the reader must not take this for the end
		}
	}}, nil
}

// keptOutput answers with what an exec has written by now.
func (h *handler) keptOutput(ctx context.Context, at engine.Ref, x sojourn.Exec, which output.Stream, offset int64) (*huma.StreamResponse, error) {
	var section *io.SectionReader
	closed := func() error { return nil }
	if !x.StartedAt.IsZero() {
		read, err := h.engine.ExecOutput(ctx, at, x.ID)
		if err != nil {
			return nil, err
		}
		section, closed = read.Stream(which), read.Close
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer closed()
		r, w := humago.Unwrap(hc)
		size := int64(0)
		if section != nil {
			size = max(0, section.Size()-offset)
		}
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		to := api.Download(r.Context(), w, outputType)
		if r.Method == http.MethodHead || size == 0 {
			return
		}
		if _, err := io.CopyBuffer(onlyWriter{to}, io.NewSectionReader(section, offset, size), make([]byte, outputStep)); err != nil {
			api.Told(r.Context(), err)
			panic(http.ErrAbortHandler)
		}
	}}, nil
}

// outputStep is how much of an output is read at a time.
const outputStep = 256 << 10

// onlyWriter hides what else a writer can do, so that a copy goes in steps.
type onlyWriter struct{ io.Writer }

// followOutput writes a stream of an output from an offset on, to its end.
func (h *handler) followOutput(ctx context.Context, at engine.Ref, id sojourn.ExecID, which output.Stream, offset int64, w io.Writer) error {
	from := int64(0) // a total offset, which is at least that of a stream
	if which == output.All {
		from = offset
	}
	return h.pieces(ctx, at, id, from, func(p output.Piece) error {
		begins := p.Offset
		if which != output.All {
			begins = p.StreamOffset
		}
		other := which == output.Stdout && p.Stderr || which == output.Stderr && !p.Stderr
		if other || begins+int64(len(p.Data)) <= offset {
			return nil
		}
		_, err := w.Write(p.Data[max(0, offset-begins):])
		return err
	})
}

// pieces calls each with what an exec writes from a total offset on, until it has
// ended. Output that the engine lets go of before that is opened again.
func (h *handler) pieces(ctx context.Context, at engine.Ref, id sojourn.ExecID, offset int64, each func(output.Piece) error) error {
	for {
		// Whether it is over is asked first: then all that it wrote is there.
		x, err := h.engine.ExecByID(ctx, at, id)
		if err != nil {
			return err
		}
		r, err := h.engine.ExecOutput(ctx, at, id)
		if err != nil {
			return err
		}
		offset, err = drain(ctx, r, offset, each)
		_, finished := r.Sizes()
		r.Close()
		if err != nil || finished || x.State.Terminal() {
			return err
		}
	}
}

// drain reads r to its end and returns the offset of that.
func drain(ctx context.Context, r *output.Reader, offset int64, each func(output.Piece) error) (int64, error) {
	for {
		pieces, end, err := r.Next(ctx, offset, outputStep)
		if err != nil || end {
			return offset, err
		}
		for _, p := range pieces {
			if err := each(p); err != nil {
				return offset, err
			}
			offset = p.Offset + int64(len(p.Data))
		}
	}
}
