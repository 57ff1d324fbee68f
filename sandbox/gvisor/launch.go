package gvisor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
	"github.com/sojourn-dev/sojourn/sandbox/internal/nat"
)

// launcher starts and ends the processes of a sandbox: a sentry and a gofer.
type launcher struct {
	roots        *local.Roots
	executable   string // that is the keeper
	tool         tool   // that is runsc
	unprivileged bool
	network      *nat.Network // nil where sandboxes cannot have one
	digests      digests
}

var _ local.Saver = (*launcher)(nil)

// Launch runs "runsc run --detach" or "runsc restore --detach", which return when the
// processes of the sandbox run and leave the sentry and the gofer behind.
func (l *launcher) Launch(ctx context.Context, c *local.Cell, spec sandbox.Spec) (local.Process, error) {
	root, err := l.roots.Find(ctx, c, spec)
	if err != nil {
		return local.Process{}, err
	}
	description := bundle(c, root, l.executable, spec)
	letGo, err := l.attach(c, description, spec)
	if err != nil {
		return local.Process{}, err
	}
	defer letGo() // by then the sandbox holds its network itself
	if err := writeBundle(c, description); err != nil {
		return local.Process{}, err
	}
	// What the sandbox is made of is noted beside the start, which mostly waits.
	var note sync.WaitGroup
	var noteErr error
	note.Go(func() { noteErr = l.noteBuild(c, description, root, spec.Layers) })
	pid, err := l.start(ctx, c, spec.Resume)
	if err == nil {
		err = l.limitProcesses(ctx, c)
	}
	note.Wait()
	if err == nil {
		err = noteErr
	}
	if err != nil {
		return local.Process{}, err
	}
	p, err := local.FindProcess(pid)
	if err != nil {
		return local.Process{}, fmt.Errorf("sandbox ended at once: %w", err)
	}
	return p, nil
}

// start starts the sandbox that the cell's bundle describes and returns the process id of
// the sentry.
func (l *launcher) start(ctx context.Context, c *local.Cell, resume *sandbox.Resume) (int, error) {
	pidFile := filepath.Join(c.Private(), "pid")
	args := []string{"run"}
	if resume != nil {
		args = []string{"restore", "--image-path=" + resume.Dir}
	}
	args = append(args, "--detach", "--pid-file="+pidFile, "--bundle="+c.Private(), c.ID)
	if _, err := l.runsc(ctx, c, args...); err != nil {
		return 0, err
	}
	b, err := os.ReadFile(pidFile)
	if err != nil {
		return 0, fmt.Errorf("read process id of sandbox: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("read process id of sandbox: %w", err)
	}
	return pid, nil
}

// Resolve returns the digest of an image; see local.Resolver.
func (l *launcher) Resolve(ctx context.Context, reference string) (string, error) {
	return l.roots.Resolve(ctx, reference)
}

// Kill ends the sentry, the gofer and every runsc that is busy with them: all of them have
// the id of the cell among their arguments.
func (l *launcher) Kill(ctx context.Context, c *local.Cell) error {
	if err := local.KillNaming(ctx, c.ID); err != nil {
		return err
	}
	return l.network.Detach(c.ID) // which the kernel may be about to do
}

func writeBundle(c *local.Cell, description *specs.Spec) error {
	b, err := json.Marshal(description)
	if err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(c.Private(), "config.json"), b, 0o600); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	return nil
}
