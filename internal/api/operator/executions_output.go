package operator

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/output"
)

// outputType is the media type of what an exec wrote.
const outputType = "application/octet-stream"

type outputInput struct {
	executionPath
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
	read, err := h.engine.ExecOutput(ctx, at, in.id())
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer read.Close()
		r, w := humago.Unwrap(hc)
		lasting, end := api.Lasting(r.Context())
		defer end()
		which := output.Stream(in.Stream)
		section := read.Stream(which)
		if !in.Follow {
			w.Header().Set("Content-Length", strconv.FormatInt(max(0, section.Size()-in.Offset), 10))
		}
		to := api.Download(lasting, w, outputType)
		if r.Method == http.MethodHead {
			return
		}
		if err := sendOutput(lasting, to, read, which, in.Offset, in.Follow); err != nil {
			api.Told(r.Context(), err)
			panic(http.ErrAbortHandler) // the reader must not take this for the end
		}
	}}, nil
}

// sendOutput writes a stream of an output from an offset on; with follow until the
// output has ended.
func sendOutput(ctx context.Context, w io.Writer, r *output.Reader, which output.Stream, offset int64, follow bool) error {
	if !follow {
		s := r.Stream(which)
		_, err := io.CopyBuffer(onlyWriter{w}, io.NewSectionReader(s, offset, max(0, s.Size()-offset)), make([]byte, outputStep))
		return err
	}
	at := int64(0) // a total offset, which is at least that of a stream
	if which == output.All {
		at = offset
	}
	for {
		pieces, end, err := r.Next(ctx, at, outputStep)
		if err != nil || end {
			return err
		}
		for _, p := range pieces {
			at = p.Offset + int64(len(p.Data))
			data, from := p.Data, p.Offset
			if which != output.All {
				from = p.StreamOffset
			}
			if which == output.Stdout && p.Stderr || which == output.Stderr && !p.Stderr || from+int64(len(data)) <= offset {
				continue
			}
			if _, err := w.Write(data[max(0, offset-from):]); err != nil {
				return fmt.Errorf("send output: %w", err)
			}
		}
	}
}

// outputStep is how much of an output is read at a time.
const outputStep = 256 << 10

// onlyWriter hides what else a writer can do, so that a copy goes in steps.
type onlyWriter struct{ io.Writer }
