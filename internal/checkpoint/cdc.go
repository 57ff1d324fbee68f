package checkpoint

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"
)

// cutter is the sizes of content-defined chunks. Between min and avg a cut
// needs two more zero bits than the average asks for, after avg two fewer, which
// keeps sizes close to avg.
type cutter struct {
	whole         int // files up to this long are one chunk
	min, avg, max int
	bits          uint // log2(avg)
}

var (
	workspaceCutter    = cutter{whole: 512 << 10, min: 64 << 10, avg: 256 << 10, max: 1 << 20, bits: 18}
	conversationCutter = cutter{whole: 64 << 10, min: 16 << 10, avg: 64 << 10, max: 256 << 10, bits: 16}
)

// gearTable is part of the format: other values would still restore, but share
// nothing with what was captured before.
var gearTable = sync.OnceValue(func() *[256]uint64 {
	var t [256]uint64
	for i := range t {
		sum := sha256.Sum256([]byte{'g', 'e', 'a', 'r', byte(i)})
		t[i] = binary.BigEndian.Uint64(sum[:])
	}
	return &t
})

// cut returns the length of the first chunk of b, which holds max bytes unless
// the data ends with it.
func (c cutter) cut(b []byte) int {
	n := len(b)
	if n <= c.min {
		return n
	}
	n = min(n, c.max)
	gear := gearTable()
	var h uint64
	i, mid := c.min, min(c.avg, n)
	for shift := 64 - (c.bits + 2); i < mid; i++ {
		h = h<<1 + gear[b[i]]
		if h>>shift == 0 {
			return i + 1
		}
	}
	for shift := 64 - (c.bits - 2); i < n; i++ {
		h = h<<1 + gear[b[i]]
		if h>>shift == 0 {
			return i + 1
		}
	}
	return n
}

const (
	holeBlock = 4 << 10
	holeMin   = 16 // blocks; shorter runs of zeros are data
)

// splitter turns the bytes of a long file into chunks and holes. What becomes a
// hole depends on the content alone: every run of at least 64 KiB of zeros in
// whole, aligned 4 KiB blocks. So equal files have equal chunks, whatever the
// file system has allocated.
type splitter struct {
	cutter
	emit  func(c chunk, data []byte) error // data is valid during the call; nil for a hole
	buf   []byte                           // data that was not cut yet
	start int                              // where it begins in buf
	zeros int64                            // zero bytes seen after it
	hole  bool                             // those zeros are a hole already
}

func newSplitter(c cutter, buf []byte, emit func(chunk, []byte) error) *splitter {
	return &splitter{cutter: c, buf: buf[:0], emit: emit}
}

// write takes the next bytes, in multiples of 4 KiB except at the end of the
// file.
func (s *splitter) write(b []byte) error {
	for len(b) > 0 {
		n := min(holeBlock, len(b))
		block := b[:n]
		b = b[n:]
		if isZero(block) {
			if err := s.zero(int64(n)); err != nil {
				return err
			}
			continue
		}
		if err := s.data(block); err != nil {
			return err
		}
	}
	return nil
}

// zero takes n zero bytes, in multiples of 4 KiB except at the end.
func (s *splitter) zero(n int64) error {
	s.zeros += n
	if !s.hole && s.zeros > (holeMin-1)*holeBlock {
		s.hole = true
		return s.flush()
	}
	return nil
}

func (s *splitter) data(block []byte) error {
	if s.hole {
		if err := s.emit(chunk{len: s.zeros, hole: true}, nil); err != nil {
			return err
		}
	} else if s.zeros > 0 {
		if err := s.append(zeroBlocks[:s.zeros]); err != nil {
			return err
		}
	}
	s.zeros, s.hole = 0, false
	return s.append(block)
}

// append adds data and emits chunks while there is enough to decide.
func (s *splitter) append(b []byte) error {
	if len(s.buf)+len(b) > cap(s.buf) && s.start > 0 {
		s.buf = s.buf[:copy(s.buf[:cap(s.buf)], s.buf[s.start:])]
		s.start = 0
	}
	s.buf = append(s.buf, b...)
	for len(s.buf)-s.start >= s.max {
		if err := s.next(); err != nil {
			return err
		}
	}
	return nil
}

func (s *splitter) next() error {
	n := s.cut(s.buf[s.start:])
	data := s.buf[s.start : s.start+n]
	s.start += n
	return s.emit(chunk{hash: sha256.Sum256(data), len: int64(n)}, data)
}

// flush emits the rest of a stretch of data.
func (s *splitter) flush() error {
	for s.start < len(s.buf) {
		if err := s.next(); err != nil {
			return err
		}
	}
	s.buf, s.start = s.buf[:0], 0
	return nil
}

// end emits what is left at the end of the file.
func (s *splitter) end() error {
	if s.hole {
		return s.emit(chunk{len: s.zeros, hole: true}, nil)
	}
	if s.zeros > 0 {
		if err := s.append(zeroBlocks[:s.zeros]); err != nil {
			return err
		}
	}
	return s.flush()
}

var zeroBlocks [holeMin * holeBlock]byte

func isZero(b []byte) bool {
	if len(b) >= 8 && binary.LittleEndian.Uint64(b) != 0 {
		return false
	}
	return string(b) == string(zeroBlocks[:len(b)])
}
