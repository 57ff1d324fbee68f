package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"
)

var errFault = errors.New("injected fault")

// TestFaultAtEveryOperation lets each operation of an incremental capture fail
// in turn: before it happens, after it happened, by storing half, and with all
// that follows, as when the process is killed. The sealed parent must stay as
// it is, and the same capture must succeed later.
func TestFaultAtEveryOperation(t *testing.T) {
	for _, local := range []bool{false, true} {
		for _, mode := range []string{"before", "after", "half", "killed"} {
			t.Run(fmt.Sprintf("local=%v/%s", local, mode), func(t *testing.T) {
				inner := memblob.OpenBucket(nil)
				if local {
					inner = localBucket(t)
				}
				defer inner.Close()
				src := t.TempDir()
				smallTree(t, src)
				ok := New(inner, Config{Workers: 1})
				parent, err := ok.Capture(t.Context(), Spec{Workspace: src})
				must(t, err)
				was := look(t, src)
				must(t, os.WriteFile(filepath.Join(src, "new"), randomBytes(1, 3000), 0o644))
				want := look(t, src)
				sealed := objects(t, inner)

				for at := 1; ; at++ {
					f := &faultBucket{inner: inner, at: at, err: errFault, after: mode == "after", dead: mode == "killed", cut: mode == "half"}
					s := New(f.bucket(), Config{Workers: 1})
					c, err := s.Capture(t.Context(), Spec{Workspace: src, Parent: &parent.Ref})
					if f.n < at {
						must(t, err)
						break
					}
					op := f.ops[at-1]
					if err == nil {
						if mode != "half" && !strings.HasPrefix(op, "delete ") {
							t.Fatalf("fault at %q: capture succeeded", op)
						}
						// Then it must be whole.
						must(t, ok.Verify(t.Context(), c.Ref))
					} else if mode != "half" && !errors.Is(err, errFault) {
						t.Fatalf("fault at %q: %v, want the injected one", op, err)
					}
					now := objects(t, inner)
					for key, v := range sealed {
						if string(now[key]) != string(v) {
							t.Fatalf("fault at %q changed %s of the sealed checkpoint", op, key)
						}
					}
				}
				must(t, ok.Verify(t.Context(), parent.Ref))
				dst := t.TempDir()
				_, err = ok.Restore(t.Context(), parent.Ref, Target{Workspace: dst})
				must(t, err)
				mustEqualTrees(t, was, look(t, dst))
				later, err := ok.Capture(t.Context(), Spec{Workspace: src, Parent: &parent.Ref})
				must(t, err)
				must(t, ok.Verify(t.Context(), later.Ref))
				_, err = ok.Restore(t.Context(), later.Ref, Target{Workspace: dst, Empty: true})
				must(t, err)
				mustEqualTrees(t, want, look(t, dst))
			})
		}
	}
}

func TestFaultWhileReading(t *testing.T) {
	inner := memblob.OpenBucket(nil)
	defer inner.Close()
	src := t.TempDir()
	smallTree(t, src)
	c, err := New(inner, Config{}).Capture(t.Context(), Spec{Workspace: src})
	must(t, err)
	for at := 1; ; at++ {
		f := &faultBucket{inner: inner, at: at, err: errFault}
		_, err := New(f.bucket(), Config{Workers: 1}).Restore(t.Context(), c.Ref, Target{Workspace: t.TempDir()})
		if f.n < at {
			must(t, err)
			break
		}
		if !errors.Is(err, errFault) {
			t.Fatalf("fault at %q: Restore = %v", f.ops[at-1], err)
		}
		f = &faultBucket{inner: inner, at: at, err: errFault}
		if err := New(f.bucket(), Config{Workers: 1}).Verify(t.Context(), c.Ref); f.n >= at && !errors.Is(err, errFault) {
			t.Fatalf("fault at %q: Verify = %v", f.ops[at-1], err)
		}
	}
}

func TestFullBucketIsTyped(t *testing.T) {
	src := t.TempDir()
	smallTree(t, src)
	for at := 1; ; at++ {
		inner := memblob.OpenBucket(nil)
		f := &faultBucket{inner: inner, at: at, dead: true, err: &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}}
		_, err := New(f.bucket(), Config{Workers: 1}).Capture(t.Context(), Spec{Workspace: src})
		inner.Close()
		if f.n < at {
			return
		}
		if !errors.Is(err, ErrNoSpace) {
			t.Fatalf("full at %q: %v, want ErrNoSpace", f.ops[at-1], err)
		}
	}
}

func TestObjectsAreNeverOverwritten(t *testing.T) {
	for name, b := range map[string]*blob.Bucket{"memory": memblob.OpenBucket(nil), "local": localBucket(t)} {
		t.Run(name, func(t *testing.T) {
			src := t.TempDir()
			smallTree(t, src)
			s := New(b, Config{})
			first, err := s.Capture(t.Context(), Spec{Workspace: src})
			must(t, err)
			before := objects(t, b)
			same, err := s.Capture(t.Context(), Spec{Workspace: src, Parent: &first.Ref})
			must(t, err)
			again, err := s.Capture(t.Context(), Spec{Workspace: src, Parent: &first.Ref})
			must(t, err)
			if same.Ref != again.Ref {
				t.Errorf("the same capture twice gives %v and %v", same.Ref, again.Ref)
			}
			// Another object under the name that the root is about to take.
			must(t, s.DeleteRoot(t.Context(), same.Ref.ID))
			must(t, b.WriteAll(t.Context(), rootKey(same.Ref.ID), []byte("squatter"), nil))
			if _, err := s.Capture(t.Context(), Spec{Workspace: src, Parent: &first.Ref}); !errors.Is(err, ErrExists) {
				t.Errorf("capture onto a foreign object = %v, want ErrExists", err)
			}
			for key, v := range before {
				got, err := b.ReadAll(t.Context(), key)
				if must(t, err); string(got) != string(v) {
					t.Errorf("%s was changed", key)
				}
			}
		})
	}
}

func TestOrphans(t *testing.T) {
	inner := localBucket(t)
	s := New(inner, Config{})
	src := t.TempDir()
	smallTree(t, src)
	keep, err := s.Capture(t.Context(), Spec{Workspace: src})
	must(t, err)
	lost, err := s.Capture(t.Context(), Spec{Workspace: src}) // as if the row was never written
	must(t, err)
	must(t, inner.WriteAll(t.Context(), "p/not-ours", []byte("x"), nil), inner.WriteAll(t.Context(), "z", []byte("x"), nil))
	known := func(o Object) (bool, error) {
		return o.Root == keep.Ref.ID || o.Pack != "" && o.Pack == keep.Packs[0].ID, nil
	}
	list := func(s *Store, before time.Time) (out []Object, err error) {
		for o, err := range s.Orphans(context.Background(), before, known) {
			if err != nil {
				return out, err
			}
			out = append(out, o)
		}
		return out, nil
	}
	got, err := list(s, time.Now().Add(time.Hour))
	must(t, err)
	if len(got) != 2 || got[0].Pack != lost.Packs[0].ID || got[1].Root != lost.Ref.ID {
		t.Errorf("orphans = %v, want pack and root of the lost capture", got)
	}
	if got, err := list(s, time.Now().Add(-time.Hour)); err != nil || len(got) != 0 {
		t.Errorf("orphans older than an hour = %v, %v, want none", got, err)
	}
	for at := 1; ; at++ {
		f := &faultBucket{inner: inner, at: at, err: errFault}
		_, err := list(New(f.bucket(), Config{}), time.Now().Add(time.Hour))
		if f.n < at {
			break
		}
		if !errors.Is(err, errFault) {
			t.Errorf("list fails at operation %d: %v, want the fault", at, err)
		}
	}
	for _, o := range got {
		if o.Pack != "" {
			must(t, s.DeletePack(t.Context(), o.Pack), s.DeletePack(t.Context(), o.Pack))
		} else {
			must(t, s.DeleteRoot(t.Context(), o.Root))
		}
	}
	must(t, s.Verify(t.Context(), keep.Ref))
	if err := s.Verify(t.Context(), lost.Ref); !errors.Is(err, ErrMissing) {
		t.Errorf("Verify of a deleted checkpoint = %v, want ErrMissing", err)
	}
}

// settled waits until no goroutine of ours is left. They have ended when the
// methods return; the runtime may need a moment to forget them.
func settled(t *testing.T, before int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if runtime.NumGoroutine() <= before {
			return
		}
	}
	buf := make([]byte, 1<<20)
	t.Fatalf("%d goroutines left, had %d:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
}

func openFDs(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(names)
}

func TestCancelAnywhere(t *testing.T) {
	b := localBucket(t)
	s := New(b, Config{Workers: 3})
	src := t.TempDir()
	sourceTree(t, src, 400)
	must(t, os.WriteFile(filepath.Join(src, "big"), randomBytes(1, 6<<20), 0o644))
	whole, err := s.Capture(t.Context(), Spec{Workspace: src})
	must(t, err)
	runtime.GC()
	goroutines, fds := runtime.NumGoroutine(), openFDs(t)
	for at := 1; at < 60; at += 3 {
		for _, op := range []string{"capture", "restore", "verify"} {
			ctx, cancel := context.WithCancel(context.Background())
			f := &faultBucket{inner: b, onOp: func(n int) {
				if n == at {
					cancel()
				}
			}}
			fs := New(f.bucket(), Config{Workers: 3})
			var err error
			switch op {
			case "capture":
				_, err = fs.Capture(ctx, Spec{Workspace: src})
			case "restore":
				_, err = fs.Restore(ctx, whole.Ref, Target{Workspace: t.TempDir()})
			case "verify":
				err = fs.Verify(ctx, whole.Ref)
			}
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("%s cancelled at operation %d: %v", op, at, err)
			}
			cancel()
		}
	}
	settled(t, goroutines)
	if got := openFDs(t); got > fds {
		t.Errorf("%d descriptors open, had %d", got, fds)
	}
}
