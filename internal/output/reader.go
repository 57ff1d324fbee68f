package output

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync"
)

// Stream is which bytes of an output are read.
type Stream string

// The streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
	All    Stream = "all" // both, in the order they arrived
)

// Piece is consecutive bytes of one stream.
type Piece struct {
	Offset       int64 // total offset of the first byte
	StreamOffset int64 // its stream offset
	Stderr       bool
	Data         []byte // never empty
}

const (
	nextBytes  = 64 << 10 // of a Next that does not say
	nextPieces = 4096     // of one Next, so that tiny runs cost no more memory than bytes
)

// Reader reads one output. It must be closed.
type Reader struct {
	o      *output
	close  func() error
	pieces []Piece // memory of the last Next
	data   []byte
}

func newReader(o *output) *Reader { return &Reader{o: o, close: sync.OnceValue(o.release)} }

// Reader opens the output of an exec for reading: the one that a [Writer] of this
// process is writing, the files, or the inline blob that [Writer.Finish] gave (nil
// when there is none). An output that was left unfinished and has no writer ends
// where its files end. Nothing there gives [ErrNotFound].
func (s *Store) Reader(session, exec string, inline []byte) (*Reader, error) {
	n := name{session, exec}
	if !n.valid() {
		return nil, fmt.Errorf("read output: bad ids %q, %q", session, exec)
	}
	if len(inline) > 0 {
		v, err := parseInline(inline)
		if err != nil {
			return nil, fmt.Errorf("read output of exec %s: %w", exec, err)
		}
		return newReader(&output{refs: 1, view: v, over: true}), nil
	}
	if o := s.join(n); o != nil {
		return newReader(o), nil
	}
	f, err := s.open(n, os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("read output of exec %s: %w", exec, err)
	}
	if f.data == nil {
		return nil, fmt.Errorf("read output of exec %s: %w", exec, ErrNotFound)
	}
	v, shrunk, err := load(f)
	if err == nil && shrunk && v.finished {
		err = ErrCorrupt
	}
	if err != nil {
		f.close()
		return nil, fmt.Errorf("read output of exec %s: %w", exec, err)
	}
	return newReader(&output{refs: 1, view: v, files: f, over: true}), nil
}

// None returns a reader of an output that is finished and empty.
func None() *Reader {
	return newReader(&output{refs: 1, view: view{state: state{finished: true}}, over: true})
}

// join takes a reference to an output that has a writer, and returns nil when it
// has none.
func (s *Store) join(n name) *output {
	s.mu.Lock()
	defer s.mu.Unlock() // while it is listed, its writer holds a reference
	o := s.live[n]
	if o != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.refs++
	}
	return o
}

// Close closes the reader and what [Reader.Stream] returned, when nothing reads
// from it any more. It may be called twice.
func (r *Reader) Close() error { return r.close() }

// Sizes returns how much there is, and reports whether the output was finished:
// until then all but Cut grows.
func (r *Reader) Sizes() (Sizes, bool) {
	v, _, _ := r.o.snapshot()
	return v.sizes(), v.finished
}

// Next returns what is kept from a total offset on, in order: at most maxBytes
// (0 means 64 KiB), and at most 4096 pieces. When there is nothing yet it waits.
// At the end of the output it returns no pieces and end true; [Reader.Sizes] then
// says whether that is the end of a finished output. The pieces and their data
// are the reader's, until the next call: Next is for one goroutine at a time.
func (r *Reader) Next(ctx context.Context, offset int64, maxBytes int) (pieces []Piece, end bool, err error) {
	if offset < 0 {
		return nil, false, fmt.Errorf("read output at %d", offset)
	}
	if maxBytes <= 0 {
		maxBytes = nextBytes
	}
	for {
		v, over, changed := r.o.wait()
		if offset < v.kept {
			err = r.fetch(v, offset, int(min(int64(maxBytes), v.kept-offset)))
			if err != nil {
				return nil, false, err
			}
			return r.pieces, false, nil
		}
		if over {
			return nil, true, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

// fetch makes the pieces of n bytes from a total offset on, as far as they are in
// no more than nextPieces runs.
func (r *Reader) fetch(v view, offset int64, n int) error {
	i, err := v.find(func(r run) int64 { return r.start }, offset)
	if err != nil {
		return err
	}
	runs, err := v.spansAt(i)
	if err != nil {
		return err
	}
	r.pieces = r.pieces[:0]
	end, most := offset, offset+int64(n)
	for end < most && len(r.pieces) < nextPieces {
		s, ok, err := runs.step()
		if err != nil {
			return err
		}
		if !ok || end < s.start || end >= s.end {
			return fmt.Errorf("runs at %d: %w", end, ErrCorrupt)
		}
		r.pieces = append(r.pieces, Piece{Offset: end, StreamOffset: s.before(s.stderr) + end - s.start, Stderr: s.stderr})
		end = min(s.end, most)
	}
	if n = int(end - offset); cap(r.data) < n {
		r.data = make([]byte, n)
	}
	data := r.data[:n]
	if err := v.readAt(data, offset); err != nil {
		return err
	}
	for i := range r.pieces {
		to := end
		if i+1 < len(r.pieces) {
			to = r.pieces[i+1].Offset
		}
		r.pieces[i].Data = data[r.pieces[i].Offset-offset : to-offset : to-offset]
	}
	return nil
}

// Stream returns one stream, or both in the order they arrived, as it is kept
// now. The section may be read from several goroutines until Close.
func (r *Reader) Stream(which Stream) *io.SectionReader {
	v, _, _ := r.o.snapshot()
	return io.NewSectionReader(section{r.o, which}, 0, v.keptOf(which))
}

// File opens the file that holds what is kept now of a stream, or of both, when that is
// a file by itself from its beginning on: n bytes of it. Otherwise it is nil, and
// [Reader.Stream] has the bytes. The caller closes it; nobody else uses its offset.
func (r *Reader) File(which Stream) (f *os.File, n int64, err error) {
	r.o.mu.Lock()
	defer r.o.mu.Unlock() // while there is a reader, its files stay open
	v := r.o.view
	alone := which == All || v.runs == 1 && v.last.stderr == (which == Stderr)
	if r.o.files.data == nil || len(v.tail) > 0 || v.kept == 0 || !alone {
		return nil, 0, nil
	}
	// The kernel's own name of what is open leads to that, also when it has no other
	// any more.
	f, err = os.Open("/proc/self/fd/" + strconv.Itoa(int(r.o.files.data.Fd())))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil // nothing is mounted there
	}
	return f, v.kept, err
}

// section reads a stream of an output.
type section struct {
	o     *output
	which Stream
}

// ReadAt implements io.ReaderAt.
func (s section) ReadAt(p []byte, offset int64) (int, error) {
	v, _, _ := s.o.snapshot()
	if offset < 0 {
		return 0, fmt.Errorf("read output at %d", offset)
	}
	size := v.keptOf(s.which)
	if offset >= size {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), size-offset))
	var err error
	if s.which == All {
		err = v.readAt(p[:n], offset)
	} else {
		err = v.readStream(p[:n], offset, s.which == Stderr)
	}
	if err != nil {
		return 0, err
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// readStream fills p with the bytes of one stream from a stream offset on. All
// of them must be kept.
func (v view) readStream(p []byte, offset int64, stderr bool) error {
	i, err := v.find(func(r run) int64 { return r.before(stderr) }, offset)
	if err != nil {
		return err
	}
	runs, err := v.spansAt(i)
	if err != nil {
		return err
	}
	near := window{v: v}
	for len(p) > 0 {
		s, ok, err := runs.step()
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("runs of stream at %d: %w", offset, ErrCorrupt)
		}
		if s.stderr != stderr {
			continue
		}
		skip := offset - s.before(stderr)
		if skip < 0 || skip >= s.end-s.start {
			return fmt.Errorf("runs of stream at %d: %w", offset, ErrCorrupt)
		}
		n := min(int64(len(p)), s.end-s.start-skip)
		if err := near.readAt(p[:n], s.start+skip); err != nil {
			return err
		}
		p, offset = p[n:], offset+n
	}
	return nil
}

// window reads a little ahead, so that many short runs are not a read each.
type window struct {
	v   view
	at  int64
	buf []byte
}

const (
	windowBytes = 16 << 10
	shortBytes  = 2 << 10 // what is longer is worth a read of its own
)

func (w *window) readAt(p []byte, offset int64) error {
	if len(p) > shortBytes || offset >= w.v.filed {
		return w.v.readAt(p, offset)
	}
	if offset < w.at || offset+int64(len(p)) > w.at+int64(len(w.buf)) {
		n := min(windowBytes, w.v.kept-offset)
		if int64(cap(w.buf)) < n {
			w.buf = make([]byte, n)
		}
		w.at, w.buf = offset, w.buf[:n]
		if err := w.v.readAt(w.buf, offset); err != nil {
			w.buf = nil
			return err
		}
	}
	copy(p, w.buf[offset-w.at:])
	return nil
}
