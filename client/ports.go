package client

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"

	"github.com/coder/websocket"
)

// pieceBytes is how much of a stream one frame carries.
const pieceBytes = 64 << 10

// Forward connects conn with a TCP port in a session's sandbox, at its loopback
// address, and returns when either side has ended or ctx has. It does not close
// conn, whose reads must end soon after, at the latest when the caller closes it.
// A port that nobody listens on is an [*Error] with the status 404.
func (c *Client) Forward(ctx context.Context, session string, port int, conn net.Conn) error {
	ws, err := c.socket(ctx, of(session, "ports", strconv.Itoa(port)), nil)
	if err != nil {
		return err
	}
	defer ws.CloseNow()
	ctx, cancel := context.WithCancel(ctx)
	var sending sync.WaitGroup
	defer sending.Wait()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // frees the read below
	defer cancel()
	sending.Go(func() {
		if err := upload(ctx, ws, conn); err != nil {
			cancel()
		}
	})
	for {
		_, data, err := ws.Read(ctx)
		switch {
		case websocket.CloseStatus(err) == websocket.StatusNormalClosure:
			return nil
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		}
		if _, err := conn.Write(data); err != nil {
			return err
		}
	}
}

// upload sends what comes from r until its end, and then says that it was that.
func upload(ctx context.Context, ws *websocket.Conn, r io.Reader) error {
	buf := make([]byte, pieceBytes)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := ws.Write(ctx, websocket.MessageBinary, buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return ws.Write(ctx, websocket.MessageText, nil)
		case err != nil:
			return err
		}
	}
}
