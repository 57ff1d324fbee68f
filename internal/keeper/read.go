package keeper

import (
	"context"
	"fmt"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
)

const (
	defaultReadBytes = 1 << 20
	maxReadBytes     = 8 << 20
	// maxGather bounds how long a read holds back what it has.
	maxGather = 5 * time.Second
)

// callRun is a start and a read in one. It lets go what waits for the start
// before it reads.
func callRun(c *conn, rq *request) (any, error) {
	w, err := decodeWith[link.ProcessRunParams](c, rq)
	if err != nil {
		return nil, err
	}
	if err := unconfined(link.MethodProcessStart, link.Field(rq.Params, "start")); err != nil {
		return nil, err
	}
	ask, err := wanted(w.Read)
	if err != nil {
		return nil, err
	}
	p, err := c.k.start(c.ctx, w.Start)
	if err != nil {
		return nil, err
	}
	c.k.announceStart(p)
	rq.next()
	return c.poll(p, ask)
}

func callRead(c *conn, p *process, r link.ProcessReadParams) (any, error) {
	ask, err := wanted(r)
	if err != nil {
		return nil, err
	}
	p.spool.release(ask.ack)
	return c.poll(p, ask)
}

// wish is what a read wants.
type wish struct {
	after, ack   int64
	size         int
	wait, gather time.Duration
}

func wanted(r link.ProcessReadParams) (wish, error) {
	w := wish{size: defaultReadBytes}
	if r.AfterSeq != nil {
		w.after = *r.AfterSeq
	}
	var wait, gather int64
	if r.WaitMs != nil {
		wait = *r.WaitMs
	}
	if s := r.Sojourn; s != nil {
		w.ack, gather = s.AckSeq, s.GatherUs
	}
	if w.after < 0 || wait < 0 || gather < 0 {
		return w, invalid("afterSeq, waitMs and gatherUs cannot be negative")
	}
	w.wait = time.Duration(min(wait, link.MaxWait.Milliseconds())) * time.Millisecond
	w.gather = time.Duration(min(gather, maxGather.Microseconds())) * time.Microsecond
	if r.MaxBytes != nil {
		w.size = min(max(*r.MaxBytes, 1), maxReadBytes)
	}
	return w, nil
}

// poll answers when there is something new and no more to be gathered, or when
// the wait is over.
func (c *conn) poll(p *process, w wish) (any, error) {
	timer := time.NewTimer(w.wait)
	defer timer.Stop()
	gathering := false
	for {
		s := p.spool.look(w.after, w.size, gathering)
		switch {
		case s.shut:
			return nil, &link.Error{Code: link.CodeUnknownProcess, Message: fmt.Sprintf("process %q was removed", p.id)}
		case s.full, s.news && w.gather == 0:
			return c.found(p.spool.read(w.after, w.size)), nil
		case s.news && !gathering:
			gathering = true
			timer.Reset(w.gather)
			continue
		}
		select {
		case <-s.changed:
		case <-timer.C:
			return c.found(p.spool.read(w.after, w.size)), nil
		case <-c.ctx.Done():
			return nil, context.Cause(c.ctx)
		}
	}
}

// found is the answer that tells a view and then lets go of it.
func (c *conn) found(v view) answerThen {
	return answerThen{result: c.readResult(v), then: v.release}
}

func (c *conn) readResult(v view) *link.ProcessReadResult {
	r := &link.ProcessReadResult{Chunks: make([]link.OutputChunk, len(v.chunks)), NextSeq: v.nextSeq, Closed: v.closed}
	for i, ch := range v.chunks {
		r.Chunks[i] = wireChunk(ch)
	}
	ours := link.ProcessReadSojourn{FirstSeq: v.firstSeq, DroppedBytes: v.dropped}
	if e := v.exit; e != nil {
		r.Exited, r.ExitCode = true, e.code
		if e.failure != "" {
			r.Failure = &e.failure
		}
		ours.Signal, ours.FailureKind, ours.ProcessEnding = e.signal, e.kind, e.wire()
		if c.foreign {
			status := e.status()
			r.ExitCode = &status
		}
	}
	if !c.foreign {
		r.Sojourn = &ours
	}
	return r
}
