package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	driver "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// dialect is what SQLite says where the databases differ: with one writer there
// is nothing to lock.
var dialect = store.Dialect{Exclusive: true, Translate: translate}

// conn is one connection with its prepared statements. Few texts exist, so none
// is ever dropped. One goroutine uses it at a time.
type conn struct {
	c     *sql.Conn
	stmts map[string]*sql.Stmt
	// lost is the error after which SQLite may have undone the transaction by
	// itself. What follows in it is refused, or it would be committed alone.
	lost error
	// wrote tells that a statement since it was last reset may have written.
	wrote bool
}

// begins notes that a statement of a closure is about to run.
func (c *conn) begins(query string) error {
	c.wrote = c.wrote || !strings.HasPrefix(query, "SELECT")
	return c.lost
}

// note remembers an error that costs the transaction.
func (c *conn) note(err error) error {
	if e, ok := errors.AsType[*driver.Error](err); ok {
		switch e.Code() & 0xff {
		case lib.SQLITE_FULL, lib.SQLITE_IOERR, lib.SQLITE_NOMEM, lib.SQLITE_INTERRUPT:
			c.lost = translate(err)
		}
	}
	return err
}

func (c *conn) prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	if s := c.stmts[query]; s != nil {
		return s, nil
	}
	s, err := c.c.PrepareContext(ctx, query)
	if err == nil {
		c.stmts[query] = s
	}
	return s, err
}

// steer runs a statement also when the transaction is lost.
func (c *conn) steer(ctx context.Context, query string, args ...any) (sql.Result, error) {
	s, err := c.prepare(ctx, query)
	if err != nil {
		return nil, err
	}
	res, err := s.ExecContext(ctx, args...)
	return res, c.note(err)
}

// ExecContext runs a statement that returns no rows.
func (c *conn) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := c.begins(query); err != nil {
		return nil, err
	}
	return c.steer(ctx, query, args...)
}

// QueryContext runs a statement that returns rows.
func (c *conn) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := c.begins(query); err != nil {
		return nil, err
	}
	s, err := c.prepare(ctx, query)
	if err != nil {
		return nil, err
	}
	rows, err := s.QueryContext(ctx, args...)
	return rows, c.note(err)
}

// QueryRowContext runs a statement that returns at most one row.
func (c *conn) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	c.wrote = c.wrote || !strings.HasPrefix(query, "SELECT")
	s, err := c.prepare(ctx, query)
	if err != nil {
		return c.c.QueryRowContext(ctx, query, args...) // reports the error in its own way
	}
	return s.QueryRowContext(ctx, args...)
}

func (c *conn) close() error {
	var errs []error
	for _, s := range c.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.c.Close())...)
}

// translate gives the driver's errors a code or a name to branch on.
func translate(err error) error {
	e, ok := errors.AsType[*driver.Error](err)
	if !ok {
		return err
	}
	switch e.Code() & 0xff {
	case lib.SQLITE_FULL, lib.SQLITE_IOERR:
		return &sojourn.Error{
			Code: sojourn.CodeOutOfSpace, Cause: err,
			Message: "The server could not write to its disk: it is full or failing. Nothing was changed.",
		}
	case lib.SQLITE_CONSTRAINT:
		return fmt.Errorf("%w: %w", store.ErrConstraint, err)
	case lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB:
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}
