package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// OpenShell says which shell to open.
type OpenShell struct {
	// Name is how the shell is found again; "" makes one up.
	Name string
	// Reattach goes on with the shell of this name. Without it a new one is
	// started, and refused while one of this name runs.
	Reattach bool
	// From is the offset of the first byte of output that the caller has not; a
	// negative one asks for whatever is still held.
	From int64
	// Argv is the program; empty means the sandbox's login shell.
	Argv []string
	// Dir is where it starts; "" means the workspace.
	Dir string
	// TTY gives it a terminal of Rows by Cols, of the kind Term.
	TTY        bool
	Rows, Cols uint16
	Term       string
}

// Shell is an open shell. It lives on when its visit ends.
type Shell struct {
	*Process
	Name string
	TTY  bool
	// Reattached reports whether it was there before.
	Reattached bool

	taken context.Context // ends with the visit, and when somebody else has the shell
	from  int64           // of the next byte that the caller is to get; negative until known
	stop  func()

	mu   sync.Mutex
	sent []sentChunk // to be released when the caller has them; in order
}

// sentChunk is output that was handed out and is kept until the caller has it.
type sentChunk struct{ seq, end int64 }

// shellSpool is how much output a shell keeps: what its next visitor sees first.
const shellSpool = 1 << 20

// The bounds of what a shell is opened with.
const (
	maxShellName = 64
	maxTerm      = 64
)

// errTaken is the cause when somebody else goes on with a shell.
var errTaken = errors.New("the shell was taken over")

func (o *OpenShell) check() error {
	if o.Name == "" && o.Reattach {
		return sojourn.Errorf(sojourn.CodeInvalid, "name: say which shell to go on with.")
	}
	if len(o.Name) > maxShellName || strings.ContainsFunc(o.Name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.", r)
	}) {
		return sojourn.Errorf(sojourn.CodeInvalid, "name: use at most %d letters, digits and -_.", maxShellName)
	}
	if len(o.Argv) > 0 && strings.HasPrefix(o.Argv[0], link.ProgramPrefix) {
		return sojourn.Errorf(sojourn.CodeInvalid, "argv: names that begin with %q belong to the server.", link.ProgramPrefix)
	}
	if len(o.Term) > maxTerm || strings.ContainsFunc(o.Term, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return sojourn.Errorf(sojourn.CodeInvalid, "term: this is no kind of terminal.")
	}
	return nil
}

// Shell opens a shell. Whoever had the same one open before loses it. The caller
// calls Leave, or Forget once the end of the shell was told.
func (v *Visit) Shell(ctx context.Context, o OpenShell) (*Shell, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.Name == "" {
		o.Name = strings.ToLower(rand.Text()[:8])
	}
	row, err := v.findShell(ctx, o.Name)
	if err != nil {
		return nil, err
	}
	switch {
	case o.Reattach && row == nil:
		return nil, sojourn.Errorf(sojourn.CodeNotFound, "There is no shell %q in the sandbox.", o.Name)
	case row != nil && !row.Exited && !o.Reattach:
		return nil, sojourn.Errorf(sojourn.CodeInvalid, "name: a shell %q runs already. Reattach to it, or choose another name.", o.Name)
	case row != nil && !o.Reattach:
		v.e.dropProcess(ctx, v.c, row.ProcessID) // it is over, and nobody came for its end
		row = nil
	}
	s := &Shell{Name: o.Name, TTY: o.TTY, Reattached: row != nil}
	if row == nil {
		if s.Process, err = v.startShell(ctx, o); err != nil {
			return nil, err
		}
	} else {
		s.TTY = row.TTY
		s.Process, s.from = &Process{v: v, id: row.ProcessID}, o.From
	}
	s.taken, s.stop = v.e.take(v, s.id)
	return s, nil
}

// findShell returns the process of a shell, or nil.
func (v *Visit) findShell(ctx context.Context, name string) (*link.Process, error) {
	ctx, done := v.bound(ctx)
	defer done()
	list, err := v.c.peer.Processes(ctx)
	if err != nil {
		return nil, v.told(ctx, err)
	}
	i := slices.IndexFunc(list, func(p link.Process) bool { return p.ProcessID == shellPrefix+name })
	if i < 0 {
		return nil, nil
	}
	return &list[i], nil
}

func (v *Visit) startShell(ctx context.Context, o OpenShell) (*Process, error) {
	info, err := v.info(ctx)
	if err != nil {
		return nil, err
	}
	if len(o.Argv) == 0 {
		o.Argv = []string{info.Shell.Path, "-l"}
	}
	dir, err := inSandbox(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("dir: %w", err)
	}
	s := link.StartParams{
		ProcessID: shellPrefix + o.Name, Argv: o.Argv, Cwd: dir, TTY: o.TTY, PipeStdin: true,
		Rows: o.Rows, Cols: o.Cols, SpoolBytes: shellSpool, Retain: link.RetainAck,
		Env:     map[string]string{"HOME": sandbox.HomePath, "SHELL": info.Shell.Path},
		Inherit: true, // what the image says
	}
	if info.Path == "" { // it says nothing
		s.Env["PATH"], s.Env["LANG"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "C.UTF-8"
	}
	maps.Copy(s.Env, v.c.gate.env())
	if o.TTY {
		// A screen that nobody looks at must not stop the program behind it; bytes
		// in a pipe must not get lost.
		s.Retain = link.RetainFollow
		s.Env["TERM"] = o.Term
		if o.Term == "" {
			s.Env["TERM"] = "xterm-256color"
		}
	}
	p, err := v.start(ctx, s)
	if p != nil {
		p.acks = false // Release does it
	}
	if errors.Is(err, link.ErrProcessExists) {
		return nil, sojourn.Errorf(sojourn.CodeInvalid, "name: a shell %q runs already. Reattach to it, or choose another name.", o.Name)
	}
	return p, err
}

func (v *Visit) info(ctx context.Context) (link.Info, error) {
	ctx, done := v.bound(ctx)
	defer done()
	info, err := v.c.peer.Info(ctx)
	return info, v.told(ctx, err)
}

// take makes v the visitor of a shell. The context ends when another one is.
func (e *Engine) take(v *Visit, id string) (context.Context, func()) {
	key := string(v.c.session) + "/" + id
	ctx, cancel := context.WithCancelCause(v.ctx)
	mine := &cancel
	e.mu.Lock()
	before := e.shells[key]
	e.shells[key] = mine
	e.mu.Unlock()
	if before != nil {
		(*before)(errTaken)
	}
	return ctx, func() {
		cancel(nil)
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.shells[key] == mine {
			delete(e.shells, key)
		}
	}
}

// Next waits for output, and leaves out what the caller has already. gap counts
// the bytes in front of the first piece that are not held any more. Without a
// terminal the output is kept until Release. When somebody took the shell over it
// returns an error, and Lost is true.
func (s *Shell) Next(ctx context.Context) (out []Output, gap int64, exit *Exit, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.taken, func() { cancel(context.Cause(s.taken)) })()
	for {
		pieces, exit, err := s.Process.Next(ctx)
		if err != nil {
			return nil, 0, nil, err
		}
		for _, o := range pieces {
			end := o.Offset + int64(len(o.Data))
			s.keep(sentChunk{o.seq, end})
			if s.from < 0 {
				s.from = o.Offset
			}
			if end <= s.from {
				continue
			}
			skip := max(0, s.from-o.Offset)
			o.Offset, o.Data = o.Offset+skip, o.Data[skip:]
			gap += o.Offset - s.from
			s.from = end
			out = append(out, o)
		}
		if len(out) > 0 || exit != nil {
			return out, gap, exit, nil
		}
	}
}

func (s *Shell) keep(c sentChunk) {
	if s.TTY {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, c)
}

// Release says that the caller has all output in front of an offset.
func (s *Shell) Release(ctx context.Context, offset int64) error {
	s.mu.Lock()
	seq := int64(0)
	for len(s.sent) > 0 && s.sent[0].end <= offset {
		seq, s.sent = s.sent[0].seq, s.sent[1:]
	}
	s.mu.Unlock()
	if seq == 0 {
		return nil
	}
	ctx, done := s.v.bound(ctx)
	defer done()
	return s.v.told(ctx, s.v.c.peer.Ack(ctx, s.id, seq))
}

// Resize sets the size of the terminal.
func (s *Shell) Resize(ctx context.Context, rows, cols uint16) error {
	ctx, done := s.v.bound(ctx)
	defer done()
	return s.v.told(ctx, s.v.c.peer.Resize(ctx, s.id, rows, cols))
}

// Signal sends a signal, such as SIGINT, to what runs in the foreground.
func (s *Shell) Signal(ctx context.Context, name string) error {
	ctx, done := s.v.bound(ctx)
	defer done()
	return s.v.told(ctx, s.v.c.peer.Signal(ctx, s.id, name, link.TargetGroup))
}

// Lost reports whether somebody else goes on with the shell.
func (s *Shell) Lost() bool { return errors.Is(context.Cause(s.taken), errTaken) }

// Leave detaches from the shell, which goes on.
func (s *Shell) Leave() { s.stop() }

// Forget ends the shell, if it has not, and frees its name.
func (s *Shell) Forget() {
	s.stop()
	s.Drop()
}
