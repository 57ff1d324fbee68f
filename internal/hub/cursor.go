package hub

import (
	"context"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// Cursor is one reader's place in a session's log.
type Cursor struct {
	hub     *Hub
	session sojourn.SessionID
	ring    *ring
	after   int64
	timer   *time.Timer
	closed  sync.Once
}

// After returns the seq of the last event that Next has returned.
func (c *Cursor) After() int64 { return c.after }

// Next waits for events behind the cursor, returns at least one, in order, and
// moves the cursor behind them. It returns why ctx ended, or the store's error,
// after which it may be called again.
func (c *Cursor) Next(ctx context.Context) ([]Frame, error) {
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		frames, read, grown := c.ring.next(c.after, c.hub.cfg.PageSize)
		if read {
			var err error
			if frames, err = c.read(ctx); err != nil {
				return nil, err
			}
		}
		if len(frames) > 0 {
			c.after = frames[len(frames)-1].Event.Seq
			return frames, nil
		}
		if !read {
			if err := c.wait(ctx, grown); err != nil {
				return nil, err
			}
		}
	}
}

// read takes the next page from the store. An empty one settles what the last
// event is.
func (c *Cursor) read(ctx context.Context) ([]Frame, error) {
	now := time.Now() // before the snapshot
	var events []sojourn.Event
	err := c.hub.cfg.Store.View(ctx, func(tx *store.Tx) (err error) {
		events, err = tx.Events(c.session, c.after, c.hub.cfg.PageSize)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(events) == 0 {
		c.ring.found(0, now)
		return nil, nil
	}
	frames := make([]Frame, len(events))
	for i, e := range events {
		frames[i] = newFrame(e)
	}
	c.ring.share(frames)
	return frames, nil
}

// wait returns when the ring has grown, or when it was this cursor's turn to
// look at the store.
func (c *Cursor) wait(ctx context.Context, grown <-chan struct{}) error {
	if c.timer == nil {
		c.timer = time.NewTimer(c.hub.cfg.Poll)
	} else {
		c.timer.Reset(c.hub.cfg.Poll)
	}
	defer c.timer.Stop()
	select {
	case <-grown:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case now := <-c.timer.C:
		if !c.ring.duty(now, c.hub.cfg.Poll) {
			return nil
		}
	}
	var last int64
	err := c.hub.cfg.Store.View(ctx, func(tx *store.Tx) (err error) {
		last, err = tx.LastSeq(c.session)
		return err
	})
	if err == nil {
		c.ring.rise(last)
	}
	return err
}

// Close leaves. It may be called twice.
func (c *Cursor) Close() {
	c.closed.Do(func() { c.hub.leave(c.session, c.ring) })
}

// Frame is an event with its encoded forms. Copies share them.
type Frame struct {
	Event sojourn.Event
	forms *forms
}

type forms struct {
	mu   sync.Mutex
	name string // of the first form; nearly always the only one
	form []byte
	more map[string][]byte
}

func newFrame(e sojourn.Event) Frame { return Frame{Event: e, forms: &forms{}} }

// Encoded returns the form called name, which encode makes once for all
// readers. Nobody may change the bytes.
func (f Frame) Encoded(name string, encode func(sojourn.Event) []byte) []byte {
	f.forms.mu.Lock()
	defer f.forms.mu.Unlock()
	if f.forms.form != nil && f.forms.name == name {
		return f.forms.form
	}
	if form, made := f.forms.more[name]; made {
		return form
	}
	form := encode(f.Event)
	if f.forms.form == nil && form != nil {
		f.forms.name, f.forms.form = name, form
		return form
	}
	if f.forms.more == nil {
		f.forms.more = map[string][]byte{}
	}
	f.forms.more[name] = form
	return form
}
