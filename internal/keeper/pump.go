package keeper

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// drainTime is how long output may still come after the main process has
// ended, while something that it left behind holds the pipe.
const drainTime = 500 * time.Millisecond

const (
	// growAfter is how much output makes a pipe worth more room.
	growAfter = 4 << 20
	// grownBytes is the most that a pipe may have without privileges.
	grownBytes = 1 << 20
)

// ttyBufferBytes is more than the kernel keeps for a terminal.
const ttyBufferBytes = 256 << 10

// pump carries one output of a child into its spool. The pipe has the size that
// pipes have, until so much has come that fewer wake-ups on both sides are worth the
// memory. It settles at the end of the output or when the drain is over; after that
// it goes on reading and counting for whatever the process left behind, so that a
// background server is not killed by its first line of log.
type pump struct {
	file    *os.File
	raw     syscall.RawConn
	to      stream
	carried int64 // bytes, until the pipe has grown
	settled chan struct{}
}

func newPump(f *os.File, to stream) (*pump, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &pump{file: f, raw: raw, to: to, settled: make(chan struct{})}, nil
}

// expire starts the drain: the main process has ended.
func (p *pump) expire(deadline time.Time) {
	select {
	case <-p.settled: // nobody held it any more
		return
	default:
	}
	// A file without deadlines would only drain for longer, until its end.
	_ = p.file.SetReadDeadline(deadline)
}

func (p *pump) run() {
	more := p.copy()
	close(p.settled)
	if more {
		p.discard()
	}
	_ = p.file.Close() // read only; nothing is left to lose
}

// copy moves output until its end. It reports whether the file is still open
// at the far side.
func (p *pump) copy() bool {
	for {
		n, err := p.read(true, p.store)
		p.grow(n)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return p.drain()
		case errors.Is(err, io.ErrClosedPipe): // removed while running
			return true
		case err != nil || n == 0:
			return false
		}
	}
}

// grow gives the pipe of a process that writes much more room, once. Where the system
// allows no more, as for a user with many large pipes, it stays as it is.
func (p *pump) grow(n int) {
	if p.carried >= growAfter {
		return
	}
	if p.carried += int64(n); p.carried >= growAfter {
		_ = p.raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, grownBytes) })
	}
}

// drain takes what the main process had written before it ended: at most what
// the kernel holds, so that a child that never stops writing cannot prolong it.
func (p *pump) drain() bool {
	if err := p.file.SetReadDeadline(time.Time{}); err != nil {
		return false
	}
	for left := p.capacity(); left > 0; {
		n, err := p.read(false, p.store)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, io.ErrClosedPipe) {
			return true
		}
		if err != nil || n == 0 {
			return false
		}
		left -= n
	}
	return true
}

func (p *pump) capacity() int {
	size := ttyBufferBytes
	// A terminal has no pipe size; the error leaves the guess in place.
	_ = p.raw.Control(func(fd uintptr) {
		if n, err := unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0); err == nil {
			size = n
		}
	})
	return size
}

// discard reads on until the last holder of the pipe is gone or the keeper
// closes the file.
func (p *pump) discard() {
	if err := p.file.SetReadDeadline(time.Time{}); err != nil {
		return
	}
	for {
		n, err := p.read(true, func(_ *block, n int) error { p.to.spool.discard(n); return nil })
		if err != nil || n == 0 {
			return
		}
	}
}

func (p *pump) store(b *block, n int) error { return p.to.spool.append(p.to.name, b.buf[:n], b) }

// read makes one read and hands what came to use. With wait it waits for
// output, without it returns EAGAIN. At the end of the file n is 0. A block is
// taken only when there is something to read, so a quiet process costs none.
func (p *pump) read(wait bool, use func(b *block, n int) error) (n int, err error) {
	var b *block
	ready := p.raw.Read(func(fd uintptr) bool {
		b = newBlock()
		for {
			n, err = unix.Read(int(fd), b.buf[:])
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if errors.Is(err, unix.EAGAIN) && wait {
			b.release()
			b = nil
			return false
		}
		return true
	})
	defer func() { b.release() }()
	if ready != nil {
		return 0, ready
	}
	if err != nil {
		return 0, err
	}
	if n > 0 {
		err = use(b, n)
	}
	return n, err
}
