package keeper

import (
	"context"
	"sync"

	"github.com/sojourn-dev/sojourn/internal/link"
)

const (
	// inputBytes is how much input may wait for a process that does not read.
	// One larger write is taken when nothing else waits.
	inputBytes = 1 << 20
	// writeIDs is how many write ids are remembered for each process.
	writeIDs = 1024
)

// sink is where input goes. Abort makes a Write that hangs return.
type sink interface {
	Write(p []byte) (int, error)
	Close() error
	Abort()
}

// input is the queue in front of a process's stdin. run is its only consumer.
type input struct {
	mu      sync.Mutex
	queue   []piece
	queued  int // bytes in queue
	closed  bool
	offset  int64 // bytes taken by writeAt
	seen    map[string]struct{}
	ids     []string // ring of the ids in seen
	oldest  int      // index into ids once it is full
	changed chan struct{}
}

// piece is input that waits. free gives its memory back and may be nil.
type piece struct {
	data []byte
	free func()
}

func newInput() *input {
	return &input{seen: make(map[string]struct{}), changed: make(chan struct{})}
}

func (in *input) broadcastLocked() {
	close(in.changed)
	in.changed = make(chan struct{})
}

// write queues data once for each id and returns a Write word. It waits while
// the queue is full; when ctx ends first, nothing has been taken. What is queued
// is freed once it has gone out.
func (in *input) write(ctx context.Context, id string, p piece) (string, error) {
	for {
		if err := ctx.Err(); err != nil {
			return "", context.Cause(ctx)
		}
		in.mu.Lock()
		if _, ok := in.seen[id]; ok {
			in.mu.Unlock()
			return link.WriteAccepted, nil
		}
		if in.closed {
			in.mu.Unlock()
			return link.WriteStdinClosed, nil
		}
		if in.roomLocked(p) {
			in.takeLocked(id, p)
			in.mu.Unlock()
			return link.WriteAccepted, nil
		}
		changed := in.changed
		in.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// writeAt is write of what lies at an offset of all that is written so: it takes
// what was not taken before. For what lies behind that it answers with a gap and
// how much was taken, which a server cannot know that was started meanwhile.
func (in *input) writeAt(ctx context.Context, offset int64, p piece) (status string, taken int64, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return "", 0, context.Cause(ctx)
		}
		in.mu.Lock()
		had := in.offset - offset
		rest := piece{free: p.free}
		if had >= 0 && had < int64(len(p.data)) {
			rest.data = p.data[had:]
		}
		switch {
		case had < 0:
			status, taken = link.WriteGap, in.offset
		case len(rest.data) == 0:
			status = link.WriteAccepted
		case in.closed:
			status = link.WriteStdinClosed
		case in.roomLocked(rest):
			in.takeLocked("", rest)
			in.offset += int64(len(rest.data))
			status = link.WriteAccepted
		}
		changed := in.changed
		in.mu.Unlock()
		if status != "" {
			return status, taken, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// roomLocked reports whether p may be queued.
func (in *input) roomLocked(p piece) bool {
	return in.queued == 0 || in.queued+len(p.data) <= inputBytes
}

func (in *input) takeLocked(id string, p piece) {
	if id != "" {
		if len(in.ids) < writeIDs {
			in.ids = append(in.ids, id)
		} else {
			delete(in.seen, in.ids[in.oldest])
			in.ids[in.oldest] = id
			in.oldest = (in.oldest + 1) % writeIDs
		}
		in.seen[id] = struct{}{}
	}
	if len(p.data) > 0 {
		in.queue = append(in.queue, p)
		in.queued += len(p.data)
		in.broadcastLocked()
	}
}

// close takes no more input; what is queued still goes out, then last (which
// may be nil), then the end of file.
func (in *input) close(last []byte) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return
	}
	in.closed = true
	if last != nil {
		in.queue = append(in.queue, piece{data: last})
		in.queued += len(last)
	}
	in.broadcastLocked()
}

// abort drops what is queued.
func (in *input) abort() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed, in.queue, in.queued = true, nil, 0
	in.broadcastLocked()
}

// run feeds w until the input is closed and empty, or w takes no more. A
// process that closes its stdin is not an error, so nothing is reported but
// the closed state.
func (in *input) run(w sink) {
	for {
		in.mu.Lock()
		if len(in.queue) == 0 {
			closed, changed := in.closed, in.changed
			in.mu.Unlock()
			if closed {
				break
			}
			<-changed
			continue
		}
		p := in.queue[0]
		in.mu.Unlock()
		if _, err := w.Write(p.data); err != nil {
			in.abort()
			break
		}
		in.taken(len(p.data))
		if p.free != nil {
			p.free()
		}
	}
	_ = w.Close() // the reading end is the process's; nobody else can be told
}

// taken removes the first piece, which has gone out, so that only then does
// its room count as free.
func (in *input) taken(n int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.queue) == 0 {
		return // aborted meanwhile
	}
	in.queue[0] = piece{}
	in.queue = in.queue[1:]
	in.queued -= n
	in.broadcastLocked()
}
