package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

// The exit codes of an execution that did not end by itself.
const (
	exitTimeout     = 124 // its timeout ended it
	exitUnknown     = 125 // how it ended is not known
	exitNotRunnable = 126 // unless the server says 127: there is no such program
	exitSignalled   = 128 // and the number of the signal
)

// carried is an execution that this process is connected with.
type carried struct {
	session    string
	started    client.StartedExecution
	from       int64
	stdin, tty bool
	patience   time.Duration
}

// terminalSize tells a program that is to have a terminal how large ours is.
func terminalSize(s *shell, in *client.StartExecution) {
	if !in.TTY {
		return
	}
	in.Size = client.Size{Rows: 24, Cols: 80}
	if fd, ok := terminalOf(s.in); ok {
		if size := sizeOf(fd); size.Rows > 0 && size.Cols > 0 {
			in.Size = size
		}
	}
}

// carry connects this process with an execution until it is over.
func (s *shell) carry(ctx context.Context, x carried) error {
	c := &carrying{s: s, x: x, eol: "\n", last: x.started, signals: make(chan string, 4)}
	o := client.Attach{
		Session: x.session, Execution: x.started.Execution.ID, From: x.from, Stdout: s.out, Stderr: s.err,
		Signals: c.signals, Patience: max(x.patience, time.Nanosecond), OnState: c.state, OnCut: c.cut,
	}
	if x.stdin {
		o.Stdin = s.in
	}
	if fd, onTerminal := terminalOf(s.in); x.tty && x.stdin && onTerminal {
		restore, err := makeRaw(fd)
		if err != nil {
			return fmt.Errorf("set the terminal up: %w", err)
		}
		defer restore()
		sizes, stop := watchSize(fd)
		defer stop()
		o.Sizes, c.eol = sizes, "\r\n"
	}
	var lines *jsonLines
	if s.p.json {
		lines = &jsonLines{p: s.p}
		o.Stdout, o.Stderr = lines.stream("stdout"), lines.stream("stderr")
	}
	// In the middle of a program an interrupt is the program's.
	call, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer c.heed(call)()
	end, err := s.c.Attach(call, o)
	if err != nil {
		return c.parted(err)
	}
	if lines != nil {
		if err := lines.end(end); err != nil {
			return err
		}
	}
	return c.ended(end)
}

// carrying is the state of one carry.
type carrying struct {
	s       *shell
	x       carried
	eol     string
	signals chan string

	mu     sync.Mutex
	last   client.StartedExecution
	away   bool
	asked  bool // how to approve it was said
	struck int  // interrupts
}

// state heeds what becomes of the execution.
func (c *carrying) state(x client.StartedExecution) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away {
		c.away = false
		fmt.Fprintf(c.s.err, "sojourn: the server answers again%s", c.eol)
	}
	c.last = x
	if x.Approval != nil && !c.asked {
		c.asked = true
		c.s.parked(x)
	}
}

// cut says once that the server went away.
func (c *carrying) cut(error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.away {
		c.away = true
		fmt.Fprintf(c.s.err, "sojourn: the server is away; waiting up to %s for it%s", span(c.x.patience), c.eol)
	}
}

// heed takes the interrupts of this process, until stop.
func (c *carrying) heed(ctx context.Context) (stop func()) {
	struck := make(chan os.Signal, 4)
	signal.Notify(struck, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(ctx)
	var busy sync.WaitGroup
	busy.Go(func() {
		for {
			select {
			case sig := <-struck:
				c.interrupt(ctx, sig)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { signal.Stop(struck); cancel(); busy.Wait() }
}

// interrupt tells the program of the first one, and cancels it at the next. What
// has not started yet has nobody to tell.
func (c *carrying) interrupt(ctx context.Context, sig os.Signal) {
	c.mu.Lock()
	c.struck++
	running, struck := c.last.Execution.State == "running", c.struck
	c.mu.Unlock()
	if running && struck == 1 {
		name := "SIGINT"
		if sig == syscall.SIGTERM {
			name = "SIGTERM"
		}
		select {
		case c.signals <- name:
		default:
		}
		return
	}
	how := "cancelling it"
	if struck > 2 {
		how = "killing it"
	}
	fmt.Fprintf(c.s.err, "sojourn: %s%s", how, c.eol)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := c.s.c.CancelExecution(ctx, c.x.session, c.x.started.Execution.ID, struck > 2); err != nil && ctx.Err() == nil {
		fmt.Fprintf(c.s.err, "sojourn: %s%s", c.s.failure(err), c.eol)
	}
}

// parted is the end of our part when the execution's own is not known.
func (c *carrying) parted(err error) error {
	id := c.x.started.Execution.ID
	again := fmt.Sprintf("take it up again with: sojourn exec attach %s %s", c.x.session, id)
	if unreachable(err) {
		return &exitError{exitUnknown, fmt.Errorf("the server at %s went away and did not come back within %s: how execution %s ends is not known; %s",
			c.s.url, span(c.x.patience), id, again)}
	}
	return &exitError{exitUnknown, fmt.Errorf("%w; how execution %s ends is not known; %s", c.s.failure(err), id, again)}
}

// ended turns the end of an execution into ours.
func (c *carrying) ended(x client.Execution) error {
	if x.KeptNote != "" {
		fmt.Fprintf(c.s.err, "sojourn: not all of its output was kept (%s): %s of %s%s", terminal.Line(x.KeptNote, 80),
			size(x.KeptBytes), size(x.StdoutBytes+x.StderrBytes), c.eol)
	}
	why := bracketed(x.Reason)
	switch {
	case x.Outcome == "unknown":
		return &exitError{exitUnknown, fmt.Errorf("its sandbox was lost: whether and how it ended is not known%s", why)}
	case x.State == "refused":
		text := "it was not started" + why
		if said := terminal.Line(x.Error, 1000); !strings.HasSuffix(said, why+".") { // it says more
			text += ": " + said
		}
		return &exitError{exitRefused, errors.New(text)}
	case x.Outcome == "not_started":
		code := exitNotRunnable
		if x.ExitCode != nil {
			code = *x.ExitCode
		}
		return &exitError{code, errors.New(terminal.Line(x.Error, 1000))}
	case x.Reason == "timeout":
		return &exitError{exitTimeout, fmt.Errorf("it ran for as long as it was allowed to (%s)", span(time.Duration(x.TimeoutMs)*time.Millisecond))}
	case x.Signal != "":
		return &exitError{exitSignalled + int(unix.SignalNum(x.Signal)), fmt.Errorf("it was ended by %s%s", terminal.Line(x.Signal, 40), why)}
	case x.ExitCode == nil:
		return &exitError{exitUnknown, errors.New("the server does not say how it ended")}
	case x.Reason != "":
		return &exitError{cmp.Or(*x.ExitCode, exitFailure), fmt.Errorf("it was ended%s, with code %d", why, *x.ExitCode)}
	case *x.ExitCode != 0:
		return &exitError{*x.ExitCode, errors.New("")}
	}
	return nil
}
