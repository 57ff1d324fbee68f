package engine

import (
	"context"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// StartExec accepts an exec: durable, and certain to reach an end. It does not
// wait for it. The codes are those of [sojourn.Decision.Execute], not_found for
// a tool that there is not, and unavailable where no output can be kept.
func (e *Engine) StartExec(ctx context.Context, ref Ref, in ExecRequest) (facts sojourn.Facts, x sojourn.Exec, err error) {
	if e.cfg.Outputs == nil {
		return facts, x, sojourn.Errorf(sojourn.CodeUnavailable, "This installation keeps no output of execs, so it runs none.")
	}
	id, question := newID[sojourn.ExecID](), newID[sojourn.InteractionID]()
	err = e.cfg.Store.Update(ctx, func(tx *store.Tx) error {
		facts, err = seen(tx, ref)
		if err != nil {
			return err
		}
		made, err := once(tx, ref.Project, in.Idempotency, func() (remembered, error) {
			facts, x, err = e.accept(tx, facts, in, sojourn.NewExec{ID: id, Interaction: question})
			return remembered{Session: ref.ID, Exec: id}, err
		})
		if err == nil && made.Exec != id { // it was accepted before
			x, err = execOf(tx, made.Session, made.Exec)
		}
		return err
	})
	return facts, x, err
}

// accept decides on one request, and has the session driven if nobody does.
func (e *Engine) accept(tx *store.Tx, facts sojourn.Facts, in ExecRequest, n sojourn.NewExec) (after sojourn.Facts, x sojourn.Exec, err error) {
	n.Spec, n.Input = in.Spec, in.Input
	if in.Tool != "" {
		if err := e.callTool(tx, facts.Session.ID, in, &n); err != nil {
			return facts, x, err
		}
	} else if len(n.Spec.Argv) > 0 && strings.HasPrefix(n.Spec.Argv[0], link.ProgramPrefix) {
		return facts, x, sojourn.Errorf(sojourn.CodeInvalid, "command: names that begin with %q belong to the server.", link.ProgramPrefix)
	}
	if err := checkText(n.Spec); err != nil {
		return facts, x, err
	}
	if n.Spec.Stdin != sojourn.StdinGiven && len(n.Input) > 0 {
		return facts, x, sojourn.Errorf(sojourn.CodeInvalid, "stdin: it is either given with the request or streamed.")
	}
	if n.Spec.Ask && n.Request == nil {
		n.Request = askedFor(n.Spec, nil)
	}
	open, err := tx.CountOpenExecs(facts.Session.ID)
	if err != nil {
		return facts, x, err
	}
	err = e.apply(tx, facts, func(_ *store.Tx, d *sojourn.Decision) error {
		x, err = d.Execute(n, open, e.rateOf(d.Facts().Session))
		after = d.Facts()
		return err
	})
	if err == nil && x.State != sojourn.ExecParked && !e.benched(x.Session) {
		err = tx.ScheduleWork(sojourn.WorkBench, string(x.Session), tx.Now(), nil)
	}
	return after, x, err
}

// checkText refuses what does not reach a sandbox byte for byte.
func checkText(s sojourn.ExecSpec) error {
	for _, a := range s.Argv {
		if !utf8.ValidString(a) {
			return sojourn.Errorf(sojourn.CodeInvalid, "command: the arguments must be UTF-8.")
		}
	}
	for k, v := range s.Env {
		if !utf8.ValidString(v) {
			return sojourn.Errorf(sojourn.CodeInvalid, "env: the value of %s must be UTF-8.", bounded(k, 80))
		}
	}
	if !utf8.ValidString(s.Dir) {
		return sojourn.Errorf(sojourn.CodeInvalid, "workingDir: must be UTF-8.")
	}
	return nil
}

// execOf reads an exec of a session. Those of others are not found.
func execOf(tx *store.Tx, session sojourn.SessionID, id sojourn.ExecID) (sojourn.Exec, error) {
	x, err := tx.Exec(id)
	if err == nil && x.Session != session {
		err = sojourn.Errorf(sojourn.CodeNotFound, "There is no such exec.")
	}
	if err != nil {
		return sojourn.Exec{}, err
	}
	return x, nil
}

// WaitExec returns an exec once it is terminal, or parked. It ends with ctx, with
// its cause.
func (e *Engine) WaitExec(ctx context.Context, ref Ref, id sojourn.ExecID) (sojourn.Facts, sojourn.Exec, error) {
	return e.waitSettled(ctx, ref, id, func(x sojourn.Exec) bool { return x.State.Terminal() || x.State == sojourn.ExecParked })
}

// WaitExecOver is [Engine.WaitExec] that waits for a parked one, too.
func (e *Engine) WaitExecOver(ctx context.Context, ref Ref, id sojourn.ExecID) (sojourn.Facts, sojourn.Exec, error) {
	return e.waitSettled(ctx, ref, id, func(x sojourn.Exec) bool { return x.State.Terminal() })
}

// waitSettled is waitExec for whoever shows what the exec wrote: of a lost one that is
// taken over first.
func (e *Engine) waitSettled(ctx context.Context, ref Ref, id sojourn.ExecID, ok func(sojourn.Exec) bool) (sojourn.Facts, sojourn.Exec, error) {
	facts, x, err := e.waitExec(ctx, ref, id, ok)
	if err == nil && x.State == sojourn.ExecLost {
		e.settleOutput(ctx, x)
		x, err = e.ExecByID(ctx, ref, id)
	}
	return facts, x, err
}

// waitExec returns an exec once it is as the caller wants it.
func (e *Engine) waitExec(ctx context.Context, ref Ref, id sojourn.ExecID, ok func(sojourn.Exec) bool) (facts sojourn.Facts, x sojourn.Exec, err error) {
	watch, stop := e.watchExec(id)
	defer stop()
	for {
		// What a commit has just told needs no reading. Whose the exec is was asked when
		// it was read for the first time.
		if c := e.latest(watch); c != nil && x.ID == id && ok(c.x) {
			return c.facts, c.x, nil
		}
		err = e.cfg.Store.View(ctx, func(tx *store.Tx) error {
			s, err := tx.Session(ref.ID)
			if err == nil {
				err = ref.check(s)
			}
			if err == nil {
				x, err = execOf(tx, ref.ID, id)
			}
			if err == nil && ok(x) { // and not before: most look more than once
				facts, err = tx.Facts(ref.ID)
			}
			return err
		})
		if err != nil || ok(x) {
			return facts, x, err
		}
		select {
		case <-watch.changed:
		case <-ctx.Done():
			return facts, x, context.Cause(ctx)
		case <-e.base.Done():
			return facts, x, errStopping
		}
	}
}

// ExecByID returns an exec, with what it has written so far.
func (e *Engine) ExecByID(ctx context.Context, ref Ref, id sojourn.ExecID) (x sojourn.Exec, err error) {
	err = e.view(ctx, ref, func(tx *store.Tx, _ sojourn.Facts) error {
		if x, err = execOf(tx, ref.ID, id); err == nil {
			x, err = e.measured(tx, x)
		}
		return err
	})
	return x, err
}

// Execs returns execs with a number below before (0 for the newest), newest first,
// with what they have written so far.
func (e *Engine) Execs(ctx context.Context, ref Ref, before int64, limit int) (all []sojourn.Exec, err error) {
	err = e.view(ctx, ref, func(tx *store.Tx, f sojourn.Facts) error {
		if all, err = tx.Execs(f.Session.ID, before, limit); err != nil {
			return err
		}
		for i, x := range all {
			if all[i], err = e.measured(tx, x); err != nil {
				return err
			}
		}
		return nil
	})
	return all, err
}

// CancelExec ends an exec as its timeout would; with kill at once. It does not wait
// for the end. One that is over comes back unchanged.
func (e *Engine) CancelExec(ctx context.Context, ref Ref, id sojourn.ExecID, kill bool) (x sojourn.Exec, err error) {
	_, err = e.update(ctx, ref, func(tx *store.Tx, d *sojourn.Decision) error {
		if x, err = execOf(tx, ref.ID, id); err != nil {
			return err
		}
		d.CancelExec(x, sojourn.ExecCancelled, kill)
		for _, changed := range d.Change().Execs {
			if changed.ID == id {
				x = changed
			}
		}
		x, err = e.measured(tx, x)
		return err
	})
	return x, err
}

// rateOf is what the execs of a session cost: for what its sandboxes may use, which
// is all of the machine where nothing bounds it.
func (e *Engine) rateOf(s sojourn.Session) sojourn.ExecRate {
	cpus, memory := e.machine.milliCPUs, e.machine.memory
	l := s.Sandbox.Limits
	if e.cfg.Driver != nil {
		with := specOf(s.Sandbox, e.cfg.Sandbox, e.cfg.Driver.Capabilities()).Limits
		l.MilliCPUs, l.MemoryBytes = with.MilliCPUs, with.MemoryBytes
	}
	if l.MilliCPUs > 0 {
		cpus = int64(l.MilliCPUs)
	}
	if l.MemoryBytes > 0 {
		memory = l.MemoryBytes
	}
	const gib = 1 << 30
	return sojourn.ExecRate{
		Exec:   e.cfg.Rates.Exec,
		Second: share(e.cfg.Rates.VCPUSecond, cpus, 1000) + share(e.cfg.Rates.GiBSecond, memory, gib),
	}
}

// askedFor is what an approval shows of an exec.
func askedFor(s sojourn.ExecSpec, input []byte) map[string]any {
	shown := map[string]any{"command": s.Argv, "workingDir": s.Dir, "detached": s.Detached, "timeoutMs": s.Timeout.Milliseconds()}
	if s.Tool != "" {
		shown["tool"] = s.Tool
	}
	if len(s.Env) > 0 {
		shown["env"] = slices.Sorted(maps.Keys(s.Env)) // the values may be secrets
	}
	if len(input) > 0 {
		shown["input"] = bounded(string(input), maxAskedInput)
	}
	return shown
}

// maxAskedInput bounds what an approval shows of the input of a tool.
const maxAskedInput = 16 << 10
