package main

import (
	"context"
	"errors"
	"flag"
	"time"

	"github.com/sojourn-dev/sojourn/client"
)

const createHelp = `With --turn the first turn is submitted in the same step. With --no-agent the
session has no agent: it takes commands by sojourn exec, within its budget, in
sandboxes that are replaced under it. Only such a session has the flags that are
marked with a star.`

// bareFlags are those of a session without an agent.
type bareFlags struct {
	noAgent          bool
	contract         string
	iterations       int64
	duration         time.Duration
	timeout          time.Duration
	client, abandon  string
	buffer, interval time.Duration
	carry, noIdle    bool
	hook, dir        string
	env              pairsFlag
	start            bool
}

func (f *bareFlags) define(fs *flag.FlagSet) {
	fs.BoolVar(&f.noAgent, "no-agent", false, "a session that takes commands and no turns; the same as --contract exec")
	fs.StringVar(&f.contract, "contract", "", "the `contract` that it belongs to: cloud or exec")
	fs.Int64Var(&f.iterations, "max-iterations", 0, "* how many commands it may run, a `number`")
	fs.DurationVar(&f.duration, "max-duration", 0, "* how long it may be open, a `duration`; a pause does not count")
	fs.DurationVar(&f.timeout, "timeout", 0, "* how long one sandbox lives before it is replaced, a `duration`")
	fs.StringVar(&f.client, "client-id", "", "* your own `handle`, to reattach by")
	fs.StringVar(&f.abandon, "on-abandon", "", "* `what` becomes of it when heartbeats stay away: pause or stop")
	fs.DurationVar(&f.buffer, "rotate-buffer", 0, "* how long before its timeout the sandbox is replaced, a `duration`; 30s when not given")
	fs.BoolVar(&f.carry, "carry-processes", false, "* carry running processes into the next sandbox; refused where the isolation cannot")
	fs.StringVar(&f.hook, "hook", "", "* a `command` for sh, to run in the sandbox before it is replaced")
	fs.DurationVar(&f.interval, "checkpoint-every", 0, "* the longest time between checkpoints while commands run, a `duration`; 5m when not given")
	fs.BoolVar(&f.noIdle, "no-idle-checkpoint", false, "* no checkpoint after each command that changed files")
	fs.StringVar(&f.dir, "dir", "", "* where commands start, a `directory` in the workspace")
	fs.Var(&f.env, "env", "* `name=value` for the environment of its commands; may be repeated")
	fs.BoolVar(&f.start, "start", false, "* start it at once")
}

// used reports whether one of the flags was given that only a session without an
// agent has.
func (f *bareFlags) used() bool {
	return f.iterations != 0 || f.duration != 0 || f.timeout != 0 || f.client != "" || f.abandon != "" || f.buffer != 0 ||
		f.carry || f.hook != "" || f.interval != 0 || f.noIdle || f.dir != "" || len(f.env) > 0 || f.start
}

// apply adds what the flags say.
func (f *bareFlags) apply(in *client.CreateSession) error {
	in.Contract = f.contract
	if f.noAgent {
		if f.contract != "" && f.contract != "exec" || in.Runtime != "" && in.Runtime != "none" {
			return usagef("session create: --no-agent goes with no other --contract or --runtime")
		}
		in.Contract = "exec"
	}
	if in.Contract != "exec" && in.Runtime != "none" {
		if f.used() {
			return usagef("session create: say --no-agent, or leave out the flags that only a session without an agent has")
		}
		return nil
	}
	if f.iterations < 0 || min(f.duration, f.timeout, f.buffer, f.interval) < 0 {
		return usagef("session create: a limit must not be negative")
	}
	if f.iterations > 0 || f.duration > 0 {
		if in.Budget == nil {
			in.Budget = &client.BudgetLimits{}
		}
		in.Budget.Iterations, in.Budget.DurationSeconds = f.iterations, f.duration.Seconds()
	}
	if f.timeout > 0 {
		if in.Sandbox == nil {
			in.Sandbox = &client.Sandbox{}
		}
		in.Sandbox.TimeoutSeconds = f.timeout.Seconds()
	}
	terms := client.RotationTerms{
		BufferSeconds: f.buffer.Seconds(), Processes: f.carry, CheckpointSeconds: f.interval.Seconds(), NoIdleCheckpoint: f.noIdle,
	}
	if f.hook != "" {
		terms.Hook = []string{"sh", "-c", f.hook}
	}
	in.Rotation, in.ClientID, in.OnAbandon = &terms, f.client, f.abandon
	if f.dir != "" || len(f.env) > 0 {
		in.Context = &client.CarryoverPatch{Env: f.env}
		if f.dir != "" {
			in.Context.Dir = &f.dir
		}
	}
	return nil
}

func prepareCreate(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	title := fs.String("title", "", "a `title` for people")
	runtime := fs.String("runtime", "", "the agent `program`, or none; the server's default when not given")
	model := fs.String("model", "", "the `model` that it is to use; the server's choice when not given")
	var cost costFlag
	fs.Var(&cost, "max-cost", "the most that it may cost, an `amount` such as 2.50")
	turn := fs.String("turn", "", "the first turn's `text`")
	quiet := fs.Bool("quiet", false, "print the id and nothing else")
	var metadata pairsFlag
	fs.Var(&metadata, "metadata", "`key=value` to keep with the session; may be repeated")
	box := sandboxFlags(fs)
	var bare bareFlags
	bare.define(fs)
	return func(ctx context.Context, s *shell, _ []string) error {
		for _, name := range []string{"max-iterations", "max-duration", "timeout"} {
			if f := fs.Lookup(name); given(fs, name) && (f.Value.String() == "0" || f.Value.String() == "0s") {
				return usagef("session create: --%s 0 would let nothing be done; leave it out for no limit", name)
			}
		}
		in := client.CreateSession{Title: *title, Runtime: *runtime, Model: *model, Metadata: metadata, Sandbox: box.sandbox(), Budget: cost.limits()}
		if *turn != "" {
			in.InitialTurn = &client.TurnInput{Input: client.Text(*turn)}
		}
		if err := bare.apply(&in); err != nil {
			return err
		}
		made, err := s.c.CreateSession(ctx, in)
		if err != nil {
			return s.failure(err)
		}
		if bare.start {
			started, err := s.c.StartSession(ctx, made.Session.ID)
			if err != nil {
				return errors.Join(s.failure(err), errors.New("session "+made.Session.ID+" is there, and not started"))
			}
			made.Session = started
		}
		switch {
		case s.p.json:
			return s.p.value(made)
		case *quiet:
			s.p.printf("%s\n", made.Session.ID)
			return nil
		}
		s.created(made)
		return nil
	}
}

// created says what can be done with a new session.
func (s *shell) created(made client.Created) {
	v := made.Session
	switch {
	case v.Status == "pending":
		s.p.printf("%s created\n\nstart it with\n  sojourn session start %s\n", v.ID, v.ID)
	case v.Status != "":
		s.p.printf("%s created and started\n\nrun a command in it with\n  sojourn exec %s -- CMD\n", v.ID, v.ID)
	case made.Run != nil:
		s.p.printf("%s created\n\nits first turn is on its way; watch it with\n  sojourn session watch %s\n", v.ID, v.ID)
	default:
		s.p.printf("%s created\n\ngive it work with\n  sojourn session turn %s \"...\"\n", v.ID, v.ID)
	}
}
