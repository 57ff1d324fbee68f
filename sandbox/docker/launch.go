package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

const (
	// createTime is how long the engine may take to make a sandbox that is not started.
	createTime = 60 * time.Second
	// retryPause is how long to wait for the engine to finish what it is doing.
	retryPause = 50 * time.Millisecond
	// creatingName is the file in a cell's private directory that is there while the
	// engine may be making the sandbox.
	creatingName = "creating"
)

// launcher starts and ends sandboxes through the engine.
type launcher struct {
	engine     *engine
	server     string   // the id of the driver's directory
	security   []string // the security options of sandboxes
	executable string
	skeletons  *local.Skeletons
	images     images
	root       string   // the reference of the root image
	binds      []string // what the zero-install root shows of the host
}

var (
	_ local.Launcher   = (*launcher)(nil)
	_ local.Coroner    = (*launcher)(nil)
	_ local.Meter      = (*launcher)(nil)
	_ local.Reconciler = (*launcher)(nil)
	_ local.Resolver   = (*launcher)(nil)
)

// nameIn is what the engine calls a cell.
func nameIn(c *local.Cell) string { return "sojourn-" + c.ID }

// Launch makes and starts the sandbox, and returns its first process when that was found
// to be what the engine was asked for.
func (l *launcher) Launch(ctx context.Context, c *local.Cell, spec sandbox.Spec) (local.Process, error) {
	opts, err := l.options(ctx, c, spec)
	if err != nil {
		return local.Process{}, err
	}
	id, err := l.create(ctx, c, opts)
	if err != nil {
		return local.Process{}, err
	}
	if ctx.Err() != nil {
		return local.Process{}, context.Cause(ctx)
	}
	if _, err := l.engine.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
		return local.Process{}, fmt.Errorf("start with runtime %s: %w", l.engine.runtime, l.explain(ctx, err))
	}
	p, err := l.find(ctx, c, id)
	if err != nil {
		return local.Process{}, err
	}
	return p, nil
}

// create makes a sandbox that does not run yet. The engine would go on with what a
// caller has given up, so the call is not broken off; and the cell says that the engine
// may be at it, in case this process does not live to see the answer.
func (l *launcher) create(ctx context.Context, c *local.Cell, opts client.ContainerCreateOptions) (id string, err error) {
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	mark := filepath.Join(c.Private(), creatingName)
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return "", fmt.Errorf("note that the engine is at work: %w", err)
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTime)
	defer cancel()
	r, err := l.engine.ContainerCreate(bounded, opts)
	switch {
	case cerrdefs.IsNotFound(err) && opts.Config.Image == l.root: // somebody pruned the engine's images
		if err = l.importRoot(bounded); err == nil {
			r, err = l.engine.ContainerCreate(bounded, opts)
		}
	case cerrdefs.IsConflict(err): // a dead server's, that came late
		if err = l.remove(bounded, opts.Name); err == nil {
			r, err = l.engine.ContainerCreate(bounded, opts)
		}
	}
	if err != nil && bounded.Err() != nil { // the engine may still be at it: Kill will see
		return "", fmt.Errorf("make it: %w", err)
	}
	if removeErr := os.Remove(mark); removeErr != nil && err == nil {
		err = removeErr
	}
	if err != nil {
		return "", fmt.Errorf("make it: %w", err)
	}
	return r.ID, nil
}

// find returns the first process of a sandbox that was just started.
func (l *launcher) find(ctx context.Context, c *local.Cell, id string) (local.Process, error) {
	r, err := l.engine.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return local.Process{}, fmt.Errorf("look at it: %w", err)
	}
	s := r.Container.State
	if s == nil || !s.Running || s.Pid <= 0 {
		return local.Process{}, fmt.Errorf("it ended at once: %s", describeEnd(s))
	}
	p, err := local.FindProcess(s.Pid)
	if errors.Is(err, fs.ErrNotExist) {
		return local.Process{}, invisible(s.Pid)
	}
	if err != nil {
		return local.Process{}, err
	}
	if err := l.verify(ctx, c, id, p); err != nil {
		return local.Process{}, err
	}
	return p, rememberGroups(c, p.PID)
}

// Kill ends and removes whatever the engine has of the cell.
func (l *launcher) Kill(ctx context.Context, c *local.Cell) error {
	if err := l.remove(ctx, nameIn(c)); err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(c.Private(), creatingName)); err == nil {
		if err := l.outlast(ctx, nameIn(c)); err != nil {
			return err
		}
	}
	return c.Record.Process.Wait(ctx)
}

// remove ends and removes what has a name or an id in the engine. It is no error when
// there is nothing.
func (l *launcher) remove(ctx context.Context, name string) error {
	for {
		_, err := l.engine.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		switch {
		case err == nil, cerrdefs.IsNotFound(err):
			return nil
		case !cerrdefs.IsConflict(err): // which says that somebody is removing it already
			return fmt.Errorf("remove from engine: %w", err)
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// outlast returns when an engine that was asked to make a sandbox by a server that died
// is not at it any more, and nothing is left. To see that, it takes the name itself.
func (l *launcher) outlast(ctx context.Context, name string) error {
	for {
		_, err := l.engine.ContainerCreate(ctx, client.ContainerCreateOptions{Name: name, Config: &container.Config{
			Image: l.root, Entrypoint: []string{"/nothing"}, Labels: map[string]string{labelServer: l.server},
		}})
		if err == nil || cerrdefs.IsNotFound(err) { // without our image nothing is being made from it
			return l.remove(ctx, name)
		}
		if !cerrdefs.IsConflict(err) {
			return fmt.Errorf("wait for engine: %w", err)
		}
		if err := l.remove(ctx, name); err != nil {
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// made is what the engine has of a cell.
type made struct {
	id      string
	dir     string // of the cell
	session string // "" in a cell that was made for no session
	epoch   int64
}

// made lists everything that the engine has for this directory, in whatever state.
func (l *launcher) made(ctx context.Context) ([]made, error) {
	r, err := l.engine.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", labelServer+"="+l.server),
	})
	if err != nil {
		return nil, fmt.Errorf("list what the engine has: %w", err)
	}
	var all []made
	for _, s := range r.Items {
		if m, ok := parseLabels(s.Labels); ok {
			m.id = s.ID
			all = append(all, m)
		}
	}
	return all, nil
}

// Reconcile removes what the engine has of cells that are not in the directory.
func (l *launcher) Reconcile(ctx context.Context, _ map[string]bool) error {
	orphans, err := l.orphans(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, o := range orphans {
		errs = append(errs, l.remove(ctx, o.id))
	}
	return errors.Join(errs...)
}

// orphans returns what the engine has for this directory and the directory has not. The
// engine is asked first: what is begun meanwhile is in the directory before it is in the
// engine.
func (l *launcher) orphans(ctx context.Context) ([]made, error) {
	all, err := l.made(ctx)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	var orphans []made
	for _, o := range all {
		if _, err := os.Lstat(o.dir); errors.Is(err, os.ErrNotExist) {
			orphans = append(orphans, o)
		}
	}
	return orphans, nil
}

// EndOf says why a sandbox has ended by itself.
func (l *launcher) EndOf(ctx context.Context, c *local.Cell) (sandbox.EndReason, string) {
	n := readCounters(c) // first: the engine removes the control groups
	// The engine learns of the end in its own time.
	w := l.engine.ContainerWait(ctx, nameIn(c), client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case <-w.Result:
	case <-w.Error:
		return "", ""
	}
	r, err := l.engine.ContainerInspect(ctx, nameIn(c), client.ContainerInspectOptions{})
	if err != nil || r.Container.State == nil {
		return "", ""
	}
	s := r.Container.State
	// These say that anything in the sandbox was killed; it was the sandbox itself when
	// its first process ended by that signal.
	if (s.OOMKilled || n.memoryKills > 0) && s.ExitCode == exitKilled {
		var limit int64
		if h := r.Container.HostConfig; h != nil {
			limit = h.Memory
		}
		return sandbox.EndOutOfMemory, "it was killed at its memory limit of " + local.Size(limit)
	}
	return sandbox.EndExited, "its first process has ended: " + describeEnd(s)
}

// exitKilled is the exit code of a process that was ended by SIGKILL.
const exitKilled = 128 + 9

func describeEnd(s *container.State) string {
	if s == nil {
		return "the engine does not know why"
	}
	text := fmt.Sprintf("exit code %d", s.ExitCode)
	if s.Error != "" {
		text += fmt.Sprintf(": %.500s", s.Error)
	}
	return text
}

// explain adds to an error of the engine what an operator may not guess.
func (l *launcher) explain(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case l.engine.secured("selinux") && strings.Contains(err.Error(), "ermission denied"):
		return fmt.Errorf("%w (the engine confines with SELinux, which keeps sandboxes from directories of the server)", err)
	}
	return err
}

// pause waits a moment for the engine.
func pause(ctx context.Context) error {
	t := time.NewTimer(retryPause)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for engine: %w", context.Cause(ctx))
	}
}
