package keeper

import (
	"context"
	"io"
	"runtime"
	"sync"
)

// A program that fills the sandbox's limit of processes leaves the keeper no room for
// one more thread, and Go's runtime ends a program that cannot have the thread it
// wants. So the keeper takes its threads before anything else runs, which the runtime
// then keeps for ever, and does not want more: its code runs on a few at a time, and
// each call that may wait for a disk takes a slot among the rest.
const (
	// mostRunning bounds the threads that run Go code at a time, whatever the host's
	// number of processors: the runtime would have a thread for each.
	mostRunning = 4
	// processesOfRunning is how many processes a limit must allow for one more of them.
	processesOfRunning = 16
	// besideThreads are the runtime's own, and those that a fork, a look at /proc and a
	// wait for signals take.
	besideThreads = 4
	// mostDiskSlots is how many calls may wait for a disk at a time, and leastDiskSlots
	// how many even where there is room for few processes.
	mostDiskSlots, leastDiskSlots = 8, 2
)

// runningThreads is how many threads run Go code at a time under a limit of processes and
// threads, 0 for none.
func runningThreads(limit int) int {
	n := min(runtime.GOMAXPROCS(0), mostRunning)
	if limit > 0 {
		n = max(1, min(n, limit/processesOfRunning))
	}
	return n
}

// diskSlots is how many calls may wait for a disk at a time under such a limit: the
// keeper takes no more than about half of it.
func diskSlots(limit int) int {
	if limit == 0 {
		return mostDiskSlots
	}
	return min(max(limit/2-mostRunning-besideThreads, leastDiskSlots), mostDiskSlots)
}

// takeThreads makes n threads that stay. Each of them waits for the others, locked to
// its goroutine, so that none is used twice.
func takeThreads(n int) {
	var there, over sync.WaitGroup
	there.Add(n)
	for range n {
		over.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread() // a locked thread would end with its goroutine
			there.Done()
			there.Wait()
		})
	}
	over.Wait()
}

// limitThreads prepares the process of a keeper for a limit of processes and threads.
func limitThreads(limit int) {
	running := runningThreads(limit)
	runtime.GOMAXPROCS(running)
	takeThreads(running + besideThreads + diskSlots(limit))
}

// slots are what calls and programs that may wait for a disk take one of each.
type slots chan struct{}

// enter waits for a slot. It fails with the cause of ctx.
func (s slots) enter(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s slots) leave() { <-s }

// outside runs f, which waits for something else than a disk, without the slot.
func (s slots) outside(f func()) {
	s.leave()
	defer func() { s <- struct{}{} }() // nobody keeps one for long
	f()
}

// within makes a program that works on files hold a slot, but not while it waits for
// who sends its input or takes its output, or for a sandbox that stands still.
func (s slots) within(prog Program) Program {
	return func(ctx context.Context, proc Proc) int {
		if s.enter(ctx) != nil {
			return fileBroke
		}
		defer s.leave()
		proc.Stdin = slottedReader{s, proc.Stdin}
		proc.Stdout, proc.Stderr = slottedWriter{s, proc.Stdout}, slottedWriter{s, proc.Stderr}
		gate := proc.Gate
		proc.Gate = func(ctx context.Context) (leave func(), err error) {
			s.outside(func() { leave, err = gate(ctx) })
			return leave, err
		}
		return prog(ctx, proc)
	}
}

type slottedReader struct {
	slots slots
	r     io.Reader
}

func (r slottedReader) Read(b []byte) (n int, err error) {
	r.slots.outside(func() { n, err = r.r.Read(b) })
	return n, err
}

// Close implements io.Closer for who ends a program.
func (r slottedReader) Close() error {
	if c, ok := r.r.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

type slottedWriter struct {
	slots slots
	w     io.Writer
}

// ReadFrom implements io.ReaderFrom: r is read with the slot.
func (w slottedWriter) ReadFrom(r io.Reader) (int64, error) {
	if out, ok := w.w.(stream); ok {
		return out.readFrom(r, w.slots.outside)
	}
	return io.Copy(struct{ io.Writer }{w}, r)
}

func (w slottedWriter) Write(b []byte) (n int, err error) {
	w.slots.outside(func() { n, err = w.w.Write(b) })
	return n, err
}
