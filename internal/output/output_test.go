package output_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/output"
)

// open returns a store in a directory of its own.
func open(t testing.TB, c output.Config) (*output.Store, string) {
	t.Helper()
	dir := t.TempDir()
	return reopen(t, dir, c), dir
}

func reopen(t testing.TB, dir string, c output.Config) *output.Store {
	t.Helper()
	if c.MinFree == 0 {
		c.MinFree = 1 // the machine's disk is not what is tested
	}
	s, err := output.Open(dir, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func writer(t testing.TB, s *output.Store, exec string) *output.Writer {
	t.Helper()
	w, err := s.Writer("session", exec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func reader(t testing.TB, s *output.Store, exec string, inline []byte) *output.Reader {
	t.Helper()
	r, err := s.Reader("session", exec, inline)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// chunk is what a keeper sends.
type chunk struct {
	stderr bool
	data   []byte
}

// chunks returns n chunks of up to most bytes, and always the same for a seed.
func chunks(seed uint64, n, most int) []chunk {
	r := rand.New(rand.NewPCG(seed, 1))
	all := make([]chunk, n)
	for i := range all {
		all[i] = chunk{stderr: r.IntN(3) == 0, data: make([]byte, 1+r.IntN(most))}
		for j := range all[i].data {
			all[i].data[j] = byte(r.Uint32())
		}
	}
	return all
}

// model is an output as plain bytes.
type model struct {
	all     []byte
	streams []bool // of each byte: is it stderr's
}

func (m *model) add(c chunk) {
	m.all = append(m.all, c.data...)
	for range c.data {
		m.streams = append(m.streams, c.stderr)
	}
}

func modelOf(all []chunk) *model {
	m := &model{}
	for _, c := range all {
		m.add(c)
	}
	return m
}

// prefix is the model of the first n bytes.
func (m *model) prefix(n int64) *model { return &model{m.all[:n], m.streams[:n]} }

func (m *model) of(which output.Stream) []byte {
	if which == output.All {
		return m.all
	}
	var b []byte
	for i, c := range m.all {
		if m.streams[i] == (which == output.Stderr) {
			b = append(b, c)
		}
	}
	return b
}

// write appends chunks from an offset on, as who reads a keeper again does.
func write(t testing.TB, w *output.Writer, all []chunk) {
	t.Helper()
	offset := int64(0)
	for _, c := range all {
		if err := w.Append(offset, c.stderr, c.data); err != nil {
			t.Fatal(err)
		}
		offset += int64(len(c.data))
	}
}

func finish(t testing.TB, w *output.Writer) []byte {
	t.Helper()
	inline, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return inline
}

// follow reads all of an output with Next in steps.
func follow(ctx context.Context, r *output.Reader, maxBytes int) (*model, error) {
	m := &model{}
	var of [2]int64
	for {
		pieces, end, err := r.Next(ctx, int64(len(m.all)), maxBytes)
		if err != nil || end {
			return m, err
		}
		n := 0
		for _, p := range pieces {
			stream := 0
			if p.Stderr {
				stream = 1
			}
			if p.Offset != int64(len(m.all)) || p.StreamOffset != of[stream] || len(p.Data) == 0 {
				return m, fmt.Errorf("piece of %d bytes at %d, %d of stream %d; want %d, %d", len(p.Data), p.Offset, p.StreamOffset, stream, len(m.all), of[stream])
			}
			m.add(chunk{p.Stderr, p.Data})
			of[stream] += int64(len(p.Data))
			n += len(p.Data)
		}
		if n == 0 || maxBytes > 0 && n > maxBytes {
			return m, fmt.Errorf("Next of at most %d bytes returned %d", maxBytes, n)
		}
	}
}

// check compares all ways of reading with the model.
func check(t testing.TB, r *output.Reader, want *model, maxBytes int) {
	t.Helper()
	got, err := follow(t.Context(), r, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.all, want.all) || !slices.Equal(got.streams, want.streams) {
		t.Fatalf("Next gave %d bytes that differ from the %d that were written, or their streams do", len(got.all), len(want.all))
	}
	for _, which := range []output.Stream{output.Stdout, output.Stderr, output.All} {
		b, err := io.ReadAll(r.Stream(which))
		if err != nil {
			t.Fatal(err)
		}
		if want := want.of(which); !bytes.Equal(b, want) {
			t.Fatalf("%s has %d bytes that differ from the %d that were written", which, len(b), len(want))
		}
	}
}

func TestOutputIsWhatWasWritten(t *testing.T) {
	t.Parallel()
	s, _ := open(t, output.Config{})
	for _, c := range []struct {
		name    string
		n, most int
	}{{"empty", 0, 1}, {"tiny", 10, 100}, {"inline", 16, 1000}, {"alternating", 40_000, 2}, {"large", 60, 100_000}} {
		all := chunks(1, c.n, c.most)
		want := modelOf(all)
		w := writer(t, s, c.name)
		live := reader(t, s, c.name, nil)
		write(t, w, all)
		if got := w.Total(); got != int64(len(want.all)) {
			t.Fatalf("%s: Total is %d, want %d", c.name, got, len(want.all))
		}
		inline := finish(t, w)
		check(t, live, want, 5000)
		r := reader(t, s, c.name, inline)
		check(t, r, want, 0)
		sizes, finished := r.Sizes()
		if w := (output.Sizes{Stdout: int64(len(want.of(output.Stdout))), Stderr: int64(len(want.of(output.Stderr))), KeptTotal: int64(len(want.all))}); sizes != w || !finished {
			t.Errorf("%s: Sizes are %+v, %v, want %+v, true", c.name, sizes, finished, w)
		}
	}
}

func TestSmallOutputTouchesNoFile(t *testing.T) {
	t.Parallel()
	s, dir := open(t, output.Config{})
	all := []chunk{{false, make([]byte, 16<<10-1)}, {true, []byte("x")}}
	w := writer(t, s, "exec")
	write(t, w, all)
	if got := w.Durable(); got != 0 {
		t.Errorf("Durable is %d while all is in memory, want 0", got)
	}
	inline := finish(t, w)
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("the directory holds %v (%v), want nothing", names, err)
	}
	if len(inline) > 16<<10+16 {
		t.Errorf("the blob of %d bytes has %d", 16<<10, len(inline))
	}
	check(t, reader(t, s, "exec", inline), modelOf(all), 0)
}

func TestAppendingAgainRepeatsNothingAndAGapIsRefused(t *testing.T) {
	t.Parallel()
	s, _ := open(t, output.Config{InlineBytes: 8})
	w := writer(t, s, "exec")
	for _, step := range []struct {
		offset int64
		data   string
		want   error
	}{{0, "abc", nil}, {0, "abc", nil}, {1, "bcdef", nil}, {7, "h", output.ErrGap}, {6, "ghijklm", nil}, {2, "cde", nil}, {13, "", nil}, {14, "", output.ErrGap}, {-1, "a", output.ErrGap}} {
		if err := w.Append(step.offset, false, []byte(step.data)); !errors.Is(err, step.want) {
			t.Errorf("Append(%d, %q) says %v, want %v", step.offset, step.data, err, step.want)
		}
	}
	finish(t, w)
	check(t, reader(t, s, "exec", nil), modelOf([]chunk{{false, []byte("abcdefghijklm")}}), 0)
	if err := w.Append(13, false, []byte("n")); !errors.Is(err, output.ErrClosed) {
		t.Errorf("Append after Close says %v", err)
	}
}

func TestIdsThatAreNoNamesOfFilesAreRefused(t *testing.T) {
	t.Parallel()
	s, dir := open(t, output.Config{})
	for _, id := range []string{"", ".", "..", "a/b", "a.b", "a\x00", "é", string(make([]byte, 65))} {
		if _, err := s.Writer(id, "exec"); err == nil {
			t.Errorf("Writer takes session %q", id)
		}
		if _, err := s.Writer("session", id); err == nil {
			t.Errorf("Writer takes exec %q", id)
		}
		if _, err := s.Reader(id, "exec", []byte{1}); err == nil || errors.Is(err, output.ErrCorrupt) {
			t.Errorf("Reader takes session %q: %v", id, err)
		}
		if err := s.RemoveSession(id); err == nil {
			t.Errorf("RemoveSession takes %q", id)
		}
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

func TestOneWriterAtATime(t *testing.T) {
	t.Parallel()
	s, _ := open(t, output.Config{})
	w := writer(t, s, "exec")
	if _, err := s.Writer("session", "exec"); !errors.Is(err, output.ErrBusy) {
		t.Errorf("a second writer: %v, want ErrBusy", err)
	}
	if err := s.RemoveSession("session"); !errors.Is(err, output.ErrBusy) {
		t.Errorf("RemoveSession under a writer: %v, want ErrBusy", err)
	}
	finish(t, w)
	writer(t, s, "exec")
}

func TestRemovedSessionIsGone(t *testing.T) {
	t.Parallel()
	s, dir := open(t, output.Config{InlineBytes: 1})
	w := writer(t, s, "exec")
	write(t, w, chunks(2, 3, 100))
	finish(t, w)
	other, err := s.Writer("other", "exec")
	if err != nil {
		t.Fatal(err)
	}
	write(t, other, chunks(2, 3, 100))
	finish(t, other)
	for range 2 {
		if err := s.RemoveSession("session"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Reader("session", "exec", nil); !errors.Is(err, output.ErrNotFound) {
		t.Errorf("reading a removed output: %v, want ErrNotFound", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*", "*")); err != nil || len(left) != 2 {
		t.Errorf("left are %v (%v), want the two files of the other session", left, err)
	}
}

func TestLimitCutsAndCounts(t *testing.T) {
	t.Parallel()
	for _, inline := range []int{10, 1 << 20} {
		s, dir := open(t, output.Config{InlineBytes: inline, MaxBytes: 1000})
		all := chunks(3, 40, 100)
		want := modelOf(all)
		w := writer(t, s, "exec")
		write(t, w, all)
		sizes := output.Sizes{Stdout: int64(len(want.of(output.Stdout))), Stderr: int64(len(want.of(output.Stderr))), KeptTotal: 1000, Cut: output.CutLimit}
		if got := w.Sizes(); got != sizes {
			t.Errorf("Sizes are %+v, want %+v", got, sizes)
		}
		durable := w.Durable()
		w.Close()
		s = reopen(t, dir, output.Config{InlineBytes: inline, MaxBytes: 1000})
		w = writer(t, s, "exec")
		if got := w.Total(); got != durable {
			t.Errorf("Total after reopening is %d, want %d, which was durable", got, durable)
		}
		write(t, w, all)
		if got := w.Sizes(); got != sizes {
			t.Errorf("Sizes after reopening are %+v, want %+v", got, sizes)
		}
		r := reader(t, s, "exec", finish(t, w))
		check(t, r, want.prefix(1000), 70)
		if got, finished := r.Sizes(); got != sizes || !finished {
			t.Errorf("Sizes of the reader are %+v, %v, want %+v", got, finished, sizes)
		}
	}
}

// TestAStreamByItselfIsAFile: where a stream lies alone and whole in a file, the file
// has its bytes, also when its name is gone; elsewhere there is none.
func TestAStreamByItselfIsAFile(t *testing.T) {
	s, _ := open(t, output.Config{InlineBytes: 16})
	big := bytes.Repeat([]byte("0123456789"), 10)
	for _, c := range []struct {
		name   string
		chunks []chunk
		whole  bool // finished
		files  map[output.Stream]string
	}{
		{"stdout", []chunk{{false, big}, {false, []byte("abc")}}, true, map[output.Stream]string{output.All: string(big) + "abc", output.Stdout: string(big) + "abc"}},
		{"stderr", []chunk{{true, big}}, true, map[output.Stream]string{output.All: string(big), output.Stderr: string(big)}},
		{"both", []chunk{{true, big}, {false, big}}, true, map[output.Stream]string{output.All: string(big) + string(big)}},
		{"tail", []chunk{{false, big}, {false, []byte("abc")}}, false, nil},
		{"begun", []chunk{{false, big}}, false, map[output.Stream]string{output.All: string(big), output.Stdout: string(big)}},
		{"inline", []chunk{{false, []byte("abc")}}, true, nil},
		{"empty", nil, true, nil},
	} {
		w := writer(t, s, c.name)
		write(t, w, c.chunks)
		var inline []byte
		if c.whole {
			inline = finish(t, w)
		}
		r := reader(t, s, c.name, inline)
		for _, which := range []output.Stream{output.All, output.Stdout, output.Stderr} {
			f, n, err := r.File(which)
			want, there := c.files[which]
			if err != nil || (f != nil) != there || n != int64(len(want)) {
				t.Errorf("%s: %s is file %v with %d bytes, %v; want one %v with %d", c.name, which, f != nil, n, err, there, len(want))
			}
			if f == nil {
				continue
			}
			got, err := io.ReadAll(io.LimitReader(f, n))
			if err != nil || string(got) != want {
				t.Errorf("%s: %s has %q, %v, want %q", c.name, which, got, err, want)
			}
			f.Close()
		}
	}
	r := reader(t, s, "stdout", nil)
	if err := s.Remove("session", "stdout"); err != nil {
		t.Fatal(err)
	}
	f, n, err := r.File(output.Stdout)
	if err != nil || f == nil || n != 103 {
		t.Fatalf("removed: file %v with %d bytes, %v", f != nil, n, err)
	}
	f.Close()
}
