package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

const execHelp = `CMD and its ARGS arrive in the sandbox as they are given here; no shell reads
them. What the program writes comes out here as it comes, byte for byte, each
stream where it belongs. With -i it reads what is read here, and the end of that
is the end of its input only; without, its input ends at once.

The exit code is that of the program, 128 and the number of a signal that ended
it, 124 when its timeout did, 127 when there is no such program, 126 when it
cannot be executed. 125 says that how it ended is not known.

Ctrl-C is sent to the program; a second one cancels it. When the connection or
the server is lost the program goes on, and so does this, at the byte. One
program runs at a time and the others wait their turn; with --detach it runs
beside them, and nobody waits for it.

sojourn exec attach, list, show, output, signal and cancel look after executions;
sojourn exec help says more.`

// execVerbs are what can be done to executions besides starting them.
var execVerbs = []verb{
	{
		name: "attach", args: "SESSION EXEC", summary: "follow an execution from its beginning to its end",
		detail: "The output and the exit code are those of sojourn exec.\n\n" + execIDHelp, min: 2, max: 2, prepare: prepareExecAttach,
	},
	{name: "list", args: "SESSION", summary: "list the executions of a session, newest first", detail: idHelp, min: 1, max: 1, prepare: prepareExecList},
	{name: "show", args: "SESSION EXEC", summary: "show an execution", detail: execIDHelp, min: 2, max: 2, prepare: prepareExecShow},
	{
		name: "output", args: "SESSION EXEC", summary: "print what an execution wrote, from any byte on",
		detail: execIDHelp, min: 2, max: 2, prepare: prepareExecOutput,
	},
	{
		name: "signal", args: "SESSION EXEC SIGNAL", summary: "send a signal, such as SIGHUP, to an execution",
		detail: execIDHelp, min: 3, max: 3, prepare: prepareExecSignal,
	},
	{
		name: "cancel", args: "SESSION EXEC", summary: "end an execution: SIGTERM, and SIGKILL after its grace",
		detail: execIDHelp, min: 2, max: 2, prepare: prepareExecCancel,
	},
}

const execIDHelp = `A session is named by its id, by the beginning or the end of it (6 characters
or more, if only one session fits), or by "last" for the newest one; an
execution likewise, within its session.`

// execRun is the verb without a name: it starts an execution.
var execRun = verb{
	args: "SESSION [--] CMD [ARGS...]", summary: "run a command in the sandbox of a session without an agent",
	detail: execHelp + "\n\n" + idHelp, min: 1, max: -1, rest: 1, prepare: prepareExec,
}

// execCommand runs something in a sandbox, or does what is done to executions.
func execCommand(ctx context.Context, std stdio, args []string) error {
	switch {
	case len(args) == 0:
		execGroupHelp(std)
		return usagef("exec: say where and what to run")
	case args[0] == "help":
		execGroupHelp(stdio{std.in, std.out, std.out})
		return nil
	case slices.ContainsFunc(execVerbs, func(v verb) bool { return v.name == args[0] }):
		return runVerbs(ctx, std, "exec", execVerbs, args)
	}
	return runVerb(ctx, std, "exec", execRun, settings{}, args)
}

func execGroupHelp(std stdio) {
	fmt.Fprintf(std.err, "Usage: sojourn exec [flags] %s\n   or: sojourn exec VERB ...\n\n", execRun.args)
	groupHelp(std.err, "exec", execVerbs)
}

// execFlags say what to run and how.
type execFlags struct {
	dir, tool, input string
	env              pairsFlag
	timeout, grace   time.Duration
	detach, approve  bool
	stdin, tty, both bool
	patience         time.Duration
}

func (f *execFlags) define(fs *flag.FlagSet) {
	fs.StringVar(&f.dir, "w", "", "`directory` to start in; that of the session's context when not given")
	fs.Var(&f.env, "e", "`name=value` for its environment; may be repeated")
	fs.DurationVar(&f.timeout, "timeout", 0, "end it after this `duration`, 1s to 10m; 1m when not given, none with --detach")
	fs.DurationVar(&f.grace, "grace", 0, "how long after SIGTERM SIGKILL follows, a `duration`; 2s when not given")
	fs.BoolVar(&f.detach, "detach", false, "run it beside others, print its id and do not wait")
	fs.BoolVar(&f.stdin, "i", false, "send it what is read here")
	fs.BoolVar(&f.tty, "t", false, "give it a terminal")
	fs.BoolVar(&f.both, "it", false, "both -i and -t")
	fs.StringVar(&f.tool, "tool", "", "call the tool of this `name` instead of a command")
	fs.StringVar(&f.input, "input", "", "the tool's input, `JSON`")
	fs.BoolVar(&f.approve, "require-approval", false, "let it wait until somebody approves it")
	fs.DurationVar(&f.patience, "patience", defaultPatience, "how long to wait for a server that went away, as a `duration`")
}

// start is what the flags and words ask for.
func (f *execFlags) start(fs *flag.FlagSet, argv []string) (client.StartExecution, error) {
	none := client.StartExecution{}
	switch {
	case (len(argv) == 0) == (f.tool == ""):
		return none, usagef("exec: give either a command or --tool")
	case f.tool == "" && given(fs, "input"):
		return none, usagef("exec: --input is for a tool")
	case f.detach && (f.stdin || f.both):
		return none, usagef("exec: a detached program cannot read what is read here; leave -i out, and attach to it")
	case given(fs, "timeout") && f.timeout < time.Millisecond, f.grace < 0:
		return none, usagef("exec: a duration must be positive")
	}
	for _, a := range argv {
		if !utf8.ValidString(a) {
			return none, usagef("exec: an argument is not UTF-8, so it would not arrive as it is: %q", a)
		}
	}
	in := client.StartExecution{
		Command: argv, Tool: f.tool, Dir: f.dir, Env: f.env, TimeoutMs: f.timeout.Milliseconds(),
		Detached: f.detach, TTY: f.tty || f.both, RequireApproval: f.approve,
	}
	if given(fs, "grace") {
		in.GraceMs = new(f.grace.Milliseconds())
	}
	if f.stdin || f.both {
		in.Stdin = "stream"
	}
	if f.input != "" {
		if !json.Valid([]byte(f.input)) {
			return none, usagef("exec: --input is not JSON")
		}
		in.Input = json.RawMessage(f.input)
	}
	return in, nil
}

// given reports whether a flag was set.
func given(fs *flag.FlagSet, name string) (is bool) {
	fs.Visit(func(f *flag.Flag) { is = is || f.Name == name })
	return is
}

func prepareExec(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	var f execFlags
	f.define(fs)
	return func(ctx context.Context, s *shell, words []string) error {
		in, err := f.start(fs, words[1:])
		if err != nil {
			return err
		}
		v, err := s.session(ctx, words[0])
		if err != nil {
			return s.failure(err)
		}
		terminalSize(s, &in)
		x, err := s.c.StartExecution(ctx, v.ID, in)
		if err != nil {
			return s.failure(err)
		}
		if f.detach {
			return s.detached(x)
		}
		return s.carry(ctx, carried{session: v.ID, started: x, stdin: in.Stdin != "", tty: in.TTY, patience: f.patience})
	}
}

// detached shows an execution that nobody waits for.
func (s *shell) detached(x client.StartedExecution) error {
	if s.p.json {
		return s.p.value(x)
	}
	s.p.printf("%s\n", x.Execution.ID)
	if x.Approval != nil {
		s.parked(x)
	}
	return nil
}

// parked says how the approval that an execution waits for is given.
func (s *shell) parked(x client.StartedExecution) {
	fmt.Fprintf(s.err, "sojourn: it waits for an approval%s\n", until(x.Approval))
	for _, c := range choices(x.Execution.SessionID, x.Approval.ID, x.Approval.Options) {
		fmt.Fprintf(s.err, "    %s\n      %s\n", c.name, c.command)
	}
}

func until(i *client.Interaction) string {
	if i.ExpiresAt == nil {
		return ""
	}
	return ", until " + clock(*i.ExpiresAt)
}

// execution finds the execution of a session that a word names.
func (s *shell) execution(ctx context.Context, session, word string) (client.StartedExecution, error) {
	x, err := s.c.Execution(ctx, session, word)
	refused, ok := errors.AsType[*client.Error](err)
	if !ok || refused.Status != 404 {
		return x, err
	}
	notFound := err
	var all []client.Execution
	for cursor := ""; ; {
		page, err := s.c.Executions(ctx, session, cursor, pageSize)
		if err != nil {
			return x, err
		}
		all = append(all, page.Executions...)
		if cursor = page.NextCursor; cursor == "" || word == "last" {
			break
		}
	}
	if word == "last" {
		all = slices.DeleteFunc(all, func(x client.Execution) bool { return x.Hook })
		if len(all) == 0 {
			return x, &exitError{exitNotFound, fmt.Errorf("session %s has run nothing yet", session)}
		}
		return s.c.Execution(ctx, session, all[0].ID)
	}
	found, err := named(all, "execution", word, func(x client.Execution) string { return x.ID }, notFound)
	if err != nil {
		return x, err
	}
	return s.c.Execution(ctx, session, found.ID)
}

// commandLine shows what an execution runs, on one line.
func commandLine(x client.Execution) string {
	if x.Tool != "" {
		return "tool " + terminal.Line(x.Tool, 80)
	}
	words := make([]string, 0, len(x.Command))
	for _, w := range x.Command[:min(len(x.Command), 64)] {
		words = append(words, strings.TrimPrefix(quoted(w), "-- "))
	}
	return terminal.Line(strings.Join(words, " "), lineRunes)
}
