// Package hub delivers events of sessions to any number of live readers.
package hub

import (
	"context"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// Config says where events are read that the hub no longer holds.
type Config struct {
	Store     store.Store
	RingBytes int           // per session; 0 means 256 KiB
	Poll      time.Duration // after which a lost publish is noticed; 0 means 2 s
}

// Hub is the fan-out of one process.
type Hub struct{}

// New makes a hub without readers.
func New(c Config) *Hub { panic("soon") }

// Publish hands over events after their commit, in commit order. It never blocks.
func (h *Hub) Publish(session sojourn.SessionID, events []sojourn.Event) { panic("soon") }

// Subscribe makes a cursor behind seq after. The caller closes it.
func (h *Hub) Subscribe(session sojourn.SessionID, after int64) *Cursor { panic("soon") }

// Cursor is one reader's place in a session's log.
type Cursor struct{}

// Next waits for events behind the cursor and moves it.
func (c *Cursor) Next(ctx context.Context) ([]Frame, error) { panic("soon") }

// Close leaves. It may be called twice.
func (c *Cursor) Close() {}

// Frame is an event with its encoded forms.
type Frame struct{ Event sojourn.Event }

// Encoded returns the form called name, which encode makes once for all readers.
func (f Frame) Encoded(name string, encode func(sojourn.Event) []byte) []byte { panic("soon") }
