package sqlite

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/sojourn-dev/sojourn/internal/store"
)

const (
	// maxBatch is how many updates share one commit at most.
	maxBatch = 256
	// slow is how long a closure may take before the log mentions it: all who
	// share its commit wait for it.
	slow = 20 * time.Millisecond
)

// The states of an op.
const (
	opWaiting   int32 = iota // its caller may still abandon it
	opStarted                // its caller waits for the outcome
	opAbandoned              // its caller has left; it does not run
)

// op is one waiting update.
type op struct {
	fn    func(*store.Tx) error
	state atomic.Int32
	done  chan error // of one; receives the outcome

	tx       *store.Tx
	err      error
	finished bool
}

// writer runs updates, one after the other, on its own connection.
type writer struct {
	db      *DB
	conn    *conn
	ops     chan *op
	stopped chan struct{}
}

func startWriter(db *DB, c *conn) *writer {
	w := &writer{db: db, conn: c, ops: make(chan *op, maxBatch), stopped: make(chan struct{})}
	go w.run()
	return w
}

// wait returns when all updates are done; ops must have been closed.
func (w *writer) wait() { <-w.stopped }

// run commits until ops is closed and empty. A closure that ends its goroutine,
// as a failing test does, ends this one: then another takes over.
func (w *writer) run() {
	finished := false
	defer func() {
		if finished {
			close(w.stopped)
		} else {
			go w.run()
		}
	}()
	batch := make([]*op, 0, maxBatch)
	for first := range w.ops {
		batch = w.drain(append(batch[:0], first))
		w.commit(batch)
		clear(batch)
	}
	finished = true
}

// drain adds what is waiting. It yields once, so that callers whom the last
// commit has released can queue up for this one.
func (w *writer) drain(batch []*op) []*op {
	for yielded := false; len(batch) < maxBatch; {
		select {
		case o, open := <-w.ops:
			if !open {
				return batch
			}
			batch = append(batch, o)
			continue
		default:
		}
		if yielded {
			break
		}
		yielded = true
		runtime.Gosched()
	}
	return batch
}

// commit runs a batch in one transaction and tells its callers. When the
// transaction is lost as a whole, each runs again alone, so that only those fail
// for whom it does not go through.
func (w *writer) commit(batch []*op) {
	started := batch[:0]
	for _, o := range batch {
		if o.state.CompareAndSwap(opWaiting, opStarted) {
			started = append(started, o)
		}
	}
	if len(started) == 0 {
		return
	}
	defer func() { // finds work only when the goroutine is ending inside a closure
		for _, o := range started {
			if !o.finished {
				w.exec("ROLLBACK")
				o.err = errors.New("the transaction was given up: a closure ended its goroutine")
				w.finish(o)
			}
		}
	}()
	end := w.transact(started, false)
	if end == txUndone {
		end = w.transact(started, true)
	}
	if end == txLost {
		// Most likely the disk is full: what the log has taken may leave room in
		// it for what it could not take.
		w.exec("PRAGMA wal_checkpoint(PASSIVE)")
	}
	for _, o := range started {
		if end == txLost {
			w.transact([]*op{o}, false)
		}
		w.finish(o)
	}
}

// finish runs the hooks of an update that was committed, and tells its caller.
func (w *writer) finish(o *op) {
	o.finished = true
	if o.err == nil {
		w.committed(o.tx)
	}
	o.done <- o.err
}

// ending is how a transaction of several ops ended.
type ending int

const (
	txEnded  ending = iota // each op has its outcome
	txUndone               // it must run once more, with savepoints
	txLost                 // nothing was written, whatever the ops did
)

// transact runs ops in one transaction and sets their outcomes. Savepoints are
// needed only to undo what a failed op has written, and cost every op a tenth:
// so they are left out at first. When one of several ops fails after it has
// written, everything is undone, to be run once more with savepoints.
func (w *writer) transact(ops []*op, savepoints bool) ending {
	w.conn.lost = nil
	if err := w.exec("BEGIN IMMEDIATE"); err != nil {
		for _, o := range ops {
			o.err = fmt.Errorf("begin update: %w", err)
		}
		return txLost
	}
	good := 0
	for _, o := range ops {
		w.apply(o, savepoints)
		switch {
		case w.conn.lost != nil: // SQLite may have rolled back by itself
			w.exec("ROLLBACK")
			return txLost
		case o.err == nil:
			good++
		case w.conn.wrote && !savepoints && len(ops) > 1:
			w.exec("ROLLBACK")
			return txUndone
		}
	}
	if good == 0 {
		w.exec("ROLLBACK")
		return txEnded
	}
	if err := w.exec("COMMIT"); err != nil {
		w.exec("ROLLBACK")
		for _, o := range ops {
			o.err = fmt.Errorf("commit update: %w", err)
		}
		return txLost
	}
	return txEnded
}

// apply runs one op and sets its outcome.
func (w *writer) apply(o *op, savepoint bool) {
	if savepoint {
		if o.err = w.exec("SAVEPOINT caller"); o.err != nil {
			w.conn.lost = o.err
			return
		}
	}
	w.conn.wrote = false
	o.tx = store.NewTx(context.Background(), store.TxConfig{
		Querier: w.conn, Dialect: &dialect, Write: true, Signals: w.db.signals, Publish: w.db.cfg.OnEvents,
	})
	begun := time.Now()
	o.err = w.db.call(o.fn, o.tx)
	if took := time.Since(begun); took > slow {
		w.db.cfg.Log.Warn("slow transaction", "took", took, "function", nameOf(o.fn))
	}
	if w.conn.lost != nil {
		if o.err == nil {
			o.err = w.conn.lost // the closure has passed over it
		}
		return
	}
	if !savepoint {
		return
	}
	if o.err != nil {
		if err := w.exec("ROLLBACK TO caller"); err != nil {
			w.conn.lost = err
			return
		}
	}
	if err := w.exec("RELEASE caller"); err != nil {
		w.conn.lost, o.err = err, err
	}
}

// exec runs a statement that only steers the transaction.
func (w *writer) exec(statement string) error {
	_, err := w.conn.steer(context.Background(), statement)
	return translate(err)
}

// committed runs a transaction's hooks. A hook that panics is a bug of its own
// and undoes nothing.
func (w *writer) committed(tx *store.Tx) {
	defer func() {
		if v := recover(); v != nil {
			w.db.cfg.Log.Error("commit hook panicked", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	tx.Committed()
}

// call runs a closure and turns its panic into an error.
func (db *DB) call(fn func(*store.Tx) error, tx *store.Tx) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("transaction panicked: %v\n%s", v, debug.Stack())
		}
	}()
	return fn(tx)
}

// nameOf returns the name of a function, as the compiler gave it.
func nameOf(fn any) string {
	return runtime.FuncForPC(reflect.ValueOf(fn).Pointer()).Name()
}
