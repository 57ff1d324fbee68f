package hub

import (
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// Config says where events are read that a ring no longer holds.
type Config struct {
	Store     store.Store
	RingBytes int           // per session that has readers; 0 means 256 KiB
	Poll      time.Duration // how long a lost publish stays unnoticed at most; 0 means 2 s
	PageSize  int           // how many events a cursor takes at once; 0 means 256
}

// Hub is the fan-out of one process.
type Hub struct {
	cfg Config

	mu    sync.RWMutex
	rings map[sojourn.SessionID]*ring
}

// New makes a hub that has no readers.
func New(c Config) *Hub {
	if c.RingBytes <= 0 {
		c.RingBytes = 256 << 10
	}
	if c.Poll <= 0 {
		c.Poll = 2 * time.Second
	}
	if c.PageSize <= 0 {
		c.PageSize = 256
	}
	return &Hub{cfg: c, rings: map[sojourn.SessionID]*ring{}}
}

// Publish hands over events of a session after their commit, in commit order. It
// never blocks, and forgets the events when the session has no readers.
func (h *Hub) Publish(session sojourn.SessionID, events []sojourn.Event) {
	h.mu.RLock()
	r := h.rings[session]
	h.mu.RUnlock()
	if r != nil && len(events) > 0 {
		r.add(events)
	}
}

// Subscribe makes a cursor behind seq after; 0 is the start of the log. The
// caller closes it.
func (h *Hub) Subscribe(session sojourn.SessionID, after int64) *Cursor {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.rings[session]
	if r == nil {
		r = &ring{limit: h.cfg.RingBytes, grown: make(chan struct{})}
		h.rings[session] = r
	}
	r.readers++
	return &Cursor{hub: h, session: session, ring: r, after: after}
}

// Readers returns how many cursors are open.
func (h *Hub) Readers() int {
	h.mu.RLock()
	defer h.mu.RUnlock()
	n := 0
	for _, r := range h.rings {
		n += r.readers
	}
	return n
}

func (h *Hub) leave(session sojourn.SessionID, r *ring) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.readers--
	if r.readers == 0 {
		delete(h.rings, session)
	}
}
