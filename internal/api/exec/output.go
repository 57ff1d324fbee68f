package exec

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
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
	all, err := h.wrote(ctx, x, which)
	if err != nil {
		return nil, err
	}
	if offset > all.size {
		all.close()
		return nil, sojourn.Errorf(sojourn.CodeInvalid, "offset: there are %d bytes.", all.size)
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer all.close()
		r, w := humago.Unwrap(hc)
		w.Header().Set("Content-Type", "application/octet-stream")
		cut := outcomeOf(x, h.engine.Now()).OutputCut
		w.Header().Set(completeHeader, strconv.FormatBool(all.done && cut == ""))
		if cut != "" {
			w.Header().Set(cutHeader, cut)
		}
		w.Header().Set(executionHeader, string(x.ID))
		if all.done {
			w.Header().Set("ETag", fmt.Sprintf(`"%s-%s-%d-%d"`, x.ID, which, offset, all.size))
		}
		api.Content(w, r, all.from(offset))
	}}, nil
}

// wrote is what there is of a stream of an output. It must be closed.
type wrote struct {
	reader *output.Reader // nil when there is nothing
	file   *os.File       // that holds the stream by itself; or nil
	stream io.ReaderAt    // its bytes when there is no such file
	size   int64
	done   bool // nothing will come behind it
}

// wrote looks at what an execution has written.
func (h *handler) wrote(ctx context.Context, x sojourn.Exec, which output.Stream) (wrote, error) {
	r, err := h.opened(ctx, x)
	if err != nil || r == nil {
		return wrote{done: x.State.Terminal()}, err
	}
	// Whether it was finished is asked before the size: it may be just then. What was
	// lost with the server that followed it is never finished.
	_, finished := r.Sizes()
	w := wrote{reader: r, done: finished || x.State == sojourn.ExecLost}
	if w.file, w.size, err = r.File(which); err != nil {
		r.Close()
		return wrote{}, err
	}
	if w.file == nil {
		stream := r.Stream(which)
		w.stream, w.size = stream, stream.Size()
	}
	return w, nil
}

// from returns the bytes behind an offset.
func (w wrote) from(offset int64) io.ReadSeeker {
	switch {
	case w.file != nil:
		return api.NewStretch(w.file, offset, w.size-offset)
	case w.stream != nil:
		return io.NewSectionReader(w.stream, offset, w.size-offset)
	default:
		return bytes.NewReader(nil)
	}
}

func (w wrote) close() {
	if w.file != nil {
		w.file.Close()
	}
	if w.reader != nil {
		w.reader.Close()
	}
}
