package link

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
)

// MaxFrameBytes bounds one message.
const MaxFrameBytes = 32 << 20

// headerBytes is the length of a frame's length.
const headerBytes = 4

// Transport carries whole messages over one connection. One goroutine reads;
// any number may write. Read returns io.EOF when the far side ended between
// two messages; the slice belongs to the caller. Close makes both fail and
// may be called twice.
type Transport interface {
	Read() ([]byte, error)
	Write(msg []byte) error
	Close() error
}

// WriteParts sends one message that lies in several pieces. The pieces are not
// used any more when it returns.
func WriteParts(t Transport, parts ...[]byte) error {
	if f, ok := t.(*framed); ok {
		return f.writeParts(parts)
	}
	return t.Write(slices.Concat(parts...))
}

// Framed carries messages over a byte stream, each behind its length as four
// bytes, big-endian.
func Framed(rwc io.ReadWriteCloser) Transport {
	return &framed{rwc: rwc, r: bufio.NewReaderSize(rwc, readBuffer)}
}

// readBuffer lets a small message arrive with its length in one read. What is
// larger goes past it.
const readBuffer = 16 << 10

type framed struct {
	rwc io.ReadWriteCloser
	r   *bufio.Reader

	wmu  sync.Mutex
	wbuf []byte // frame under construction, for messages up to coalesceBytes, or its length
	werr error  // a failed write leaves the stream in the middle of a frame
}

// coalesceBytes is the size up to which header and message go out in one write.
const coalesceBytes = 64 << 10

// Read returns the next message.
func (f *framed) Read() ([]byte, error) { return readFrame(f.r) }

// frameBytes is how much memory is taken on trust. It has room for the output that
// a read returns by default.
const frameBytes = 1<<20 + 128<<10

// frames holds the memory of messages that were used: frameBytes, and what is left
// when that is halved several times.
var frames [5]sync.Pool

// newFrame has no bytes, and room for size, or for frameBytes of them.
func newFrame(size int64) []byte {
	size = min(size, frameBytes)
	if size <= frameBytes>>len(frames) {
		return make([]byte, 0, size)
	}
	class := 0
	for size <= frameBytes>>(class+1) {
		class++
	}
	if b, ok := frames[class].Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 0, frameBytes>>class)
}

// reuseFrame takes the memory of a message that nobody uses any more.
func reuseFrame(frame []byte) {
	frame = frame[:0]
	for class := range frames {
		if cap(frame) == frameBytes>>class {
			frames[class].Put(&frame)
		}
	}
}

// readFrame reads one frame. The length is the far side's claim, so memory
// grows with what really arrives.
func readFrame(r io.Reader) ([]byte, error) {
	var head [headerBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("read frame header: %w", ErrFrameTruncated)
		}
		return nil, err
	}
	size := int64(binary.BigEndian.Uint32(head[:]))
	if size > MaxFrameBytes {
		return nil, fmt.Errorf("read frame of %d bytes: %w", size, ErrFrameTooLarge)
	}
	msg := newFrame(size)
	for int64(len(msg)) < size {
		have := len(msg)
		want := min(int(size)-have, max(cap(msg)-have, 3*have)) // four times as large each time
		msg = slices.Grow(msg, want)[:have+want]
		if _, err := io.ReadFull(r, msg[have:]); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = ErrFrameTruncated
			}
			return nil, fmt.Errorf("read frame of %d bytes: %w", size, err)
		}
	}
	return msg, nil
}

// Write sends one message.
func (f *framed) Write(msg []byte) error {
	return f.writeParts([][]byte{msg})
}

func (f *framed) writeParts(parts [][]byte) error {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	if size > MaxFrameBytes {
		return fmt.Errorf("write frame of %d bytes: %w", size, ErrFrameTooLarge)
	}
	f.wmu.Lock()
	defer f.wmu.Unlock()
	if f.werr != nil {
		return f.werr
	}
	f.werr = f.writeLocked(size, parts)
	return f.werr
}

func (f *framed) writeLocked(size int, parts [][]byte) error {
	f.wbuf = binary.BigEndian.AppendUint32(f.wbuf[:0], uint32(size))
	if size <= coalesceBytes {
		for _, part := range parts {
			f.wbuf = append(f.wbuf, part...)
		}
		_, err := f.rwc.Write(f.wbuf)
		return err
	}
	vec := append(net.Buffers{f.wbuf}, parts...)
	_, err := vec.WriteTo(f.rwc)
	return err
}

// Close ends the connection.
func (f *framed) Close() error { return f.rwc.Close() }
