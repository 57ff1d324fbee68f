package sqlite

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/store/migration"
)

// The files in the data directory.
const (
	fileName = "sojourn.db"
	lockName = "sojourn.lock"
)

// ErrDamaged is a database that cannot be trusted. It is never repaired, emptied
// or written to.
var ErrDamaged = errors.New("the database is damaged")

// InUseError is a data directory that another process has open.
type InUseError struct {
	Dir string
	PID int // 0 when it is not known
}

// Error says who has the directory.
func (e *InUseError) Error() string {
	who := "another process"
	if e.PID > 0 {
		who = "process " + strconv.Itoa(e.PID)
	}
	return fmt.Sprintf("the data directory %s is in use by %s; stop it first, or choose another directory", e.Dir, who)
}

// lockPatience is how long a held lock is waited for. A process that was killed
// while it started a child leaves the lock to that child until the child runs
// its program, which closes the file: a moment.
const lockPatience = time.Second

// lockDir takes the directory's lock and leaves our process id in it. The lock
// ends with the file or the process.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	for began := time.Now(); errors.Is(err, unix.EWOULDBLOCK) && time.Since(began) < lockPatience; {
		time.Sleep(20 * time.Millisecond)
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
		}
		text, _ := io.ReadAll(io.LimitReader(f, 32)) // the id is a courtesy
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return nil, &InUseError{Dir: dir, PID: pid}
	}
	// On a full disk the id may be missing; the lock holds all the same.
	if f.Truncate(0) == nil {
		f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, nil
}

// prepare leaves a database at path that is whole and has the last schema.
func prepare(ctx context.Context, path string, checkBytes int64) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return create(ctx, path)
	}
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	step, err := check(ctx, path, info.Size() <= checkBytes)
	if err != nil {
		return err
	}
	if last := migration.Last(); step > last {
		return fmt.Errorf("open database %s: schema step %d, known up to %d: %w", path, step, last, migration.ErrNewer)
	} else if step < last {
		return migrate(ctx, dsn(path, false))
	}
	return nil
}

// create makes the database under another name, so that it appears complete.
func create(ctx context.Context, path string) error {
	if _, err := os.Lstat(path + "-wal"); err == nil {
		return damaged(path, errors.New("it is missing, but its write-ahead log is there"))
	}
	fresh := path + ".new"
	for _, rest := range []string{"", "-wal", "-shm", "-journal"} {
		if err := os.Remove(fresh + rest); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("create database: %w", err)
		}
	}
	// SQLite would let everybody read it, and the directory may be older than us.
	// Its other files get the mode of this one.
	f, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return fmt.Errorf("create database: %w", err)
	}
	if err := migrate(ctx, dsn(fresh, false)); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return fmt.Errorf("create database: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

// migrate takes the missing steps. Closing the last connection moves everything
// from the write-ahead log into the file.
func migrate(ctx context.Context, dsn string) error {
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	db.SetMaxOpenConns(1)
	_, err = migration.Up(ctx, db, migration.DialectSQLite, migration.SQLite)
	return errors.Join(translate(err), db.Close())
}

// check reads the database without writing to it, and returns its schema step.
// Not thorough, it leaves the pages of the event log out.
func check(ctx context.Context, path string, thorough bool) (step int64, err error) {
	wal, err := os.Stat(path + "-wal")
	alone := err != nil || wal.Size() == 0 // nothing is in the write-ahead log
	if err := checkHeader(path, alone); err != nil {
		return 0, damaged(path, err)
	}
	name := dsn(path, true)
	if alone {
		name += "&immutable=1" // we hold the lock; not even a log is made beside it
	}
	db, err := sql.Open("sqlite", name)
	if err != nil {
		return 0, fmt.Errorf("open database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	targets := []string{""}
	if !thorough {
		if targets, err = tables(ctx, db); err != nil {
			return 0, damaged(path, err)
		}
	}
	for _, target := range targets {
		var verdict string
		if err := db.QueryRowContext(ctx, "PRAGMA quick_check"+target).Scan(&verdict); err != nil {
			return 0, damaged(path, err)
		}
		if verdict != "ok" {
			return 0, damaged(path, errors.New(verdict))
		}
	}
	step, err = migration.Current(ctx, db)
	if err != nil {
		return 0, damaged(path, fmt.Errorf("it does not say which release wrote it: %w", err))
	}
	return step, nil
}

// tables returns the arguments that check every table but the event log.
func tables(ctx context.Context, db *sql.DB) (args []string, err error) {
	rows, err := db.QueryContext(ctx, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'events'")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		args = append(args, "("+name+")")
	}
	return args, rows.Err()
}

// checkHeader finds out whether the file is a database at all and, where no
// write-ahead log completes it, whether it has its full length.
func checkHeader(path string, complete bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	head := make([]byte, 100) // the header's fields are at fixed places
	if _, err := io.ReadFull(f, head); err != nil {
		return errors.New("it is too short for a database")
	}
	if string(head[:16]) != "SQLite format 3\x00" {
		return errors.New("it does not begin as a database does")
	}
	pageBytes, pages := int64(binary.BigEndian.Uint16(head[16:])), int64(binary.BigEndian.Uint32(head[28:]))
	if pageBytes == 1 {
		pageBytes = 65536
	}
	if complete && info.Size() != pageBytes*pages {
		return fmt.Errorf("it has %d bytes, and says that it has %d", info.Size(), pageBytes*pages)
	}
	return nil
}

func damaged(path string, why error) error {
	return fmt.Errorf("%w: %s: %w; it was left as it is: restore it from a backup, or move it away to start anew",
		ErrDamaged, path, why)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync data directory: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync data directory: %w", err)
	}
	return nil
}
