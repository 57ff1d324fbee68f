package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	t := &attachRun{
		carrier: carrier{c: c, patience: o.Patience, onCut: o.OnCut}, o: o, writer: rand.Text(), input: newInput(),
		have: o.From, buf: make([]byte, 64<<10), again: make(chan struct{}, 1),
	}
	done := make(chan struct{})
	defer close(done)
	if o.Stdin != nil {
		go t.input.read(o.Stdin, done)
	}
	err := t.keep(ctx, t.connect, func() bool { return false }, func() string { return "execution " + o.Execution })
	return t.last.Execution, err
}

// attachRun is the state of one [Client.Attach] over its connections.
type attachRun struct {
	carrier
	o      Attach
	writer string
	input  *input
	have   int64 // bytes of output of both streams
	stderr bool  // which stream the next bytes belong to
	buf    []byte
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
	return t.converse(ctx, of(t.o.Session, "executions", t.o.Execution, "attach"), v, t.send, t.hear)
}

// hear shows output, and heeds what the server says. over reports the execution's end.
func (t *attachRun) hear(ctx context.Context, _ *websocket.Conn, kind websocket.MessageType, frame io.Reader) (over bool, err error) {
	if kind == websocket.MessageBinary {
		err = t.show(frame)
	} else {
		err = t.told(frame)
	}
	if err != nil {
		return false, because(ctx, err)
	}
	return t.last.Execution.Over(), nil
}

// show writes output as it comes.
func (t *attachRun) show(frame io.Reader) error {
	to := t.o.Stdout
	if t.stderr {
		to = t.o.Stderr
	}
	for {
		n, err := frame.Read(t.buf)
		if n > 0 && to != nil {
			if _, err := to.Write(t.buf[:n]); err != nil {
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
