package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/store/sqlite"
)

const benchSessions = 1000

var benchData = []byte(`{"text":"` + strings.Repeat("x", 380) + `"}`)

// bare is a group commit with nothing around it: what the disk and the driver
// can do.
type bare struct {
	db  *sql.DB
	ops chan chan error
}

func openBare(b *testing.B, dir string) *bare {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "bare.db")+
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=wal_autocheckpoint(4096)")
	if err != nil {
		b.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	exec := func(query string, args ...any) {
		if _, err := db.Exec(query, args...); err != nil {
			b.Fatal(err)
		}
	}
	exec("CREATE TABLE sessions (id TEXT NOT NULL PRIMARY KEY, last_seq BIGINT NOT NULL)")
	exec(`CREATE TABLE events (session TEXT NOT NULL, seq BIGINT NOT NULL, at BIGINT NOT NULL, type TEXT NOT NULL,
		turn TEXT NOT NULL, run TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (session, seq))`)
	exec("BEGIN")
	for i := range benchSessions {
		exec("INSERT INTO sessions VALUES ($1, 0)", fmt.Sprint("session-", i))
	}
	exec("COMMIT")
	return &bare{db: db, ops: make(chan chan error, 256)}
}

// run commits until ops is closed.
func (l *bare) run(ctx context.Context) error {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	raise, err := conn.PrepareContext(ctx, "UPDATE sessions SET last_seq = last_seq + 1 WHERE id = $1 RETURNING last_seq")
	if err != nil {
		return err
	}
	insert, err := conn.PrepareContext(ctx, "INSERT INTO events VALUES ($1, $2, $3, $4, $5, $6, $7)")
	if err != nil {
		return err
	}
	n := 0
	for first := range l.ops {
		batch := []chan error{first}
		for len(batch) < 256 {
			select {
			case op := <-l.ops:
				batch = append(batch, op)
				continue
			default:
			}
			break
		}
		if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
			return err
		}
		for range batch {
			id := fmt.Sprint("session-", n%benchSessions)
			n++
			var seq int64
			if err := raise.QueryRowContext(ctx, id).Scan(&seq); err != nil {
				return err
			}
			if _, err := insert.ExecContext(ctx, id, seq, time.Now().UnixMicro(), "agent.update", "", "", string(benchData)); err != nil {
				return err
			}
		}
		_, err := conn.ExecContext(ctx, "COMMIT")
		for _, op := range batch {
			op <- err
		}
	}
	return nil
}

func (l *bare) append() error {
	done := make(chan error, 1)
	l.ops <- done
	return <-done
}

// callers has n goroutines call do until total calls are made, and returns how
// long that took.
func callers(b *testing.B, n int, total int64, do func(i int64) error) time.Duration {
	b.Helper()
	var next atomic.Int64
	var g errgroup.Group
	begun := time.Now()
	for range n {
		g.Go(func() error {
			for {
				i := next.Add(1)
				if i > total {
					return nil
				}
				if err := do(i); err != nil {
					return err
				}
			}
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	return time.Since(begun)
}

// used returns the processor time of this process.
func used() time.Duration {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u) // cannot fail for the process itself
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func openBench(b *testing.B, dir string) *sqlite.DB {
	db := open(b, sqlite.Config{Dir: dir})
	var g errgroup.Group
	for i := range benchSessions {
		g.Go(func() error { return create(b.Context(), db, sojourn.SessionID(fmt.Sprint("session-", i))) })
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	return db
}

// BenchmarkAppend has 64 callers that append one event of 390 bytes a call,
// durably. "of-bare" is the rate in proportion to a bare group commit, measured
// in turns on the same file system. A decision reads the session's facts first
// and writes all of its row.
func BenchmarkAppend(b *testing.B) {
	b.Run("append", func(b *testing.B) { benchAppend(b, 64, false) })
	b.Run("decision", func(b *testing.B) { benchAppend(b, 64, true) })
}

func benchAppend(b *testing.B, n int, decide bool) {
	dir := b.TempDir()
	db := openBench(b, dir)
	l := openBare(b, dir)
	defer l.db.Close()
	ran := make(chan error, 1)
	go func() { ran <- l.run(b.Context()) }()
	ours := func(i int64) error {
		id := sojourn.SessionID(fmt.Sprint("session-", i%benchSessions))
		if decide {
			_, err := note(b.Context(), db, id, benchData)
			return err
		}
		return db.Update(b.Context(), func(tx *store.Tx) error {
			_, err := tx.AppendEvents(id, sojourn.EventDraft{Type: sojourn.EventAgentUpdate, Data: benchData})
			return err
		})
	}
	const slice = 2000 // in turns, so that both see the same machine
	var us, them, cpu, bareCPU time.Duration
	b.ResetTimer()
	for left := int64(b.N); left > 0; left -= slice {
		calls := min(left, slice)
		begun := used()
		us += callers(b, n, calls, ours)
		b.StopTimer()
		between := used()
		them += callers(b, n, calls, func(int64) error { return l.append() })
		cpu, bareCPU = cpu+between-begun, bareCPU+used()-between
		b.StartTimer()
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/us.Seconds(), "appends/s")
	b.ReportMetric(float64(b.N)/them.Seconds(), "bare/s")
	b.ReportMetric(float64(them)/float64(us), "of-bare")
	b.ReportMetric(float64(cpu.Microseconds())/float64(b.N), "cpu-us/op")
	b.ReportMetric(float64(bareCPU.Microseconds())/float64(b.N), "bare-cpu-us/op")
	close(l.ops)
	if err := <-ran; err != nil {
		b.Fatal(err)
	}
}

// BenchmarkAppendAlone has one caller: each append is a flush of the disk.
func BenchmarkAppendAlone(b *testing.B) {
	db := openBench(b, b.TempDir())
	b.ResetTimer()
	callers(b, 1, int64(b.N), func(i int64) error {
		_, err := note(b.Context(), db, sojourn.SessionID(fmt.Sprint("session-", i%benchSessions)), benchData)
		return err
	})
}

// BenchmarkFactsOfBench reads all facts of a bare session with a sandbox, of which 64
// execs are queued and 2,000 are over. "of-plain" is the time in proportion to that of a session with
// nothing but its row, measured in turns.
func BenchmarkFactsOfBench(b *testing.B) {
	db := open(b, sqlite.Config{Dir: b.TempDir()})
	if err := create(b.Context(), db, "plain"); err != nil {
		b.Fatal(err)
	}
	if err := db.Update(b.Context(), func(tx *store.Tx) error { return queue(tx, "s", 2000, 64) }); err != nil {
		b.Fatal(err)
	}
	facts := func(id sojourn.SessionID) (f sojourn.Facts, err error) {
		err = db.View(b.Context(), func(tx *store.Tx) error { f, err = tx.Facts(id); return err })
		return f, err
	}
	if f, err := facts("s"); err != nil || len(f.Execs) != 4 {
		b.Fatalf("facts with %d execs, %v; want the first four", len(f.Execs), err)
	}
	var plain time.Duration
	for b.Loop() {
		if _, err := facts("s"); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		begun := time.Now()
		if _, err := facts("plain"); err != nil {
			b.Fatal(err)
		}
		plain += time.Since(begun)
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed())/float64(plain), "of-plain")
}

// queue makes a bare session whose sandbox is being replaced, with execs that are
// over and that are queued.
func queue(tx *store.Tx, id sojourn.SessionID, over, queued int) error {
	d, err := sojourn.Create(tx.Now(), sojourn.NewSession{ID: id, Project: sojourn.DefaultProject, Runtime: sojourn.RuntimeNone})
	if err != nil {
		return err
	}
	if err := d.Start(); err != nil {
		return err
	}
	if _, err := d.RequestLease("fake", "none", sojourn.Terms{}); err != nil {
		return err
	}
	if err := d.HoldLease(1, nil, ""); err != nil {
		return err
	}
	for i := range over + queued {
		if i == over {
			d.BeginRotation(sojourn.RotateRequested)
		}
		in := sojourn.NewExec{ID: sojourn.ExecID(fmt.Sprint("exec-", i)), Spec: sojourn.ExecSpec{Argv: []string{"true"}, Timeout: time.Minute}}
		if _, err := d.Execute(in, 0, sojourn.ExecRate{}); err != nil {
			return err
		}
		if i < over {
			d.EndExec(in.ID, sojourn.ExecResult{Code: new(0)}, "")
		}
	}
	return tx.Apply(d.Change())
}

// BenchmarkFacts reads all facts of a session whose run is active.
func BenchmarkFacts(b *testing.B) {
	db := open(b, sqlite.Config{Dir: b.TempDir()})
	if err := create(b.Context(), db, "s"); err != nil {
		b.Fatal(err)
	}
	if err := db.Update(b.Context(), func(tx *store.Tx) error {
		f, err := tx.Facts("s")
		if err != nil {
			return err
		}
		d := f.Decide(tx.Now())
		if err := d.Submit("t", "r", []sojourn.Part{{Type: "text", Text: "x"}}); err != nil {
			return err
		}
		if _, err := d.RequestLease("fake", "none", sojourn.Terms{}); err != nil {
			return err
		}
		return tx.Apply(d.Change())
	}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := db.View(b.Context(), func(tx *store.Tx) error { _, err := tx.Facts("s"); return err }); err != nil {
			b.Fatal(err)
		}
	}
}
