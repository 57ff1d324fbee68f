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
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// spoolSlack is how much more than the longest line the keeper holds, so that
// an unfinished one can never stop the agent for good.
const spoolSlack = 8 << 20

// defaultEnv is what every agent gets. A runtime's own variables come on top.
var defaultEnv = map[string]string{
	"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"LANG": "C.UTF-8",
	"TERM": "dumb",
}

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

func (d *drive) start(ctx context.Context) error {
	env := maps.Clone(defaultEnv)
	maps.Copy(env, d.job.Env)
	maps.Copy(env, d.job.Runtime.Env)
	env["HOME"] = sandbox.HomePath
	return d.link.Start(ctx, link.StartParams{
		ProcessID: d.st.Process, Argv: d.job.Runtime.Command, Cwd: sandbox.WorkspacePath, Env: env,
		PipeStdin: true, Retain: link.RetainAck, SpoolBytes: int64(d.h.MaxLineBytes) + spoolSlack,
	})
}

// writeFiles writes the runtime's settings below the home.
func (d *drive) writeFiles(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(d.job.Runtime.Files)) {
		if !filepath.IsLocal(name) {
			d.end = failed(CodeUnavailable, "The runtime %s has a settings file outside the home: %q.", d.name(), name)
			return nil
		}
		full := path.Join(sandbox.HomePath, name)
		if err := d.link.CreateDirectory(ctx, path.Dir(full), true); err != nil {
			return fmt.Errorf("make the directory of %s: %w", name, err)
		}
		if err := d.link.WriteFile(ctx, full, []byte(d.job.Runtime.Files[name])); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

// dispose ends a process in order and makes the keeper forget it.
func (d *drive) dispose(ctx context.Context, process string, seq int64) error {
	running, err := d.link.Terminate(ctx, process, d.h.KillAfter)
	if err == nil && running {
		err = d.awaitExit(ctx, process, seq)
	}
	if err == nil {
		err = d.link.Remove(ctx, process)
	}
	if err != nil && !errors.Is(err, link.ErrUnknownProcess) {
		return fmt.Errorf("end the agent %s: %w", process, err)
	}
	return nil
}

// awaitExit waits until a terminated process has exited, within reason: what
// remains is killed by the removal. Its output is let go, so that a full spool
// does not keep it.
func (d *drive) awaitExit(ctx context.Context, process string, seq int64) error {
	until := time.Now().Add(d.h.KillAfter + linger)
	for time.Now().Before(until) {
		r, err := d.link.Read(ctx, link.ReadParams{
			ProcessID: process, AfterSeq: seq, MaxBytes: readBytes, Wait: time.Until(until),
		})
		if err != nil || r.Exited {
			return err
		}
		if n := len(r.Chunks); n > 0 {
			seq = r.Chunks[n-1].Seq
			if err := d.link.Ack(ctx, process, seq); err != nil {
				return err
			}
		}
	}
	return nil
}
