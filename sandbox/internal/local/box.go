package local

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// box is a sandbox that runs, or ran, under this machine.
type box struct {
	machine *Machine
	cell    Cell
	door    *Door
	done    chan struct{}

	saving sync.Mutex // held while a snapshot is made, which stops the processes and may end them

	once sync.Once
	err  error // set before done is closed

	mu     sync.Mutex
	intent *sandbox.EndError // why it is being ended; nil when nobody is ending it
	full   bool              // its disk, when it was last looked at
	denied int64             // how often that became true
}

var _ sandbox.Meter = (*box)(nil)

func (b *box) Handle() sandbox.Handle { return b.cell.handle(b.machine.name) }

func (b *box) Dirs() sandbox.Dirs { return b.cell.dirs() }

func (b *box) Done() <-chan struct{} { return b.done }

func (b *box) Err() error {
	select {
	case <-b.done:
		return b.err
	default:
		return nil
	}
}

func (b *box) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	conn, err := b.door.Dial(ctx)
	if gone := b.Err(); gone != nil {
		if conn != nil {
			conn.Close()
		}
		return nil, gone
	}
	return conn, err
}

func (b *box) Destroy(ctx context.Context) error { return b.machine.Remove(ctx, b.Handle()) }

func (b *box) Kill(ctx context.Context) error {
	if err := b.expel(ctx, sandbox.EndKilled, "its processes were killed"); err != nil {
		return fmt.Errorf("kill sandbox %s: %w", b.cell.name(), err)
	}
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kill sandbox %s: %w", b.cell.name(), context.Cause(ctx))
	}
}

// intend says why the processes are about to be ended; the first reason counts, and
// is returned.
func (b *box) intend(reason sandbox.EndReason, detail string) sandbox.EndError {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.intent == nil {
		b.intent = &sandbox.EndError{Reason: reason, Detail: detail}
	}
	return *b.intent
}

// expel ends the processes of the sandbox for a reason; its files stay. It does nothing
// when the first process has ended by itself: whoever watches it says why.
func (b *box) expel(ctx context.Context, reason sandbox.EndReason, detail string) error {
	m, c := b.machine, b.cell // a copy, which is looked for anew
	ctx, s, leave, err := m.enter(ctx, &c)
	if err != nil {
		return err
	}
	defer leave()
	b.saving.Lock() // nobody hears of the end before the files can be had again
	defer b.saving.Unlock()
	if s.box != b || b.Err() != nil || !b.cell.Record.Process.Alive() {
		return nil
	}
	if err := c.load(); err != nil { // which says what has to be ended
		return err
	}
	why := b.intend(reason, detail)
	if err := m.launcher.Kill(ctx, &c); err != nil {
		return err
	}
	b.finish(why.Reason, why.Detail)
	return nil
}

// finish says that the sandbox has ended and why; the first reason counts.
func (b *box) finish(reason sandbox.EndReason, detail string) {
	b.once.Do(func() {
		b.err = fmt.Errorf("sandbox %s: %w", b.cell.name(), &sandbox.EndError{Reason: reason, Detail: detail})
		close(b.done)
		b.door.Shut()
	})
}
