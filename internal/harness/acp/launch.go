package acp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// spoolSlack is how much more than the longest line the keeper holds, so that
// an unfinished one can never stop the agent for good.
const spoolSlack = 8 << 20

// defaultPath is PATH where the sandbox does not say what its own is.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// processName names the agent's process. A new one under the same epoch gets
// another name, so that a stored cursor never meets the wrong output.
func processName(epoch int64, generation int) string {
	name := "agent-" + strconv.FormatInt(epoch, 10)
	if generation > 1 {
		name += "-" + strconv.Itoa(generation)
	}
	return name
}

// launch starts a fresh agent and attaches to it. Whatever ran before it under
// this epoch is gone when it starts.
func (d *drive) launch(ctx context.Context, old *state) error {
	d.detach()
	if old.Process != "" {
		if err := d.dispose(ctx, old.Process, old.Cursor.Seq); err != nil {
			return err
		}
	}
	d.st = &state{
		Version: stateVersion, Run: string(d.job.Run), Epoch: d.job.Epoch, Stage: stagePrompt,
		Generation: old.Generation + 1, Process: processName(d.job.Epoch, old.Generation+1),
	}
	if len(d.job.Runtime.Command) == 0 {
		d.end = failed(CodeUnavailable, "The runtime %s has no command.", d.name())
		return nil
	}
	if err := d.fill(ctx); err != nil || d.end != nil {
		return err
	}
	if err := d.writeFiles(ctx); err != nil || d.end != nil {
		return d.refused(err)
	}
	err := d.start(ctx)
	if errors.Is(err, link.ErrProcessExists) {
		// A drive died between its start and its first commit.
		if err := d.dispose(ctx, d.st.Process, 0); err != nil {
			return err
		}
		err = d.start(ctx)
	}
	if err != nil {
		return d.refused(fmt.Errorf("start the agent: %w", err))
	}
	d.attach(ctx)
	return nil
}

// refused turns a refusal by the keeper into an outcome: it would refuse again.
// Other errors are the link's and pass.
func (d *drive) refused(err error) error {
	var no *link.Error
	if !errors.As(err, &no) || errors.Is(err, link.ErrStaleEpoch) || errors.Is(err, link.ErrUnknownSession) {
		return err
	}
	d.end = failed(CodeUnavailable, "The runtime %s could not be started: %s.", d.name(), no.Message)
	return nil
}

// where asks the keeper about the sandbox, once.
func (d *drive) where(ctx context.Context) error {
	if d.info != nil {
		return nil
	}
	d.info = &link.Info{}
	l, ok := d.link.(interface {
		Info(context.Context) (link.Info, error)
	})
	if !ok {
		return nil
	}
	info, err := l.Info(ctx)
	if err != nil {
		d.info = nil
		return fmt.Errorf("ask about the sandbox: %w", err)
	}
	d.info = &info
	return nil
}

// place is where programs find a directory of the sandbox: at its own path, unless
// sandboxes share the host's.
func (d *drive) place(dir string) string { return or(d.info.Places[dir], dir) }

// fill puts what this sandbox and its model are into the runtime's templates.
func (d *drive) fill(ctx context.Context) error {
	if err := d.where(ctx); err != nil {
		return err
	}
	v := harness.Values{
		Model: d.job.Model, ModelURL: d.job.ModelURL, Token: d.job.Token,
		Workspace: sandbox.WorkspacePath, Home: sandbox.HomePath,
	}
	row, err := d.job.Runtime.Fill(v)
	if err == nil {
		// The keeper looks for its places in arguments and variables, not in files.
		v.Workspace, v.Home = d.place(sandbox.WorkspacePath), d.place(sandbox.HomePath)
		var there harness.Runtime
		there, err = d.job.Runtime.Fill(v)
		row.Files = there.Files
	}
	if err != nil {
		d.end = failed(CodeUnavailable, "The runtime %s cannot be started: %v.", d.name(), err)
		return nil
	}
	d.row = row
	return nil
}

// start starts the agent. It has the environment of the sandbox, which is that of its
// image; what the session gives it goes over that, and the row's over all.
func (d *drive) start(ctx context.Context) error {
	path := append(slices.Clone(d.row.Path), or(d.info.Path, defaultPath))
	env := map[string]string{"PATH": strings.Join(path, ":"), "TERM": "dumb"}
	if d.info.Path == "" {
		env["LANG"] = "C.UTF-8"
	}
	maps.Copy(env, d.job.Env)
	maps.Copy(env, d.row.Env)
	env["HOME"] = sandbox.HomePath
	return d.link.Start(ctx, link.StartParams{
		ProcessID: d.st.Process, Argv: d.row.Command, Cwd: sandbox.WorkspacePath, Env: env, Inherit: true,
		PipeStdin: true, Retain: link.RetainAck, SpoolBytes: int64(d.h.MaxLineBytes) + spoolSlack,
	})
}

// writeFiles writes the runtime's settings below the home.
func (d *drive) writeFiles(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(d.row.Files)) {
		if !filepath.IsLocal(name) {
			d.end = failed(CodeUnavailable, "The runtime %s has a settings file outside the home: %q.", d.name(), name)
			return nil
		}
		full := path.Join(sandbox.HomePath, name)
		if err := d.link.CreateDirectory(ctx, path.Dir(full), true); err != nil {
			return fmt.Errorf("make the directory of %s: %w", name, err)
		}
		if err := d.link.WriteFile(ctx, full, []byte(d.row.Files[name])); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

// dispose ends a process in the order that its row wants and makes the keeper forget
// it.
func (d *drive) dispose(ctx context.Context, process string, seq int64) error {
	grace := or(d.job.Runtime.Stop.Grace, d.h.KillAfter)
	var exited bool
	var err error
	if d.job.Runtime.Stop.EOF {
		if err = d.link.CloseStdin(ctx, process); err == nil {
			exited, seq, err = d.awaitExit(ctx, process, seq, grace)
		} else if errors.Is(err, link.ErrStdinClosed) {
			err = nil
		}
	}
	if err == nil && !exited {
		var running bool
		running, err = d.link.Terminate(ctx, process, grace)
		if err == nil && running {
			_, _, err = d.awaitExit(ctx, process, seq, grace+linger)
		}
	}
	if err == nil {
		err = d.link.Remove(ctx, process)
	}
	if err != nil && !errors.Is(err, link.ErrUnknownProcess) {
		return fmt.Errorf("end the agent %s: %w", process, err)
	}
	return nil
}

// awaitExit waits until a process that was told to end has exited, for at most that
// long, and reports whether it has; what remains is killed by the removal. Its output
// after seq is let go, so that a full spool does not keep it.
func (d *drive) awaitExit(ctx context.Context, process string, seq int64, most time.Duration) (exited bool, _ int64, err error) {
	until := time.Now().Add(most)
	for time.Now().Before(until) {
		r, err := d.link.Read(ctx, link.ReadParams{
			ProcessID: process, AfterSeq: seq, MaxBytes: readBytes, Wait: time.Until(until),
		})
		if err != nil || r.Exited {
			return r.Exited, seq, err
		}
		if n := len(r.Chunks); n > 0 {
			seq = r.Chunks[n-1].Seq
			if err := d.link.Ack(ctx, process, seq); err != nil {
				return false, seq, err
			}
		}
	}
	return false, seq, nil
}
