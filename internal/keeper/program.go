package keeper

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/link"
)

// Proc is what a Program sees of its process. Paths in it are paths of the
// sandbox; MapPath (never nil) says where they lie on the host.
type Proc struct {
	Args, Env      []string // Env as "name=value"
	Dir            string   // working directory
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	MapPath        func(string) string
	// Gate waits while the sandbox is frozen and keeps it from being frozen until
	// leave is called: a program that changes files does it in between.
	Gate func(context.Context) (leave func(), err error)
}

// Program is a program that runs inside the keeper's own process. It returns
// its exit code, and must return soon after ctx ends: that is how signals
// reach it. Once it has been killed, its writes fail with io.ErrClosedPipe.
type Program func(ctx context.Context, p Proc) int

// running is a program that has been started.
type running struct {
	cancel context.CancelFunc
	kill   chan struct{} // closed by SIGKILL
	once   sync.Once
}

// signal ends the program's context where a process would die by default, and
// with SIGKILL does not wait for it. Other signals mean nothing to a program.
func (r *running) signal(sig unix.Signal) {
	switch sig {
	case unix.SIGKILL:
		r.once.Do(func() { close(r.kill) })
		r.cancel()
	case unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT:
		r.cancel()
	}
}

// startProgram runs prog for p. Two goroutines of the keeper's are left: the
// program, and the one that reports its end.
func (k *Keeper) startProgram(p *process, prog Program, l launch) {
	ctx, cancel := context.WithCancel(k.ctx)
	r := &running{cancel: cancel, kill: make(chan struct{})}
	stdout, stderr := stream{p.spool, link.Stdout}, stream{p.spool, link.Stderr}
	if l.tty {
		stdout, stderr = stream{p.spool, link.PTY}, stream{p.spool, link.PTY}
	}
	reader, writer := io.Pipe()
	if p.in == nil {
		writer.Close()
	} else {
		k.wg.Go(func() { p.in.run(pipeSink{writer, reader}) })
	}
	if p.attach(nil, r) {
		r.signal(unix.SIGKILL)
	}
	p.arm(k)
	begun := time.Now()
	result := make(chan exit, 1)
	k.wg.Go(func() {
		result <- runProgram(ctx, prog, Proc{
			Args: l.argv, Env: l.env, Dir: l.cwd,
			Stdin: reader, Stdout: stdout, Stderr: stderr, MapPath: k.mapPath, Gate: k.freezer.enter,
		})
	})
	k.wg.Go(func() {
		defer cancel()
		var e exit
		select {
		case e = <-result:
		case <-r.kill:
			e = exit{signal: "SIGKILL"}
		}
		e.runTime = time.Since(begun)
		p.spool.finish(e)
		p.disarm(&k.wg)
		p.spool.close()
		if p.in != nil {
			p.in.abort()
		}
		reader.CloseWithError(io.ErrClosedPipe)
		close(p.over)
	})
}

// runProgram calls prog. A panic ends the program and not the keeper.
func runProgram(ctx context.Context, prog Program, proc Proc) (e exit) {
	defer func() {
		if v := recover(); v != nil {
			code := 2
			e = exit{code: &code, failure: fmt.Sprintf("program panicked: %v", v), kind: link.FailureProgram}
		}
	}()
	code := prog(ctx, proc)
	return exit{code: &code}
}

// pipeSink is the stdin of a program.
type pipeSink struct {
	*io.PipeWriter
	r *io.PipeReader
}

// Abort implements sink.
func (s pipeSink) Abort() { s.r.CloseWithError(io.ErrClosedPipe) }
