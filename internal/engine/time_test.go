package engine_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"filippo.io/age"
	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/blob/memblob"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/harness/acp"
	"github.com/sojourn-dev/sojourn/internal/harness/script"
	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/server"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/store/sqlite"
	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/fake"
)

// bubble is an engine at the true values of the contract, in a time that only
// passes when everybody waits.
type bubble struct {
	*testing.T
	e      *engine.Engine
	fake   *fake.Driver
	bucket *blob.Bucket
	blobs  string // its directory
	db     store.Store
	ref    engine.Ref
}

// inBubble runs f on a real store with the fake driver in a synctest bubble.
func inBubble(t *testing.T, f func(b *bubble)) {
	bubbleOn(t, func(string) (*blob.Bucket, error) { return memblob.OpenBucket(nil), nil }, f)
}

// inBubbleOnDisk has the blob store in a directory. Its objects have the time of the
// machine, not that of the bubble.
func inBubbleOnDisk(t *testing.T, f func(b *bubble)) {
	bubbleOn(t, func(dir string) (*blob.Bucket, error) {
		return fileblob.OpenBucket(dir, &fileblob.Options{CreateDir: true, NoTempDir: true, Metadata: fileblob.MetadataDontWrite})
	}, f)
}

func bubbleOn(t *testing.T, open func(dir string) (*blob.Bucket, error), f func(b *bubble)) {
	dir := t.TempDir()
	if shm, err := os.MkdirTemp("/dev/shm", "sojourn-"); err == nil { // hours pass: each commit should cost little
		t.Cleanup(func() { os.RemoveAll(shm) })
		dir = shm
	}
	synctest.Test(t, func(t *testing.T) {
		driver := fake.New(fake.Config{
			Dir: filepath.Join(dir, "sandboxes"), Programs: map[string]keeper.Program{sandbox.KeeperPath: script.Run},
		})
		bucket, err := open(filepath.Join(dir, "blobs"))
		if err != nil {
			t.Fatal(err)
		}
		row, _ := harness.RuntimeByID("script")
		key, err := age.GenerateX25519Identity()
		if err != nil {
			t.Fatal(err)
		}
		var db store.Store
		s, err := server.Open(t.Context(), server.Config{
			Bucket: bucket, Harness: &acp.Harness{}, Runtimes: []harness.Runtime{row}, AdminKey: "an-admin-key-0123456789",
			OpenStore: func(ctx context.Context, on func(sojourn.SessionID, []sojourn.Event)) (_ store.Store, err error) {
				db, err = sqlite.Open(ctx, sqlite.Config{Dir: filepath.Join(dir, "data"), OnEvents: on})
				return db, err
			},
			OpenDriver: func(context.Context) (sandbox.Driver, string, error) { return driver, "the test", nil },
			ProcessKey: key, SnapshotDir: filepath.Join(dir, "snapshots"),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Engine.Run(ctx) }()
		<-s.Engine.Ready()
		made, err := s.Engine.CreateSession(ctx, engine.Create{Project: sojourn.DefaultProject, Contract: sojourn.ContractCloud})
		if err != nil {
			t.Fatal(err)
		}
		f(&bubble{T: t, e: s.Engine, fake: driver, bucket: bucket, blobs: filepath.Join(dir, "blobs"), db: db, ref: engine.Ref{Project: sojourn.DefaultProject, ID: made.Facts.Session.ID}})
		cancel()
		<-done
		driver.Shutdown()
		s.Close()
		bucket.Close()
	})
}

func (b *bubble) submit(text string) sojourn.RunID {
	b.Helper()
	out, err := b.e.Submit(b.Context(), b.ref, engine.Submit{Input: []sojourn.Part{{Type: "text", Text: text}}})
	if err != nil {
		b.Fatal(err)
	}
	return out.Run.ID
}

func (b *bubble) facts() sojourn.Facts {
	b.Helper()
	f, err := b.e.Session(b.Context(), b.ref)
	if err != nil {
		b.Fatal(err)
	}
	return f
}

func (b *bubble) workspace() sojourn.Workspace { return b.facts().Workspace(time.Now()) }

// ended waits in steps of a second for a run's end.
func (b *bubble) ended(id sojourn.RunID, within time.Duration) sojourn.Run {
	b.Helper()
	for end := time.Now().Add(within); ; time.Sleep(time.Second) {
		r, err := b.e.RunByID(b.Context(), b.ref, id)
		if err != nil {
			b.Fatal(err)
		}
		if r.State.Terminal() {
			return r
		}
		if time.Now().After(end) {
			b.Fatalf("run is %s after %v", r.State, within)
		}
	}
}

func (b *bubble) sandboxes() int {
	b.Helper()
	list, err := b.fake.List(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return len(list)
}

// TestIdleHoldAtItsTrueValue: "An idle hold of 25 minutes past the last sign
// that the workspace is in use."
func TestIdleHoldAtItsTrueValue(t *testing.T) {
	inBubble(t, func(b *bubble) {
		r := b.ended(b.submit("@say hi"), time.Minute)
		w := b.workspace()
		if w.State != sojourn.WorkspaceAttached {
			b.Fatalf("workspace is %s after run %s", w.State, r.State)
		}
		left := time.Until(w.ExpiresAt)
		if left > sojourn.DefaultHold || left < sojourn.DefaultHold-5*time.Second {
			b.Errorf("the hold has %v left, want 25 minutes", left)
		}
		time.Sleep(left - time.Millisecond)
		synctest.Wait()
		if got := b.workspace().State; got != sojourn.WorkspaceAttached {
			b.Errorf("workspace is %s a millisecond before its deadline", got)
		}
		time.Sleep(time.Millisecond)
		if got := b.workspace(); got.State != sojourn.WorkspaceExpired || !got.ExpiresAt.Equal(w.ExpiresAt) {
			b.Errorf("workspace is %+v at its deadline, want expired at %v", got, w.ExpiresAt)
		}
		time.Sleep(time.Minute) // one reconciliation interval (G7)
		if n := b.sandboxes(); n != 0 {
			b.Errorf("%d sandboxes are left", n)
		}
		time.Sleep(sojourn.ExpiredShown)
		if got := b.workspace().State; got != sojourn.WorkspaceUnavailable {
			b.Errorf("workspace is %s long after its end", got)
		}
		if c := b.facts().Continuation(time.Now()); c.State != sojourn.ContinuationRestorable {
			b.Errorf("continuation is %+v", c)
		}
	})
}

// TestTurnMovesTheHold: a turn and connecting are touches; reading and staying
// connected are not.
func TestTurnMovesTheHold(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.ended(b.submit("@say hi"), time.Minute)
		first := b.workspace().ExpiresAt
		for range 10 {
			time.Sleep(time.Minute)
			b.facts()
			if _, _, err := b.e.Events(b.Context(), b.ref, 0, 10); err != nil {
				b.Fatal(err)
			}
		}
		if got := b.workspace().ExpiresAt; !got.Equal(first) {
			b.Errorf("reading moved the deadline from %v to %v", first, got)
		}
		c, err := b.e.Follow(b.Context(), b.ref, 0)
		if err != nil {
			b.Fatal(err)
		}
		second := b.workspace().ExpiresAt
		if moved := second.Sub(first); moved < 10*time.Minute {
			b.Errorf("connecting to the stream moved the deadline by %v, want ten minutes", moved)
		}
		time.Sleep(5 * time.Minute)
		if got := b.workspace().ExpiresAt; !got.Equal(second) {
			b.Errorf("staying connected moved the deadline from %v to %v", second, got)
		}
		c.Close()
		b.ended(b.submit("@say hi"), time.Minute)
		if moved := b.workspace().ExpiresAt.Sub(first); moved < 10*time.Minute {
			b.Errorf("a turn moved the deadline by %v, want ten minutes", moved)
		}
	})
}

// TestLongRunKeepsItsLease: "A run the engine still reports as live is itself a
// touch, so an executing run keeps the lease open until it finishes".
func TestLongRunKeepsItsLease(t *testing.T) {
	inBubble(t, func(b *bubble) {
		r := b.ended(b.submit("@sleep 5400000\n@say late"), 2*time.Hour)
		if r.State != sojourn.RunCompleted {
			b.Errorf("run is %s (%s) after an hour and a half, want completed", r.State, r.StopReason)
		}
		if n := len(b.fake.Created()); n != 1 {
			b.Errorf("%d sandboxes were made", n)
		}
	})
}

// TestCeilingAtItsTrueValue: "A runaway ceiling of 24 hours, measured from when
// the lease started. Nothing moves it".
func TestCeilingAtItsTrueValue(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: a day of heartbeats takes a while; run without -short")
	}
	inBubble(t, func(b *bubble) {
		id := b.submit("@sleep 180000000")
		r := b.ended(id, 25*time.Hour)
		if r.State != sojourn.RunCrashed || r.StopReason != sojourn.StopExecutionDeadline {
			b.Errorf("run is %s (%s), want crashed (execution_deadline)", r.State, r.StopReason)
		}
		if took := r.EndedAt.Sub(b.facts().Lease.GrantedAt); took < 24*time.Hour || took > 24*time.Hour+time.Minute {
			b.Errorf("the run ended %v after the lease was granted, want 24 hours", took)
		}
		time.Sleep(time.Minute)
		if n := b.sandboxes(); n != 0 {
			b.Errorf("%d sandboxes are left", n)
		}
	})
}

// TestResumeThatHangsLeavesTimeForAColdStart: processes that do not come back must
// not keep a session from its files for ever.
func TestResumeThatHangsLeavesTimeForAColdStart(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.ended(b.submit("@remember a b\n@write f one"), time.Minute)
		if _, err := b.e.Suspend(b.Context(), b.ref); err != nil {
			b.Fatal(err)
		}
		if h := b.facts().Head; h == nil || h.Processes == nil {
			b.Fatal("no processes were saved")
		}
		b.fake.SetFaults(fake.Faults{ResumeHangs: true})
		if r := b.ended(b.submit("@recall a"), 3*time.Minute); r.State != sojourn.RunCompleted {
			b.Errorf("run is %s: %+v", r.State, r.Error)
		}
		if n := len(b.fake.Created()); n != 2 {
			b.Errorf("%d sandboxes were made, want one more", n)
		}
	})
}

// breakBlobs makes every use of the blob store fail until mend is called.
func (b *bubble) breakBlobs() (mend func()) {
	b.Helper()
	away := b.blobs + ".away"
	if err := errors.Join(os.Rename(b.blobs, away), os.WriteFile(b.blobs, nil, 0o600)); err != nil {
		b.Fatal(err)
	}
	return func() {
		if err := errors.Join(os.Remove(b.blobs), os.Rename(away, b.blobs)); err != nil {
			b.Error(err)
		}
	}
}

// visit uses the sandbox outside a run, so that it may hold what no checkpoint does.
func (b *bubble) visit() {
	b.Helper()
	v, err := b.e.Visit(b.Context(), b.ref, time.Minute)
	if err != nil {
		b.Fatal(err)
	}
	v.Close()
}

// TestFilesThatCannotBeCapturedAreKeptForAnHour: a disk that is full when a lease ends
// costs no files if there is space within an hour; after that the lease ends, and what
// was sealed before stays good.
func TestFilesThatCannotBeCapturedAreKeptForAnHour(t *testing.T) {
	for _, mended := range []bool{true, false} {
		inBubbleOnDisk(t, func(b *bubble) {
			b.ended(b.submit("@write f one"), time.Minute)
			first := b.facts().Head.ID
			b.visit()
			mend := b.breakBlobs()
			time.Sleep(sojourn.DefaultHold + 30*time.Minute)
			if l := b.facts().Lease; l.State != sojourn.LeaseDraining || b.sandboxes() != 1 {
				b.Errorf("the lease is %s with %d sandboxes while its files cannot be captured", l.State, b.sandboxes())
			}
			if mended {
				mend()
			}
			time.Sleep(time.Hour)
			f := b.facts()
			if f.Lease.State != sojourn.LeaseExpired || b.sandboxes() != 0 || (f.Head.ID != first) != mended {
				b.Errorf("mended %v: the lease is %s, %d sandboxes, head %s after %s", mended, f.Lease.State, b.sandboxes(), f.Head.ID, first)
			}
			if c := f.Continuation(time.Now()); c.State != sojourn.ContinuationRestorable {
				b.Errorf("continuation is %+v", c)
			}
			if !mended {
				mend()
			}
		})
	}
}

// TestRunThatCouldNotBeCapturedIsAtTheEndOfItsLease: the files of a run that completed
// with its result only are still in its sandbox.
func TestRunThatCouldNotBeCapturedIsAtTheEndOfItsLease(t *testing.T) {
	inBubbleOnDisk(t, func(b *bubble) {
		mend := b.breakBlobs()
		if r := b.ended(b.submit("@remember a b"), 5*time.Minute); r.State != sojourn.RunCompleted {
			b.Errorf("run is %s", r.State)
		}
		mend()
		time.Sleep(sojourn.DefaultHold + time.Minute)
		if c := b.facts().Continuation(time.Now()); c.State != sojourn.ContinuationRestorable || b.sandboxes() != 0 {
			b.Errorf("continuation is %+v with %d sandboxes", c, b.sandboxes())
		}
		if r := b.ended(b.submit("@recall a"), time.Minute); r.State != sojourn.RunCompleted {
			b.Errorf("run is %s: %+v", r.State, r.Error)
		}
	})
}

// TestOrphansOfTheBlobStore: what a capture has left that was never sealed goes
// after a day; what a checkpoint refers to stays.
func TestOrphansOfTheBlobStore(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.ended(b.submit("@write f text"), time.Minute)
		bucket := b.bucket
		orphan := "p/01AAAAAAAAAAAAAAAAAAAAAAAA"
		if err := bucket.WriteAll(b.Context(), orphan, []byte("left by a capture"), nil); err != nil {
			b.Fatal(err)
		}
		time.Sleep(23 * time.Hour)
		if ok, err := bucket.Exists(b.Context(), orphan); !ok || err != nil {
			b.Errorf("the orphan is gone before its time: %v", err)
		}
		time.Sleep(27 * time.Hour)
		if ok, err := bucket.Exists(b.Context(), orphan); ok || err != nil {
			b.Errorf("the orphan is still there: %v", err)
		}
		r := b.ended(b.submit("@cat f"), time.Minute)
		if r.State != sojourn.RunCompleted {
			b.Errorf("run on the restored checkpoint is %s: %+v", r.State, r.Error)
		}
	})
}

// TestIdempotencyKeysAreForgotten: what is remembered for a day does not stay in
// the database for ever.
func TestIdempotencyKeysAreForgotten(t *testing.T) {
	inBubble(t, func(b *bubble) {
		_, err := b.e.CreateSession(b.Context(), engine.Create{
			Project: sojourn.DefaultProject, Contract: sojourn.ContractCloud, Idempotency: sojourn.Idempotency{Key: "k"},
		})
		if err != nil {
			b.Fatal(err)
		}
		time.Sleep(50 * time.Hour)
		err = b.db.Update(b.Context(), func(tx *store.Tx) error {
			n, err := tx.ForgetExpired()
			if n > 0 {
				b.Errorf("%d keys are left", n)
			}
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	})
}
