package acp

import (
	"bytes"
	"slices"
)

// partialBytes is how much of an unfinished line the cursor carries along. A
// longer one holds the cursor back, and the keeper keeps its bytes.
const partialBytes = 16 << 10

// lines cuts the agent's output into lines and says where each one ends.
type lines struct {
	buf []byte
	at  cursor // as it would be stored now; the stderr part is not touched
	off int    // bytes to pass over in the next chunk of stdout, after a resume
	// held counts the bytes, of all streams, that the cursor is behind.
	held int
}

// resume takes the cutting up at c.
func (l *lines) resume(c cursor) {
	l.buf, l.at, l.off, l.held = bytes.Clone(c.Partial), c, c.Off, 0
}

// stdout cuts a chunk and calls each with every line that ends in it; the
// cursor then lies behind that line. It stops when each says so.
func (l *lines) stdout(seq int64, data []byte, each func(line []byte) error) error {
	off := min(l.off, len(data))
	l.off = 0
	for {
		i := bytes.IndexByte(data[off:], '\n')
		if i < 0 {
			break
		}
		line := data[off : off+i]
		if len(l.buf) > 0 {
			line = append(l.buf, line...)
		}
		off += i + 1
		l.at.Seq, l.at.Off, l.at.Partial = seq-1, off, nil
		l.buf, l.held = nil, 0
		if err := each(line); err != nil {
			return err
		}
	}
	l.buf = append(l.buf, data[off:]...)
	l.chunkDone(seq, len(data))
	return nil
}

// skip accounts for a chunk of another stream.
func (l *lines) skip(seq int64, n int) { l.chunkDone(seq, n) }

func (l *lines) chunkDone(seq int64, n int) {
	if len(l.buf) > partialBytes {
		l.held += n
		return
	}
	l.at.Seq, l.at.Off, l.at.Partial = seq, 0, slices.Clone(l.buf)
	l.held = 0
}

// rest returns what remains when the output has ended.
func (l *lines) rest() []byte {
	b := l.buf
	l.buf = nil
	return b
}
