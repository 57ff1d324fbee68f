package operator

import (
	"context"
	"errors"
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
	talk
	h    *handler
	at   engine.Ref
	id   sojourn.ExecID
	asks chan shellAsks // signals and sizes
}

// serve carries an exec until it is over, or the caller is gone.
func (a *attachment) serve(ctx context.Context, from, sent int64) {
	begun := make(chan struct{}) // closed when it can be given input
	feed := func(ctx context.Context) error { return a.feedOnce(ctx, begun, sent) }
	a.during(ctx, a.heed, feed, func(ctx context.Context) { a.carry(ctx, from, begun) }, a.obey)
}

// carry shows the exec to its end, or tells the caller why it cannot.
func (a *attachment) carry(ctx context.Context, from int64, begun chan<- struct{}) {
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
	a.last(attachSays{Error: &shellError{code, message}}, api.SocketStatus(err))
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

// heed takes note of what the caller asks. What the exec cannot do any more is no
// reason to end: its end is on its way.
func (a *attachment) heed(_ context.Context, asks shellAsks) error {
	if asks.EOF {
		return a.input.put(nil)
	}
	select {
	case a.asks <- asks:
	default: // more of them than anybody means
	}
	return nil
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

// feedOnce gives the exec its input, once it runs, and says what it has taken.
func (a *attachment) feedOnce(ctx context.Context, begun <-chan struct{}, at int64) error {
	select {
	case <-begun:
	case <-ctx.Done():
		return nil
	}
	return a.feed(ctx, at, func(ctx context.Context, at int64, data []byte) error {
		err := a.h.engine.WriteExec(ctx, a.at, a.id, a.who, at, data, data == nil)
		if code := sojourn.CodeOf(err); code == sojourn.CodeInvalidState || code == sojourn.CodeInvalid {
			return nil
		}
		return err
	}, func(at *int64) any { return attachSays{Taken: at} })
}
