package keeper

import (
	"errors"
	"io"
	"slices"
)

// stream writes one stream into a spool.
type stream struct {
	spool *spool
	name  string
}

// Write implements io.Writer for programs that run in process.
func (w stream) Write(p []byte) (int, error) {
	n := 0
	for piece := range slices.Chunk(p, chunkBytes) {
		if w.spool.ended() {
			return n, io.ErrClosedPipe
		}
		if err := w.append(piece); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return n, nil
}

// append adds a piece that the caller keeps. A large one is copied into a block,
// which is used again.
func (w stream) append(piece []byte) error {
	if len(piece) < blockUse {
		return w.spool.append(w.name, piece, nil)
	}
	b := newBlock()
	defer b.release()
	return w.spool.append(w.name, b.buf[:copy(b.buf[:], piece)], b)
}

// ReadFrom implements io.ReaderFrom: what r reads stays where it was read to.
func (w stream) ReadFrom(r io.Reader) (int64, error) {
	return w.readFrom(r, func(add func()) { add() })
}

// readFrom is ReadFrom that calls wait with what may wait for a reader of the output.
func (w stream) readFrom(r io.Reader, wait func(add func())) (n int64, err error) {
	for err == nil {
		if w.spool.ended() {
			return n, io.ErrClosedPipe
		}
		var m int
		m, err = w.fill(r, wait)
		n += int64(m)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// fill adds what one reading of r brings, a block at most: somebody may wait for the
// answer to it before there is more.
func (w stream) fill(r io.Reader, wait func(add func())) (int, error) {
	b := newBlock()
	defer b.release()
	n, err := r.Read(b.buf[:])
	if n == 0 {
		return 0, err
	}
	var failed error
	if wait(func() { failed = w.spool.append(w.name, b.buf[:n], b) }); failed != nil {
		return 0, failed
	}
	return n, err
}
