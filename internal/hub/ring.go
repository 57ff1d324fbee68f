package hub

import (
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// ring holds the latest events of one session, without a gap.
type ring struct {
	readers int // under Hub.mu
	limit   int // bytes

	mu     sync.Mutex
	frames []Frame
	bytes  int
	head   int64         // the highest seq that is known to exist; 0 when none is
	looked time.Time     // when a cursor last found in the store that head is the last
	grown  chan struct{} // closed, and replaced, when head rises
}

// add appends events of one commit. Events that do not follow the last one, as
// after a lost publish, start the ring anew: cursors read the store across.
func (r *ring) add(events []sojourn.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		if e.Seq <= r.head {
			continue // known
		}
		if n := len(r.frames); n > 0 && e.Seq != r.frames[n-1].Event.Seq+1 {
			r.frames, r.bytes = nil, 0
		}
		r.frames = append(r.frames, newFrame(e))
		r.bytes += size(e)
	}
	r.trimLocked()
	r.riseLocked(events[len(events)-1].Seq)
}

// rise records that seq exists, found in the store.
func (r *ring) rise(seq int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.riseLocked(seq)
}

func (r *ring) riseLocked(seq int64) {
	if seq <= r.head {
		return
	}
	r.head = seq
	close(r.grown)
	r.grown = make(chan struct{})
}

// trimLocked drops the oldest frames until the rest fits.
func (r *ring) trimLocked() {
	drop := 0
	for ; drop < len(r.frames) && r.bytes > r.limit; drop++ {
		r.bytes -= size(r.frames[drop].Event)
		r.frames[drop] = Frame{} // do not keep it alive through the slice
	}
	if drop > 0 {
		r.frames = r.frames[drop:]
	}
}

// next returns up to limit frames behind seq after, if the ring holds the first
// of them; else whether the store must be read; else a channel to wait on.
func (r *ring) next(after int64, limit int) (frames []Frame, read bool, grown <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.frames); n > 0 {
		first, last := r.frames[0].Event.Seq, r.frames[n-1].Event.Seq
		if after+1 >= first && after < last {
			from := int(after + 1 - first)
			to := min(n, from+limit)
			return append([]Frame(nil), r.frames[from:to]...), false, nil
		}
	}
	// With no readers before, nothing is known: head is 0 until someone looks.
	return nil, after < r.head || r.looked.IsZero(), r.grown
}

// share replaces frames by those that the ring holds of the same events, so that
// their encoded forms are made once. frames have no gap.
func (r *ring) share(frames []Frame) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.frames) == 0 {
		return
	}
	first := r.frames[0].Event.Seq
	for i, f := range frames {
		if at := f.Event.Seq - first; at >= 0 && at < int64(len(r.frames)) {
			frames[i] = r.frames[at]
		}
	}
}

// duty reports whether the caller is to look at the store now, because nobody
// has for a poll interval.
func (r *ring) duty(now time.Time, poll time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.looked) < poll {
		return false
	}
	r.looked = now
	return true
}

// found records that a look at the store at now showed nothing behind seq.
func (r *ring) found(seq int64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looked = now
	r.riseLocked(seq)
}

// size is what an event costs in a ring, with about one encoded form.
func size(e sojourn.Event) int { return 2*len(e.Data) + 512 }
