package gateway

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
)

const (
	pieceBytes = 32 << 10
	// maxWhole is up to where an answer that is no stream is read for its usage.
	maxWhole = 16 << 20
)

var pieces = sync.Pool{New: func() any { return new([pieceBytes]byte) }}

// answer is the way of an answer to the agent.
type answer struct {
	*call
	mask   masker
	sse    *events // nil when it is no stream of events
	strip  bool    // events that tell nothing but the usage are taken out
	queue  []byte  // with strip, the event whose end has not come
	usage  bool    // with strip, the event at hand is to be taken out
	whole  []byte  // what is no stream, for its usage
	tooBig bool    // to be read
	last   []byte  // the last byte of what is no stream, until the call is reported
}

// stream passes the answer on as it comes.
func (c *call) stream(ctx context.Context, resp *http.Response) {
	a := &answer{call: c, mask: masker{mask: c.rt.mask}}
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")) // without one it is no stream
	if media == "text/event-stream" {
		a.strip = c.strips()
		a.sse = &events{each: func(name string, data []byte, tooLong bool) {
			if tooLong || c.op != generate {
				return
			}
			meters[c.dialect].event(&c.tally, name, data)
			a.usage = a.strip && onlyUsage(data)
		}}
	}
	c.copyHeader(resp.Header)
	if resp.ContentLength >= 0 && !a.strip {
		c.w.Header().Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	c.w.WriteHeader(resp.StatusCode)
	_ = c.rc.Flush() // a gone agent shows when something is written
	readErr, writeErr := a.copy(resp.Body)
	c.conclude(ctx, a, readErr, writeErr)
}

// copy passes on what comes until it ends or cannot be passed on.
func (a *answer) copy(body io.Reader) (readErr, writeErr error) {
	buf := pieces.Get().(*[pieceBytes]byte)
	defer pieces.Put(buf)
	for {
		n, err := body.Read(buf[:])
		if n > 0 {
			a.moved()
			if a.fact.TTFT == 0 {
				a.fact.TTFT = max(a.cfg.Now().Sub(a.fact.Started), 1)
			}
			a.fact.ResponseBytes += int64(n)
			if err := a.take(a.mask.pass(buf[:n])); err != nil {
				return nil, err
			}
		}
		if err == io.EOF {
			return nil, a.finish()
		}
		if err != nil {
			return err, nil
		}
	}
}

// take reads a piece for its usage, and passes on what can be. The agent has the end of
// a stream only after the call was reported.
func (a *answer) take(p []byte) error {
	switch {
	case a.sse == nil:
		return a.takeWhole(p)
	case a.strip:
		return a.takeEvents(p)
	}
	a.sse.write(p)
	a.endIfOver()
	return a.write(p)
}

// endIfOver reports the call when its last event is at hand.
func (a *answer) endIfOver() {
	if a.tally.ended || a.tally.failed != "" {
		a.end(a.verdict())
	}
}

// verdict says how an answer that has ended has ended.
func (a *answer) verdict() (sojourn.ModelFailure, string) {
	switch t := &a.tally; {
	case t.failed != "":
		return sojourn.ModelErrorEvent, t.failed
	case !t.ended && !t.finished:
		return sojourn.ModelCut, "the answer ended before its end"
	}
	return "", ""
}

// takeEvents passes complete events on, without the one that the agent has not asked
// for.
func (a *answer) takeEvents(p []byte) error {
	a.queue = append(a.queue, p...)
	if len(a.queue) > maxEvent { // no completions have such events
		a.strip = false
		p, a.queue = a.queue, nil
		return a.take(p)
	}
	var out []byte
	for {
		event := firstEvent(a.queue)
		if event == nil {
			break
		}
		a.usage = false
		a.sse.write(event)
		if !a.usage {
			out = append(out, event...)
		}
		a.queue = a.queue[len(event):]
	}
	a.endIfOver()
	return a.write(out)
}

// takeWhole keeps an answer that is no stream until it is known what it has cost, and
// its last byte from the agent.
func (a *answer) takeWhole(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if len(a.whole)+len(p) > maxWhole {
		a.whole, a.tooBig = nil, true
	}
	if !a.tooBig {
		a.whole = append(a.whole, p...)
	}
	a.tally.textBytes += int64(len(p)) // until it is known better
	if err := a.write(a.last); err != nil {
		return err
	}
	a.last = append(a.last[:0], p[len(p)-1])
	return a.write(p[:len(p)-1])
}

// finish passes on what was kept back.
func (a *answer) finish() error {
	if err := a.take(a.mask.rest()); err != nil {
		return err
	}
	if a.sse != nil {
		a.sse.write(a.queue)
		a.sse.finish()
		a.end(a.verdict())
		return a.write(a.queue)
	}
	if a.op == generate {
		meters[a.dialect].whole(&a.tally, a.whole)
	}
	a.tally.ended = true // there is no more to come than what came
	a.end(a.verdict())
	return a.write(a.last)
}

// write gives bytes to the agent at once.
func (a *answer) write(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	// Without a deadline a stalled agent would hold the provider's connection.
	_ = a.rc.SetWriteDeadline(time.Now().Add(a.cfg.Patience)) // where the server has one
	if _, err := a.w.Write(p); err != nil {
		return err
	}
	if err := a.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// conclude reports what has not been, and cuts an answer that was cut.
func (c *call) conclude(ctx context.Context, a *answer, readErr, writeErr error) {
	switch {
	case readErr == nil && writeErr == nil:
		return
	case c.r.Context().Err() != nil || writeErr != nil:
		c.end(sojourn.ModelCancelled, "the agent went away")
	case errors.Is(context.Cause(ctx), errPatience):
		c.end(sojourn.ModelTimeout, "nothing came for too long")
	default:
		c.end(sojourn.ModelCut, "the answer was cut")
	}
	if readErr != nil && c.r.Context().Err() == nil {
		c.log.Warn("model answer cut", "provider", c.rt.Name, "model", c.fact.Model, "error", c.rt.mask.text(readErr.Error()))
		_ = a.write(a.mask.rest()) // it is cut in any case
	}
	panic(http.ErrAbortHandler)
}
