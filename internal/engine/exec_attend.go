package engine

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/internal/output"
)

const (
	// execReadBytes bounds one read: large, because each is a round trip.
	execReadBytes = 1 << 20
	// execGather is how long a read that has output waits for more of it.
	execGather = 2 * time.Millisecond
	// execSpool is how much output a keeper holds that is not in files here: what
	// writes more waits.
	execSpool = 8 << 20
	// execGuard is how long after its timeout and grace an exec is ended from here,
	// if its keeper has not.
	execGuard = 30 * time.Second
)

// outcome is how the process of an exec ended, and where.
type outcome struct {
	result sojourn.ExecResult
	reason sojourn.ExecReason
	at     *compute
}

// attend starts the process, unless the keeper has it already, and follows it to its
// end. A keeper has a process until the end of its exec is written down: one that it
// does not know was never started.
func (f *follow) attend(p place, w *output.Writer) (outcome, error) {
	ctx, cancel := context.WithCancel(f.ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	start, err := p.startParams(ctx)
	if err != nil {
		return outcome{}, err
	}
	f.mu.Lock()
	f.at = p.c
	f.mu.Unlock()
	f.ask(p.x.Ending, p.x.Kill)
	kills := f.b.e.memoryKills(p.c)
	beside.Go(func() { f.mind(ctx, p) })

	read := link.ReadParams{ProcessID: start.ProcessID, MaxBytes: execReadBytes, Wait: link.MaxWait, Gather: execGather}
	r, err := f.first(ctx, p, start, read, &beside)
	var held heldOutput
	for ; err == nil; r, err = p.c.peer.Read(ctx, read) {
		r.Join() // one write for all of it
		for _, c := range r.Chunks {
			if err := f.keep(ctx, w, c); err != nil {
				return outcome{}, err
			}
			held = append(held, heldChunk{c.Seq, c.Offset + int64(len(c.Data))})
		}
		r.Release() // the writer has what it keeps
		if r.Closed {
			return f.outcome(p, r, kills, w.Sizes()), nil
		}
		read.AfterSeq, read.Ack = r.NextSeq-1, held.release(w.Durable())
	}
	if why, ok := neverStarted(err); ok {
		r := sojourn.ExecResult{Failure: why}
		return outcome{sized(r, w.Sizes()), sojourn.ExecNotStarted, p.c}, nil
	}
	if errors.Is(err, link.ErrUnknownProcess) { // nobody else forgets it: this is nothing to expect
		r := sized(sojourn.ExecResult{}, w.Sizes())
		r.KeptNote = cmp.Or(r.KeptNote, string(output.CutLost))
		return outcome{r, sojourn.ExecSandboxLost, p.c}, nil
	}
	return outcome{}, err
}

// first starts the process and reads for the first time, in one round trip if it
// takes no input.
func (f *follow) first(ctx context.Context, p place, s link.StartParams, read link.ReadParams, beside *sync.WaitGroup) (link.ReadResult, error) {
	if !s.PipeStdin && !s.TTY {
		r, err := p.c.peer.Run(ctx, s, read)
		if !errors.Is(err, link.ErrProcessExists) {
			return r, err
		}
	} else {
		if err := p.c.peer.Start(ctx, s); err != nil && !errors.Is(err, link.ErrProcessExists) {
			return link.ReadResult{}, err
		}
		beside.Go(func() { f.feed(ctx, p) })
	}
	return p.c.peer.Read(ctx, read)
}

// neverStarted tells a start that a keeper has refused for good, and why.
func neverStarted(err error) (why string, ok bool) {
	e, refused := errors.AsType[*link.Error](err)
	switch {
	case errors.Is(err, link.ErrLimit):
		return "The sandbox has no room for another process.", true
	case refused && e.Code == link.CodeInvalidParams:
		return bounded(e.Message, 500), true
	}
	return "", false
}

// heldChunk is a piece of output that the keeper still has: its number, and the
// total offset of its end.
type heldChunk struct{ seq, end int64 }

type heldOutput []heldChunk

// release forgets the chunks that are durable here, and returns the number of the
// last one; 0 for none.
func (h *heldOutput) release(durable int64) (seq int64) {
	for len(*h) > 0 && (*h)[0].end <= durable {
		seq, *h = (*h)[0].seq, (*h)[1:]
	}
	return seq
}

// keep takes over a piece of output. What the keeper has no more is said to be
// missing; a file system that fails is waited for.
func (f *follow) keep(ctx context.Context, w *output.Writer, c link.Chunk) error {
	for {
		err := w.Append(c.Offset, c.Stream == link.Stderr, c.Data)
		if errors.Is(err, output.ErrGap) {
			if err = w.Skip(c.Offset); err == nil {
				continue
			}
		}
		if err == nil || errors.Is(err, output.ErrClosed) {
			return err
		}
		f.b.e.log.Error("keep the output of an exec", "session", f.b.id, "exec", f.id, "error", err)
		select {
		case <-time.After(execRetry):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// outcome reads from the last answer of the keeper how the process ended. kills is
// how often the sandbox had reached its memory limit before.
func (f *follow) outcome(p place, r link.ReadResult, kills int64, s output.Sizes) outcome {
	o := outcome{result: sized(sojourn.ExecResult{
		Code: r.ExitCode, Signal: r.Signal, Failure: r.Failure,
		RunTime: r.RunTime, CPUTime: r.CPUTime, MaxRSS: r.MaxRSSBytes,
	}, s), at: p.c}
	f.mu.Lock()
	stopping := f.stopping
	f.mu.Unlock()
	switch {
	case r.Failure != "":
		o.reason = sojourn.ExecNotStarted
	case r.TimedOut:
		o.reason = sojourn.ExecTimeout
	case stopping != "":
		o.reason = stopping
	case f.outOfMemory(p.c, r, kills):
		o.reason = sojourn.ExecOutOfMemory
	}
	return o
}

func sized(r sojourn.ExecResult, s output.Sizes) sojourn.ExecResult {
	r.Stdout, r.Stderr, r.Kept, r.KeptNote = s.Stdout, s.Stderr, s.KeptTotal, string(s.Cut)
	return r
}

// outOfMemory reports whether the process, or a shell's child for which it has
// answered, was killed while the sandbox reached its memory limit.
func (f *follow) outOfMemory(c *compute, r link.ReadResult, kills int64) bool {
	const shellKilled = 128 + 9
	if r.Signal != "SIGKILL" && (r.ExitCode == nil || *r.ExitCode != shellKilled) {
		return false
	}
	f.b.e.noteLimits(f.ctx, c)
	return f.b.e.memoryKills(c) > kills
}

// mind ends the process when that is asked for, and keeps the lease of one that
// lasts.
func (f *follow) mind(ctx context.Context, p place) {
	lasting := time.NewTimer(touchEvery(f.b.e.cfg.Terms.Hold))
	defer lasting.Stop()
	var guard <-chan time.Time
	if limit := p.x.Spec.Timeout; limit > 0 {
		t := time.NewTimer(limit + p.x.Spec.Grace + execGuard)
		defer t.Stop()
		guard = t.C
	}
	f.terminate(ctx, p)
	for {
		select {
		case <-f.asked:
			f.terminate(ctx, p)
		case <-guard:
			f.b.e.log.Error("a keeper has not kept a timeout", "session", f.b.id, "exec", f.id)
			f.ask(sojourn.ExecTimeout, true)
		case <-lasting.C:
			defer f.b.e.touchUntil(ctx, p.c, (*sojourn.Decision).VisitLease)()
		case <-ctx.Done():
			return
		}
	}
}

// terminate makes the process end, if that is asked for. It returns when the keeper
// has heard it.
func (f *follow) terminate(ctx context.Context, p place) {
	for {
		f.mu.Lock()
		why, kill := f.ending, f.kill
		if f.stopping == "" {
			f.stopping = why
		}
		f.mu.Unlock()
		if why == "" {
			return
		}
		grace := p.x.Spec.Grace
		if kill {
			grace = 0
		}
		running, err := p.c.peer.Terminate(ctx, execPrefix+string(f.id), grace)
		if err == nil {
			if !running && p.x.Ending == "" { // it had ended by itself
				f.mu.Lock()
				f.stopping = ""
				f.mu.Unlock()
			}
			return
		}
		wait := execRetry
		if errors.Is(err, link.ErrUnknownProcess) { // it is being started
			wait = startingPause
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// startingPause is how long to wait for a process that is being started.
const startingPause = 10 * time.Millisecond
