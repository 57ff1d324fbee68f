package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// Config says where the database is and who is told of events.
type Config struct {
	Dir string // created when it is not there
	// OnEvents is told of every change's events after their commit, in commit
	// order per session. It must not block or call the store; nil to not be told.
	OnEvents func(session sojourn.SessionID, events []sojourn.Event)
	Log      *slog.Logger // nil means slog.Default
	Readers  int          // connections for View; 0 means 4
	// CheckBytes bounds the databases that are checked page by page when they
	// are opened; of larger ones the event log is left out. 0 means 64 MiB.
	CheckBytes int64
}

// DB is an open store.
type DB struct {
	cfg     Config
	lock    *os.File
	signals *store.Signals
	pool    *sql.DB // all connections: one writes, the others read
	conns   []*conn
	readers chan *conn
	writer  *writer

	mu     sync.RWMutex // held to send to the writer, and to close
	closed bool
}

var _ store.Store = (*DB)(nil)

var errClosed = &sojourn.Error{
	Code: sojourn.CodeUnavailable, Message: "The server is stopping.", RetryAfter: time.Second,
}

// Open opens or makes the database in c.Dir and takes the directory's lock. The
// error is an [InUseError] when another process has it, and wraps [ErrDamaged]
// or migration.ErrNewer when the database cannot be used; it is then as it was.
func Open(ctx context.Context, c Config) (_ *DB, err error) {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Readers <= 0 {
		c.Readers = 4
	}
	if c.CheckBytes <= 0 {
		c.CheckBytes = 64 << 20
	}
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return nil, fmt.Errorf("open data directory: %w", err)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	db := &DB{cfg: c, signals: store.NewSignals()}
	if db.lock, err = lockDir(c.Dir); err != nil {
		return nil, err
	}
	if err := db.open(ctx); err != nil {
		return nil, errors.Join(err, db.release())
	}
	return db, nil
}

// open makes the connections, once the directory is locked.
func (db *DB) open(ctx context.Context) error {
	path := filepath.Join(db.cfg.Dir, fileName)
	if err := prepare(ctx, path, db.cfg.CheckBytes); err != nil {
		return err
	}
	var err error
	if db.pool, err = sql.Open("sqlite", dsn(path, false)); err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	db.pool.SetMaxOpenConns(db.cfg.Readers + 1)
	db.pool.SetMaxIdleConns(db.cfg.Readers + 1)
	write, err := db.connect(ctx, "PRAGMA query_only = 0")
	if err != nil {
		return err
	}
	db.readers = make(chan *conn, db.cfg.Readers)
	for range db.cfg.Readers {
		read, err := db.connect(ctx, "PRAGMA query_only = 1")
		if err != nil {
			return err
		}
		db.readers <- read
	}
	db.writer = startWriter(db, write)
	return nil
}

func (db *DB) connect(ctx context.Context, pragma string) (*conn, error) {
	c, err := db.pool.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", translate(err))
	}
	if _, err := c.ExecContext(ctx, pragma); err != nil {
		c.Close()
		return nil, fmt.Errorf("open database: %w", translate(err))
	}
	made := &conn{c: c, stmts: map[string]*sql.Stmt{}}
	db.conns = append(db.conns, made)
	return made, nil
}

// dsn names the database and the settings of every connection to it.
func dsn(path string, readOnly bool) string {
	q := url.Values{"_pragma": {
		"busy_timeout(10000)", "foreign_keys(1)", "trusted_schema(0)", "temp_store(2)", "cache_size(-16384)",
	}}
	if readOnly {
		q.Set("mode", "ro")
	} else {
		q["_pragma"] = append(q["_pragma"], "journal_mode(WAL)", "synchronous(FULL)",
			"wal_autocheckpoint("+strconv.Itoa(walPages)+")", "journal_size_limit("+strconv.Itoa(walPages*4096)+")")
	}
	return (&url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: q.Encode()}).String()
}

// walPages is when the write-ahead log is copied back: 4 MiB of pages.
const walPages = 1024

// Signals wakes the work engine of this process.
func (db *DB) Signals() *store.Signals { return db.signals }

// Update runs fn in a transaction that may write, together with others.
func (db *DB) Update(ctx context.Context, fn func(*store.Tx) error) error {
	o := &op{fn: fn, done: make(chan error, 1)}
	if err := db.enqueue(ctx, o); err != nil {
		return err
	}
	select {
	case err := <-o.done:
		return err
	case <-ctx.Done():
		if o.state.CompareAndSwap(opWaiting, opAbandoned) {
			return fmt.Errorf("update not started: %w", context.Cause(ctx))
		}
		return <-o.done
	}
}

func (db *DB) enqueue(ctx context.Context, o *op) error {
	if ctx.Err() != nil {
		return fmt.Errorf("update not started: %w", context.Cause(ctx))
	}
	db.mu.RLock()
	defer db.mu.RUnlock()
	if db.closed {
		return errClosed
	}
	select {
	case db.writer.ops <- o:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("update not started: %w", context.Cause(ctx))
	}
}

// View runs fn in a transaction that only reads.
func (db *DB) View(ctx context.Context, fn func(*store.Tx) error) error {
	c, err := db.reader(ctx)
	if err != nil {
		return err
	}
	defer func() { db.readers <- c }()
	// The statements are not cut short when ctx ends: they are bounded, and an
	// interrupted one would cost more than it saves.
	background := context.WithoutCancel(ctx)
	c.lost = nil
	if _, err := c.steer(background, "BEGIN"); err != nil {
		return fmt.Errorf("begin view: %w", translate(err))
	}
	defer c.steer(background, "ROLLBACK")
	return db.call(fn, store.NewTx(background, store.TxConfig{Querier: c, Dialect: &dialect}))
}

// reader takes a connection, which the caller gives back.
func (db *DB) reader(ctx context.Context) (*conn, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("view not started: %w", context.Cause(ctx))
	}
	select {
	case c, open := <-db.readers:
		if !open {
			return nil, errClosed
		}
		return c, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("view not started: %w", context.Cause(ctx))
	}
}

// Close waits for running transactions, then closes the database and gives the
// directory's lock back. It may be called twice.
func (db *DB) Close() error {
	db.mu.Lock()
	if db.closed {
		db.mu.Unlock()
		return nil
	}
	db.closed = true
	close(db.writer.ops)
	db.mu.Unlock()
	db.writer.wait()
	for range db.cfg.Readers {
		<-db.readers
	}
	close(db.readers)
	return db.release()
}

// release closes the files, once nothing uses them.
func (db *DB) release() error {
	var errs []error
	for _, c := range db.conns {
		errs = append(errs, c.close())
	}
	if db.pool != nil {
		errs = append(errs, db.pool.Close())
	}
	return errors.Join(append(errs, db.lock.Close())...)
}
