package operator

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"sync"

	"github.com/coder/websocket"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// errGone ends a talk whose caller is gone.
var errGone = errors.New("the caller is gone")

// talk is one WebSocket between a caller and a program in a sandbox: binary frames are
// input and output, text frames say the rest.
type talk struct {
	conn    *websocket.Conn
	request context.Context
	who     string // the writer
	input   *inputQueue
}

func newTalk(conn *websocket.Conn, request context.Context, who string) talk {
	return talk{conn: conn, request: request, who: cmp.Or(who, rand.Text()), input: newInputQueue()}
}

// during runs what goes on beside show, and ends it with show. The context of show
// ends, and has its cause, when the caller is gone, when heed refuses what the caller
// asks, or when feed fails.
func (t *talk) during(ctx context.Context, heed func(context.Context, shellAsks) error, feed func(context.Context) error,
	show func(context.Context), beside ...func(context.Context),
) {
	ctx, end := context.WithCancelCause(ctx)
	// Ending a read breaks the connection, over which the reason is still to go.
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	var busy sync.WaitGroup
	defer busy.Wait()
	defer stopReading()
	defer end(nil)
	busy.Go(func() { api.KeepAlive(ctx, t.conn) })
	busy.Go(func() { end(t.listen(reading, heed)) })
	busy.Go(func() {
		if err := feed(ctx); err != nil {
			end(err)
		}
	})
	for _, f := range beside {
		busy.Go(func() { f(ctx) })
	}
	show(ctx)
}

// last says one thing more and closes, if that still goes through.
func (t *talk) last(v any, status websocket.StatusCode) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.request), api.WriteTimeout)
	defer cancel()
	if t.say(ctx, v) == nil {
		t.conn.Close(status, "") // it is over either way
	}
}

func (t *talk) say(ctx context.Context, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return t.send(ctx, websocket.MessageText, text)
}

func (t *talk) send(ctx context.Context, kind websocket.MessageType, data []byte) error {
	if err := t.conn.Write(ctx, kind, data); err != nil {
		return errors.Join(errGone, err)
	}
	return nil
}

// listen reads what the caller sends, and returns why there is no more. It never
// waits for the input to be taken, so that signals and pings come through.
func (t *talk) listen(ctx context.Context, heed func(context.Context, shellAsks) error) error {
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
		if err := heed(ctx, asks); err != nil {
			return err
		}
	}
}

// feed gives a program its input, which begins at an offset, and has said what it has
// taken. data is nil at the end of the input.
func (t *talk) feed(ctx context.Context, at int64, write func(ctx context.Context, at int64, data []byte) error, taken func(at *int64) any) error {
	for {
		data, ok := t.input.next(ctx)
		if !ok {
			return nil
		}
		if err := write(ctx, at, data); err != nil {
			return err
		}
		at += int64(len(data)) // what a program does not take any more is gone, as in a closed pipe
		t.input.taken(len(data))
		if data != nil {
			if err := t.say(ctx, taken(&at)); err != nil {
				return err
			}
		}
	}
}
