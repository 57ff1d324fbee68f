package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// carrier makes a connection to a program anew whenever it is cut: what shells and
// executions have in common.
type carrier struct {
	c        *Client
	patience time.Duration // how long to wait for a server that went away
	onCut    func(error)   // told why a connection was cut, before the next; may be nil
	alive    time.Time     // the last sign of the server
}

// keep connects until that ends without an error, is refused, or is given up. what
// names the program in the error; final reports whether no other try would help.
func (k *carrier) keep(ctx context.Context, connect func(context.Context) error, final func() bool, what func() string) error {
	alive, pause := time.Now(), firstPause
	for {
		err := connect(ctx)
		refused, answered := errors.AsType[*Error](err)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case final(), answered && refused.Status < 500 && refused.Status != http.StatusTooManyRequests:
			return err
		}
		if k.alive.After(alive) {
			alive, pause = k.alive, firstPause
		}
		if time.Since(alive) > k.patience {
			return fmt.Errorf("%s: %w", what(), err)
		}
		if k.onCut != nil {
			k.onCut(err)
		}
		if err := wait(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, longPause)
	}
}

// converse carries a program over one connection: send speaks, and hear is given each
// frame until it says that it was the last one, or fails.
func (k *carrier) converse(ctx context.Context, path string, query url.Values,
	send func(context.Context, *websocket.Conn) error,
	hear func(context.Context, *websocket.Conn, websocket.MessageType, io.Reader) (over bool, err error),
) error {
	ws, err := k.c.socket(ctx, path, query)
	if err != nil {
		return err
	}
	defer ws.CloseNow()
	ctx, cancel := context.WithCancelCause(ctx)
	var busy sync.WaitGroup
	defer busy.Wait()
	defer cancel(nil)
	watch := time.AfterFunc(2*k.c.stall, func() { cancel(errStalled) })
	defer watch.Stop()
	busy.Go(func() { keepAlive(ctx, ws, k.c.stall, watch) })
	busy.Go(func() {
		if err := send(ctx, ws); err != nil {
			cancel(err)
		}
	})
	for {
		kind, frame, err := ws.Reader(ctx)
		if err != nil {
			return because(ctx, err)
		}
		watch.Reset(2 * k.c.stall)
		k.alive = time.Now()
		over, err := hear(ctx, ws, kind, frame)
		if over {
			ws.Close(websocket.StatusNormalClosure, "") // the server may be gone by now
			return err
		}
		if err != nil {
			return err
		}
	}
}
