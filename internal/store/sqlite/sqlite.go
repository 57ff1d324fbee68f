// Package sqlite keeps a store in one directory of this machine.
package sqlite

import (
	"context"
	"log/slog"

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
}

// DB is an open store.
type DB struct{}

// Open opens or makes the database in c.Dir and takes the directory's lock.
func Open(ctx context.Context, c Config) (*DB, error) { panic("soon") }

func (db *DB) Update(ctx context.Context, fn func(*store.Tx) error) error { panic("soon") }
func (db *DB) View(ctx context.Context, fn func(*store.Tx) error) error   { panic("soon") }
func (db *DB) Signals() *store.Signals                                    { panic("soon") }
func (db *DB) Close() error                                               { panic("soon") }

var _ store.Store = (*DB)(nil)
