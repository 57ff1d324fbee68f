package link

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/coder/websocket"
)

// WebSocket carries one message in each WebSocket message. It takes over the
// connection's read limit.
func WebSocket(c *websocket.Conn) Transport {
	c.SetReadLimit(MaxFrameBytes)
	ctx, cancel := context.WithCancel(context.Background())
	return &socket{conn: c, ctx: ctx, cancel: cancel}
}

type socket struct {
	conn   *websocket.Conn
	ctx    context.Context // ends with Close: the methods of conn know no other way to stop
	cancel context.CancelFunc
}

func (s *socket) Read() ([]byte, error) {
	_, msg, err := s.conn.Read(s.ctx)
	if err == nil {
		return msg, nil
	}
	switch websocket.CloseStatus(err) {
	case websocket.StatusNormalClosure, websocket.StatusGoingAway:
		return nil, io.EOF
	}
	if errors.Is(err, websocket.ErrMessageTooBig) {
		return nil, fmt.Errorf("read message: %w", ErrFrameTooLarge)
	}
	return nil, fmt.Errorf("read message: %w", err)
}

func (s *socket) Write(msg []byte) error {
	if len(msg) > MaxFrameBytes {
		return fmt.Errorf("write message of %d bytes: %w", len(msg), ErrFrameTooLarge)
	}
	return s.conn.Write(s.ctx, websocket.MessageText, msg)
}

// Close drops the connection without the closing handshake: the far side may
// be silent, and nothing in this protocol depends on a polite end.
func (s *socket) Close() error {
	err := s.conn.CloseNow()
	s.cancel()
	return err
}
