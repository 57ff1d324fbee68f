// Package migration holds the schema as numbered steps, and takes a database
// from the step it is at to the last.
//
// # Words
//
// A step is a file sql/NNNN_name.sql in goose's format. [Fragments] are the few
// words in which the databases differ; a file names them in double braces.
//
// # Invariants
//
// A released step never changes: its hash is in testdata. Steps only go up.
//
// # Failure
//
// Each step is a transaction. A database from a newer release is refused with
// [ErrNewer] and not touched.
package migration

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/pressly/goose/v3"
)

//go:embed sql/*.sql
var embedded embed.FS

// table is where goose keeps which steps were taken.
const table = "schema_steps"

// ErrNewer is a database that a newer release has migrated.
var ErrNewer = errors.New("the database was written by a newer release of sojourn; start that release, or restore a backup made by this one")

// Fragments are the words in which the databases differ.
type Fragments struct {
	Blob      string // the type for bytes
	Clustered string // behind a table that is stored in the order of its primary key
}

// The fragments of the databases.
var (
	SQLite   = Fragments{Blob: "BLOB", Clustered: " WITHOUT ROWID"}
	Postgres = Fragments{Blob: "BYTEA"}
)

// Dialect is goose's name for a database.
type Dialect = goose.Dialect

// The dialects.
const (
	DialectSQLite   = goose.DialectSQLite3
	DialectPostgres = goose.DialectPostgres
)

// Up takes the steps that db has not taken yet, and returns the last step's
// number.
func Up(ctx context.Context, db *sql.DB, d Dialect, f Fragments) (int64, error) {
	p, err := goose.NewProvider(d, db, Files(f), goose.WithTableName(table), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return 0, fmt.Errorf("read migrations: %w", err)
	}
	current, target, err := p.GetVersions(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the schema's step: %w", err)
	}
	if current > target {
		return 0, fmt.Errorf("schema step %d, known up to %d: %w", current, target, ErrNewer)
	}
	if _, err := p.Up(ctx); err != nil {
		return 0, fmt.Errorf("migrate from step %d to %d: %w", current, target, err)
	}
	return target, nil
}

// Current returns the number of the last step that db has taken. It only reads,
// and fails on a database that has no record of steps.
func Current(ctx context.Context, db *sql.DB) (step int64, err error) {
	err = db.QueryRowContext(ctx, "SELECT MAX(version_id) FROM "+table).Scan(&step)
	return step, err
}

// Last returns the number of the last step that this release knows.
func Last() int64 {
	names, _ := fs.Glob(embedded, "sql/*.sql") // the pattern is well-formed
	var last int64
	for _, name := range names {
		if n, err := goose.NumericComponent(strings.TrimPrefix(name, "sql/")); err == nil {
			last = max(last, n)
		}
	}
	return last
}

// Files returns the steps with f filled in.
func Files(f Fragments) fs.FS {
	sub, _ := fs.Sub(embedded, "sql") // "sql" is a valid path
	return filled{FS: sub, words: strings.NewReplacer("{{blob}}", f.Blob, "{{clustered}}", f.Clustered)}
}

// filled is a file system whose files have the fragments filled in.
type filled struct {
	fs.FS
	words *strings.Replacer
}

// Open opens a file or, to be listed, the directory.
func (f filled) Open(name string) (fs.File, error) {
	file, err := f.FS.Open(name)
	if err != nil || !strings.HasSuffix(name, ".sql") {
		return file, err
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return filledFile{File: file, text: strings.NewReader(f.words.Replace(string(text)))}, nil
}

type filledFile struct {
	fs.File
	text io.Reader
}

// Read reads the text with its fragments.
func (f filledFile) Read(p []byte) (int, error) { return f.text.Read(p) }
