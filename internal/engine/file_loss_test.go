package engine_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFilesAreServedAcrossALoss kills the sandbox while files are read and written.
func TestFilesAreServedAcrossALoss(t *testing.T) {
	t.Parallel()
	d := started(t)
	_, err := d.write("f", "kept")
	d.must(err)
	for range 3 {
		if d.Fake.Kill(string(d.ref.ID)) != 1 {
			t.Fatal("no sandbox was there to kill")
		}
		if _, text, err := d.read("f", 0, -1); err != nil || text != "kept" {
			t.Errorf("read behind a loss: %q, %v", text, err)
		}
		if d.Fake.Kill(string(d.ref.ID)) != 1 {
			t.Fatal("no sandbox was there to kill")
		}
		if _, err := d.write("g", "more"); err != nil {
			t.Errorf("write behind a loss: %v", err)
		}
	}
}

func TestBoundedMemoryAndFarOffsets(t *testing.T) {
	t.Parallel()
	d := started(t)
	f, err := os.Create(filepath.Join(d.workspace(), "sparse"))
	d.must(err)
	const size = 5 << 30
	_, err = f.WriteAt([]byte("the end"), size-7)
	d.must(errors.Join(err, f.Close()))
	if info, text, err := d.read("sparse", size-9, -1); err != nil || info.Size != size || text != "\x00\x00the end" {
		t.Errorf("read behind 2^32: %+v, %q, %v", info, text, err)
	}
}

// TestAReaderMayLeaveAtAnyTime leaves in the middle of a file, however far it has
// been read ahead.
func TestAReaderMayLeaveAtAnyTime(t *testing.T) {
	t.Parallel()
	d := started(t)
	_, err := d.write("big", strings.Repeat("0123456789abcdef", 500_000))
	d.must(err)
	gone := errors.New("the caller is gone")
	for i := range 30 {
		ctx, cancel := context.WithCancelCause(t.Context())
		r, err := d.engine().ReadFile(ctx, d.ref, "big", 0, -1, deskWait)
		d.must(err)
		left := i
		err = r.Copy(ctx, writeFunc(func(b []byte) (int, error) {
			if left--; left < 0 {
				cancel(gone)
			}
			return len(b), nil
		}))
		cancel(nil)
		r.Close()
		if err != nil && !errors.Is(err, gone) {
			t.Errorf("a reader who leaves behind piece %d: %v", i, err)
		}
	}
	if _, text, err := d.read("big", -1, -1); err != nil || text != "f" {
		t.Errorf("the next reader has %q, %v", text, err)
	}
}

type writeFunc func([]byte) (int, error)

func (f writeFunc) Write(b []byte) (int, error) { return f(b) }
