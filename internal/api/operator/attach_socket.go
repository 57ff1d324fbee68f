package operator

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/output"
)

// attachSays is what the server says on the WebSocket of an execution.
type attachSays struct {
	Execution *Execution   `json:"execution,omitempty"`
	Approval  *Interaction `json:"approval,omitempty"`
	Stream    string       `json:"stream,omitempty"`
	Offset    *int64       `json:"offset,omitempty"`
	Taken     *int64       `json:"taken,omitempty"`
	Error     *shellError  `json:"error,omitempty"`
}

// attachment is one connection to an exec.
type attachment struct {
	h       *handler
	at      engine.Ref
	id      sojourn.ExecID
	conn    *websocket.Conn
	request context.Context
	who     string // the writer
	input   *inputQueue
	asks    chan shellAsks // signals and sizes
}

// serve carries an exec until it is over, or the caller is gone.
func (a *attachment) serve(ctx context.Context, from, sent int64) {
	a.who, a.asks = cmp.Or(a.who, rand.Text()), make(chan shellAsks, 16)
	ctx, end := context.WithCancelCause(ctx)
	// Ending a read breaks the connection, over which the reason is still to go.
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	var busy sync.WaitGroup
	defer busy.Wait()
	defer stopReading()
	defer end(nil)
	begun := make(chan struct{}) // closed when it can be given input
	busy.Go(func() { api.KeepAlive(ctx, a.conn) })
	busy.Go(func() { end(a.listen(reading)) })
	busy.Go(func() { a.obey(ctx) })
	busy.Go(func() {
		if err := a.feed(ctx, begun, sent); err != nil {
			end(err)
		}
	})
	err := a.show(ctx, from, begun)
	if err == nil {
		a.conn.Close(websocket.StatusNormalClosure, "") // whether the caller read it is the caller's matter
		return
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if errors.Is(err, errGone) {
		return
	}
	code, message := api.Told(a.request, err)
	last, cancel := context.WithTimeout(context.WithoutCancel(a.request), api.WriteTimeout)
	defer cancel()
	if a.say(last, attachSays{Error: &shellError{code, message}}) == nil {
		a.conn.Close(api.SocketStatus(err), "") // it is over either way
	}
}

func (a *attachment) say(ctx context.Context, s attachSays) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return a.send(ctx, websocket.MessageText, text)
}

func (a *attachment) send(ctx context.Context, kind websocket.MessageType, data []byte) error {
	if err := a.conn.Write(ctx, kind, data); err != nil {
		return errors.Join(errGone, err)
	}
	return nil
}

// show sends what becomes of the exec and what it writes, to its end.
func (a *attachment) show(ctx context.Context, from int64, begun chan<- struct{}) error {
	x, err := a.waitBegun(ctx)
	if err != nil {
		return err
	}
	if x.State == sojourn.ExecRunning {
		close(begun)
	}
	if x.StartedAt.IsZero() { // it never ran, and has written nothing
		return nil
	}
	if err := a.showOutput(ctx, from); err != nil {
		return err
	}
	if x.State.Terminal() {
		return a.tell(ctx, sojourn.Facts{}, x)
	}
	f, x, err := a.h.engine.WaitExec(ctx, a.at, a.id)
	if err != nil {
		return err
	}
	return a.tell(ctx, f, x)
}

func (a *attachment) tell(ctx context.Context, f sojourn.Facts, x sojourn.Exec) error {
	b := executionBody(f, x)
	return a.say(ctx, attachSays{Execution: &b.Execution, Approval: b.Approval})
}

// waitBegun tells each state that the exec is in until it runs or is over. The end
// of one that ran is not told yet: what it wrote comes first.
func (a *attachment) waitBegun(ctx context.Context) (sojourn.Exec, error) {
	f, err := a.h.engine.Session(ctx, a.at)
	if err != nil {
		return sojourn.Exec{}, err
	}
	// Each change of an exec is an event: whoever reads the log from a point
	// before the first look misses none.
	events, err := a.h.engine.Follow(ctx, a.at, f.Session.LastSeq)
	if err != nil {
		return sojourn.Exec{}, err
	}
	defer events.Close()
	for told := sojourn.ExecState(""); ; {
		x, err := a.h.engine.ExecByID(ctx, a.at, a.id)
		if err != nil {
			return x, err
		}
		if x.State != told && (!x.State.Terminal() || x.StartedAt.IsZero()) {
			if x.State == sojourn.ExecParked {
				if f, err = a.h.engine.Session(ctx, a.at); err != nil {
					return x, err
				}
			}
			if err := a.tell(ctx, f, x); err != nil {
				return x, err
			}
		}
		if told = x.State; told == sojourn.ExecRunning || told.Terminal() {
			return x, nil
		}
		if _, err := events.Next(ctx); err != nil {
			return x, err
		}
	}
}

// showOutput sends what the exec writes, from a total offset to the end.
func (a *attachment) showOutput(ctx context.Context, from int64) error {
	stream, next := "", int64(-1)
	return a.h.pieces(ctx, a.at, a.id, from, func(p output.Piece) error {
		name := "stdout"
		if p.Stderr {
			name = "stderr"
		}
		if name != stream || p.Offset != next {
			if err := a.say(ctx, attachSays{Stream: name, Offset: &p.Offset}); err != nil {
				return err
			}
		}
		stream, next = name, p.Offset+int64(len(p.Data))
		return a.send(ctx, websocket.MessageBinary, p.Data)
	})
}

// listen reads what the caller sends, and returns why there is no more. It never
// waits for the input to be taken, so that signals and pings come through.
func (a *attachment) listen(ctx context.Context) error {
	for {
		kind, data, err := a.conn.Read(ctx)
		if err != nil {
			return errors.Join(errGone, err)
		}
		if kind == websocket.MessageBinary {
			if err := a.input.put(data); err != nil {
				return err
			}
			continue
		}
		var asks shellAsks
		if err := json.Unmarshal(data, &asks); err != nil {
			return sojourn.Errorf(sojourn.CodeInvalid, "A text frame is not what is understood here.")
		}
		// What the exec cannot do any more is no reason to end: its end is on its way.
		switch {
		case asks.EOF:
			err = a.input.put(nil)
		default:
			select {
			case a.asks <- asks:
			default: // more of them than anybody means
			}
		}
		if err != nil {
			return err
		}
	}
}

// obey does what the caller asks, in order.
func (a *attachment) obey(ctx context.Context) {
	for {
		select {
		case asks := <-a.asks:
			a.do(ctx, asks)
		case <-ctx.Done():
			return
		}
	}
}

// do signals and resizes, if the exec can be reached soon: who asks does not wait
// for one that runs later, or is on its way to another sandbox.
func (a *attachment) do(ctx context.Context, asks shellAsks) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	if asks.Signal != "" {
		_ = a.h.engine.SignalExec(ctx, a.at, a.id, asks.Signal)
	}
	if asks.Resize != nil {
		_ = a.h.engine.ResizeExec(ctx, a.at, a.id, asks.Resize.Rows, asks.Resize.Cols)
	}
}

// askPatience is how long a signal and a change of size are tried.
const askPatience = 5 * time.Second

// feed gives the exec its input, once it runs, and says what it has taken.
func (a *attachment) feed(ctx context.Context, begun <-chan struct{}, at int64) error {
	select {
	case <-begun:
	case <-ctx.Done():
		return nil
	}
	for {
		data, ok := a.input.next(ctx)
		if !ok {
			return nil
		}
		err := a.h.engine.WriteExec(ctx, a.at, a.id, a.who, at, data, data == nil)
		if code := sojourn.CodeOf(err); err != nil && code != sojourn.CodeInvalidState && code != sojourn.CodeInvalid {
			return err
		}
		at += int64(len(data)) // what an exec does not take any more is gone, as in a closed pipe
		a.input.taken(len(data))
		if data != nil {
			if err := a.say(ctx, attachSays{Taken: &at}); err != nil {
				return err
			}
		}
	}
}
