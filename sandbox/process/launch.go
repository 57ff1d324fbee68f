package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// The words that make our executable behave as the first processes of a sandbox.
const (
	guardCommand   = "process-guard"
	confineCommand = "process-confine"
)

// ready is what the confined process says when all that is left to do is to become the
// keeper.
const ready = "ready"

const (
	maxPlan  = 1 << 20
	maxError = 4 << 10
)

// markVariable is in the environment of every process of a sandbox, with its id.
const markVariable = "SOJOURN_SANDBOX"

// plan is what the confined process has to do.
type plan struct {
	Args  []string `json:"args"` // of the keeper; the first is our executable
	Env   []string `json:"env"`
	Dir   string   `json:"dir"` // to work in
	Write []string `json:"write"`
	Read  []string `json:"read"` // beside what every sandbox may read
	// Sockets is the directory whose sockets can be connected to.
	Sockets   string `json:"sockets"`
	OpenFiles int    `json:"openFiles,omitempty"`
	// FileBytes is how large a file may become: no larger than the disk.
	FileBytes uint64 `json:"fileBytes,omitempty"`
}

// launcher starts and ends the processes of a sandbox.
type launcher struct {
	executable string
}

// temporary is the sandbox's directory for temporary files, which count as its others do.
func temporary(c *local.Cell) string { return filepath.Join(filepath.Dir(c.Workspace()), "tmp") }

// newPlan describes a sandbox to its confined process.
func newPlan(c *local.Cell, executable string, spec sandbox.Spec) plan {
	p := plan{
		Args:      []string{executable, "keeper"},
		Dir:       c.Workspace(),
		Write:     []string{c.Workspace(), c.Home(), temporary(c)},
		Read:      []string{executable},
		Sockets:   c.Run(),
		OpenFiles: spec.Limits.OpenFiles,
		FileBytes: uint64(spec.Limits.DiskBytes),
	}
	places := [][2]string{
		{sandbox.WorkspacePath, c.Workspace()},
		{sandbox.HomePath, c.Home()},
		{sandbox.SocketDir, c.Run()},
		{sandbox.KeeperPath, executable},
		{"/tmp", temporary(c)},
	}
	for _, l := range spec.Layers {
		places = append(places, [2]string{l.Target, l.Source})
		p.Read = append(p.Read, l.Source)
	}
	for _, pair := range places {
		p.Args = append(p.Args, "--place", pair[0]+"="+pair[1])
	}
	p.Args = append(p.Args, "--env", "TMPDIR="+temporary(c), "--env", markVariable+"="+c.ID)
	for _, a := range c.KeeperArgs()[2:] {
		if rest, ok := strings.CutPrefix(a, sandbox.SocketDir+"/"); ok {
			a = socketFrom(p.Dir, filepath.Join(c.Run(), rest))
		}
		p.Args = append(p.Args, a)
	}
	for _, kv := range c.KeeperEnv() {
		if kv == "HOME="+sandbox.HomePath {
			kv = "HOME=" + c.Home()
		}
		p.Env = append(p.Env, kv)
	}
	return p
}

// socketFrom is the path of a socket for a process in dir: the kernel takes no more than
// 107 bytes, and the way from there is short, however long that of the data is. Programs of
// the sandbox cannot change it, because they can write in dir only.
func socketFrom(dir, socket string) string {
	if rel, err := filepath.Rel(dir, socket); err == nil {
		return rel
	}
	return socket
}

// Launch starts the guard, records it, gives it the plan and returns when the process that
// it started has become the keeper.
func (l *launcher) Launch(ctx context.Context, c *local.Cell, spec sandbox.Spec) (local.Process, error) {
	if err := os.Mkdir(temporary(c), 0o700); err != nil {
		return local.Process{}, fmt.Errorf("make directory for temporary files: %w", err)
	}
	planFrom, planTo, err := os.Pipe()
	if err != nil {
		return local.Process{}, fmt.Errorf("start guard: %w", err)
	}
	defer planTo.Close()
	saidFrom, saidTo, err := os.Pipe()
	if err != nil {
		planFrom.Close()
		return local.Process{}, fmt.Errorf("start guard: %w", err)
	}
	defer saidFrom.Close()
	child, err := l.start(c, planFrom, saidTo)
	planFrom.Close()
	saidTo.Close()
	if err != nil {
		return local.Process{}, err
	}
	guard, err := local.FindProcess(child.Pid)
	if err == nil {
		err = c.Begun(guard)
	}
	if err == nil {
		err = instruct(ctx, planTo, saidFrom, newPlan(c, l.executable, spec))
	}
	if err != nil {
		// Before the guard listens to this signal it has started nothing, and dies.
		signalErr := child.Signal(syscall.SIGTERM)
		if errors.Is(signalErr, os.ErrProcessDone) {
			signalErr = nil
		}
		_, waitErr := child.Wait()
		return local.Process{}, errors.Join(err, signalErr, waitErr)
	}
	return guard, child.Release() // whoever sees its end reaps it
}

func (l *launcher) start(c *local.Cell, planFrom, saidTo *os.File) (*os.Process, error) {
	cmd := exec.Command(l.executable, guardCommand, c.ID)
	cmd.Dir = "/"
	cmd.Env = []string{markVariable + "=" + c.ID}
	cmd.Stdin = planFrom
	cmd.ExtraFiles = []*os.File{saidTo}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(cmd); err != nil {
		return nil, fmt.Errorf("start guard: %w", err)
	}
	return cmd.Process, nil
}

// instruct sends the plan and waits until it has been carried out, which closes the far end
// of said, or until somebody says there what went wrong.
func instruct(ctx context.Context, planTo, said *os.File, p plan) error {
	stop := context.AfterFunc(ctx, func() { planTo.Close(); said.Close() })
	defer stop()
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("send plan: %w", err)
	}
	if len(b) > maxPlan {
		return fmt.Errorf("send plan: %d bytes are too many", len(b))
	}
	_, err = planTo.Write(b)
	if err = errors.Join(err, planTo.Close()); err != nil && ctx.Err() == nil {
		return fmt.Errorf("send plan: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(said, maxError))
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("wait for keeper: %w", err)
	case len(text) == 0:
		return errors.New("confine: the process died")
	case string(text) != ready:
		return fmt.Errorf("confine: %s", strings.TrimPrefix(string(text), ready))
	}
	return nil
}
