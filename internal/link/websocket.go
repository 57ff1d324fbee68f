package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	// pingEvery is about the pause between the pings of a WebSocket. Each is
	// drawn anew, so that the two ends, and many connections, do not ping
	// together.
	pingEvery = 30 * time.Second
	// pingWait is how long a ping may take. It waits behind a message that is
	// being sent, and a large one may need a while.
	pingWait = 60 * time.Second
)

// WebSocket carries one message in each WebSocket message. It takes over the
// connection's read limit, and pings the far side: a network that has died in
// silence ends the connection at both ends.
func WebSocket(c *websocket.Conn) Transport {
	c.SetReadLimit(MaxFrameBytes)
	s := &socket{conn: c}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.watch)
	return s
}

type socket struct {
	conn   *websocket.Conn
	ctx    context.Context // ends with Close: the methods of conn know no other way to stop
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// watch drops the connection when a ping gets no answer.
func (s *socket) watch() {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		t.Reset(pingEvery/2 + rand.N(pingEvery))
		select {
		case <-s.ctx.Done():
			return
		case <-t.C:
		}
		ctx, cancel := context.WithTimeout(s.ctx, pingWait)
		err := s.conn.Ping(ctx)
		cancel()
		if err != nil {
			_ = s.conn.CloseNow() // the reading side reports it
			return
		}
	}
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
	kind := websocket.MessageText
	if len(msg) > 0 && msg[0] == payloadMark {
		kind = websocket.MessageBinary
	}
	return s.conn.Write(s.ctx, kind, msg)
}

// Close drops the connection without the closing handshake: the far side may
// be silent, and nothing in this protocol depends on a polite end.
func (s *socket) Close() error {
	err := s.conn.CloseNow()
	s.cancel()
	s.wg.Wait()
	return err
}
