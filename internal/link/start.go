package link

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// StartParams start a process.
type StartParams struct {
	// ProcessID is the caller's name for the process and stays its name.
	ProcessID string
	// Argv is passed byte for byte; Argv[0] is looked up in PATH of Env.
	Argv []string
	// Cwd is absolute; empty means the server's own.
	Cwd string
	// Env is the whole environment, unless Inherit is set.
	Env map[string]string
	// Inherit lays Env over the server's own environment, which in a sandbox is that
	// of its image.
	Inherit bool
	// TTY gives the process a terminal of Rows by Cols (zero: 24 by 80) as
	// stdin, stdout and stderr.
	TTY bool
	// PipeStdin keeps stdin open for Write; without it stdin is empty.
	PipeStdin bool
	// Retain is RetainRing or RetainAck; empty means ring.
	Retain string
	// SpoolBytes bounds the output held; 0 means the server's default.
	SpoolBytes int64
	Rows, Cols uint16
	// Timeout is how long the main process may run, in whole milliseconds; 0
	// sets no limit. The server keeps it, connected or not: it then ends the
	// process as Terminate with Grace does. A stock exec-server knows no timeout.
	Timeout, Grace time.Duration
}

// What a start failed at. Nothing has been run.
const (
	FailureProgram = "program" // exit code 127: it or its interpreter is missing; 126: it cannot be run
	FailureCwd     = "cwd"     // no exit code: missing, no directory, or not to be entered
	FailureFork    = "fork"    // no exit code: the system has no room for another process
)

// Info describes the place where processes run.
func (c *Client) Info(ctx context.Context) (Info, error) {
	var r Info
	if err := c.call(ctx, MethodEnvironmentInfo, nil, &r); err != nil {
		return Info{}, err
	}
	if r.Cwd != "" {
		cwd, err := ParsePath(r.Cwd)
		if err != nil {
			return Info{}, fmt.Errorf("%s: %w: %w", MethodEnvironmentInfo, ErrMalformed, err)
		}
		r.Cwd = cwd
	}
	return r, nil
}

// Start starts a process. That it cannot run is not an error of the call but
// the Failure of its reads (a stock exec-server does answer with an error, and
// forgets the process). ErrProcessExists when the id is in use, ErrLimit
// when the server has no room.
func (c *Client) Start(ctx context.Context, p StartParams) error {
	w, err := c.wireStart(ctx, p)
	if err != nil {
		return fmt.Errorf("%s: %w", MethodProcessStart, err)
	}
	return stock(c.call(ctx, MethodProcessStart, w, nil), c.foreign, ErrProcessExists)
}

// wireStart checks p and gives it the wire's shape.
func (c *Client) wireStart(ctx context.Context, p StartParams) (ProcessStartParams, error) {
	if err := p.validate(); err != nil {
		return ProcessStartParams{}, err
	}
	w := ProcessStartParams{
		ProcessID: p.ProcessID, Argv: p.Argv, Env: p.Env, TTY: p.TTY, PipeStdin: p.PipeStdin,
		Sojourn: &ProcessStartSojourn{
			Retain: p.Retain, SpoolBytes: p.SpoolBytes, Rows: p.Rows, Cols: p.Cols,
			TimeoutMs: p.Timeout.Milliseconds(), GraceMs: p.Grace.Milliseconds(),
		},
	}
	if p.Inherit {
		w.EnvPolicy = &EnvPolicy{Inherit: "all", IgnoreDefaultExcludes: true}
	}
	cwd := p.Cwd
	if cwd == "" && c.foreign { // it has no default of its own
		info, err := c.Info(ctx)
		if err != nil {
			return ProcessStartParams{}, err
		}
		cwd = info.Cwd
	}
	if cwd != "" {
		w.Cwd = PathURI(cwd)
	}
	if w.Env == nil {
		w.Env = map[string]string{}
	}
	return w, nil
}

// stock gives an answer of a stock exec-server its meaning: it says "invalid
// request" for everything that its state does not allow, and what that is
// depends on the method alone.
func stock(err error, foreign bool, meaning error) error {
	var e *Error
	if foreign && errors.As(err, &e) && e.Code == CodeInvalidRequest {
		return fmt.Errorf("%w: %w", err, meaning)
	}
	return err
}

// validate finds what JSON or the far kernel could not carry unchanged.
func (p *StartParams) validate() error {
	if len(p.Argv) == 0 {
		return errors.New("argv is empty")
	}
	if p.Timeout < 0 || p.Grace < 0 || p.Timeout > 0 && p.Timeout < time.Millisecond {
		return fmt.Errorf("timeout %v with grace %v", p.Timeout, p.Grace)
	}
	for _, a := range p.Argv {
		if !utf8.ValidString(a) {
			return fmt.Errorf("argument %q is not UTF-8", a)
		}
	}
	for k, v := range p.Env {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return fmt.Errorf("environment variable %q is not UTF-8", k)
		}
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return fmt.Errorf("environment variable name %q", k)
		}
	}
	return nil
}
