package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// place is where an exec runs, with what it starts from.
type place struct {
	e     *Engine
	c     *compute
	x     sojourn.Exec
	from  sojourn.Carryover
	input []byte // of StdinGiven
	token string // of the model gateway; "" for none
}

// errNoSandbox says that the session has no sandbox at the moment in which the exec
// could run or be found.
var errNoSandbox = errors.New("the sandbox is not at hand")

// find returns where the exec runs: the sandbox that it was started under, or the one
// that its processes were carried to. It is errExecOver when it does not run any more.
func (f *follow) find(ctx context.Context) (place, error) {
	e := f.b.e
	p := place{e: e}
	e.mu.Lock()
	p.c = e.computes[f.b.id]
	e.mu.Unlock()
	var facts sojourn.Facts
	err := e.cfg.Store.View(ctx, func(tx *store.Tx) (err error) {
		if p.x, err = tx.Exec(f.id); err != nil {
			return err
		}
		if p.x.State != sojourn.ExecRunning {
			return errExecOver
		}
		if p.from, err = tx.Carryover(f.b.id); err != nil {
			return err
		}
		if p.x.Spec.Stdin == sojourn.StdinGiven {
			if p.input, err = tx.ExecInput(f.id); err != nil {
				return err
			}
		}
		if p.c != nil && p.c.epoch == p.x.Epoch && !ended(p.c.box) && e.cfg.Models == nil {
			return nil // as when it was started just now
		}
		p.c = nil
		facts, err = tx.Facts(f.b.id)
		return err
	})
	if sojourn.CodeOf(err) == sojourn.CodeNotFound {
		return p, errExecOver
	}
	if err != nil || p.c != nil {
		return p, err
	}
	if p.c, err = e.regain(ctx, facts.Lease); err != nil {
		return p, err
	}
	if e.cfg.Models != nil {
		p.token = e.cfg.Models.Token(f.b.id, facts.Lease.ProcessEpoch())
	}
	return p, nil
}

// regain returns the compute of a lease, taking its sandbox over when that is not at
// hand, and gives the lease up when the sandbox is gone.
func (e *Engine) regain(ctx context.Context, l *sojourn.Lease) (*compute, error) {
	if l == nil || !l.Live(e.Now()) || e.cfg.Driver == nil {
		return nil, errNoSandbox
	}
	if c := e.live(l, e.Now()); c != nil {
		return c, nil
	}
	c, err := e.adopt(ctx, *l)
	if !errors.Is(err, sandbox.ErrGone) {
		return c, err
	}
	err = e.decide(ctx, l.Session, func(_ *store.Tx, d *sojourn.Decision) error {
		if now := d.Facts().Lease; now != nil && now.Epoch == l.Epoch {
			return e.giveUp(d, *now, nil)
		}
		return nil
	})
	return nil, cmp.Or(err, errNoSandbox)
}

// letGo reports whether a compute is not that of its session any more, or has ended:
// then it is no wonder that its keeper does not answer.
func (e *Engine) letGo(c *compute) bool {
	if c == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.computes[c.session] != c || ended(c.box)
}

// about describes the inside of the sandbox. It is asked for once.
func (c *compute) about(ctx context.Context) (link.Info, error) {
	if known := c.info.Load(); known != nil {
		return *known, nil
	}
	info, err := c.peer.Info(ctx)
	if err != nil {
		return info, fmt.Errorf("reach the keeper: %w", err)
	}
	c.info.Store(&info)
	return info, nil
}

// startParams is what the keeper is asked for.
func (p place) startParams(ctx context.Context) (link.StartParams, error) {
	info, err := p.c.about(ctx)
	if err != nil {
		return link.StartParams{}, err
	}
	x := p.x.Spec
	return link.StartParams{
		ProcessID: execPrefix + string(p.x.ID), Argv: x.Argv, Cwd: p.dir(), Env: p.env(info), Inherit: true,
		TTY: x.TTY, Rows: x.Rows, Cols: x.Cols, PipeStdin: x.Stdin != sojourn.StdinNone,
		Retain: link.RetainAck, SpoolBytes: execSpool, Timeout: x.Timeout, Grace: x.Grace,
	}, nil
}

// dir is where the exec starts: beneath the workspace, unless it says otherwise.
func (p place) dir() string {
	switch dir := p.x.Spec.Dir; {
	case dir == "":
		return cmp.Or(p.from.Dir, sojourn.WorkspacePath)
	case path.IsAbs(dir):
		return dir
	default:
		return path.Join(sojourn.WorkspacePath, dir)
	}
}

// env is what the exec's variables are beside those of the image.
func (p place) env(info link.Info) map[string]string {
	env := map[string]string{"HOME": sandbox.HomePath, "SHELL": info.Shell.Path}
	if info.Path == "" { // the image says nothing
		env["PATH"], env["LANG"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "C.UTF-8"
	}
	if p.x.Spec.TTY {
		env["TERM"] = "xterm-256color"
	}
	maps.Copy(env, p.c.gate.env())
	p.e.offerModels(env, p.token)
	maps.Copy(env, p.from.Env)
	maps.Copy(env, p.x.Spec.Env)
	return env
}

// modelVariables are where programs look for an API of models and its key.
var modelVariables = []struct{ api, url, key string }{
	{harness.APIAnthropic, "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"},
	{harness.APIOpenAI, "OPENAI_BASE_URL", "OPENAI_API_KEY"},
	{harness.APIGemini, "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY"},
}

// offerModels adds the variables of the APIs that the installation has models for.
func (e *Engine) offerModels(env map[string]string, token string) {
	if e.cfg.Models == nil || token == "" {
		return
	}
	for _, v := range modelVariables {
		if _, err := e.cfg.Models.Choose(v.api, ""); err != nil {
			continue
		}
		env["SOJOURN_MODEL_URL"], env["SOJOURN_MODEL_TOKEN"] = modelURL, token
		env[v.url], env[v.key] = harness.APIAddress(modelURL, v.api), token
	}
}
