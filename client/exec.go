package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Execution is one process that was started in a session's sandbox, or is to be.
type Execution struct {
	ID        string   `json:"id"`
	SessionID string   `json:"sessionId"`
	Number    int64    `json:"number"`
	State     string   `json:"state"` // parked, queued, running, ended, lost or refused
	Command   []string `json:"command"`
	Dir       string   `json:"dir,omitempty"`
	Variables []string `json:"variables,omitempty"` // the names of its own
	Tool      string   `json:"tool,omitempty"`
	Detached  bool     `json:"detached,omitempty"`
	Hook      bool     `json:"hook,omitempty"`
	TTY       bool     `json:"tty,omitempty"`
	Stdin     string   `json:"stdin,omitempty"`
	TimeoutMs int64    `json:"timeoutMs,omitempty"`
	GraceMs   int64    `json:"graceMs"`
	Epoch     int64    `json:"epoch,omitempty"`

	QueuedAt  time.Time  `json:"queuedAt"`
	StartedAt *time.Time `json:"startedAt,omitempty"`
	EndedAt   *time.Time `json:"endedAt,omitempty"`

	Ending   string `json:"ending,omitempty"`
	Reason   string `json:"reason,omitempty"`   // why it ended other than by itself, or was refused
	Outcome  string `json:"outcome,omitempty"`  // exit, signal, not_started or unknown; "" until it is over
	ExitCode *int   `json:"exitCode,omitempty"` // with exit; with not_started 126 or 127
	Signal   string `json:"signal,omitempty"`
	Error    string `json:"error,omitempty"` // why it was not started

	DurationMs     int64  `json:"durationMs"`
	CPUMs          int64  `json:"cpuMs"`
	MaxRSSBytes    int64  `json:"maxRssBytes,omitempty"`
	StdoutBytes    int64  `json:"stdoutBytes"`
	StderrBytes    int64  `json:"stderrBytes"`
	KeptBytes      int64  `json:"keptBytes"`
	KeptNote       string `json:"keptNote,omitempty"` // why not all that it wrote can be read
	CostMicroCents int64  `json:"costMicroCents"`
}

// Over reports whether the execution has reached its end.
func (x Execution) Over() bool { return x.Outcome != "" }

// StartExecution is what is to be run: a command, or a tool with its input.
type StartExecution struct {
	Command   []string          `json:"command,omitempty"`
	Tool      string            `json:"tool,omitempty"`
	Input     json.RawMessage   `json:"input,omitempty"`
	Dir       string            `json:"dir,omitempty"` // "" is that of the session's context
	Env       map[string]string `json:"env,omitempty"`
	TimeoutMs int64             `json:"timeoutMs,omitempty"` // 0: one minute, or none when detached
	GraceMs   *int64            `json:"graceMs,omitempty"`   // nil: two seconds
	Detached  bool              `json:"detached,omitempty"`
	Stdin     string            `json:"stdin,omitempty"`     // "stream": what Attach sends
	StdinData []byte            `json:"stdinData,omitempty"` // or all of it
	TTY       bool              `json:"tty,omitempty"`
	Size
	RequireApproval bool `json:"requireApproval,omitempty"`
}

// StartedExecution is an execution, with the question that it waits for when it is
// parked.
type StartedExecution struct {
	Execution Execution    `json:"execution"`
	Approval  *Interaction `json:"approval,omitempty"`
}

// StartExecution runs a command in a session's sandbox. Once it returns without an
// error the execution will reach exactly one end; it does not wait for that.
func (c *Client) StartExecution(ctx context.Context, session string, in StartExecution) (StartedExecution, error) {
	var out StartedExecution
	return out, c.call(ctx, http.MethodPost, of(session, "executions"), nil, in, &out)
}

// Execution returns an execution.
func (c *Client) Execution(ctx context.Context, session, id string) (StartedExecution, error) {
	var out StartedExecution
	return out, c.call(ctx, http.MethodGet, of(session, "executions", id), nil, nil, &out)
}

// WaitExecution returns an execution once it is over or parked, or wait has passed
// (at most a minute).
func (c *Client) WaitExecution(ctx context.Context, session, id string, wait time.Duration) (StartedExecution, error) {
	var out StartedExecution
	v := url.Values{"waitSeconds": {strconv.FormatFloat(wait.Seconds(), 'f', 3, 64)}}
	return out, c.call(ctx, http.MethodGet, of(session, "executions", id), v, nil, &out)
}

// ExecutionPage is one page of executions, newest first.
type ExecutionPage struct {
	Executions []Execution `json:"executions"`
	NextCursor string      `json:"nextCursor,omitempty"` // "" on the last page
}

// Executions returns one page of a session's executions, newest first: those behind
// cursor ("" for the newest), at most limit (1..200; 0 means 50).
func (c *Client) Executions(ctx context.Context, session, cursor string, limit int) (ExecutionPage, error) {
	var out ExecutionPage
	return out, c.call(ctx, http.MethodGet, of(session, "executions"), page(cursor, limit), nil, &out)
}

// CancelExecution ends an execution, with kill at once. It may not be over when
// this returns.
func (c *Client) CancelExecution(ctx context.Context, session, id string, kill bool) (Execution, error) {
	var out StartedExecution
	err := c.call(ctx, http.MethodPost, of(session, "executions", id, "cancel"), nil, map[string]bool{"kill": kill}, &out)
	return out.Execution, err
}

// SignalExecution sends a signal, such as SIGINT, to an execution's processes.
func (c *Client) SignalExecution(ctx context.Context, session, id, signal string) error {
	return c.call(ctx, http.MethodPost, of(session, "executions", id, "signal"), nil, map[string]string{"signal": signal}, nil)
}

// OutputQuery says what of an execution's output to read.
type OutputQuery struct {
	Session, Execution string
	Stream             string // stdout, stderr or all; "" means all
	Offset             int64  // in bytes of that stream
	Follow             bool   // until the execution is over
	// Patience is how long to wait for a server that went away; 0 means one minute.
	Patience time.Duration
}

// CopyOutput writes what an execution wrote to w, byte for byte, and returns how
// much that was. A connection that is cut is made anew behind the last byte.
func (c *Client) CopyOutput(ctx context.Context, q OutputQuery, w io.Writer) (n int64, err error) {
	if q.Patience == 0 {
		q.Patience = time.Minute
	}
	alive := time.Now()
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		more, fatal, err := c.outputOnce(ctx, q, q.Offset+n, w)
		n += more
		refused, answered := errors.AsType[*Error](err)
		switch {
		case err == nil, fatal:
			return n, err
		case ctx.Err() != nil:
			return n, ctx.Err()
		case answered && refused.Status < 500 && refused.Status != http.StatusTooManyRequests:
			return n, err
		}
		if more > 0 {
			alive, pause = time.Now(), firstPause
		}
		if time.Since(alive) > q.Patience {
			return n, fmt.Errorf("read the output of execution %s: %w", q.Execution, err)
		}
		if err := wait(ctx, pause); err != nil {
			return n, err
		}
	}
}

// outputOnce copies over one connection. fatal says that another would not help.
func (c *Client) outputOnce(ctx context.Context, q OutputQuery, offset int64, w io.Writer) (n int64, fatal bool, err error) {
	v := url.Values{"offset": {strconv.FormatInt(offset, 10)}, "follow": {strconv.FormatBool(q.Follow)}}
	if q.Stream != "" {
		v.Set("stream", q.Stream)
	}
	res, err := c.send(ctx, http.MethodGet, of(q.Session, "executions", q.Execution, "output"), v, http.Header{}, nil)
	if err != nil {
		return 0, false, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, false, errorOf(res)
	}
	buf := make([]byte, 64<<10)
	for {
		got, err := res.Body.Read(buf)
		if got > 0 {
			if _, err := w.Write(buf[:got]); err != nil {
				return n, true, fmt.Errorf("write output: %w", err)
			}
			n += int64(got)
		}
		switch {
		case errors.Is(err, io.EOF):
			return n, false, nil
		case err != nil:
			return n, false, err
		}
	}
}
