package keeper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/link"
)

const (
	maxProcessID = 256
	// maxArgBytes bounds argv and environment together; kernels have bounds of
	// their own below that.
	maxArgBytes = 8 << 20
	// maxTimeout bounds the timeout that a caller may ask for.
	maxTimeout = 366 * 24 * time.Hour
)

func invalid(format string, args ...any) error {
	return &link.Error{Code: link.CodeInvalidParams, Message: fmt.Sprintf(format, args...)}
}

// start starts a process. A process that cannot be run is started
// nevertheless, and has failed: so repeating the call gives the same answer.
func (k *Keeper) start(ctx context.Context, w link.ProcessStartParams) (*process, error) {
	l, err := k.check(&w)
	if err != nil {
		return nil, err
	}
	p, err := newProcess(w, l)
	if err != nil {
		return nil, err
	}
	leave, err := k.freezer.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := k.enter(p); err != nil {
		return nil, err
	}
	k.begin(p, l)
	return p, nil
}

func newProcess(w link.ProcessStartParams, l launch) (*process, error) {
	s := w.Sojourn
	if s == nil {
		s = &link.ProcessStartSojourn{}
	}
	p := &process{
		id: w.ProcessID, argv: w.Argv, isTTY: w.TTY, retain: s.Retain, startedAt: time.Now(), over: make(chan struct{}),
	}
	if given(s.User) {
		return nil, invalid("user: processes run as the keeper does")
	}
	limit := s.SpoolBytes
	if limit < 0 || limit > maxOneSpool {
		return nil, invalid("spoolBytes must be between 0 and %d", maxOneSpool)
	}
	switch s.Retain {
	case "", link.RetainRing:
		p.retain = link.RetainRing
		if limit == 0 {
			limit = defaultRingBytes
		}
	case link.RetainFollow:
		if limit == 0 {
			limit = defaultRingBytes
		}
	case link.RetainAck:
		if limit == 0 {
			limit = defaultAckBytes
		}
	default:
		return nil, invalid("retain %q is not known", s.Retain)
	}
	p.spool = newSpool(p.retain == link.RetainAck, limit)
	p.spool.follow = p.retain == link.RetainFollow
	if l.stdin || l.tty {
		p.in = newInput()
	}
	if s.TimeoutMs < 0 || s.TimeoutMs > maxTimeout.Milliseconds() {
		return nil, invalid("timeoutMs must be between 0 and %d", maxTimeout.Milliseconds())
	}
	p.timeout = time.Duration(s.TimeoutMs) * time.Millisecond
	var err error
	p.grace, err = graceOf(s.GraceMs)
	return p, err
}

// check turns the wire's parameters into a launch.
func (k *Keeper) check(w *link.ProcessStartParams) (launch, error) {
	l := launch{argv: w.Argv, tty: w.TTY, stdin: w.PipeStdin, rows: 24, cols: 80}
	if w.ProcessID == "" || len(w.ProcessID) > maxProcessID {
		return l, invalid("processId must have 1 to %d bytes", maxProcessID)
	}
	if len(w.Argv) == 0 {
		return l, invalid("argv is empty")
	}
	if w.Arg0 != nil {
		l.arg0 = *w.Arg0
	}
	if s := w.Sojourn; s != nil && s.Rows > 0 && s.Cols > 0 {
		l.rows, l.cols = s.Rows, s.Cols
	}
	l.cwd = k.info.Cwd
	if w.Cwd != "" {
		cwd, err := link.ParsePath(w.Cwd)
		if err != nil {
			return l, invalid("cwd: %v", err)
		}
		l.cwd = cwd
	}
	size := len(l.arg0)
	for _, a := range w.Argv {
		if strings.ContainsRune(a, 0) {
			return l, invalid("argv holds a NUL byte")
		}
		size += len(a) + 1
	}
	var own []string
	if !k.cfg.borrowed() {
		own = os.Environ()
	}
	env, err := inherit(w.EnvPolicy, own, w.Env)
	if err != nil {
		return l, err
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		kv := name + "=" + env[name]
		if name == "" || strings.Contains(name, "=") || strings.ContainsRune(kv, 0) {
			return l, invalid("environment variable %q", name)
		}
		l.env = append(l.env, kv)
		size += len(kv) + 1
	}
	if strings.ContainsRune(l.arg0, 0) {
		return l, invalid("arg0 holds a NUL byte")
	}
	if size > maxArgBytes {
		return l, invalid("argv and env have %d bytes, more than %d", size, maxArgBytes)
	}
	return l, nil
}

// begin runs the process, or records why it could not.
func (k *Keeper) begin(p *process, l launch) {
	if k.cfg.Programs != nil || isBuiltin(l.argv[0]) {
		k.beginProgram(p, l)
		return
	}
	l.cwd = k.mapPath(l.cwd)
	if len(k.cfg.Places) > 0 {
		l.argv, l.env = k.cfg.Places.words(l.argv), defaults(k.cfg.Places.assignments(l.env), k.cfg.Env)
	}
	c, err := spawn(k.reap, l, p.spool)
	if err != nil {
		var f *startFailure
		if !errors.As(err, &f) {
			f = &startFailure{kind: link.FailureFork, what: "start " + l.argv[0], err: err}
		}
		p.fail(f.exit())
		return
	}
	expose(c.pid, k.score)
	doomed := p.attach(c, nil)
	p.arm(k)
	for _, pu := range c.pumps {
		k.startPump(pu)
	}
	if p.in != nil {
		k.wg.Go(func() { p.in.run(c.in) })
	}
	k.wg.Go(func() { p.supervise(c, &k.wg) })
	if doomed {
		p.kill(os.Getpid())
	}
}

// startPump runs a pump until its output ends or the keeper closes: what a
// process has left behind may hold it open for as long as it likes.
func (k *Keeper) startPump(pu *pump) {
	stop := context.AfterFunc(k.ctx, func() { _ = pu.file.Close() }) // the pump sees it
	k.wg.Go(func() {
		defer stop()
		pu.run()
	})
}

func (k *Keeper) beginProgram(p *process, l launch) {
	if err := checkProgramDir(k.mapPath(l.cwd)); err != nil {
		f := &startFailure{kind: link.FailureCwd, what: "working directory " + l.cwd, err: err}
		p.fail(f.exit())
		return
	}
	prog := k.cfg.Programs[l.argv[0]]
	if isBuiltin(l.argv[0]) {
		prog = builtins[l.argv[0]]
	}
	if prog == nil {
		f := &startFailure{kind: link.FailureProgram, what: "start " + l.argv[0], err: unix.ENOENT}
		p.fail(f.exit())
		return
	}
	if worksOnFiles[l.argv[0]] {
		prog = k.slots.within(prog)
	}
	k.startProgram(p, prog, l)
}

func checkProgramDir(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return bare(err)
	}
	if !info.IsDir() {
		return unix.ENOTDIR
	}
	return nil
}
