package sqlite_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/store/sqlite"
)

// small returns a file system of 8 MiB.
func small(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("SKIPPED, the full disk is NOT tested: a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// fill leaves no space, and returns the file to remove to have it again.
func fill(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "ballast")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	return path
}

// TestFullDisk is case CP-13: typed errors, reads go on, nothing is torn, and
// all is well when space returns.
func TestFullDisk(t *testing.T) {
	dir := small(t)
	data := filepath.Join(dir, "data")
	db, err := sqlite.Open(t.Context(), sqlite.Config{Dir: data})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { db.Close() }()
	const sessions = 8
	for i := range sessions {
		if err := create(t.Context(), db, sojourn.SessionID(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	acknowledged := make([]int64, sessions)
	// write appends to all sessions at once until each has failed, or n times.
	write := func(n int) {
		t.Helper()
		var g errgroup.Group
		for i := range sessions {
			g.Go(func() error {
				for range n {
					seq, err := note(t.Context(), db, sojourn.SessionID(fmt.Sprint(i)), []byte(`{"text":"`+strings.Repeat("x", 1000*(i+1))+`"}`))
					if sojourn.CodeOf(err) == sojourn.CodeOutOfSpace {
						return err
					}
					if err != nil {
						t.Errorf("session %d: %v, want out_of_space", i, err)
						return nil
					}
					acknowledged[i] = seq
				}
				return nil
			})
		}
		if err := g.Wait(); (err != nil) != (n > 100) {
			t.Errorf("%d writes each: %v", n, err)
		}
	}
	whole := func() {
		t.Helper()
		for i := range sessions {
			id := sojourn.SessionID(fmt.Sprint(i))
			events := logOf(t, db, id)
			if int64(len(events)) != max(1, acknowledged[i]) {
				t.Errorf("session %d has %d events, %d were acknowledged", i, len(events), acknowledged[i])
			}
			for n, e := range events {
				if e.Seq != int64(n+1) || len(e.Data) == 0 || e.Data[len(e.Data)-1] != '}' {
					t.Fatalf("session %d: event %d is %d with %d bytes", i, n+1, e.Seq, len(e.Data))
				}
			}
			if err := db.View(t.Context(), func(tx *store.Tx) error { _, err := tx.Facts(id); return err }); err != nil {
				t.Errorf("facts of session %d: %v", i, err)
			}
		}
	}
	write(10)
	for range 3 {
		ballast := fill(t, dir)
		write(100_000)
		whole()
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		write(10)
		whole()
	}
	// Stopping and starting on a full disk changes nothing either.
	ballast := fill(t, dir)
	write(100_000)
	if err := db.Close(); err != nil {
		t.Logf("close on a full disk: %v", err)
	}
	if full, err := sqlite.Open(t.Context(), sqlite.Config{Dir: data}); err == nil {
		full.Close()
	} else {
		t.Logf("open on a full disk: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if db, err = sqlite.Open(t.Context(), sqlite.Config{Dir: data}); err != nil {
		t.Fatalf("open when there is space again: %v", err)
	}
	whole()
	write(10)
	whole()
	integrity(t, data, db)
}

// TestClosureThatPassesOverFullDiskFails: what SQLite has undone by itself must
// not be followed by half of the closure.
func TestClosureThatPassesOverFullDiskFails(t *testing.T) {
	db := open(t, sqlite.Config{Dir: filepath.Join(small(t), "data")})
	if err := create(t.Context(), db, "s"); err != nil {
		t.Fatal(err)
	}
	var first, second error
	err := db.Update(t.Context(), func(tx *store.Tx) error {
		// More than the page cache holds, so that it is written before the commit.
		_, first = tx.AppendEvents("s", sojourn.EventDraft{Type: sojourn.EventAgentLog, Data: make([]byte, 40<<20)})
		second = tx.PutKey(sojourn.Key{ID: "k", Project: "p"})
		return nil
	})
	for what, err := range map[string]error{"the first write": first, "the second": second, "the update": err} {
		if code := sojourn.CodeOf(err); code != sojourn.CodeOutOfSpace {
			t.Errorf("%s: code %q (%v), want out_of_space", what, code, err)
		}
	}
	if err := db.View(t.Context(), func(tx *store.Tx) error { _, err := tx.Key("k"); return err }); sojourn.CodeOf(err) != sojourn.CodeNotFound {
		t.Errorf("the key: %v, want not_found", err)
	}
	if _, err := note(t.Context(), db, "s", nil); err != nil {
		t.Errorf("the next update: %v", err)
	}
}

// TestWriteAheadLogIsNoReasonToFail: what was written again and again needs
// space for its log only until the log is copied back.
func TestWriteAheadLogIsNoReasonToFail(t *testing.T) {
	dir := small(t)
	data := filepath.Join(dir, "data")
	db, err := sqlite.Open(t.Context(), sqlite.Config{Dir: data})
	if err != nil {
		t.Fatal(err)
	}
	// Free pages, so that the database itself need not grow.
	old := store.IdempotencyKey{Project: "p", Key: "old"}
	for _, fn := range []func(*store.Tx) error{
		func(tx *store.Tx) error {
			_, err := tx.Remember(old, [32]byte{}, tx.Now().Add(-time.Second))
			return errors.Join(err, tx.StoreReply(old, 200, make([]byte, 1<<20)))
		},
		func(tx *store.Tx) error { _, err := tx.ForgetExpired(); return err },
	} {
		if err := db.Update(t.Context(), fn); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	ballast := fill(t, dir)
	if info, err := os.Stat(ballast); err != nil || os.Truncate(ballast, info.Size()-2<<20) != nil {
		t.Fatalf("leave 2 MiB: %v", err)
	}
	db = open(t, sqlite.Config{Dir: data})
	for i := range 1500 { // three pages each, 18 MB in all
		if err := db.Update(t.Context(), func(tx *store.Tx) error {
			return tx.PutKey(sojourn.Key{ID: "k", Project: "p", Name: strings.Repeat(string(rune('a'+i%26)), 8000)})
		}); err != nil {
			t.Fatalf("update %d: %v", i, err)
		}
	}
}

func TestCreateOnFullDiskCanBeRepeated(t *testing.T) {
	dir := small(t)
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	ballast := fill(t, dir)
	if _, err := sqlite.Open(t.Context(), sqlite.Config{Dir: data}); err == nil {
		t.Fatal("a database was made without space")
	} else if code := sojourn.CodeOf(err); code != sojourn.CodeOutOfSpace {
		t.Errorf("open: code %q (%v), want out_of_space", code, err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	db, err := sqlite.Open(t.Context(), sqlite.Config{Dir: data})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}
