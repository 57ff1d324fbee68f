package output

import (
	"errors"
	"fmt"
	"io"
)

// view is an output at one instant: a prefix in files, and the tail. It is a
// value, and what it refers to never changes: bytes and runs are only added
// behind it.
type view struct {
	state
	data, index io.ReaderAt // nil when all is tail
	filed       int64       // bytes in files
	filedRuns   int64       // records in files
	tail        []byte
	tailRuns    []run // those that begin in the tail
	keptStdout  int64 // bytes of stdout that are kept
	last        run   // meaningless while there is none
}

// load returns what counts of the files of an output, and whether that is less
// than they say.
func load(f files) (v view, shrunk bool, err error) {
	s, ok, err := readState(f.index)
	if err != nil || !ok {
		return view{}, false, err
	}
	info, err := f.data.Stat()
	if err != nil {
		return view{}, false, err
	}
	trusted, last := s, run{}
	sealed := s.finished && info.Size() >= s.kept
	if sealed && s.runs > 0 { // it is on stable storage: no search for damage
		last, err = view{state: s, index: f.index, filedRuns: s.runs}.run(s.runs - 1)
		if errors.Is(err, io.EOF) || errors.Is(err, ErrCorrupt) {
			sealed = false
		} else if err != nil {
			return view{}, false, err
		}
	}
	if !sealed {
		if trusted, last, err = recoverState(f.index, s, info.Size()); err != nil {
			return view{}, false, err
		}
	}
	return view{
		state: trusted, data: f.data, index: f.index, filed: trusted.kept, filedRuns: trusted.runs,
		keptStdout: last.at(trusted.kept), last: last,
	}, trusted != s, nil
}

// add returns the view with n more bytes of a stream, which the caller puts
// where they belong.
func (v view) add(stderr bool, n int) view {
	if n == 0 {
		return v
	}
	if v.runs == 0 || v.last.stderr != stderr {
		v.last = run{start: v.kept, stdout: v.keptStdout, stderr: stderr}
		v.tailRuns = append(v.tailRuns, v.last) // behind what others see of it
		v.runs++
	}
	v.kept += int64(n)
	v.keptStdout = v.last.at(v.kept)
	return v
}

// sizes returns the sizes to show.
func (v view) sizes() Sizes {
	return Sizes{Stdout: v.stdout, Stderr: v.stderr, KeptTotal: v.kept, Cut: v.cut}
}

// keptOf returns how many bytes of one stream, or of All, are kept.
func (v view) keptOf(which Stream) int64 {
	switch which {
	case Stdout:
		return v.keptStdout
	case Stderr:
		return v.kept - v.keptStdout
	default:
		return v.kept
	}
}

// readAt fills p with the bytes from a total offset on. All of them must be kept.
func (v view) readAt(p []byte, offset int64) error {
	if offset < v.filed {
		n := min(int64(len(p)), v.filed-offset)
		if m, err := v.data.ReadAt(p[:n], offset); int64(m) < n {
			return fmt.Errorf("read %d bytes of data at %d: %w", n, offset, err)
		}
		if p, offset = p[n:], offset+n; len(p) == 0 {
			return nil
		}
	}
	copy(p, v.tail[offset-v.filed:])
	return nil
}

// run returns the run with a number.
func (v view) run(i int64) (run, error) {
	if i >= v.filedRuns {
		return v.tailRuns[i-v.filedRuns], nil
	}
	var b [recordBytes]byte
	if n, err := v.index.ReadAt(b[:], recordsAt+i*recordBytes); n < len(b) {
		return run{}, fmt.Errorf("read record %d: %w", i, err)
	}
	r, ok := parseRecord(b[:])
	if !ok || r.start >= v.kept {
		return run{}, fmt.Errorf("record %d: %w", i, ErrCorrupt)
	}
	return r, nil
}

// find returns the number of the last run whose key is at most offset. Keys do
// not fall from run to run, and the first is 0.
func (v view) find(key func(run) int64, offset int64) (int64, error) {
	low, high := int64(0), v.filedRuns+int64(len(v.tailRuns))
	for high-low > 1 {
		mid := low + (high-low)/2
		r, err := v.run(mid)
		if err != nil {
			return 0, err
		}
		if key(r) <= offset {
			low = mid
		} else {
			high = mid
		}
	}
	return low, nil
}

// spans walks over runs with their ends.
type spans struct {
	v     view
	i     int64 // of the run that is next
	next  run
	block []byte // records read ahead
}

// span is a run with its end.
type span struct {
	run
	end int64
}

// spansAt returns the walk that begins with run i, which must exist.
func (v view) spansAt(i int64) (*spans, error) {
	s := &spans{v: v, i: i}
	r, err := v.run(i)
	s.next = r
	return s, err
}

// step returns the next span, or ok false after the last one.
func (s *spans) step() (sp span, ok bool, err error) {
	all := s.v.filedRuns + int64(len(s.v.tailRuns))
	if s.i >= all {
		return span{}, false, nil
	}
	sp = span{run: s.next, end: s.v.kept}
	s.i++
	if s.i < all {
		if s.next, err = s.read(); err != nil {
			return span{}, false, err
		}
		if !sp.follows(s.next) {
			return span{}, false, fmt.Errorf("record %d: %w", s.i, ErrCorrupt)
		}
		sp.end = s.next.start
	}
	return sp, true, nil
}

// read returns run i, reading some records ahead.
func (s *spans) read() (run, error) {
	left := s.v.filedRuns - s.i
	if left <= 0 {
		return s.v.run(s.i)
	}
	if len(s.block) < recordBytes {
		const ahead = 128
		s.block = make([]byte, min(left, ahead)*recordBytes)
		if n, err := s.v.index.ReadAt(s.block, recordsAt+s.i*recordBytes); n < len(s.block) {
			return run{}, fmt.Errorf("read records at %d: %w", s.i, err)
		}
	}
	r, ok := parseRecord(s.block)
	s.block = s.block[recordBytes:]
	if !ok || r.start >= s.v.kept {
		return run{}, fmt.Errorf("record %d: %w", s.i, ErrCorrupt)
	}
	return r, nil
}
