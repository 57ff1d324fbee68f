package acp

import (
	"bytes"
	"slices"

	"github.com/sojourn-dev/sojourn/internal/link"
)

// partialBytes is how much of an unfinished line the cursor carries along. A
// longer one holds the cursor back, and the keeper keeps its bytes.
const partialBytes = 16 << 10

// chunkCost is what a chunk weighs in the keeper's spool beside its bytes.
const chunkCost = 128

// lines cuts the agent's output into lines and says where each one ends.
type lines struct {
	buf []byte
	at  cursor // as it would be stored now; the stderr part is not touched
	off int    // bytes to pass over in the next chunk of stdout, after a resume
	// held is what the keeper has to hold because the cursor is behind, of all
	// streams.
	held int
}

// resume takes the cutting up at c.
func (l *lines) resume(c cursor) {
	l.buf, l.at, l.off, l.held = bytes.Clone(c.Partial), c, c.Off, 0
}

// stdout cuts a chunk and calls each with every line that ends in it; the
// cursor then lies behind that line. It stops when each says so.
func (l *lines) stdout(c link.Chunk, each func(line []byte) error) error {
	data := c.Data
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
		l.at.Seq, l.at.Off, l.at.End, l.at.Partial = c.Seq-1, off, c.Offset, nil
		l.buf, l.held = nil, 0
		if err := each(line); err != nil {
			return err
		}
	}
	l.buf = append(l.buf, data[off:]...)
	l.skip(c)
	return nil
}

// skip accounts for the whole of a chunk, of any stream.
func (l *lines) skip(c link.Chunk) {
	if len(l.buf) > partialBytes {
		l.held += len(c.Data) + chunkCost
		return
	}
	l.at.Seq, l.at.Off, l.at.End = c.Seq, 0, c.Offset+int64(len(c.Data))
	l.at.Partial, l.held = slices.Clone(l.buf), 0
}

// rest returns what remains when the output has ended.
func (l *lines) rest() []byte {
	b := l.buf
	l.buf = nil
	return b
}
