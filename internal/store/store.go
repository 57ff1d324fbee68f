package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// Store keeps everything that must survive the process.
type Store interface {
	// Update runs fn in a transaction that may write. It returns nil once the
	// commit is durable. When ctx ends before fn has started, fn does not run;
	// from then on the true outcome is waited for. A panic in fn is returned as
	// an error.
	Update(ctx context.Context, fn func(*Tx) error) error
	// View runs fn in a transaction that only reads, on one snapshot that holds
	// every commit acknowledged before.
	View(ctx context.Context, fn func(*Tx) error) error
	// Signals wakes the work engine of this process.
	Signals() *Signals
	// Close waits for running transactions. It may be called twice.
	Close() error
}

// Signals are raised after commits. Each holds one value and coalesces: it says
// "look again", the rows say what there is. One engine listens.
type Signals struct {
	Scheduled chan struct{} // work is due before the engine would wake
	Cancelled chan struct{} // work was cancelled
	asleep    atomic.Int64  // until when the engine sleeps, in microseconds; 0 while it is awake

	mu        sync.Mutex
	cancelled []WorkKey // since the last call of TakeCancelled
}

// NewSignals makes signals that nothing has raised.
func NewSignals() *Signals {
	return &Signals{Scheduled: make(chan struct{}, 1), Cancelled: make(chan struct{}, 1)}
}

// Awake says that the engine is about to look at the rows: from here on every
// schedule raises the signal.
func (s *Signals) Awake() { s.asleep.Store(0) }

// Sleep says that the engine has looked, after Awake, and will look again at t:
// work that is due later needs no signal.
func (s *Signals) Sleep(t time.Time) { s.asleep.Store(micros(t)) }

// scheduled raises the signal when work that is due at us would come too late.
func (s *Signals) scheduled(us int64) {
	if until := s.asleep.Load(); until == 0 || us < until {
		raise(s.Scheduled)
	}
}

// cancel notes the keys, then raises the signal.
func (s *Signals) cancel(keys []WorkKey) {
	s.mu.Lock()
	if len(s.cancelled) < maxCancelled {
		s.cancelled = append(s.cancelled, keys...)
	}
	s.mu.Unlock()
	raise(s.Cancelled)
}

// maxCancelled bounds the keys that are kept for an engine that does not listen.
// A listening one never comes near it, and finds the rest by its heartbeats.
const maxCancelled = 4096

// TakeCancelled returns what was cancelled since the last call.
func (s *Signals) TakeCancelled() []WorkKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := s.cancelled
	s.cancelled = nil
	return keys
}

// Querier is what a transaction runs statements on.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Dialect is what differs between the databases.
type Dialect struct {
	ForUpdate  string // locks the rows of a SELECT; "" where one writer exists
	SkipLocked string // the same, passing over locked rows
	Exclusive  bool   // this process is the only one on the database
	// Translate turns a driver's error into one of ours: [ErrConstraint] or a
	// *sojourn.Error. Others it returns unchanged.
	Translate func(error) error
}

// The errors of this package that are not a [sojourn.Error].
var (
	// ErrConstraint is a write that a constraint of the schema refused: a bug
	// in a decision, never a caller's mistake.
	ErrConstraint = errors.New("a constraint of the schema refuses this")
	// ErrStale is a change that was decided on facts that are no longer true.
	ErrStale = errors.New("the change was decided on older facts")
	// ErrLost is a claim whose fence no longer holds.
	ErrLost = errors.New("the claim was lost")
)

// Tx is one transaction. It must not be used after its closure has returned.
type Tx struct {
	ctx     context.Context
	q       Querier
	d       *Dialect
	now     time.Time
	write   bool
	signals *Signals
	publish func(sojourn.SessionID, []sojourn.Event)
	after   []func()

	earliest  int64     // when the work that was scheduled is due first; 0 for none
	cancelled []WorkKey // the work that was cancelled
}

// TxConfig is what an implementation makes a [Tx] from.
type TxConfig struct {
	Querier Querier
	Dialect *Dialect
	Write   bool      // of an Update
	Signals *Signals  // of an Update
	Now     time.Time // the moment of the transaction; zero means the process's clock
	// Publish is called after the commit with the events of each change, in
	// commit order per session; nil to not be told.
	Publish func(sojourn.SessionID, []sojourn.Event)
}

// NewTx makes a transaction for an implementation. Its statements run under ctx.
func NewTx(ctx context.Context, c TxConfig) *Tx {
	if c.Now.IsZero() {
		c.Now = time.Now()
	}
	return &Tx{
		ctx: ctx, q: c.Querier, d: c.Dialect, write: c.Write, signals: c.Signals, publish: c.Publish,
		now: c.Now.UTC().Truncate(time.Microsecond),
	}
}

// Now returns the moment of the transaction: read once, UTC, in microseconds.
func (t *Tx) Now() time.Time { return t.now }

// OnCommit calls f after the commit, in the order of the calls. f must not
// block and must not call the store.
func (t *Tx) OnCommit(f func()) { t.after = append(t.after, f) }

// Committed runs the hooks; an implementation calls it once, after the commit
// and before Update returns.
func (t *Tx) Committed() {
	for _, f := range t.after {
		f()
	}
	t.after = nil
	if t.signals == nil {
		return
	}
	if t.earliest != 0 {
		t.signals.scheduled(t.earliest)
	}
	if len(t.cancelled) > 0 {
		t.signals.cancel(t.cancelled)
	}
}

// raise leaves a value in a channel of one, if there is none.
func raise(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// exec runs a statement and returns how many rows it changed.
func (t *Tx) exec(doing, query string, args ...any) (int64, error) {
	res, err := t.q.ExecContext(t.ctx, query, args...)
	if err != nil {
		return 0, t.fail(doing, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, t.fail(doing, err)
	}
	return n, nil
}

// fail says what the transaction was doing when a statement failed.
func (t *Tx) fail(doing string, err error) error {
	return fmt.Errorf("%s: %w", doing, t.d.Translate(err))
}

// scanner is a row to read from: *sql.Row or *sql.Rows.
type scanner interface{ Scan(dest ...any) error }

// one reads the row that query selects, or returns not_found naming what.
func one[T any](t *Tx, what string, scan func(scanner) (T, error), query string, args ...any) (T, error) {
	v, err := scan(t.q.QueryRowContext(t.ctx, query, args...))
	if errors.Is(err, sql.ErrNoRows) {
		return v, sojourn.Errorf(sojourn.CodeNotFound, "There is no such %s.", what)
	}
	if err != nil {
		return v, t.fail("read "+what, err)
	}
	return v, nil
}

// pageBytes bounds what a page of rows that may be large reads into memory.
const pageBytes = 4 << 20

// collect reads all rows that query selects.
func collect[T any](t *Tx, what string, scan func(scanner) (T, error), query string, args ...any) ([]T, error) {
	return collectWithin(t, what, math.MaxInt, func(T) int { return 0 }, scan, query, args...)
}

// collectWithin reads rows that query selects until they come to most by size,
// and at least one.
func collectWithin[T any](t *Tx, what string, most int, size func(T) int, scan func(scanner) (T, error), query string, args ...any) (all []T, err error) {
	rows, err := t.q.QueryContext(t.ctx, query, args...)
	if err != nil {
		return nil, t.fail("read "+what, err)
	}
	defer rows.Close()
	for total := 0; total < most && rows.Next(); {
		v, err := scan(rows)
		if err != nil {
			return nil, t.fail("read "+what, err)
		}
		if total += size(v); total > most && len(all) > 0 {
			break
		}
		all = append(all, v)
	}
	if err := rows.Err(); err != nil {
		return nil, t.fail("read "+what, err)
	}
	return all, nil
}
