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

// FuzzFiles reads damaged files, and writes on behind them.
func FuzzFiles(f *testing.F) {
	top := f.TempDir()
	s, err := output.Open(top, output.Config{InlineBytes: 1, MinFree: 1})
	if err != nil {
		f.Fatal(err)
	}
	w, err := s.Writer("session", "seed")
	if err != nil {
		f.Fatal(err)
	}
	write(f, w, small())
	for _, end := range []func(){func() {}, func() { finish(f, w) }} {
		end()
		data, err := os.ReadFile(filepath.Join(top, "session", "seed.data"))
		if err != nil {
			f.Fatal(err)
		}
		index, err := os.ReadFile(filepath.Join(top, "session", "seed.index"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(len(data), index)
		f.Add(len(data)-5, index[:len(index)-20])
	}
	f.Fuzz(func(t *testing.T, dataBytes int, index []byte) {
		disk{make([]byte, min(max(dataBytes, 0), 1<<16)), index}.write(t, top)
		if r, err := s.Reader("session", "exec", nil); err == nil {
			readAll(t, r)
			r.Close()
		}
		w, err := s.Writer("session", "exec")
		if err != nil {
			return
		}
		defer w.Close()
		if err := w.Append(w.Total(), true, []byte("more")); err != nil {
			t.Error(err)
		}
		live := reader(t, s, "exec", nil)
		if _, err := w.Finish(); err != nil {
			t.Error(err)
		}
		readAll(t, live)
	})
}
