package acp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// errStopLines ends the cutting of a chunk when the run has come to its end.
var errStopLines = errors.New("no more lines")

func replyID(process string, n int64) string { return process + "/reply/" + strconv.FormatInt(n, 10) }

// pump handles what happens until done reports true or the run ends. It is the
// only place that waits.
func (d *drive) pump(ctx context.Context, done func() bool) error {
	for !done() && d.end == nil {
		// An agent that does not read is not read either.
		stalled := len(d.st.Out) >= maxOutgoing
		if len(d.pending) > 0 && !stalled {
			c := d.pending[0]
			d.pending = d.pending[1:]
			if err := d.chunk(ctx, c); err != nil {
				return err
			}
			continue
		}
		reads, cancelled, deadline := d.reads, d.port.Cancelled(), d.deadline.C
		if stalled {
			reads = nil
		}
		if d.live && !d.caughtUp || d.st.Ending != "" || d.st.Reply != nil {
			cancelled, deadline = nil, nil // the turn may be over, is over, or is being ended
		}
		var err error
		select {
		case <-ctx.Done():
			err = context.Cause(ctx)
		case r := <-reads:
			err = d.take(r)
		case w := <-d.box.done:
			err = d.wrote(ctx, w)
		case a := <-d.answers:
			err = d.answer(a)
		case <-cancelled:
			err = d.wind(ctx, byCaller)
		case <-deadline:
			err = d.wind(ctx, byDeadline)
		case <-d.alarm.C: // done has something new to say
		case <-d.startup.C:
			d.silent()
		case <-d.grace.C:
			err = d.kill(ctx)
		case <-d.due.C:
			err = d.commit(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// take handles one step of the reader.
func (d *drive) take(r reading) error {
	if r.err != nil {
		return fmt.Errorf("read the agent's output: %w", r.err)
	}
	d.pending = r.chunks
	if r.caughtUp {
		d.caughtUp = true
	}
	if r.exit != nil {
		return d.exited(r.exit)
	}
	return nil
}

// chunk accounts for one chunk of output.
func (d *drive) chunk(ctx context.Context, c link.Chunk) error {
	d.consumed += len(c.Data)
	d.lastRead = time.Now()
	if c.Stream == link.Stderr {
		if c.Seq > d.lines.at.ErrSeq {
			d.stderr(c.Data)
			d.lines.at.ErrSeq, d.lines.at.ErrPartial = c.Seq, slices.Clone(d.errLine)
		}
		d.lines.skip(c)
		return d.chunkDone(ctx)
	}
	err := d.lines.stdout(c, func(line []byte) error {
		if err := d.line(line); err != nil {
			return err
		}
		if d.end != nil {
			return errStopLines
		}
		if d.full() {
			return d.commit(ctx)
		}
		return nil
	})
	if err != nil && !errors.Is(err, errStopLines) {
		return err
	}
	return d.chunkDone(ctx)
}

// chunkDone commits what has come together, and ends the run when a line has
// become longer than the keeper holds.
func (d *drive) chunkDone(ctx context.Context) error {
	if d.end == nil && d.lines.held > d.h.MaxLineBytes {
		d.end = failed(CodeAgentProtocol, "The agent %s wrote a line of more than %d bytes.", d.name(), d.h.MaxLineBytes)
		d.end.Killed = true
	}
	if d.end == nil && d.full() {
		return d.commit(ctx)
	}
	return nil
}

// wrote handles the end of a write.
func (d *drive) wrote(ctx context.Context, w written) error {
	if w.err != nil {
		return fmt.Errorf("write to the agent: %w", w.err)
	}
	if w.closed {
		// The reader will say how the process ended; an agent that lives on
		// deaf has to go.
		if d.st.Ending == "" && !d.reusing && !d.killing {
			d.grace.Reset(d.h.KillAfter)
		}
		return nil
	}
	if w.id == d.id(stepPrompt) {
		d.st.Sent = true
	}
	d.st.Out = slices.DeleteFunc(d.st.Out, func(m outgoing) bool { return m.WriteID == w.id })
	// The keeper remembers a thousand write ids. The last commit must never be
	// so far behind that it has forgotten one which would be repeated.
	if d.writes++; d.durable && d.writes >= maxOutgoing {
		return d.commit(ctx)
	}
	return nil
}

// full reports whether the batch is to be committed now.
func (d *drive) full() bool {
	if d.consumed >= maxBatchBytes {
		return true
	}
	return d.durable && (len(d.batch.Asked) > 0 || len(d.batch.Withdrawn) > 0 ||
		len(d.batch.Events) >= maxBatchEvents || d.batchLen >= maxBatchBytes)
}

// commit makes the batch durable and acknowledges the output that it accounts
// for. In the handshake nothing is: only the output is let go.
func (d *drive) commit(ctx context.Context) error {
	d.due.Stop()
	d.st.Cursor = d.lines.at
	if d.durable {
		d.batch.State = d.st.encode()
		if err := d.port.Commit(ctx, d.batch); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		if len(d.batch.Events) > 0 {
			d.batchAt = time.Now()
		}
		d.batch, d.batchLen = harness.Batch{}, 0
		for _, o := range d.asked {
			d.await(ctx, o)
		}
		d.asked = nil
	}
	d.consumed, d.writes = 0, 0
	return d.ack(ctx)
}

// ack lets the keeper forget what lies before the cursor.
func (d *drive) ack(ctx context.Context) error {
	seq := d.st.Cursor.Seq
	if seq <= d.acked {
		return nil
	}
	err := d.link.Ack(ctx, d.st.Process, seq)
	if err != nil && !errors.Is(err, link.ErrUnknownProcess) {
		return fmt.Errorf("acknowledge the agent's output: %w", err)
	}
	d.acked = seq
	return nil
}
