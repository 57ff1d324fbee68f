package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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

// Framed carries messages over a byte stream, each behind its length as four
// bytes, big-endian.
func Framed(rwc io.ReadWriteCloser) Transport { return &framed{rwc: rwc} }

type framed struct {
	rwc io.ReadWriteCloser

	wmu  sync.Mutex
	wbuf []byte // frame under construction, for messages up to coalesceBytes
	werr error  // a failed write leaves the stream in the middle of a frame
}

// coalesceBytes is the size up to which header and message go out in one write.
const coalesceBytes = 64 << 10

// Read returns the next message.
func (f *framed) Read() ([]byte, error) { return readFrame(f.rwc) }

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
	const step = 1 << 20
	msg := make([]byte, 0, min(size, step))
	for int64(len(msg)) < size {
		have := len(msg)
		want := min(int(size)-have, max(step, have)) // doubles
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
	if len(msg) > MaxFrameBytes {
		return fmt.Errorf("write frame of %d bytes: %w", len(msg), ErrFrameTooLarge)
	}
	f.wmu.Lock()
	defer f.wmu.Unlock()
	if f.werr != nil {
		return f.werr
	}
	f.werr = f.writeLocked(msg)
	return f.werr
}

func (f *framed) writeLocked(msg []byte) error {
	f.wbuf = binary.BigEndian.AppendUint32(f.wbuf[:0], uint32(len(msg)))
	if len(msg) <= coalesceBytes {
		f.wbuf = append(f.wbuf, msg...)
		_, err := f.rwc.Write(f.wbuf)
		return err
	}
	if _, err := f.rwc.Write(f.wbuf); err != nil {
		return err
	}
	_, err := f.rwc.Write(msg)
	return err
}

// Close ends the connection.
func (f *framed) Close() error { return f.rwc.Close() }
