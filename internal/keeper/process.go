package keeper

import (
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/link"
)

// process is one process by its caller's name: a child of the operating
// system, a program run in process, or a start that failed.
type process struct {
	id        string
	argv      []string
	isTTY     bool
	retain    string
	startedAt time.Time
	spool     *spool
	in        *input        // nil when stdin is empty
	over      chan struct{} // closed when the output has ended

	timeout  time.Duration // 0: none
	grace    time.Duration // between TERM and KILL at the timeout
	deadline *time.Timer   // nil without a timeout; set before anything can end the process

	mu      sync.Mutex
	child   *child        // nil unless this is a real process that was started
	program *running      // nil unless this is a program
	killing *time.Timer   // a terminate under way
	killAt  time.Time     // when killing fires
	swept   chan struct{} // closed when the kill is over; nil before a terminate
	early   []early       // signals that came before it had a body
}

// early is a signal that waits for its process to have a body.
type early struct {
	sig    unix.Signal
	target string
	self   int
}

// maxEarly is how many of them are kept; who sends more means no more by it.
const maxEarly = 16

// attach gives the process its body, with the signals that it was sent before it
// had one. It reports whether it is to be killed at once, because somebody has
// ended it by then.
func (p *process) attach(c *child, r *running) (doomed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.child, p.program = c, r
	for _, s := range p.early {
		switch {
		case r != nil:
			r.signal(s.sig)
		case c != nil:
			_ = c.send(s.sig, s.target, s.self) // it may be over already
		}
	}
	p.early = nil
	return p.killing != nil
}

func (p *process) body() (*child, *running) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.child, p.program
}

// fail ends a process that was never started.
func (p *process) fail(e exit) {
	if p.in != nil {
		p.in.abort()
	}
	p.spool.finish(e)
	p.spool.close()
	close(p.over)
}

// supervise follows a child to its end. The main process decides: what it
// left behind may hold the pipes for a short drain and no longer.
func (p *process) supervise(c *child, wg *sync.WaitGroup) {
	end, ok := <-c.end
	c.ended.Store(true)
	e := exit{failure: "the exit status was taken by somebody else", kind: link.FailureFork}
	if ok {
		e = c.exitOf(end)
	}
	p.spool.finish(e)
	p.disarm(wg)
	deadline := time.Now().Add(drainTime)
	for _, pu := range c.pumps {
		pu.expire(deadline)
	}
	if p.in != nil {
		p.in.abort()
		c.in.Abort()
	}
	for _, pu := range c.pumps {
		<-pu.settled
	}
	p.spool.close()
	close(p.over)
}

// running reports whether the main process has not ended.
func (p *process) running() bool {
	p.spool.mu.Lock()
	defer p.spool.mu.Unlock()
	return p.spool.exit == nil
}

// signal sends sig to a target.
func (p *process) signal(sig unix.Signal, target string, self int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.program != nil:
		p.program.signal(sig)
		return nil
	case p.child == nil:
		if len(p.early) < maxEarly {
			p.early = append(p.early, early{sig, target, self})
		}
		return nil
	}
	return p.child.send(sig, target, self)
}

// terminate sends TERM to the whole tree and KILL after grace, the earliest
// grace of several calls counting. What got the TERM gets the KILL, too, wherever
// it has gone by then. It works on what an ended process left behind as well.
func (p *process) terminate(grace time.Duration, self int, wg *sync.WaitGroup) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := time.Now().Add(grace)
	if p.killing != nil {
		if at.Before(p.killAt) && p.killing.Stop() {
			p.killAt = at
			p.killing.Reset(max(grace, 0))
		}
		return nil
	}
	var err error
	if grace > 0 {
		switch {
		case p.program != nil:
			p.program.signal(unix.SIGTERM)
		case p.child != nil:
			_, err = p.child.sendTree(unix.SIGTERM, self)
		}
	}
	p.killAt, p.swept = at, make(chan struct{})
	wg.Add(1)
	p.killing = time.AfterFunc(max(grace, 0), func() {
		defer wg.Done()
		defer close(p.swept)
		p.kill(self)
	})
	return err
}

// sweeping returns what is closed when a kill that is due is over; nil when none is.
func (p *process) sweeping() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.swept
}

// arm starts the time of a process that has a timeout.
func (p *process) arm(k *Keeper) {
	if p.timeout == 0 {
		return
	}
	k.wg.Add(1)
	p.deadline = time.AfterFunc(p.timeout, func() {
		defer k.wg.Done()
		if err := p.expire(os.Getpid(), &k.wg); err != nil {
			k.log.Warn("end process at its timeout", "process", p.id, "err", err)
		}
	})
}

// disarm drops the timeout of a process that has ended.
func (p *process) disarm(wg *sync.WaitGroup) {
	if p.deadline != nil && p.deadline.Stop() {
		wg.Done()
	}
}

// expire ends a process whose time is up. One that is being terminated already
// has its own reason to end; the timeout then only bounds the grace.
func (p *process) expire(self int, wg *sync.WaitGroup) error {
	if !p.running() {
		return nil
	}
	p.mu.Lock()
	dying := p.killing != nil
	p.mu.Unlock()
	if !dying {
		p.spool.expire()
	}
	return p.terminate(p.grace, self, wg)
}

// killRounds bounds the sweeps of a kill; each finds what was forked during
// the one before.
const killRounds = 50

// kill ends the tree at once and returns when nothing of it is left to find.
func (p *process) kill(self int) {
	c, r := p.body()
	if r != nil {
		r.signal(unix.SIGKILL)
		return
	}
	if c == nil {
		return
	}
	for range killRounds {
		// What cannot be killed is tried again and then left: nobody is there
		// who could do more about it.
		if n, _ := c.sendTree(unix.SIGKILL, self); n == 0 {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// closeStdin ends the input. A terminal cannot be half closed, so there the
// end-of-file character is typed.
func (p *process) closeStdin() {
	if p.in == nil {
		return
	}
	if p.isTTY {
		p.in.close([]byte{4})
		return
	}
	p.in.close(nil)
}

// write gives input to the process and returns a Write word.
func (p *process) write(ctx context.Context, id string, data piece) (string, error) {
	if p.in == nil {
		return link.WriteStdinClosed, nil
	}
	return p.in.write(ctx, id, data)
}

func (p *process) writeAt(ctx context.Context, offset int64, data piece) (status string, taken int64, err error) {
	if p.in == nil {
		return link.WriteStdinClosed, 0, nil
	}
	return p.in.writeAt(ctx, offset, data)
}

// row describes the process for a list.
func (p *process) row() link.Process {
	row := link.Process{
		ProcessID: p.id, Argv: p.argv, TTY: p.isTTY, Retain: p.retain, StartedAtMs: p.startedAt.UnixMilli(),
	}
	p.spool.describe(&row)
	if c, _ := p.body(); c != nil {
		row.PID = c.pid
	}
	return row
}
