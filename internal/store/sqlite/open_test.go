package sqlite_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/store/migration"
	"github.com/sojourn-dev/sojourn/internal/store/sqlite"
)

// create makes a session.
func create(ctx context.Context, db *sqlite.DB, id sojourn.SessionID) error {
	return db.Update(ctx, func(tx *store.Tx) error {
		d, err := sojourn.Create(tx.Now(), sojourn.NewSession{ID: id, Project: sojourn.DefaultProject})
		if err != nil {
			return err
		}
		return tx.Apply(d.Change())
	})
}

// note appends one event and returns its number.
func note(ctx context.Context, db *sqlite.DB, id sojourn.SessionID, data []byte) (seq int64, err error) {
	err = db.Update(ctx, func(tx *store.Tx) error {
		f, err := tx.Facts(id)
		if err != nil {
			return err
		}
		d := f.Decide(tx.Now())
		d.Note(sojourn.EventDraft{Type: sojourn.EventAgentUpdate, Data: data})
		seq = f.Session.LastSeq + 1
		return tx.Apply(d.Change())
	})
	return seq, err
}

// logOf returns a session's events.
func logOf(t testing.TB, db *sqlite.DB, id sojourn.SessionID) (all []sojourn.Event) {
	t.Helper()
	for after := int64(0); ; {
		var page []sojourn.Event
		if err := db.View(t.Context(), func(tx *store.Tx) (err error) {
			page, err = tx.Events(id, after, 1000)
			return err
		}); err != nil {
			t.Fatalf("read the log of %s: %v", id, err)
		}
		if len(page) == 0 {
			return all
		}
		all, after = append(all, page...), page[len(page)-1].Seq
	}
}

func TestSecondProcessIsRefused(t *testing.T) {
	dir := t.TempDir()
	db := open(t, sqlite.Config{Dir: dir})
	_, err := sqlite.Open(t.Context(), sqlite.Config{Dir: dir})
	e, ok := errors.AsType[*sqlite.InUseError](err)
	if !ok || e.Dir != dir || e.PID != os.Getpid() {
		t.Fatalf("second open: %v, want an InUseError with the directory and our id", err)
	}
	if !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("the sentence names neither directory nor process: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, sqlite.Config{Dir: dir})
}

func TestOpenKeepsWhatWasWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b", "50% ?#é")
	for i := range 3 {
		db := open(t, sqlite.Config{Dir: dir})
		if err := create(t.Context(), db, sojourn.SessionID(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
		if err := db.View(t.Context(), func(tx *store.Tx) error {
			all, err := tx.Sessions(store.SessionQuery{})
			if len(all) != i+1 {
				t.Errorf("%d sessions, want %d", len(all), i+1)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// written returns a directory with a database of some size. With crashed true
// part of it is in the write-ahead log, as after a kill.
func written(t *testing.T, crashed bool) string {
	t.Helper()
	dir := t.TempDir()
	db := open(t, sqlite.Config{Dir: dir})
	if err := create(t.Context(), db, "s"); err != nil {
		t.Fatal(err)
	}
	for range 60 {
		if _, err := note(t.Context(), db, "s", []byte(`{"text":"`+strings.Repeat("x", 3000)+`"}`)); err != nil {
			t.Fatal(err)
		}
	}
	if !crashed {
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	copied := t.TempDir()
	for _, name := range []string{"sojourn.db", "sojourn.db-wal"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(copied, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return copied
}

// digests returns what must not change: database and write-ahead log.
func digests(t *testing.T, dir string) string {
	t.Helper()
	var s strings.Builder
	for _, name := range []string{"sojourn.db", "sojourn.db-wal"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		fmt.Fprintf(&s, "%s %x %v\n", name, sha256.Sum256(b), err)
	}
	return s.String()
}

// TestDamagedDatabaseIsRefusedAndLeftAlone is case CP-16.
func TestDamagedDatabaseIsRefusedAndLeftAlone(t *testing.T) {
	for _, c := range []struct {
		name    string
		crashed bool
		damage  func(b []byte) []byte // of sojourn.db; nil removes it
	}{
		{"emptied", false, func([]byte) []byte { return []byte{} }},
		{"emptied beside its log", true, func([]byte) []byte { return []byte{} }},
		{"removed beside its log", true, func([]byte) []byte { return nil }},
		{"cut in the first page", false, func(b []byte) []byte { return b[:50] }},
		{"cut after some pages", false, func(b []byte) []byte { return b[:len(b)/2] }},
		{"cut within a page", false, func(b []byte) []byte { return b[:len(b)-1000] }},
		{"text", false, func([]byte) []byte {
			return []byte("once upon a time there was a database" + strings.Repeat(".", 5000))
		}},
		{"zeros", false, func(b []byte) []byte { return make([]byte, len(b)) }},
		{"scrambled page", false, func(b []byte) []byte {
			r := rand.New(rand.NewPCG(1, 2))
			for i := 5 * 4096; i < 6*4096; i++ {
				b[i] = byte(r.Uint32())
			}
			return b
		}},
		{"scrambled beginning", false, func(b []byte) []byte { copy(b, "SQLite format 4"); return b }},
		{"another program's database", false, func([]byte) []byte { return foreign(t) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := written(t, c.crashed)
			path := filepath.Join(dir, "sojourn.db")
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if b = c.damage(b); b == nil {
				err = os.Remove(path)
			} else {
				err = os.WriteFile(path, b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			before := digests(t, dir)
			for range 2 { // the first attempt must not make way for the second
				db, err := sqlite.Open(t.Context(), sqlite.Config{Dir: dir})
				if err == nil {
					db.Close()
					t.Fatal("it was opened")
				}
				if !errors.Is(err, sqlite.ErrDamaged) || !strings.Contains(err.Error(), dir) {
					t.Errorf("open: %v, want ErrDamaged with the path", err)
				}
			}
			if after := digests(t, dir); after != before {
				t.Errorf("the files were changed:\n%swant\n%s", after, before)
			}
		})
	}
}

// foreign returns a database that is whole, but not ours.
func foreign(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "foreign")
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), "CREATE TABLE recipes (name TEXT)")
	b, errRead := os.ReadFile(path)
	if err := errors.Join(err, db.Close(), errRead); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestLargeDatabaseIsCheckedWithoutItsLog(t *testing.T) {
	dir := written(t, false)
	open(t, sqlite.Config{Dir: dir, CheckBytes: 1})
}

func TestCrashedDatabaseIsOpened(t *testing.T) {
	dir := written(t, true)
	db := open(t, sqlite.Config{Dir: dir})
	if n := len(logOf(t, db, "s")); n != 61 {
		t.Errorf("%d events, want 61", n)
	}
}

func TestHalfMadeDatabaseIsMadeAnew(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sojourn.db.new"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	db := open(t, sqlite.Config{Dir: dir})
	if err := create(t.Context(), db, "s"); err != nil {
		t.Error(err)
	}
}

func TestNewerDatabaseIsRefusedAndLeftAlone(t *testing.T) {
	dir := written(t, false)
	raw, err := sql.Open("sqlite", filepath.Join(dir, "sojourn.db"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = raw.ExecContext(t.Context(), "INSERT INTO schema_steps (version_id, is_applied) VALUES ($1, 1)", migration.Last()+1)
	if err := errors.Join(err, raw.Close()); err != nil {
		t.Fatal(err)
	}
	before := digests(t, dir)
	_, err = sqlite.Open(t.Context(), sqlite.Config{Dir: dir})
	if !errors.Is(err, migration.ErrNewer) {
		t.Errorf("open: %v, want ErrNewer", err)
	}
	if after := digests(t, dir); after != before {
		t.Errorf("the files were changed:\n%swant\n%s", after, before)
	}
}

func TestClosureThatEndsItsGoroutineFailsAlone(t *testing.T) {
	db := open(t, sqlite.Config{Dir: t.TempDir()})
	for range 3 {
		if err := db.Update(t.Context(), func(*store.Tx) error { runtime.Goexit(); return nil }); err == nil {
			t.Error("no error")
		}
		if err := create(t.Context(), db, sojourn.SessionID(fmt.Sprint(rand.Int()))); err != nil {
			t.Errorf("after it: %v", err)
		}
	}
}

func TestSlowClosureIsLogged(t *testing.T) {
	var out bytes.Buffer
	db := open(t, sqlite.Config{Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&out, nil))})
	update := func(d time.Duration) {
		if err := db.Update(t.Context(), func(*store.Tx) error { time.Sleep(d); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	for tries := 1; ; tries++ { // nothing is quick while the machine does something else
		if out.Reset(); tries > 100 {
			t.Fatal("quick ones are logged")
		}
		if update(0); out.Len() == 0 {
			break
		}
	}
	if update(25 * time.Millisecond); !strings.Contains(out.String(), "TestSlowClosureIsLogged") {
		t.Errorf("the slow one was not: %q", out.String())
	}
}

// The directory may have been made by somebody else, for all to enter.
func TestNobodyElseReadsTheFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	db := open(t, sqlite.Config{Dir: dir})
	if err := create(t.Context(), db, "s"); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v; want the database, its log and the lock", files, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v (%v), want it for the owner alone", f.Name(), info.Mode(), err)
		}
	}
}
