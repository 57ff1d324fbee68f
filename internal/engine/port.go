package engine

import (
	"context"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// port is what a drive offers the harness: its writes become durable under the
// drive's claim.
type port struct {
	e         *Engine
	d         *drive
	c         *compute
	cancelled chan struct{}
}

var _ harness.Port = (*port)(nil)

// newPort makes the port of a drive on c. stop ends its goroutine and waits.
func (e *Engine) newPort(ctx context.Context, d *drive, c *compute) (p *port, stop func()) {
	p = &port{e: e, d: d, c: c, cancelled: make(chan struct{})}
	return p, e.onCancel(ctx, d, func() { close(p.cancelled) })
}

func (p *port) Link() harness.Link { return p.c.peer }

func (p *port) Cancelled() <-chan struct{} { return p.cancelled }

func (p *port) Activate(ctx context.Context) error {
	return p.e.commit(ctx, p.d, func(_ *store.Tx, d *sojourn.Decision) error {
		if r := d.Facts().Active; r != nil && r.ID == p.d.run && r.State == sojourn.RunActive {
			return nil // taken up again after the commit, before the prompt
		}
		d.TouchLease(p.c.epoch)
		return d.ActivateRun(p.d.run, p.c.epoch)
	})
}

func (p *port) Commit(ctx context.Context, b harness.Batch) error {
	ids := make([]sojourn.InteractionID, len(b.Asked))
	for i := range ids {
		ids[i] = newID[sojourn.InteractionID]()
	}
	return p.e.commit(ctx, p.d, func(tx *store.Tx, d *sojourn.Decision) error {
		r := d.Facts().Active
		if r == nil || r.ID != p.d.run {
			return errOver
		}
		for _, ev := range b.Events {
			d.Note(sojourn.EventDraft{Type: ev.Type, Turn: r.Turn, Run: r.ID, Data: ev.Data})
		}
		for i, q := range b.Asked {
			err := d.Ask(sojourn.Interaction{
				ID: ids[i], Run: r.ID, Kind: q.Kind, Ref: q.Ref, Request: q.Request, Options: q.Options,
			})
			if err != nil {
				return err
			}
		}
		for _, ref := range b.Withdrawn {
			d.Withdraw(r.ID, ref)
		}
		if b.Conversation != "" {
			if err := d.SetConversation(p.c.epoch, b.Conversation); err != nil {
				return err
			}
		}
		if b.State == nil {
			return nil
		}
		return tx.PutLeaseState(p.c.session, p.c.epoch, b.State)
	})
}

func (p *port) Answer(ctx context.Context, ref string) (sojourn.Answer, bool, error) {
	for {
		changed := p.d.change()
		var found sojourn.Interaction
		err := p.e.cfg.Store.View(ctx, func(tx *store.Tx) (err error) {
			found, err = tx.InteractionOf(p.c.session, p.d.run, ref)
			return err
		})
		switch {
		case sojourn.CodeOf(err) == sojourn.CodeNotFound:
			return sojourn.Answer{}, false, nil
		case err != nil:
			return sojourn.Answer{}, false, err
		case found.State == sojourn.InteractionAnswered:
			return *found.Answer, true, nil
		case found.State != sojourn.InteractionOpen:
			return sojourn.Answer{}, false, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return sojourn.Answer{}, false, context.Cause(ctx)
		}
	}
}
