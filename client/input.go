package client

import (
	"context"
	"io"
	"sync"

	"github.com/coder/websocket"
)

// inputWindow is how much input the server takes ahead of the program.
const inputWindow = 1 << 20

// input is what a program is to read, on its way over one WebSocket after the
// other: it is kept until the server has taken it.
type input struct {
	more chan struct{} // of one: there is something to send
	free chan struct{} // of one: there is room

	mu     sync.Mutex
	pieces [][]byte // not taken yet, in order; nil is the end
	first  int64    // offset of pieces[0]
	sent   int      // how many of pieces went over the present connection
	bytes  int      // in pieces
}

func newInput() *input {
	return &input{more: make(chan struct{}, 1), free: make(chan struct{}, 1)}
}

// read takes input as far as the window is open, until its end or done.
func (in *input) read(r io.Reader, done <-chan struct{}) {
	for {
		buf := make([]byte, 32<<10)
		n, err := r.Read(buf)
		if n > 0 {
			in.put(buf[:n])
		}
		if err != nil {
			in.put(nil)
			return
		}
		for in.full() {
			select {
			case <-in.free:
			case <-done:
				return
			}
		}
	}
}

func (in *input) full() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.bytes > inputWindow/2
}

func (in *input) put(data []byte) {
	in.mu.Lock()
	in.pieces = append(in.pieces, data)
	in.bytes += len(data)
	in.mu.Unlock()
	wake(in.more)
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// taken forgets input that the sandbox has.
func (in *input) taken(upTo int64) {
	in.mu.Lock()
	for len(in.pieces) > 0 && in.pieces[0] != nil && in.first+int64(len(in.pieces[0])) <= upTo {
		in.first += int64(len(in.pieces[0]))
		in.bytes -= len(in.pieces[0])
		in.pieces = in.pieces[1:]
		in.sent = max(0, in.sent-1)
	}
	in.mu.Unlock()
	wake(in.free)
}

// rewind begins again for a new connection. It returns the offset of the first
// byte that is sent over it.
func (in *input) rewind() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.sent = 0
	return in.first
}

// next returns the next piece to send over this connection.
func (in *input) next() (data []byte, ok bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.sent >= len(in.pieces) {
		return nil, false
	}
	in.sent++
	return in.pieces[in.sent-1], true
}

// send sends what there is now.
func (in *input) send(ctx context.Context, ws *websocket.Conn) error {
	for {
		data, ok := in.next()
		if !ok {
			return nil
		}
		var err error
		if data == nil {
			err = say(ctx, ws, map[string]any{"eof": true})
		} else {
			err = ws.Write(ctx, websocket.MessageBinary, data)
		}
		if err != nil {
			return err
		}
	}
}
