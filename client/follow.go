package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// ErrGap is a stream that left out a number: its server is broken, because the
// log of a session has no gap.
var ErrGap = errors.New("the event stream left out a number")

// Follow says which log to follow.
type Follow struct {
	Session string
	After   int64 // the last event that you have; 0 for the whole log
	// Patience is how long to wait for a server that went away; 0 means one
	// minute, a negative one for ever.
	Patience time.Duration
	// OnCut is told why a stream was cut, before it is resumed; nil for nothing.
	OnCut func(error)
}

// The pause between attempts to resume a stream.
const (
	firstPause = 100 * time.Millisecond
	longPause  = 2 * time.Second
)

// Follow calls each with the events behind f.After in order, each once, until
// each returns false or an error, ctx ends, or the server stays away. A stream
// that is cut is resumed. It returns the number of the last event that each was
// called with.
func (c *Client) Follow(ctx context.Context, f Follow, each func(Event) (more bool, err error)) (last int64, err error) {
	if f.Patience == 0 {
		f.Patience = time.Minute
	}
	w := &follower{c: c, f: f, last: f.After, each: each, alive: time.Now()}
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		before := w.alive
		err := w.stream(ctx)
		switch refused, ok := errors.AsType[*Error](err); {
		case err == nil, w.final:
			return w.last, err
		case ctx.Err() != nil:
			return w.last, ctx.Err()
		case ok && refused.Status < 500 && refused.Status != http.StatusTooManyRequests:
			return w.last, err
		case ok:
			pause = max(pause, refused.RetryAfter)
		}
		if w.alive.After(before) {
			pause = firstPause
		}
		if f.Patience > 0 && time.Since(w.alive) > f.Patience {
			return w.last, fmt.Errorf("follow session %s: %w", f.Session, err)
		}
		if f.OnCut != nil {
			f.OnCut(err)
		}
		if err := wait(ctx, pause); err != nil {
			return w.last, err
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// follower is the state of one [Client.Follow].
type follower struct {
	c     *Client
	f     Follow
	each  func(Event) (bool, error)
	last  int64
	alive time.Time // when the server last showed that it lives
	final bool      // there is nothing to resume
}

// errStalled is a stream that was silent for too long.
var errStalled = errors.New("the event stream fell silent")

// stream reads one stream to its end. It returns nil when each wants no more.
func (w *follower) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(w.c.stall, func() { cancel(errStalled) })
	defer watch.Stop()
	header := http.Header{"Accept": {"text/event-stream"}}
	if w.last > 0 {
		header.Set("Last-Event-ID", strconv.FormatInt(w.last, 10))
	}
	res, err := w.c.send(ctx, http.MethodGet, of(w.f.Session, "events"), nil, header, nil)
	if err != nil {
		return because(ctx, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errorOf(res)
	}
	w.alive = time.Now()
	r := messages{r: bufio.NewReaderSize(res.Body, 64<<10), onBytes: func() {
		w.alive = time.Now()
		watch.Reset(w.c.stall)
	}}
	for {
		data, err := r.next()
		if err != nil {
			return because(ctx, err)
		}
		if more, err := w.deliver(data); err != nil || !more {
			w.final = true
			return err
		}
	}
}

// because returns why a stream was given up, if it was we who did, else err.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// deliver hands over one event. An event that was delivered before is left out.
func (w *follower) deliver(data []byte) (bool, error) {
	var e Event
	if err := json.Unmarshal(data, &e); err != nil {
		return false, fmt.Errorf("decode the event behind %d: %w", w.last, err)
	}
	switch {
	case e.Sequence <= w.last:
		return true, nil
	case e.Sequence != w.last+1:
		return false, fmt.Errorf("%w: %d follows %d", ErrGap, e.Sequence, w.last)
	}
	w.last = e.Sequence
	return w.each(e)
}

// messages reads the data of server-sent events. A line may have any length.
type messages struct {
	r       *bufio.Reader
	onBytes func() // called when something came, comments too
	line    bytes.Buffer
	data    bytes.Buffer
}

// next returns the data of the next message that has any. It is valid until the
// next call. A message that the stream ends in is not returned.
func (m *messages) next() ([]byte, error) {
	m.data.Reset()
	some := false
	for {
		line, err := m.readLine()
		if err != nil {
			return nil, err
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case len(line) == 0 && some:
			return m.data.Bytes(), nil
		case string(field) == "data":
			if some {
				m.data.WriteByte('\n')
			}
			some = true
			m.data.Write(bytes.TrimPrefix(value, []byte(" ")))
		}
	}
}

// readLine returns the next line without its end.
func (m *messages) readLine() ([]byte, error) {
	m.line.Reset()
	for {
		part, err := m.r.ReadSlice('\n')
		m.line.Write(part)
		m.onBytes()
		switch {
		case err == nil:
			line := bytes.TrimSuffix(m.line.Bytes(), []byte("\n"))
			return bytes.TrimSuffix(line, []byte("\r")), nil
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}
