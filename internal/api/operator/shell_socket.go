package operator

import (
	"context"
	"errors"

	"github.com/coder/websocket"

	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

// shellSays is what the server says on the WebSocket of a shell.
type shellSays struct {
	Started  *shellStarted `json:"started,omitempty"`
	Stream   string        `json:"stream,omitempty"`
	Offset   *int64        `json:"offset,omitempty"`
	Gap      int64         `json:"gap,omitempty"`
	Taken    *int64        `json:"taken,omitempty"`
	Exit     *shellExit    `json:"exit,omitempty"`
	Detached bool          `json:"detached,omitempty"`
	Reason   string        `json:"reason,omitempty"`
	Error    *shellError   `json:"error,omitempty"`
}

type shellStarted struct {
	Name       string `json:"name"`
	TTY        bool   `json:"tty"`
	Reattached bool   `json:"reattached"`
}

type shellExit struct {
	Code    *int   `json:"code,omitempty"`
	Signal  string `json:"signal,omitempty"`
	Failure string `json:"failure,omitempty"`
}

type shellError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// shellAsks is what the caller says.
type shellAsks struct {
	Resize *struct {
		Rows uint16 `json:"rows"`
		Cols uint16 `json:"cols"`
	} `json:"resize"`
	Signal string `json:"signal"`
	EOF    bool   `json:"eof"`
	Detach bool   `json:"detach"`
	Taken  *int64 `json:"taken"`
}

// terminal is one connection to a shell.
type terminal struct {
	talk
	sh   *engine.Shell
	sent int64 // of its input before the first frame
}

// errDetach ends a connection whose caller leaves the shell.
var errDetach = errors.New("the caller detaches")

// serve carries a shell until it has ended, or the caller has. It reports whether
// the caller knows the shell's end.
func (t *terminal) serve(ctx context.Context, rows, cols uint16) (told bool) {
	t.during(ctx, t.heed, t.feedShell, func(ctx context.Context) { told = t.carry(ctx, rows, cols) })
	return told
}

// carry shows the shell to its end, or tells the caller why it goes on without.
func (t *terminal) carry(ctx context.Context, rows, cols uint16) (told bool) {
	exit, err := t.show(ctx, rows, cols)
	if err == nil && t.say(ctx, shellSays{Exit: &shellExit{exit.Code, exit.Signal, exit.Failure}}) == nil {
		// The closing handshake says that the caller has read that far. Either of
		// the two that read may see it.
		polite := t.conn.Close(websocket.StatusNormalClosure, "") == nil
		<-ctx.Done()
		return polite || websocket.CloseStatus(context.Cause(ctx)) == websocket.StatusNormalClosure
	}
	t.part(ctx, err)
	return false
}

// part tells the caller why the connection ends although the shell goes on.
func (t *terminal) part(ctx context.Context, err error) {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, errGone), cause == nil && errors.Is(err, errGone):
	case errors.Is(cause, errDetach):
		t.last(shellSays{Detached: true}, websocket.StatusNormalClosure)
	case cause == nil && t.sh.Lost():
		t.last(shellSays{Detached: true, Reason: "taken_over"}, websocket.StatusNormalClosure)
	default:
		if cause != nil {
			err = cause
		}
		code, message := api.Told(t.request, err)
		t.last(shellSays{Error: &shellError{code, message}}, api.SocketStatus(err))
	}
}

// show sends what the shell writes, and returns how it ended.
func (t *terminal) show(ctx context.Context, rows, cols uint16) (*engine.Exit, error) {
	if err := t.say(ctx, shellSays{Started: &shellStarted{t.sh.Name, t.sh.TTY, t.sh.Reattached}}); err != nil {
		return nil, err
	}
	if t.sh.TTY && t.sh.Reattached {
		if err := t.sh.Resize(ctx, rows, cols); err != nil {
			return nil, err
		}
	}
	stream, offset := "", int64(-1)
	for {
		out, gap, exit, err := t.sh.Next(ctx)
		if err != nil {
			return nil, err
		}
		if gap > 0 {
			if err := t.say(ctx, shellSays{Gap: gap}); err != nil {
				return nil, err
			}
		}
		for _, o := range out {
			name := "stdout"
			if o.Stderr {
				name = "stderr"
			}
			if name != stream || o.Offset != offset {
				if err := t.say(ctx, shellSays{Stream: name, Offset: &o.Offset}); err != nil {
					return nil, err
				}
			}
			if err := t.send(ctx, websocket.MessageBinary, o.Data); err != nil {
				return nil, err
			}
			stream, offset = name, o.Offset+int64(len(o.Data))
		}
		if exit != nil {
			return exit, nil
		}
	}
}

// heed does what the caller asks. What the shell cannot do any more is no reason
// to end: its end is on its way.
func (t *terminal) heed(ctx context.Context, asks shellAsks) error {
	switch {
	case asks.Detach:
		return errDetach
	case asks.EOF:
		return t.input.put(nil)
	case asks.Taken != nil:
		return t.sh.Release(ctx, *asks.Taken)
	case asks.Signal != "":
		_ = t.sh.Signal(ctx, asks.Signal)
	case asks.Resize != nil && t.sh.TTY:
		_ = t.sh.Resize(ctx, asks.Resize.Rows, asks.Resize.Cols)
	}
	return nil
}

// feedShell gives the shell its input and says what it has taken.
func (t *terminal) feedShell(ctx context.Context) error {
	return t.feed(ctx, t.sent, func(ctx context.Context, at int64, data []byte) error {
		var err error
		if data == nil {
			err = t.sh.CloseInput(ctx)
		} else {
			err = t.sh.Write(ctx, t.who, at, data)
		}
		if errors.Is(err, engine.ErrInputOver) {
			return nil
		}
		return err
	}, func(at *int64) any { return shellSays{Taken: at} })
}
