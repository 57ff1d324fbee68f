package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/store/sqlite"
)

// writerDir tells this binary to be the process that gets killed.
const writerDir = "SOJOURN_TEST_WRITER_DIR"

const killedSessions = 6

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerDir); dir != "" {
		fmt.Fprintln(os.Stderr, writeForEver(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writeForEver appends to several sessions at once and says what was
// acknowledged, a line each.
func writeForEver(dir string) error {
	ctx := context.Background()
	db, err := sqlite.Open(ctx, sqlite.Config{Dir: dir})
	if err != nil {
		return err
	}
	for i := range killedSessions {
		err := create(ctx, db, sojourn.SessionID(fmt.Sprint(i)))
		if err != nil && !errors.Is(err, store.ErrConstraint) { // it is there already
			return err
		}
	}
	var g errgroup.Group
	for w := range 3 * killedSessions {
		g.Go(func() error {
			for {
				id := w % killedSessions
				seq, err := note(ctx, db, sojourn.SessionID(fmt.Sprint(id)), nil)
				if err != nil {
					return err
				}
				fmt.Printf("%d %d\n", id, seq) // one write each, unbuffered
			}
		})
	}
	return g.Wait()
}

// TestKilledWriterLosesNothing is case EV-14 and guarantees G1 and G2: whatever
// was acknowledged before a SIGKILL is there afterwards, with its number.
func TestKilledWriterLosesNothing(t *testing.T) {
	kills := 50
	if testing.Short() {
		kills = 5
	}
	dir := t.TempDir()
	acknowledged := make([]int64, killedSessions)
	total := 0
	for i := range kills {
		total += killWriter(t, dir, acknowledged, i%3 == 0)
		if t.Failed() {
			return
		}
		checkKilled(t, dir, acknowledged)
	}
	t.Logf("%d kills, %d acknowledged commits", kills, total)
	if total == 0 {
		t.Error("nothing was ever written")
	}
}

// killWriter starts a writer, kills it at a random moment, and returns how many
// commits it acknowledged. The latest of each session are left in acknowledged.
// Early, it may still be opening the database.
func killWriter(t *testing.T, dir string, acknowledged []int64, early bool) (n int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), writerDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	if !early {
		if _, err := lines.Peek(1); err != nil {
			t.Errorf("the writer wrote nothing: %v", err)
		}
	}
	var g errgroup.Group
	g.Go(func() error {
		for {
			line, err := lines.ReadString('\n')
			if err == io.EOF {
				return nil // a line that was cut off is no acknowledgement
			} else if err != nil {
				return err
			}
			var id int
			var seq int64
			if _, err := fmt.Sscanf(line, "%d %d\n", &id, &seq); err != nil {
				return fmt.Errorf("line %q: %w", line, err)
			}
			acknowledged[id] = max(acknowledged[id], seq)
			n++
		}
	})
	time.Sleep(time.Duration(rand.IntN(int(100 * time.Millisecond))))
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the writer ended by itself")
	}
	return n
}

func checkKilled(t *testing.T, dir string, acknowledged []int64) {
	t.Helper()
	db, err := sqlite.Open(t.Context(), sqlite.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range acknowledged {
		id := sojourn.SessionID(fmt.Sprint(i))
		events := logOf(t, db, id)
		if int64(len(events)) < want {
			t.Errorf("session %d has %d events, %d were acknowledged", i, len(events), want)
		}
		for n, e := range events {
			if e.Seq != int64(n+1) {
				t.Fatalf("session %d: event %d is %d", i, n+1, e.Seq)
			}
		}
	}
	integrity(t, dir, db)
}

// integrity closes the database and has SQLite check all of it.
func integrity(t *testing.T, dir string, db *sqlite.DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	raw, err := sql.Open("sqlite", filepath.Join(dir, "sojourn.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	var verdict string
	if err := raw.QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		t.Errorf("integrity check: %q, %v", verdict, err)
	}
	rows, err := raw.QueryContext(t.Context(), "PRAGMA foreign_key_check")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if rows.Next() {
		t.Error("a row points to nothing")
	}
}
