package acp

import (
	"context"
	"errors"
	"strconv"
	"sync"

	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// pieceBytes is how much of a message one write carries.
const pieceBytes = 1 << 20

// written says how the writing of a message ended.
type written struct {
	id     string
	closed bool  // the agent takes no input any more
	err    error // of the link
}

// outbox writes messages to the agent in order, so that nobody waits for an
// agent that does not read.
type outbox struct {
	link    harness.Link
	process string
	done    chan written
	wake    chan struct{}

	mu    sync.Mutex
	queue []outgoing
}

func newOutbox(l harness.Link, process string) *outbox {
	return &outbox{link: l, process: process, done: make(chan written), wake: make(chan struct{}, 1)}
}

// put queues a message.
func (o *outbox) put(m outgoing) {
	o.mu.Lock()
	o.queue = append(o.queue, m)
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outbox) take() (outgoing, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		return outgoing{}, false
	}
	m := o.queue[0]
	o.queue = o.queue[1:]
	return m, true
}

// run writes until ctx ends.
func (o *outbox) run(ctx context.Context) {
	for {
		m, ok := o.take()
		if !ok {
			select {
			case <-o.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		w := written{id: m.WriteID}
		if err := o.write(ctx, m); errors.Is(err, link.ErrStdinClosed) || errors.Is(err, link.ErrUnknownProcess) {
			w.closed = true
		} else {
			w.err = err
		}
		select {
		case o.done <- w:
		case <-ctx.Done():
			return
		}
	}
}

// write sends a message in pieces. Each has its own write id, so repeating a
// message that arrived in part completes it.
func (o *outbox) write(ctx context.Context, m outgoing) error {
	for n := 0; ; n++ {
		piece, id := m.Data, m.WriteID
		if len(piece) > pieceBytes {
			piece = piece[:pieceBytes]
		}
		if n > 0 {
			id += "." + strconv.Itoa(n)
		}
		if err := o.link.Write(ctx, o.process, id, piece); err != nil {
			return err
		}
		if m.Data = m.Data[len(piece):]; len(m.Data) == 0 {
			return nil
		}
	}
}
