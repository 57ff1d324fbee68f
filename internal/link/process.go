package link

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// MaxWait bounds one long poll.
const MaxWait = 30 * time.Second

// stockMaxWait bounds one long poll of a stock exec-server, which may hold up
// every other call of the connection for that long.
const stockMaxWait = 2 * time.Second

// MaxWriteBytes bounds one write to a process.
const MaxWriteBytes = 16 << 20

// ReadParams ask for output.
type ReadParams struct {
	ProcessID string
	// AfterSeq is the last sequence number already seen; 0 means none. The
	// next read continues with AfterSeq = NextSeq - 1.
	AfterSeq int64
	// MaxBytes bounds the output returned, at least one chunk though; 0 means
	// the server's default.
	MaxBytes int
	// Wait is how long to wait for something new, at most MaxWait. A read may
	// come back empty before that.
	Wait time.Duration
	// Gather is how long a read that has something new waits for more: for
	// MaxBytes or for the end of the output. With it a short process takes one
	// read, and a busy one fewer. A stock exec-server does not gather.
	Gather time.Duration
	// Ack releases output as [Client.Ack] does, before it reads; 0 releases none.
	Ack int64
}

// Chunk is a piece of output. Offset counts the output bytes, over all
// streams, that came before it (0 from a stock exec-server).
type Chunk struct {
	Seq    int64
	Stream string
	Data   []byte
	Offset int64
}

// ReadResult is output and how things stand.
//
// Exited with neither ExitCode nor Signal nor Failure does not occur. A
// process that could not be started has Failure, and the exit code a shell
// would give (126, 127) when the program was the reason. Closed means that
// this result ends the output: nothing follows.
type ReadResult struct {
	Chunks      []Chunk
	NextSeq     int64
	Exited      bool
	ExitCode    *int
	Signal      string // "SIGKILL"; a stock exec-server gives 128+n as exit code
	Closed      bool
	Failure     string
	FailureKind string // FailureProgram, FailureCwd, FailureFork; empty from a stock exec-server
	// FirstSeq is the oldest chunk held: AfterSeq+1 < FirstSeq means that this
	// reader came too late for some. DroppedBytes is all that a ring dropped.
	FirstSeq     int64
	DroppedBytes int64
	Ending

	payload []byte // what the chunks are pieces of, one behind the other; nil when they are not
	frame   []byte // the memory of all that, to be used again
}

// Join makes one chunk of neighbours of one stream without a gap between them,
// where they lie side by side in memory. It has the number of the last of them.
func (r *ReadResult) Join() {
	if r.payload == nil {
		return
	}
	joined, at := r.Chunks[:0], 0
	for _, c := range r.Chunks {
		size := len(c.Data)
		if n := len(joined); n > 0 && joined[n-1].Stream == c.Stream && joined[n-1].end() == c.Offset {
			last := &joined[n-1]
			last.Seq, last.Data = c.Seq, r.payload[at-len(last.Data):at+size:at+size]
		} else {
			joined = append(joined, c)
		}
		at += size
	}
	r.Chunks = joined
}

// end is the offset of what comes behind the chunk.
func (c *Chunk) end() int64 { return c.Offset + int64(len(c.Data)) }

// Release gives the memory of the chunks back for later reads; they must not be
// used after it. Without it the garbage collector does the same, later.
func (r *ReadResult) Release() {
	reuseFrame(r.frame)
	r.Chunks, r.payload, r.frame = nil, nil, nil
}

// Ending is what a keeper knows of a process once it has exited; all of it
// stays as it is. A stock exec-server tells none of it.
type Ending struct {
	// TimedOut reports that the process still ran at its timeout and was made to
	// end for that. Its exit code or signal is the true one nevertheless.
	TimedOut bool
	// RunTime is the time from the start to the exit of the main process, by a
	// clock that only goes forward.
	RunTime time.Duration
	// CPUTime is what the main process and the children that it has waited for
	// have used, in user and system mode together.
	CPUTime time.Duration
	// MaxRSSBytes is the most memory that one of these had resident. 0 means that
	// it is not known, being less than the keeper itself has used: the kernel
	// counts the keeper's memory for a child until it runs its program.
	MaxRSSBytes int64
}

// Read returns output after a sequence number, waiting for some if asked to.
func (c *Client) Read(ctx context.Context, p ReadParams) (ReadResult, error) {
	if p.Ack > 0 && c.revision == 0 {
		if err := c.Ack(ctx, p.ProcessID, p.Ack); err != nil {
			return ReadResult{}, err
		}
	}
	r, err := c.readCall(ctx, MethodProcessRead, c.wireRead(p), p.AfterSeq)
	return r, stock(err, c.foreign, ErrUnknownProcess)
}

// wireRead gives p the wire's shape.
func (c *Client) wireRead(p ReadParams) ProcessReadParams {
	longest := MaxWait
	if c.foreign {
		longest = stockMaxWait
	}
	w := ProcessReadParams{ProcessID: p.ProcessID, WaitMs: new(min(max(p.Wait, 0), longest).Milliseconds())}
	if p.AfterSeq > 0 {
		w.AfterSeq = &p.AfterSeq
	}
	if p.MaxBytes > 0 {
		w.MaxBytes = &p.MaxBytes
	}
	if c.revision > 0 && (p.Ack > 0 || p.Gather > 0) {
		w.Sojourn = &ProcessReadOptions{AckSeq: p.Ack, GatherUs: p.Gather.Microseconds()}
	}
	return w
}

// readCall makes a call that is answered with output after a sequence number.
func (c *Client) readCall(ctx context.Context, method string, params any, after int64) (ReadResult, error) {
	var r ProcessReadResult
	m, err := c.exchange(ctx, method, params, nil, &r)
	if err != nil {
		return ReadResult{}, err
	}
	if err := r.check(after); err != nil {
		return ReadResult{}, fmt.Errorf("%s: %w", method, err)
	}
	out := r.result()
	if m.Payload != nil {
		out.payload, out.frame = m.Payload, m.frame
	}
	return out, nil
}

// check refuses a result whose sequence does not go forward from after: who
// follows it would go round in circles, or has read from another process.
func (r *ProcessReadResult) check(after int64) error {
	for _, c := range r.Chunks {
		if c.Seq <= after {
			return fmt.Errorf("%w: chunk %d comes after %d", ErrMalformed, c.Seq, after)
		}
		after = c.Seq
	}
	if r.NextSeq <= after {
		return fmt.Errorf("%w: next is %d after %d", ErrMalformed, r.NextSeq, after)
	}
	return nil
}

// SizeHint is about how many bytes AppendJSON will add.
func (r *ProcessReadResult) SizeHint() int {
	const around, aroundChunk = 512, 80
	n := around
	for _, c := range r.Chunks {
		n += aroundChunk + base64.StdEncoding.EncodedLen(len(c.Chunk))
	}
	return n
}

// AppendJSON writes r as package json would, in one pass over the output.
func (r *ProcessReadResult) AppendJSON(b []byte) ([]byte, error) {
	short := *r
	short.Chunks = nil
	rest, err := json.Marshal(&short)
	if err != nil {
		return nil, err
	}
	const before = `{"chunks":null` // the first field of the struct
	b = append(b, `{"chunks":[`...)
	for i, c := range r.Chunks {
		if i > 0 {
			b = append(b, ',')
		}
		b = c.AppendJSON(b)
	}
	b = append(b, ']')
	return append(b, rest[len(before):]...), nil
}

// AppendJSON writes c as package json would. The stream must be one of ours.
func (c *OutputChunk) AppendJSON(b []byte) []byte {
	b = append(b, `{"seq":`...)
	b = strconv.AppendInt(b, c.Seq, 10)
	b = append(b, `,"stream":"`...)
	b = append(b, c.Stream...)
	b = append(b, `","chunk":"`...)
	b = base64.StdEncoding.AppendEncode(b, c.Chunk)
	b = append(b, '"')
	if c.Size != 0 {
		b = append(b, `,"size":`...)
		b = strconv.AppendInt(b, int64(c.Size), 10)
	}
	if c.Offset != 0 {
		b = append(b, `,"offset":`...)
		b = strconv.AppendInt(b, c.Offset, 10)
	}
	return append(b, '}')
}

// result drops the wire's shape. A stock exec-server says closed although
// chunks remain; here closed waits for the read that finds none.
func (r *ProcessReadResult) result() ReadResult {
	out := ReadResult{
		NextSeq: r.NextSeq, Exited: r.Exited, ExitCode: r.ExitCode,
		Closed: r.Closed && (r.Sojourn != nil || len(r.Chunks) == 0),
		Chunks: make([]Chunk, len(r.Chunks)),
	}
	for i, c := range r.Chunks {
		out.Chunks[i] = Chunk{Seq: c.Seq, Stream: c.Stream, Data: c.Chunk, Offset: c.Offset}
	}
	if r.Failure != nil {
		out.Failure = *r.Failure
	}
	if s := r.Sojourn; s != nil {
		out.Signal, out.FailureKind, out.FirstSeq, out.DroppedBytes = s.Signal, s.FailureKind, s.FirstSeq, s.DroppedBytes
		out.Ending = s.ending()
	}
	return out
}

// Write gives input to a process. It returns when the server has taken the
// bytes, which waits for a process that does not read. A write id is applied
// once, however often it is sent. ErrStdinClosed, ErrUnknownProcess.
func (c *Client) Write(ctx context.Context, processID, writeID string, data []byte) error {
	return c.giveInput(ctx, ProcessWriteParams{ProcessID: processID, WriteID: writeID}, data)
}

// WriteAt is Write of what lies at an offset of one input that goes through all
// connections: of data, what was taken before is left out. Data behind what was
// taken is refused with a [GapError]. A keeper that knows no offsets takes a write
// with the same offset once.
func (c *Client) WriteAt(ctx context.Context, processID string, offset int64, data []byte) error {
	return c.giveInput(ctx, ProcessWriteParams{
		ProcessID: processID, WriteID: "offset-" + strconv.FormatInt(offset, 10), Sojourn: &ProcessWriteOptions{Offset: offset},
	}, data)
}

func (c *Client) giveInput(ctx context.Context, p ProcessWriteParams, data []byte) error {
	processID := p.ProcessID
	if len(data) > MaxWriteBytes {
		return fmt.Errorf("%s: %d bytes: %w", MethodProcessWrite, len(data), ErrLimit)
	}
	var r ProcessWriteResult
	for {
		p.Chunk = []byte{}
		_, err := c.exchange(ctx, MethodProcessWrite, &p, c.ship(&p.Chunk, data), &r)
		if err != nil {
			return err
		}
		switch r.Status {
		case WriteAccepted:
			return nil
		case WriteUnknownProcess:
			return fmt.Errorf("%s: %q: %w", MethodProcessWrite, processID, ErrUnknownProcess)
		case WriteStdinClosed:
			return fmt.Errorf("%s: %q: %w", MethodProcessWrite, processID, ErrStdinClosed)
		case WriteGap:
			return fmt.Errorf("%s: %q: %w", MethodProcessWrite, processID, &GapError{r.Taken})
		case WriteStarting:
			if err := sleep(ctx, startingPause); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s: status %q: %w", MethodProcessWrite, r.Status, ErrMalformed)
		}
	}
}

// startingPause is the time between writes to a process that a stock
// exec-server is still starting.
const startingPause = 10 * time.Millisecond

// sleep waits for d or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// CloseStdin ends a process's input after what has been written; its output
// goes on.
func (c *Client) CloseStdin(ctx context.Context, processID string) error {
	return c.call(ctx, MethodCloseStdin, ProcessParams{ProcessID: processID}, nil)
}

// Signal sends a signal ("SIGINT", "SIGTERM", …) to a target; empty means the
// process group. A stock exec-server knows SIGINT and no targets.
func (c *Client) Signal(ctx context.Context, processID, signal, target string) error {
	if c.foreign && signal == "SIGINT" && (target == "" || target == TargetGroup) {
		p := SignalParams{ProcessID: processID, Signal: "interrupt"}
		return stock(c.call(ctx, MethodProcessSignal, p, nil), true, ErrUnknownProcess)
	}
	return c.call(ctx, MethodSignalTarget, SignalParams{ProcessID: processID, Signal: signal, Group: target}, nil)
}

// Terminate sends TERM to everything the process has started, and KILL when
// grace is over; a grace of 0 kills at once. It returns without waiting and
// reports whether the process was running. The error is ErrUnknownProcess for one
// that the keeper does not know, or not yet.
func (c *Client) Terminate(ctx context.Context, processID string, grace time.Duration) (bool, error) {
	var r TerminateResult
	p := TerminateParams{ProcessID: processID, Sojourn: &TerminateSojourn{GraceMs: grace.Milliseconds()}}
	err := c.call(ctx, MethodProcessTerminate, p, &r)
	return r.Running, err
}

// Ack releases output up to and including seq. A stock exec-server keeps a
// ring only, so there it does nothing.
func (c *Client) Ack(ctx context.Context, processID string, seq int64) error {
	if c.foreign {
		return nil
	}
	return c.call(ctx, MethodAck, AckParams{ProcessID: processID, Seq: seq}, nil)
}

// Resize sets the size of a process's terminal.
func (c *Client) Resize(ctx context.Context, processID string, rows, cols uint16) error {
	return c.call(ctx, MethodResize, ResizeParams{ProcessID: processID, Rows: rows, Cols: cols}, nil)
}

// Processes lists what the server knows, in order of start.
func (c *Client) Processes(ctx context.Context) ([]Process, error) {
	var r ProcessListResult
	err := c.call(ctx, MethodProcessList, nil, &r)
	return r.Processes, err
}

// Remove forgets a process and its output; one that still runs is killed. A
// stock exec-server is asked to kill it and forgets it by itself.
func (c *Client) Remove(ctx context.Context, processID string) error {
	if c.foreign {
		_, err := c.Terminate(ctx, processID, 0)
		return err
	}
	return c.call(ctx, MethodProcessDrop, ProcessParams{ProcessID: processID}, nil)
}

// Freeze stops every process in the sandbox and returns how many once they
// stand still. They go on by themselves when Thaw does not come in time (60 s).
func (c *Client) Freeze(ctx context.Context) (int, error) {
	var r FreezeResult
	err := c.call(ctx, MethodFreeze, nil, &r)
	return r.Stopped, err
}

// Thaw lets go on what Freeze stopped.
func (c *Client) Thaw(ctx context.Context) error { return c.call(ctx, MethodThaw, nil, nil) }

// Sync writes the sandbox's dirty files to its disks.
func (c *Client) Sync(ctx context.Context) error { return c.call(ctx, MethodSync, nil, nil) }

// Stats returns the server's account of itself.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	var r Stats
	err := c.call(ctx, MethodStats, nil, &r)
	return r, err
}

// Shutdown terminates every process with the grace and then ends the server.
// It returns when the server has agreed to.
func (c *Client) Shutdown(ctx context.Context, grace time.Duration) error {
	return c.call(ctx, MethodShutdown, ShutdownParams{GraceMs: grace.Milliseconds()}, nil)
}
