package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// buildName is the file in a cell's private directory that says what its sandbox was
// made of.
const buildName = "build"

// patience is how long a save goes on after its context has ended. It is not broken off at
// once, because a sentry that is told to go on in the middle of it may not.
const patience = 20 * time.Second

// Save stops all tasks of the sandbox and lets the sentry write them to dir. It asks the
// sentry to stay: so a disk that is full ends a snapshot and not the sandbox.
func (l *launcher) Save(ctx context.Context, c *local.Cell, dir string) error {
	ctx, cancel := outlast(ctx, patience)
	defer cancel()
	if _, err := l.runsc(ctx, c, "pause", c.ID); err != nil {
		return err
	}
	// Pages are read back faster as they are, and whoever stores them can compress.
	_, err := l.runsc(ctx, c, "checkpoint", "--leave-running", "--compression=none", "--image-path="+dir, c.ID)
	return err
}

// outlast returns a context that ends some time after ctx.
func outlast(ctx context.Context, by time.Duration) (_ context.Context, cancel func()) {
	long, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(by)
		defer timer.Stop()
		select {
		case <-timer.C:
			end(context.Cause(ctx))
		case <-long.Done():
		}
	})
	return long, func() {
		stop()
		end(nil)
	}
}

// Continue lets the tasks of a sandbox go on. When nobody knows whether they stand still,
// because a pause was broken off, it returns an error.
func (l *launcher) Continue(ctx context.Context, c *local.Cell) error {
	// A command that an earlier server left behind still stops them, or saves them.
	if err := awaitCommands(ctx, c.ID); err != nil {
		return err
	}
	out, err := l.runsc(ctx, c, "state", c.ID)
	if err != nil {
		return err
	}
	var state struct {
		Status string `json:"status"`
	}
	if err := json.Unmarshal(out, &state); err != nil {
		return fmt.Errorf("read the state of the sandbox: %w", err)
	}
	if state.Status != "paused" {
		return fmt.Errorf("the sandbox is %.20q, and may stand still", state.Status)
	}
	_, err = l.runsc(ctx, c, "resume", c.ID)
	return err
}

// awaitCommands waits until no command of runsc is busy with a cell any more; the sentry
// and the gofer are none.
func awaitCommands(ctx context.Context, id string) error {
	ps, err := local.ProcessesNaming(id)
	if err != nil {
		return err
	}
	for _, p := range ps {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		if err != nil {
			continue // it has ended
		}
		name, _, _ := strings.Cut(string(line), "\x00")
		if strings.HasPrefix(filepath.Base(name), "runsc-") {
			continue
		}
		if err := p.Wait(ctx); err != nil {
			return fmt.Errorf("wait for process %d: %w", p.PID, err)
		}
	}
	return nil
}

// Build is what the cell's processes run on. It must still be so, because a restore reads
// programs and libraries anew from where they are.
func (l *launcher) Build(_ context.Context, c *local.Cell) (string, error) {
	if hasNetwork(c) { // see Usable; its processes are not ended for nothing
		return "", errNetwork
	}
	b, err := os.ReadFile(filepath.Join(c.Private(), buildName))
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("the sandbox was made by an earlier version: %w", sandbox.ErrUnsupported)
	}
	if err != nil {
		return "", fmt.Errorf("read what the sandbox was made of: %w", err)
	}
	var n note
	if err := json.Unmarshal(b, &n); err != nil {
		return "", fmt.Errorf("read what the sandbox was made of: %w", err)
	}
	now, err := l.identify(n.Root, n.Layers)
	if err != nil {
		return "", err
	}
	now.Spec = n.Build.Spec
	if what := n.Build.differs(now); what != "" {
		return "", fmt.Errorf("%s changed since the sandbox was made: %w", what, sandbox.ErrUnsupported)
	}
	return n.Build.String(), nil
}

// errNetwork reports a sandbox whose processes are not saved, because they could not be
// resumed: their connections are in a network stack of their own.
var errNetwork = fmt.Errorf("processes of a sandbox with a network interface cannot be saved: %w", sandbox.ErrUnsupported)

// Usable compares what the snapshot was made on with what there is.
func (l *launcher) Usable(ctx context.Context, spec sandbox.Spec) error {
	if spec.Network != sandbox.NetworkNone {
		return errNetwork
	}
	was, err := parseBuild(spec.Resume.Snapshot.Build)
	if err != nil {
		return err
	}
	root, err := l.roots.Look(ctx, spec)
	if err != nil {
		return err
	}
	is, err := l.identify(root, spec.Layers)
	if err != nil {
		return err
	}
	is.Spec = digestSpec(bundle(&local.Cell{}, root, l.executable, spec))
	if what := was.differs(is); what != "" {
		return fmt.Errorf("%s is not what the snapshot was made with: %w", what, sandbox.ErrUnsupported)
	}
	return nil
}
