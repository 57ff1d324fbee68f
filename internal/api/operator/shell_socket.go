package operator

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"sync"

	"github.com/coder/websocket"

	"github.com/sojourn-dev/sojourn"
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
	sh      *engine.Shell
	conn    *websocket.Conn
	request context.Context
	who     string // the writer
	sent    int64  // of its input before the next frame; the reader's alone

	input *inputQueue
}

// Why a connection to a shell ends.
var (
	errDetach = errors.New("the caller detaches")
	errGone   = errors.New("the caller is gone")
)

// serve carries a shell until it has ended, or the caller has. It reports whether
// the caller knows the shell's end.
func (t *terminal) serve(ctx context.Context, rows, cols uint16) (told bool) {
	if t.who == "" {
		t.who = rand.Text()
	}
	t.input = newInputQueue()
	ctx, end := context.WithCancelCause(ctx)
	// Ending a read breaks the connection, over which the reason is still to go.
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	var busy sync.WaitGroup
	defer busy.Wait()
	defer stopReading()
	defer end(nil)
	first := t.sent
	busy.Go(func() { api.KeepAlive(ctx, t.conn) })
	busy.Go(func() { end(t.listen(reading)) })
	busy.Go(func() {
		if err := t.feed(ctx, first); err != nil {
			end(err)
		}
	})
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

// last says one thing more and closes, if that still goes through.
func (t *terminal) last(s shellSays, status websocket.StatusCode) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.request), api.WriteTimeout)
	defer cancel()
	if t.say(ctx, s) == nil {
		t.conn.Close(status, "") // it is over either way
	}
}

func (t *terminal) say(ctx context.Context, s shellSays) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return t.send(ctx, websocket.MessageText, text)
}

func (t *terminal) send(ctx context.Context, kind websocket.MessageType, data []byte) error {
	if err := t.conn.Write(ctx, kind, data); err != nil {
		return errors.Join(errGone, err)
	}
	return nil
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

// listen reads what the caller sends, and returns why there is no more. It never
// waits for the shell, so that signals and pings come through.
func (t *terminal) listen(ctx context.Context) error {
	for {
		kind, data, err := t.conn.Read(ctx)
		if err != nil {
			return errors.Join(errGone, err)
		}
		if kind == websocket.MessageBinary {
			if err := t.input.put(data); err != nil {
				return err
			}
			continue
		}
		var asks shellAsks
		if err := json.Unmarshal(data, &asks); err != nil {
			return sojourn.Errorf(sojourn.CodeInvalid, "A text frame is not what is understood here.")
		}
		if err := t.heed(ctx, asks); err != nil {
			return err
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

// feed gives the shell its input and says what it has taken.
func (t *terminal) feed(ctx context.Context, at int64) error {
	for {
		data, ok := t.input.next(ctx)
		if !ok {
			return nil
		}
		var err error
		if data == nil {
			err = t.sh.CloseInput(ctx)
		} else {
			err = t.sh.Write(ctx, t.who, at, data)
		}
		if err != nil && !errors.Is(err, engine.ErrInputOver) {
			return err
		}
		at += int64(len(data))
		t.input.taken(len(data))
		if data != nil {
			if err := t.say(ctx, shellSays{Taken: &at}); err != nil {
				return err
			}
		}
	}
}
