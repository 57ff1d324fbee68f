package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/work"
)

// execPrefix begins the names that the processes of execs have in their keeper.
const execPrefix = "exec-"

// execRetry is how long a follow waits before it tries again what has failed, unless
// it is woken.
const execRetry = time.Second

// errExecOver ends the follow of an exec that is over without it.
var errExecOver = errors.New("the exec is over")

// follow drives one running exec: its process, its output and its end. There is at
// most one for each exec, and only it ends an exec whose sandbox is there.
type follow struct {
	b    *bench
	id   sojourn.ExecID
	ctx  context.Context // ends with the bench, and with the exec
	stop context.CancelCauseFunc
	wake chan struct{} // of one: something about the session has changed
	done chan struct{} // closed when it is over, and its output is kept

	mu       sync.Mutex
	ending   sojourn.ExecReason // why the exec is to end; "" while it is not
	kill     bool               // without a grace
	asked    chan struct{}      // of one: ending or kill has changed
	stopping sojourn.ExecReason // why its process has been made to end
	at       *compute           // where its process was last followed; nil before
}

// note takes over an exec's new state. It must not block.
func (b *bench) note(x sojourn.Exec) {
	switch {
	case x.State == sojourn.ExecRunning:
		b.take(x)
	case x.State.Terminal():
		b.mu.Lock()
		if f := b.follows[x.ID]; f != nil {
			f.stop(errExecOver)
		}
		b.mu.Unlock()
	}
	b.wait.note(x)
}

// take makes the bench follow an exec that runs, once, and tells its follow how it
// is to end. x may be old: the follow reads it again.
func (b *bench) take(x sojourn.Exec) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.follows[x.ID]
	if f == nil {
		if b.left {
			return
		}
		f = &follow{b: b, id: x.ID, wake: make(chan struct{}, 1), asked: make(chan struct{}, 1), done: make(chan struct{})}
		f.ctx, f.stop = context.WithCancelCause(b.ctx)
		b.follows[x.ID] = f
		b.wg.Go(func() {
			defer b.drop(f)
			f.run()
		})
	}
	f.ask(x.Ending, x.Kill)
}

func (b *bench) drop(f *follow) {
	f.stop(nil)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.follows, f.id)
	close(f.done)
}

// followed returns the follow of an exec, or nil.
func (e *Engine) followed(x sojourn.Exec) *follow {
	e.mu.Lock()
	b := e.benches[x.Session]
	e.mu.Unlock()
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.follows[x.ID]
}

// ask says how the exec is to end. It never takes back what was asked before.
func (f *follow) ask(why sojourn.ExecReason, kill bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if why == "" || f.ending != "" && (f.kill || !kill) {
		return
	}
	if f.ending == "" {
		f.ending = why
	}
	f.kill = f.kill || kill
	raise(f.asked)
}

// run follows the exec to its end, through whatever becomes of the link and of the
// sandbox. It returns early when the bench ends: then the process goes on.
func (f *follow) run() {
	w := f.openOutput()
	if w == nil {
		return
	}
	defer f.closeOutput(w)
	for f.ctx.Err() == nil {
		p, err := f.find(f.ctx)
		if err == nil {
			var over outcome
			if over, err = f.attend(p, w); err == nil {
				f.end(over, w)
				return
			}
		}
		if errors.Is(err, errExecOver) {
			f.stop(err)
			break
		}
		expected := errors.Is(err, errNoSandbox) || errors.Is(err, link.ErrGone) || f.b.e.letGo(p.c)
		if f.ctx.Err() == nil && !expected {
			f.b.e.log.Warn("follow an exec", "session", f.b.id, "exec", f.id, "error", err)
		}
		f.pause()
	}
	if errors.Is(context.Cause(f.ctx), errExecOver) {
		f.keepRest(w)
	}
}

// pause waits until something has changed, or for a while.
func (f *follow) pause() {
	t := time.NewTimer(execRetry)
	defer t.Stop()
	select {
	case <-f.wake:
	case <-t.C:
	case <-f.ctx.Done():
	}
}

// insist does what must be done until it succeeds or the bench ends. It reports
// whether it succeeded.
func (f *follow) insist(what string, do func() error) bool {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := do()
		if err == nil {
			return true
		}
		if f.b.ctx.Err() != nil || errors.Is(err, work.ErrLost) {
			return false
		}
		f.b.e.log.Error(what, "session", f.b.id, "exec", f.id, "error", err)
		select { // the disk may be full: how the exec ended must still be said
		case <-time.After(pause):
		case <-f.b.ctx.Done():
			return false
		}
	}
}

// end writes down how the exec ended, with the little that it has written, and
// starts the next one in the same commit.
func (f *follow) end(o outcome, w *output.Writer) {
	b := f.b
	var inline []byte
	done := f.insist("finish the output of an exec", func() (err error) {
		inline, err = w.Finish()
		return err
	}) && f.insist("write the end of an exec", func() error {
		return b.commit(b.ctx, func(tx *store.Tx, d *sojourn.Decision) error {
			if d.EndExec(f.id, o.result, o.reason) {
				d.StartExecs(b.e.rateOf(d.Facts().Session))
			}
			return putOutput(tx, f.id, inline)
		})
	})
	if !done {
		return // whoever follows next learns it from the keeper
	}
	if r := o.result; r.Code == nil || *r.Code != 0 { // it may be for a limit
		b.e.noteLimits(b.ctx, o.at)
	}
	ctx, cancel := context.WithTimeout(b.ctx, leaveTime)
	defer cancel()
	if err := o.at.peer.Forget(ctx, execPrefix+string(f.id)); err != nil && b.ctx.Err() == nil && !ended(o.at.box) {
		b.e.log.Warn("forget the process of an exec", "session", b.id, "exec", f.id, "error", err)
	}
}

// keepRest keeps the little that an exec had written which was lost. What was kept
// before stays: a follow that began from old facts has seen nothing of an exec that
// had ended, and must not put that in its place.
func (f *follow) keepRest(w *output.Writer) {
	if w.Total() == 0 {
		return
	}
	f.insist("keep the output of a lost exec", func() error {
		inline, err := w.Finish()
		if err != nil || inline == nil {
			return err
		}
		return f.b.e.cfg.Store.Update(f.b.ctx, func(tx *store.Tx) error {
			if kept, err := tx.ExecOutput(f.id); err != nil || kept != nil {
				return err
			}
			return putOutput(tx, f.id, inline)
		})
	})
}

// putOutput keeps what an exec has written that went to no file, unless its session
// was deleted meanwhile.
func putOutput(tx *store.Tx, id sojourn.ExecID, inline []byte) error {
	if inline == nil {
		return nil
	}
	if _, err := tx.Exec(id); sojourn.CodeOf(err) == sojourn.CodeNotFound {
		return nil
	}
	return tx.PutExecOutput(id, inline)
}
