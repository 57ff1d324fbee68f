package script

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/sojourn-dev/sojourn/internal/keeper"
)

const (
	exitFault = 41              // of SCRIPT_AGENT_CRASH
	exitTerm  = 128 + 15        // after SIGTERM, as a shell says it
	stateDir  = ".script-agent" // below the home
)

type object = map[string]any

// Main runs the agent as a process of its own and returns its exit code.
func Main(args []string) int {
	wd, err := os.Getwd()
	if err != nil {
		wd = "/"
	}
	a := newAgent(keeper.Proc{
		Args: args, Env: os.Environ(), Dir: wd,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		MapPath: func(p string) string {
			if root := os.Getenv("SCRIPT_AGENT_ROOT"); root != "" && !strings.HasPrefix(p, root+"/") {
				return filepath.Join(root, p)
			}
			return p
		},
	})
	a.process = true
	return a.run(context.Background())
}

// Run runs the agent inside another process. It is a [keeper.Program].
func Run(ctx context.Context, p keeper.Proc) int { return newAgent(p).run(ctx) }

var _ keeper.Program = Run

// agent is one running agent.
type agent struct {
	p       keeper.Proc
	env     map[string]string
	process bool // signals are ours to handle
	dir     string

	ctx   context.Context // ends when the agent does
	end   context.CancelCauseFunc
	turns sync.WaitGroup

	out sync.Mutex // held for one line

	mu      sync.Mutex
	deaf    bool // obeys neither cancel nor TERM
	next    int  // number of the last request to the client
	waiting map[string]chan message
	open    map[string]*session
}

// exiting ends the agent with a code.
type exiting int

func (e exiting) Error() string { return "exit " + strconv.Itoa(int(e)) }

func newAgent(p keeper.Proc) *agent {
	a := &agent{p: p, env: map[string]string{}, waiting: map[string]chan message{}, open: map[string]*session{}}
	for _, e := range p.Env {
		k, v, _ := strings.Cut(e, "=")
		a.env[k] = v
	}
	a.dir = p.MapPath(path.Join(or(a.env["HOME"], "/"), stateDir))
	return a
}

func or(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}

// run serves the client until its input ends or something ends the agent.
func (a *agent) run(ctx context.Context) int {
	a.ctx, a.end = context.WithCancelCause(context.WithoutCancel(ctx))
	defer a.end(nil)
	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		a.stderr(err.Error())
		return 1
	}
	if b := a.env["SCRIPT_AGENT_BANNER"]; b != "" {
		a.write([]byte(unescape(b) + "\n"))
	}
	lines := make(chan []byte)
	var reading sync.WaitGroup
	reading.Go(func() { a.end(a.read(lines)) })
	for {
		select {
		case line := <-lines:
			a.receive(line)
			continue
		case <-ctx.Done():
			if a.obeys() {
				a.end(exiting(exitTerm))
			}
			ctx = context.WithoutCancel(ctx) // once is enough
			continue
		case <-a.ctx.Done():
		}
		break
	}
	a.turns.Wait()
	if c, ok := a.p.Stdin.(io.Closer); ok && !a.process {
		_ = c.Close() // so that the reading ends; it has nothing left to say
		reading.Wait()
	}
	var code exiting
	if errors.As(context.Cause(a.ctx), &code) {
		return int(code)
	}
	return 0
}

// read hands on the lines of standard input and returns why there are no more.
func (a *agent) read(to chan<- []byte) error {
	in := bufio.NewReaderSize(a.p.Stdin, 64<<10)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			select {
			case to <- line:
			case <-a.ctx.Done():
				return nil
			}
		}
		if errors.Is(err, io.EOF) {
			return exiting(0)
		}
		if err != nil {
			return exiting(1)
		}
	}
}

func (a *agent) obeys() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.deaf
}

// ignoreCancel makes the agent deaf.
func (a *agent) ignoreCancel() {
	a.mu.Lock()
	a.deaf = true
	a.mu.Unlock()
	if a.process {
		signal.Ignore(syscall.SIGTERM)
	}
}

// write writes bytes to standard output in one piece. When nobody takes them
// any more the agent ends.
func (a *agent) write(b []byte) {
	a.out.Lock()
	defer a.out.Unlock()
	if _, err := a.p.Stdout.Write(b); err != nil {
		a.end(exiting(1))
	}
}

func (a *agent) stderr(text string) {
	// Nobody could be told that standard error is closed.
	_, _ = io.WriteString(a.p.Stderr, text+"\n")
}

// send writes a message.
func (a *agent) send(m object) {
	m["jsonrpc"] = "2.0"
	b, err := json.Marshal(m)
	if err != nil {
		a.stderr("encode a message: " + err.Error())
		return
	}
	a.write(append(b, '\n'))
}

func (a *agent) update(s *session, u object) {
	a.send(object{"method": "session/update", "params": object{"sessionId": s.id, "update": u}})
}

func (a *agent) chunk(s *session, kind, text string) {
	a.update(s, object{"sessionUpdate": kind, "content": object{"type": "text", "text": text}})
}

func unescape(s string) string { return strings.NewReplacer(`\n`, "\n", `\e`, "\x1b").Replace(s) }
