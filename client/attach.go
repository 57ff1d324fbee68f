package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Attach says which execution to carry and what it is connected with. A nil stream
// sends nothing, or discards.
type Attach struct {
	Session, Execution string
	// From is how many bytes of output, of both streams, the caller has already.
	From int64

	// Stdin is read in a goroutine that may outlive the call by one Read. Its end
	// ends the input, and nothing else.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Sizes          <-chan Size   // changes of the terminal
	Signals        <-chan string // to send, such as SIGINT

	// Patience is how long to wait for a server that went away; 0 means one
	// minute. The execution goes on meanwhile, and no byte is lost or comes twice.
	Patience time.Duration
	OnState  func(StartedExecution) // told each state, the last one too
	OnCut    func(error)            // told why a connection was cut, before the next
}

// Attach carries an execution until it is over, and returns how it ended. A
// connection that is cut is made anew. When ctx ends the execution goes on.
func (c *Client) Attach(ctx context.Context, o Attach) (Execution, error) {
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	t := &attachRun{c: c, o: o, writer: rand.Text(), input: newInput(), have: o.From, again: make(chan struct{}, 1)}
	done := make(chan struct{})
	defer close(done)
	if o.Stdin != nil {
		go t.input.read(o.Stdin, done)
	}
	alive, pause := time.Now(), firstPause
	for {
		err := t.connect(ctx)
		refused, answered := errors.AsType[*Error](err)
		switch {
		case err == nil:
			return t.last.Execution, nil
		case ctx.Err() != nil:
			return t.last.Execution, ctx.Err()
		case answered && refused.Status < 500 && refused.Status != http.StatusTooManyRequests:
			return t.last.Execution, err
		}
		if t.alive.After(alive) {
			alive, pause = t.alive, firstPause
		}
		if time.Since(alive) > o.Patience {
			return t.last.Execution, fmt.Errorf("execution %s: %w", o.Execution, err)
		}
		if o.OnCut != nil {
			o.OnCut(err)
		}
		if err := wait(ctx, pause); err != nil {
			return t.last.Execution, err
		}
		pause = min(2*pause, longPause)
	}
}

// attachRun is the state of one [Client.Attach] over its connections.
type attachRun struct {
	c      *Client
	o      Attach
	writer string
	input  *input
	have   int64 // bytes of output of both streams
	stderr bool  // which stream the next bytes belong to
	alive  time.Time
	last   StartedExecution
	again  chan struct{} // of one: the size is to be sent again

	mu   sync.Mutex
	size Size // the latest that was to be sent; zero for none
}

// connect carries the execution over one connection. It returns nil once it is
// over.
func (t *attachRun) connect(ctx context.Context) error {
	v := url.Values{
		"from": {strconv.FormatInt(t.have, 10)}, "writer": {t.writer}, "sent": {strconv.FormatInt(t.input.rewind(), 10)},
	}
	ws, err := t.c.socket(ctx, of(t.o.Session, "executions", t.o.Execution, "attach"), v)
	if err != nil {
		return err
	}
	defer ws.CloseNow()
	ctx, cancel := context.WithCancelCause(ctx)
	var busy sync.WaitGroup
	defer busy.Wait()
	defer cancel(nil)
	watch := time.AfterFunc(2*t.c.stall, func() { cancel(errStalled) })
	defer watch.Stop()
	busy.Go(func() { keepAlive(ctx, ws, t.c.stall, watch) })
	busy.Go(func() {
		if err := t.send(ctx, ws); err != nil {
			cancel(err)
		}
	})
	buf := make([]byte, 64<<10)
	for {
		kind, frame, err := ws.Reader(ctx)
		if err != nil {
			return because(ctx, err)
		}
		watch.Reset(2 * t.c.stall)
		t.alive = time.Now()
		if kind == websocket.MessageBinary {
			err = t.show(frame, buf)
		} else {
			err = t.told(frame)
		}
		if err != nil {
			return because(ctx, err)
		}
		if t.last.Execution.Over() {
			ws.Close(websocket.StatusNormalClosure, "") // the server may be gone by now
			return nil
		}
	}
}

// show writes output as it comes.
func (t *attachRun) show(frame io.Reader, buf []byte) error {
	to := t.o.Stdout
	if t.stderr {
		to = t.o.Stderr
	}
	for {
		n, err := frame.Read(buf)
		if n > 0 && to != nil {
			if _, err := to.Write(buf[:n]); err != nil {
				return &Error{Code: "output_closed", Message: "The output could not be written: " + err.Error()}
			}
		}
		t.have += int64(n)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// told heeds what the server says.
func (t *attachRun) told(frame io.Reader) error {
	text, err := io.ReadAll(frame)
	if err != nil {
		return err
	}
	var m struct {
		Execution *Execution
		Approval  *Interaction
		Stream    string
		Offset    *int64
		Taken     *int64
		Error     *struct{ Code, Message string }
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("decode what the server says: %w", err)
	}
	if m.Stream != "" {
		t.stderr = m.Stream == "stderr"
	}
	if m.Offset != nil && *m.Offset != t.have {
		return fmt.Errorf("%w: output at %d follows %d", ErrGap, *m.Offset, t.have)
	}
	if m.Taken != nil {
		t.input.taken(*m.Taken)
	}
	if m.Error != nil {
		return &Error{Status: statusOf(m.Error.Code), Code: m.Error.Code, Message: m.Error.Message}
	}
	if m.Execution != nil {
		t.last = StartedExecution{Execution: *m.Execution, Approval: m.Approval}
		if m.Execution.State == "running" {
			wake(t.again) // a size that came before it ran went nowhere
		}
		if t.o.OnState != nil {
			t.o.OnState(t.last)
		}
	}
	return nil
}

// send sends input, changes of size and signals.
func (t *attachRun) send(ctx context.Context, ws *websocket.Conn) error {
	for {
		if err := t.input.send(ctx, ws); err != nil {
			return err
		}
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-t.input.more:
		case size := <-t.o.Sizes:
			t.mu.Lock()
			t.size = size
			t.mu.Unlock()
			err = say(ctx, ws, map[string]any{"resize": size})
		case <-t.again:
			t.mu.Lock()
			size := t.size
			t.mu.Unlock()
			if size != (Size{}) {
				err = say(ctx, ws, map[string]any{"resize": size})
			}
		case name := <-t.o.Signals:
			err = say(ctx, ws, map[string]any{"signal": name})
		}
		if err != nil {
			return err
		}
	}
}
