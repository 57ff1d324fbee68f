package keeper

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/link"
)

// defaultPath is searched when the environment of a process has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// launch says what to run. Everything has been checked.
type launch struct {
	argv       []string
	arg0       string // argv[0] as the program sees it, when not empty
	env        []string
	cwd        string
	tty, stdin bool
	rows, cols uint16
}

// child is a process of the operating system.
type child struct {
	pid   int
	begun time.Time // just before it was forked
	rss   int64     // bytes; what the kernel may count for it although they are the keeper's
	end   <-chan ending
	reap  *reaper         // knows the other main processes
	files map[fileID]bool // its output pipes or terminal: marks of what it started
	tty   *os.File        // master side, or nil
	in    sink            // or nil
	pumps []*pump

	ended atomic.Bool // the main process has been waited for

	mu    sync.Mutex
	known kin // what was found of its tree before
}

// startFailure is why a process could not be started.
type startFailure struct {
	kind string
	what string
	err  error
}

func (f *startFailure) Error() string {
	name := ""
	var errno unix.Errno
	if errors.As(f.err, &errno) {
		name = " (" + unix.ErrnoName(errno) + ")"
	}
	return fmt.Sprintf("%s: %v%s", f.what, f.err, name)
}

// exit is the failure as an ending: 127 and 126 are what a shell says.
func (f *startFailure) exit() exit {
	e := exit{failure: f.Error(), kind: f.kind}
	if f.kind == link.FailureProgram {
		code := 126
		if errors.Is(f.err, unix.ENOENT) || errors.Is(f.err, unix.ENOTDIR) || errors.Is(f.err, unix.ENAMETOOLONG) {
			code = 127
		}
		e.code = &code
	}
	return e
}

// spawn starts a child whose output goes to sp.
func spawn(r *reaper, l launch, sp *spool) (*child, error) {
	path, err := lookPath(l)
	if err != nil {
		return nil, explain(l, l.argv[0], err)
	}
	p, err := openPlumbing(l, sp)
	if err != nil {
		return nil, &startFailure{kind: link.FailureFork, what: "open pipes", err: err}
	}
	defer p.closeFar()
	argv := slices.Clone(l.argv)
	if l.arg0 != "" {
		argv[0] = l.arg0
	}
	attr := &syscall.ProcAttr{
		Dir: l.cwd, Env: l.env, Files: []uintptr{uintptr(p.far[0]), uintptr(p.far[1]), uintptr(p.far[2])},
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: l.tty},
	}
	begun := time.Now()
	pid, end, err := r.fork(func() (int, error) { return syscall.ForkExec(path, argv, attr) })
	if err != nil {
		p.closeNear()
		return nil, explain(l, path, err)
	}
	return &child{
		pid: pid, begun: begun, rss: ownPeak(), end: end, reap: r, known: make(kin),
		files: p.marks, tty: p.tty, in: p.in, pumps: p.pumps,
	}, nil
}

// explain finds the reason of a failed start. The kernel does not say whether
// the directory or the program was at fault, so the directory is looked at.
func explain(l launch, path string, err error) error {
	if bad := checkDir(l.cwd); bad != nil {
		return &startFailure{kind: link.FailureCwd, what: "working directory " + l.cwd, err: bad}
	}
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EMFILE) {
		return &startFailure{kind: link.FailureFork, what: "start " + path, err: err}
	}
	what := "start " + path
	switch info, missing := os.Stat(absIn(l.cwd, path)); {
	case missing == nil && info.IsDir() && path != "":
		err = unix.EISDIR // the kernel says EACCES, as if a permission could help, or ENOENT of "."
	case missing == nil && errors.Is(err, unix.ENOENT):
		what += " (the interpreter that it names)"
	}
	return &startFailure{kind: link.FailureProgram, what: what, err: err}
}

// checkDir reports why a process could not work in dir.
func checkDir(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return bare(err)
	}
	if !info.IsDir() {
		return unix.ENOTDIR
	}
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.X_OK, unix.AT_EACCESS)
}

// bare strips the operation and path from a file error.
func bare(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

func absIn(dir, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

// lookPath finds the program of l in the PATH of its own environment.
func lookPath(l launch) (string, error) {
	name := l.argv[0]
	if name == "" {
		return "", unix.ENOENT
	}
	if strings.Contains(name, "/") {
		return name, nil // the kernel resolves it in the new working directory
	}
	search := defaultPath
	for _, kv := range l.env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			search = v
		}
	}
	reason := error(unix.ENOENT)
	for _, dir := range filepath.SplitList(search) {
		full := filepath.Join(absIn(l.cwd, dir), name)
		info, err := os.Stat(full)
		if err != nil || info.IsDir() {
			continue
		}
		if err := unix.Faccessat(unix.AT_FDCWD, full, unix.X_OK, unix.AT_EACCESS); err != nil {
			reason = err
			continue
		}
		return full, nil
	}
	return "", reason
}

// plumbing is the pipes or the terminal of a child before it exists.
type plumbing struct {
	far   [3]int // the child's ends, closed after the fork
	marks map[fileID]bool
	tty   *os.File
	in    sink
	pumps []*pump
	sp    *spool
}

func openPlumbing(l launch, sp *spool) (p *plumbing, err error) {
	p = &plumbing{far: [3]int{-1, -1, -1}, marks: make(map[fileID]bool), sp: sp}
	defer func() {
		if err != nil {
			p.closeFar()
			p.closeNear()
		}
	}()
	if l.tty {
		return p, p.openTTY(l.rows, l.cols)
	}
	if err := p.openStdin(l.stdin); err != nil {
		return p, err
	}
	if err := p.openOutput(1, link.Stdout); err != nil {
		return p, err
	}
	return p, p.openOutput(2, link.Stderr)
}

// openStdin makes an empty input, or a pipe.
func (p *plumbing) openStdin(piped bool) error {
	if !piped {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", os.DevNull, err)
		}
		p.far[0] = fd
		return nil
	}
	read, write, err := pipe()
	if err != nil {
		return err
	}
	p.far[0] = read
	if err := nonblock(write); err != nil {
		unix.Close(write)
		return err
	}
	p.in = fileSink{os.NewFile(uintptr(write), "stdin")}
	return nil
}

func (p *plumbing) openOutput(fd int, name string) error {
	read, write, err := pipe()
	if err != nil {
		return err
	}
	p.far[fd] = write
	if err := nonblock(read); err != nil {
		unix.Close(read)
		return err
	}
	return p.addPump(os.NewFile(uintptr(read), name), name, write)
}

// addPump registers the near end of an output and marks its far end.
func (p *plumbing) addPump(near *os.File, name string, far int) error {
	pu, err := newPump(near, stream{p.sp, name})
	if err != nil {
		near.Close()
		return err
	}
	p.pumps = append(p.pumps, pu)
	id, err := idOf(far)
	if err != nil {
		return err
	}
	p.marks[id] = true
	return nil
}

func (p *plumbing) openTTY(rows, cols uint16) error {
	master, slave, err := pty.Open()
	if err != nil {
		return fmt.Errorf("open terminal: %w", err)
	}
	defer slave.Close()
	p.tty = master
	if err := pty.Setsize(master, &pty.Winsize{Rows: rows, Cols: cols}); err != nil {
		return fmt.Errorf("set terminal size: %w", err)
	}
	for i := range p.far {
		fd, err := unix.FcntlInt(slave.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return err
		}
		p.far[i] = fd
	}
	// The three share one description; programs expect a terminal that blocks.
	if err := unix.SetNonblock(p.far[0], false); err != nil {
		return err
	}
	p.in = ttySink{master}
	return p.addPump(master, link.PTY, p.far[0])
}

func (p *plumbing) closeFar() {
	for i, fd := range p.far {
		if fd >= 0 {
			unix.Close(fd)
			p.far[i] = -1
		}
	}
}

// closeNear drops our ends when no child came of it.
func (p *plumbing) closeNear() {
	for _, pu := range p.pumps {
		pu.file.Close()
	}
	if p.in != nil {
		p.in.Close()
	}
	if p.tty != nil {
		p.tty.Close()
	}
}

func pipe() (read, write int, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return 0, 0, fmt.Errorf("open pipe: %w", err)
	}
	return fds[0], fds[1], nil
}

// nonblock lets the runtime's poller watch our end of a pipe, which has no other
// flags yet.
func nonblock(fd int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_NONBLOCK)
	return err
}

// fileSink is the writing end of a stdin pipe.
type fileSink struct{ *os.File }

// Abort implements sink.
func (s fileSink) Abort() { _ = s.SetWriteDeadline(time.Unix(1, 0)) }

// ttySink types into a terminal. The pump owns the file, so Close leaves it.
type ttySink struct{ tty *os.File }

func (s ttySink) Write(p []byte) (int, error) { return s.tty.Write(p) }

// Close implements sink.
func (s ttySink) Close() error { return nil }

// Abort implements sink.
func (s ttySink) Abort() { _ = s.tty.SetWriteDeadline(time.Unix(1, 0)) }

// ownPeak is the most memory that this process ever had resident, in bytes.
func ownPeak() int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return math.MaxInt64 // then nothing can be said of a child either
	}
	return u.Maxrss << 10
}

// exitOf translates what the kernel says of the child's end.
func (c *child) exitOf(end ending) exit {
	e := exit{
		runTime: max(end.at.Sub(c.begun), 0),
		cpuTime: max(time.Duration(end.usage.Utime.Nano()+end.usage.Stime.Nano()), 0),
	}
	if rss := end.usage.Maxrss << 10; rss > c.rss {
		e.maxRSS = rss
	}
	if end.status.Signaled() {
		e.signal = signalName(end.status.Signal())
		return e
	}
	e.code = new(end.status.ExitStatus())
	return e
}
