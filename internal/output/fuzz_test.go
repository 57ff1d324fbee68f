package output_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/output"
)

// readAll reads an output that may be nonsense: errors are fine, the sizes must
// be those that come.
func readAll(t *testing.T, r *output.Reader) {
	sizes, _ := r.Sizes()
	streams := int64(0)
	for _, which := range []output.Stream{output.Stdout, output.Stderr} {
		n, err := io.Copy(io.Discard, io.LimitReader(r.Stream(which), 1<<20))
		if err != nil {
			return
		}
		streams += n
	}
	got, err := follow(t.Context(), r, 777)
	if err == nil && (int64(len(got.all)) != sizes.KeptTotal || streams != sizes.KeptTotal || sizes.KeptTotal > sizes.Stdout+sizes.Stderr) {
		t.Errorf("Sizes are %+v; Next gives %d bytes, the streams %d", sizes, len(got.all), streams)
	}
}

func FuzzInline(f *testing.F) {
	s, err := output.Open(f.TempDir(), output.Config{MinFree: 1})
	if err != nil {
		f.Fatal(err)
	}
	for i, all := range [][]chunk{nil, small(), chunks(9, 20, 50)} {
		w, err := s.Writer("session", string(rune('a'+i)))
		if err != nil {
			f.Fatal(err)
		}
		write(f, w, all)
		f.Add(finish(f, w))
	}
	f.Add([]byte{1, 0, 0, 0, 0, 255, 255, 255, 255, 15})
	f.Fuzz(func(t *testing.T, blob []byte) {
		r, err := s.Reader("session", "exec", blob)
		if err != nil {
			if !errors.Is(err, output.ErrCorrupt) && !errors.Is(err, output.ErrNotFound) {
				t.Errorf("a bad blob gives %v", err)
			}
			return
		}
		defer r.Close()
		readAll(t, r)
	})
}

// FuzzFiles reads files whose slot, records and sizes do not fit together, and
// writes on behind them.
func FuzzFiles(f *testing.F) {
	top := f.TempDir()
	s, err := output.Open(top, output.Config{InlineBytes: 1, MinFree: 1})
	if err != nil {
		f.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(top, "session"), 0o700); err != nil {
		f.Fatal(err)
	}
	records := output.Record(output.Record(output.Record(nil, 0, 0, false), 10, 10, true), 15, 10, false)
	for _, finished := range []bool{true, false} {
		f.Add(20, int64(15), int64(5), int64(20), int64(3), finished, records)
		f.Add(20, int64(40), int64(5), int64(20), int64(3), finished, records)
		f.Add(17, int64(15), int64(5), int64(20), int64(3), finished, records[:40])
		f.Add(20, int64(15), int64(5), int64(12), int64(2), finished, records)
	}
	f.Fuzz(func(t *testing.T, dataBytes int, stdout, stderr, kept, runs int64, finished bool, records []byte) {
		sizes := output.Sizes{Stdout: stdout, Stderr: stderr, KeptTotal: kept}
		disk{make([]byte, min(max(dataBytes, 0), 1<<16)), output.Index(sizes, runs, finished, records)}.write(t, top)
		if r, err := s.Reader("session", "exec", nil); err == nil {
			readAll(t, r)
			r.Close()
		}
		w, err := s.Writer("session", "exec")
		if err != nil {
			return
		}
		defer w.Close()
		live := reader(t, s, "exec", nil)
		if err := w.Append(w.Total(), true, []byte("more")); err != nil {
			t.Error(err)
		}
		w.Close() // and no Finish, which would wait for the disk
		readAll(t, live)
	})
}
