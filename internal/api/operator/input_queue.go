package operator

import (
	"context"
	"sync"

	"github.com/sojourn-dev/sojourn"
)

// inputWindow is how much input may be sent and not taken. It is what lets a
// program that does not read hold up its input and nothing else.
const inputWindow = 1 << 20

// inputQueue is input that came over a WebSocket and was not taken yet.
type inputQueue struct {
	mu     sync.Mutex
	pieces [][]byte // nil stands for the end
	bytes  int
	more   chan struct{} // of one: there is something in the queue
}

func newInputQueue() *inputQueue { return &inputQueue{more: make(chan struct{}, 1)} }

// put adds input, or nil for its end. The code is too_large when the caller does
// not keep to the window.
func (q *inputQueue) put(data []byte) error {
	if data != nil && len(data) == 0 {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bytes += len(data); q.bytes > inputWindow || len(q.pieces) > inputWindow/16 {
		return sojourn.Errorf(sojourn.CodeTooLarge, "More than %d bytes of input are under way.", inputWindow)
	}
	q.pieces = append(q.pieces, data)
	select {
	case q.more <- struct{}{}:
	default:
	}
	return nil
}

// next waits for the next piece. ok is false when ctx ends first.
func (q *inputQueue) next(ctx context.Context) (data []byte, ok bool) {
	for {
		q.mu.Lock()
		if len(q.pieces) > 0 {
			data, q.pieces = q.pieces[0], q.pieces[1:]
			q.mu.Unlock()
			return data, true
		}
		q.mu.Unlock()
		select {
		case <-q.more:
		case <-ctx.Done():
			return nil, false
		}
	}
}

// taken makes room for n bytes more.
func (q *inputQueue) taken(n int) {
	q.mu.Lock()
	q.bytes -= n
	q.mu.Unlock()
}
