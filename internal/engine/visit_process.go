package engine

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
)

// Output is a piece of what a process wrote. Offset counts the bytes that it
// wrote before, to both streams together.
type Output struct {
	Stderr bool
	Offset int64
	Data   []byte

	seq int64 // of the chunk
}

// Exit is how a process ended: one of the three is set.
type Exit struct {
	Code    *int
	Signal  string // "SIGKILL"
	Failure string // why it could not be started
}

// Process is a process in the sandbox that a visit follows. Its methods may be
// used by one reader and one writer at a time.
type Process struct {
	v     *Visit
	id    string
	acks  bool  // output is kept until it was taken
	after int64 // the last chunk that was handed out
	due   bool  // chunks were handed out and not yet released
}

// readBytes bounds one read. The link is shared with the session's agent, whose
// output must not wait long behind ours.
const readBytes = 256 << 10

// start starts a process of the visit.
func (v *Visit) start(ctx context.Context, s link.StartParams) (*Process, error) {
	ctx, done := v.bound(ctx)
	defer done()
	if err := v.c.peer.Start(ctx, s); err != nil {
		return nil, v.told(ctx, err)
	}
	return &Process{v: v, id: s.ProcessID, acks: s.Retain == link.RetainAck}, nil
}

// Next waits for output. Calling it says that what it returned before has been
// handed on. When everything was, exit says how the process ended.
func (p *Process) Next(ctx context.Context) (out []Output, exit *Exit, err error) {
	ctx, done := p.v.bound(ctx)
	defer done()
	if p.due && p.acks {
		if err := p.v.c.peer.Ack(ctx, p.id, p.after); err != nil {
			return nil, nil, p.v.told(ctx, err)
		}
	}
	p.due = false
	for {
		r, err := p.v.c.peer.Read(ctx, link.ReadParams{ProcessID: p.id, AfterSeq: p.after, MaxBytes: readBytes, Wait: link.MaxWait})
		if err != nil {
			return nil, nil, p.v.told(ctx, err)
		}
		for _, c := range r.Chunks {
			out = append(out, Output{Stderr: c.Stream == link.Stderr, Offset: c.Offset, Data: c.Data, seq: c.Seq})
		}
		p.after, p.due = r.NextSeq-1, len(out) > 0
		if r.Closed {
			exit = &Exit{Code: r.ExitCode, Signal: r.Signal, Failure: r.Failure}
			if r.Failure != "" {
				exit.Code = nil
			}
		}
		if len(out) > 0 || exit != nil {
			return out, exit, nil
		}
	}
}

// ErrInputOver says that a process takes no input any more.
var ErrInputOver = errors.New("the process takes no more input")

// Write gives input to the process and returns when the sandbox has taken it,
// which waits for a process that does not read. at is where data lies in the
// input of the writer called who: the same piece given twice is taken once.
func (p *Process) Write(ctx context.Context, who string, at int64, data []byte) error {
	ctx, done := p.v.bound(ctx)
	defer done()
	err := p.v.c.peer.Write(ctx, p.id, who+"-"+strconv.FormatInt(at, 10), data)
	if errors.Is(err, link.ErrStdinClosed) || errors.Is(err, link.ErrUnknownProcess) {
		return ErrInputOver
	}
	return p.v.told(ctx, err)
}

// CloseInput ends the input; on a terminal it types the end-of-file character.
func (p *Process) CloseInput(ctx context.Context) error {
	ctx, done := p.v.bound(ctx)
	defer done()
	return p.v.told(ctx, p.v.c.peer.CloseStdin(ctx, p.id))
}

// leaveTime bounds the end of a process when its visitor leaves.
const leaveTime = 5 * time.Second

// Drop ends the process, if it has not, and forgets it. When the sandbox is gone
// there is nothing left to do.
func (p *Process) Drop() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.v.ctx), leaveTime)
	defer cancel()
	p.v.e.dropProcess(ctx, p.v.c, p.id)
}

func (e *Engine) dropProcess(ctx context.Context, c *compute, id string) {
	err := c.peer.Remove(ctx, id)
	if err != nil && !ended(c.box) && e.base.Err() == nil && !errors.Is(err, link.ErrUnknownProcess) && !errors.Is(err, link.ErrGone) {
		e.log.Warn("end a visitor's process", "session", c.session, "lease_epoch", c.epoch, "process", id, "error", err)
	}
}

// clearStrays ends the copies and connections of a server process that was
// killed: nobody is at their other end. It is done once for each sandbox.
func (e *Engine) clearStrays(ctx context.Context, c *compute) {
	c.strays.Do(func() {
		list, err := c.peer.Processes(ctx)
		if err != nil {
			e.log.Warn("look for strays", "session", c.session, "lease_epoch", c.epoch, "error", err)
			return
		}
		for _, p := range list {
			for _, prefix := range []string{copyPrefix, portPrefix} {
				if strings.HasPrefix(p.ProcessID, prefix) && !strings.HasPrefix(p.ProcessID, prefix+e.tag+"-") {
					e.dropProcess(ctx, c, p.ProcessID)
				}
			}
		}
	})
}
