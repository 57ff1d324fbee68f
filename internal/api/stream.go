package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sojourn-dev/sojourn"
)

// WriteTimeout is how long a stream waits for its reader to take anything, give
// or take a second.
const WriteTimeout = 10 * time.Second

// writeStep is how many bytes a reader must take within one [WriteTimeout], so
// that a large event to a slow but living reader is not cut.
const writeStep = 64 << 10

// Frame is an event with its encoded forms.
type Frame interface {
	// Encoded returns the form called name, made by encode if it was not yet.
	Encoded(name string, encode func(sojourn.Event) []byte) []byte
}

// Cursor is a reader's place in a session's log.
type Cursor[F Frame] interface {
	// Next waits for events behind the cursor, in order and without a gap. When
	// ctx ends first it returns the context's error and the cursor stays.
	Next(ctx context.Context) ([]F, error)
	Close()
}

// EncodeFrame writes an event as a stream shows it. data is JSON in one line.
func EncodeFrame(seq int64, event string, data []byte) []byte {
	b := make([]byte, 0, len(data)+len(event)+48)
	b = append(b, "id: "...)
	b = strconv.AppendInt(b, seq, 10)
	b = append(b, "\nevent: "...)
	b = append(b, event...)
	b = append(b, "\ndata: "...)
	b = append(b, data...)
	return append(b, "\n\n"...)
}

// Log answers a read of an event log: with the events behind the cursor that follow
// opens if the caller wants a stream, and with the page that page reads otherwise. name
// and encode are those of [Stream].
func Log[F Frame](ctx context.Context, name string, encode func(sojourn.Event) []byte,
	follow func() (Cursor[F], error), page func() (any, error),
) (*huma.StreamResponse, error) {
	if !WantsStream(HTTP(ctx)) {
		body, err := page()
		if err != nil {
			return nil, err
		}
		return Answer(http.StatusOK, body, nil), nil
	}
	cursor, err := follow()
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		r, w := humago.Unwrap(hc)
		Stream(w, r, cursor, name, encode)
	}}, nil
}

// Stream answers with the events behind cursor, for as long as the reader, the
// key and the server last, and closes the cursor. Each event has the form called
// name, which encode makes with [EncodeFrame].
func Stream[F Frame](w http.ResponseWriter, r *http.Request, cursor Cursor[F], name string, encode func(sojourn.Event) []byte) {
	defer cursor.Close()
	Feed(w, r, func(ctx context.Context, write func([]byte) error) error {
		frames, err := cursor.Next(ctx)
		if err != nil {
			return err
		}
		for _, f := range frames {
			if err := write(f.Encoded(name, encode)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Feed answers with an event stream, for as long as the reader, the key and the
// server last, or until next returns [io.EOF]: that ends it well. next waits for
// what comes next and writes it; when its context ends first it returns an error,
// and is called again after a heartbeat.
func Feed(w http.ResponseWriter, r *http.Request, next func(ctx context.Context, write func([]byte) error) error) {
	rq := requestOf(r.Context())
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	if r.ProtoMajor == 1 {
		h.Set("Connection", "close") // a write deadline outlives the request
	}
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	revoked := rq.service.c.Auth.Watch(rq.caller.Key)
	ctx, end := context.WithCancelCause(r.Context())
	defer end(nil)
	defer context.AfterFunc(revoked, func() { end(errRevoked) })()
	defer context.AfterFunc(rq.service.c.Stop, func() { end(errStopping) })()
	s := &stream{w: w, conn: http.NewResponseController(w), rq: rq}
	s.note("open")
	for s.err == nil {
		s.err = feed(ctx, s, next)
	}
	s.close(context.Cause(ctx))
}

// Why a stream ends on our side.
var (
	errRevoked  = errors.New("the key was revoked")
	errStopping = errors.New("the server is stopping")
)

// feed writes what comes until the next heartbeat is due, and that heartbeat.
func feed(ctx context.Context, s *stream, next func(context.Context, func([]byte) error) error) error {
	beat, cancel := context.WithTimeout(ctx, s.rq.service.c.Heartbeat)
	defer cancel()
	for {
		err := next(beat, s.write)
		switch {
		case errors.Is(err, io.EOF):
			return errors.Join(io.EOF, s.flush())
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && beat.Err() != nil:
			if err := s.rq.service.c.Auth.Valid(ctx, s.rq.caller.Key); sojourn.CodeOf(err) == sojourn.CodeUnauthenticated {
				return errRevoked
			}
			return s.note("heartbeat")
		case err != nil:
			return err
		}
		if err := s.flush(); err != nil {
			return err
		}
	}
}

// stream writes to one reader.
type stream struct {
	w     http.ResponseWriter
	conn  *http.ResponseController
	rq    *request
	armed time.Time // when the write deadline was set
	err   error
}

// write hands over b, with a deadline for each step of it.
func (s *stream) write(b []byte) error {
	for len(b) > 0 {
		step := b[:min(len(b), writeStep)]
		if err := s.arm(); err != nil {
			return err
		}
		if _, err := s.w.Write(step); err != nil {
			return err
		}
		b = b[len(step):]
	}
	return nil
}

func (s *stream) flush() error {
	if err := s.arm(); err != nil {
		return err
	}
	return s.conn.Flush()
}

// arm sets the deadline of the writes that follow, at most once a second: a timer
// for each would be a good part of the cost of a small event.
func (s *stream) arm() error {
	now := time.Now()
	if now.Sub(s.armed) < time.Second {
		return nil
	}
	s.armed = now
	err := s.conn.SetWriteDeadline(now.Add(WriteTimeout + time.Second))
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}

// note writes a comment, which readers skip.
func (s *stream) note(text string) error {
	if err := s.write([]byte(": " + text + "\n\n")); err != nil {
		return err
	}
	return s.flush()
}

// close ends the stream, with a word of why when that is not the reader.
func (s *stream) close(cause error) {
	switch {
	case errors.Is(s.err, io.EOF):
	case errors.Is(s.err, errRevoked), errors.Is(s.err, errStopping):
		s.note("closed: " + s.err.Error()) // if it still goes through
	case cause == nil && s.rq.http.Context().Err() == nil:
		s.rq.service.c.Log.Warn("a stream ended", "contract", s.rq.service.c.Contract.Name,
			"request", s.rq.id, "error", s.err.Error())
		panic(http.ErrAbortHandler) // the reader must not take this for the end
	}
}
