package exec

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/output"
)

type outputInput struct {
	ExecutionPath
	Stream      string `query:"stream" enum:"stdout,stderr,all" default:"all" doc:"all is both, in the order they were written."`
	Offset      int64  `query:"offset" minimum:"0" default:"0" doc:"How many bytes to leave out; of an event stream: of both streams together."`
	Encoding    string `query:"encoding" enum:"auto,base64" doc:"Of an event stream."`
	LastEventID string `header:"Last-Event-ID" doc:"The id of the last event that you have. It wins over offset."`
	Accept      string `header:"Accept" hidden:"true"`
}

// completeHeader says whether the output is all that was written: not while there may
// be more, and not when some was cut, for which cutHeader has the reason.
const (
	completeHeader = "X-Output-Complete"
	cutHeader      = "X-Output-Cut"
)

func (h *handler) output(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "readOutput", Method: http.MethodGet, Path: executionPath + "/output", Download: "application/octet-stream",
		Scope: ScopeRead, Summary: "Read what an execution wrote",
		Description: "The raw bytes that are there now, with Range and HEAD; " + completeHeader + " says whether it is all, and " + cutHeader + " why not all was kept (limit, no_space, lost). " +
			"With \"Accept: text/event-stream\" it is the event stream of an exec call, from any byte on, and goes on until the execution ends. A place behind all that was written so far is refused.",
	}, h.readOutput)
}

func (h *handler) readOutput(ctx context.Context, in *outputInput) (*huma.StreamResponse, error) {
	at, id := ref(ctx, in.SessionID), sojourn.ExecID(in.ExecutionID)
	x, err := h.engine.ExecByID(ctx, at, id)
	if err != nil {
		return nil, err
	}
	which := output.Stream(in.Stream)
	if r := api.HTTP(ctx); api.WantsStream(r) {
		follower := &follower{at: at, which: which, always64: in.Encoding == asBase64, offset: in.Offset}
		if in.LastEventID != "" {
			if follower.offset, err = api.ParseSeq(in.LastEventID); err != nil {
				return nil, err
			}
		}
		if err := h.reaches(ctx, x, follower.offset, in.LastEventID != ""); err != nil {
			return nil, err
		}
		return h.follow(ctx, id, follower), nil
	}
	return h.content(ctx, x, which, in.Offset)
}

// aheadWait is how long a reader may be ahead of what is kept of a running execution:
// a server that comes back has to fetch again what its predecessor had in memory.
const aheadWait = 2 * time.Second

// reaches refuses a place in an output that lies behind all that was written so far: a
// reader there would miss bytes and not know it.
func (h *handler) reaches(ctx context.Context, x sojourn.Exec, offset int64, resumed bool) error {
	if offset == 0 {
		return nil
	}
	r, err := h.opened(ctx, x)
	if err != nil {
		return err
	}
	var size int64
	if r != nil {
		defer r.Close()
		wait, cancel := context.WithTimeout(ctx, aheadWait)
		defer cancel()
		_, end, err := r.Next(wait, offset-1, 1)
		if err == nil && (!end || !x.State.Terminal()) {
			return nil // without an end its writer has let go, and the follower sees what comes
		}
		if err != nil && wait.Err() == nil {
			return err
		}
		size = r.Stream(output.All).Size()
	}
	if resumed {
		return beyond(size)
	}
	return sojourn.Errorf(sojourn.CodeInvalid, "offset: there are %d bytes.", size)
}

// beyond refuses the id of an event that there was not.
func beyond(size int64) error {
	return sojourn.Errorf(sojourn.CodeInvalidCursor, "Last-Event-ID: there are %d bytes.", size)
}

// content answers with the bytes of an output.
func (h *handler) content(ctx context.Context, x sojourn.Exec, which output.Stream, offset int64) (*huma.StreamResponse, error) {
	body, done, closeBody, err := h.bytesOf(ctx, x, which)
	if err != nil {
		return nil, err
	}
	if offset > body.Size() {
		closeBody()
		return nil, sojourn.Errorf(sojourn.CodeInvalid, "offset: there are %d bytes.", body.Size())
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer closeBody()
		r, w := humago.Unwrap(hc)
		w.Header().Set("Content-Type", "application/octet-stream")
		cut := outcomeOf(x, h.engine.Now()).OutputCut
		w.Header().Set(completeHeader, strconv.FormatBool(done && cut == ""))
		if cut != "" {
			w.Header().Set(cutHeader, cut)
		}
		w.Header().Set(executionHeader, string(x.ID))
		if done {
			w.Header().Set("ETag", fmt.Sprintf(`"%s-%s-%d-%d"`, x.ID, which, offset, body.Size()))
		}
		api.Content(w, r, io.NewSectionReader(body, offset, body.Size()-offset))
	}}, nil
}

// bytesOf returns the bytes of a stream, and whether they are all.
func (h *handler) bytesOf(ctx context.Context, x sojourn.Exec, which output.Stream) (body *io.SectionReader, done bool, closeBody func() error, err error) {
	none := func() error { return nil }
	r, err := h.opened(ctx, x)
	switch {
	case err != nil:
		return nil, false, none, err
	case r == nil:
		return io.NewSectionReader(nothing{}, 0, 0), x.State.Terminal(), none, nil
	}
	// Whether it was finished is asked before the size: it may be just then.
	_, finished := r.Sizes()
	// What was lost with the server that followed it is never finished.
	return r.Stream(which), finished || x.State == sojourn.ExecLost, r.Close, nil
}

// nothing has no bytes.
type nothing struct{}

func (nothing) ReadAt([]byte, int64) (int, error) { return 0, io.EOF }
