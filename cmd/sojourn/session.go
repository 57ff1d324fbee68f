package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

// sessionCommand is everything that is done to sessions.
func sessionCommand(ctx context.Context, std stdio, args []string) error {
	return runVerbs(ctx, std, "session", sessionVerbs, args)
}

// idHelp says how things are named on the command line.
const idHelp = `A session is named by its id, by the beginning or the end of it (6 characters
or more, if only one session fits), or by "last" for the newest one.`

var sessionVerbs = []verb{
	{
		name: "create", summary: "create a session", prepare: prepareCreate,
		detail: "With --turn the first turn is submitted in the same step.",
	},
	{name: "list", summary: "list the sessions, newest first", prepare: prepareList},
	{
		name: "show", args: "ID", summary: "show a session, its workspace and what a next turn would carry",
		detail: idHelp, min: 1, max: 1, prepare: prepareShow,
	},
	{
		name: "turn", args: "ID TEXT...|-", summary: "submit a turn and follow its run to the end",
		detail: turnHelp + "\n\n" + idHelp, min: 2, max: -1, prepare: prepareTurn,
	},
	{
		name: "watch", args: "ID [RUN]", summary: "follow a run from its beginning to its end; without RUN the latest",
		detail: "The output and the exit code are those of session turn.\n\n" + idHelp, min: 1, max: 2, prepare: prepareWatch,
	},
	{
		name: "events", args: "ID", summary: "print the event log",
		detail: idHelp, min: 1, max: 1, prepare: prepareEvents,
	},
	{
		name: "cancel", args: "ID [RUN]", summary: "ask a run to end; without RUN the active one",
		detail: idHelp, min: 1, max: 2, prepare: prepareCancel,
	},
	{
		name: "network", args: "ID none|open|allow [RULE...]", summary: "change what the sandboxes of a session may reach, at once",
		detail: networkHelp + "\n\n" + idHelp, min: 2, max: -1, prepare: prepareNetwork,
	},
	{
		name: "suspend", args: "ID", summary: "save what the sandbox holds and give it back; the next use goes on from there",
		detail: idHelp, min: 1, max: 1, prepare: prepareSuspend,
	},
	{
		name: "rotate", args: "ID", summary: "replace the sandbox by a fresh one that carries the work",
		detail: idHelp, min: 1, max: 1, prepare: prepareRotate,
	},
	{
		name: "shell", args: "ID [CMD...]", summary: "open a shell in the sandbox, or go on with one",
		detail: shellHelp + "\n\n" + idHelp, min: 1, max: -1, prepare: prepareShell,
	},
	{
		name: "cp", args: "FROM TO", summary: "copy files into or out of the sandbox",
		detail: copyHelp + "\n\n" + idHelp, min: 2, max: 2, prepare: prepareCopy,
	},
	{
		name: "port-forward", args: "ID LOCAL:REMOTE...", summary: "lead ports here to ports in the sandbox",
		detail: forwardHelp + "\n\n" + idHelp, min: 2, max: -1, prepare: prepareForward,
	},
	{
		name: "archive", args: "ID", summary: "close a session for good; everything it holds can still be read",
		detail: idHelp, min: 1, max: 1, prepare: prepareArchive,
	},
}

func prepareCreate(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	title := fs.String("title", "", "a `title` for people")
	runtime := fs.String("runtime", "", "the agent `program`; the server's default when not given")
	model := fs.String("model", "", "the `model` that it is to use; the server's choice when not given")
	var cost costFlag
	fs.Var(&cost, "max-cost", "the most that calls of models may cost, an `amount` such as 2.50")
	turn := fs.String("turn", "", "the first turn's `text`")
	quiet := fs.Bool("quiet", false, "print the id and nothing else")
	var metadata pairsFlag
	fs.Var(&metadata, "metadata", "`key=value` to keep with the session; may be repeated")
	box := sandboxFlags(fs)
	return func(ctx context.Context, s *shell, _ []string) error {
		in := client.CreateSession{Title: *title, Runtime: *runtime, Model: *model, Metadata: metadata, Sandbox: box.sandbox(), Budget: cost.limits()}
		if *turn != "" {
			in.InitialTurn = &client.TurnInput{Input: client.Text(*turn)}
		}
		made, err := s.c.CreateSession(ctx, in)
		if err != nil {
			return s.failure(err)
		}
		switch {
		case s.p.json:
			return s.p.value(made)
		case *quiet:
			s.p.printf("%s\n", made.Session.ID)
			return nil
		}
		s.p.printf("%s created\n\n", made.Session.ID)
		if made.Run != nil {
			s.p.printf("its first turn is on its way; watch it with\n  sojourn session watch %s\n", made.Session.ID)
			return nil
		}
		s.p.printf("give it work with\n  sojourn session turn %s \"...\"\n", made.Session.ID)
		return nil
	}
}

func prepareList(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	archived := fs.Bool("archived", false, "the archived sessions instead of the others")
	contract := fs.String("contract", "", "only the sessions of one `contract`")
	limit := fs.Int("limit", 50, "at most this `number`; 0 lists all")
	return func(ctx context.Context, s *shell, _ []string) error {
		if *limit < 0 {
			return usagef("session list: --limit must not be negative")
		}
		sessions, more, err := s.sessions(ctx, client.SessionQuery{Archived: archived, Contract: *contract}, *limit)
		if err != nil {
			return s.failure(err)
		}
		if s.p.json {
			return s.p.value(map[string]any{"sessions": sessions, "more": more})
		}
		rows := make([][]string, len(sessions))
		for i, v := range sessions {
			rows[i] = []string{
				v.ID, v.Contract, runColumn(v), v.Workspace.State, v.Continuation.State,
				strconv.FormatInt(v.LastSequence, 10), s.p.when(v.UpdatedAt), terminal.Line(v.Title, 60),
			}
		}
		s.p.table([]string{"ID", "CONTRACT", "RUN", "WORKSPACE", "NEXT TURN", "EVENTS", "CHANGED", "TITLE"}, rows)
		if more {
			fmt.Fprintf(s.err, "there are more; --limit 0 lists all\n")
		}
		return nil
	}
}

// runColumn is what a session's row says of its runs.
func runColumn(v client.Session) string {
	switch {
	case v.ActiveRun != nil:
		return terminal.Line(v.ActiveRun.State, 20)
	case v.LastRun != nil:
		return terminal.Line(v.LastRun.State, 20)
	default:
		return "-"
	}
}

func prepareShow(*flag.FlagSet) func(context.Context, *shell, []string) error {
	return func(ctx context.Context, s *shell, args []string) error {
		v, err := s.session(ctx, args[0])
		if err != nil {
			return s.failure(err)
		}
		if s.p.json {
			return s.p.value(v)
		}
		s.describe(v)
		return nil
	}
}

// describe shows a session to people.
func (s *shell) describe(v client.Session) {
	state := v.State + bracketed(v.CloseReason)
	if v.ArchivedAt != nil {
		state = "archived " + s.p.when(*v.ArchivedAt)
	}
	fields := []field{
		{"session", v.ID},
		{"title", terminal.Line(v.Title, 0)},
		{"state", terminal.Line(state, 0)},
		{"contract", terminal.Line(v.Contract, 0)},
		{"runtime", terminal.Line(v.Runtime, 0)},
		{"workspace", s.workspace(v.Workspace)},
		{"lease", s.lease(v.Lease)},
		{"checkpoint", s.checkpoint(v.Checkpoint)},
		{"next turn", continuation(v.Continuation)},
		{"active run", s.run(v.ActiveRun)},
	}
	if v.ActiveRun == nil {
		fields = append(fields, field{"last run", s.run(v.LastRun)})
	}
	fields = append(
		fields,
		field{"cost", costOf(v.Budget)},
		field{"turns", strconv.FormatInt(v.Turns, 10)},
		field{"events", strconv.FormatInt(v.LastSequence, 10)},
		field{"created", s.p.when(v.CreatedAt)},
		field{"changed", s.p.when(v.UpdatedAt)},
	)
	for _, k := range slices.Sorted(maps.Keys(v.Metadata)) {
		fields = append(fields, field{"metadata", terminal.Line(k, 0) + "=" + terminal.Line(v.Metadata[k], 0)})
	}
	s.p.fields(fields)
	s.howToAnswer(v.ID, v.OpenInteractions)
}

func (s *shell) workspace(w client.Workspace) string {
	switch {
	case w.ExpiresAt == nil:
		return terminal.Line(w.State, 0)
	case w.State == "attached":
		return "attached until " + s.p.when(*w.ExpiresAt)
	default:
		return terminal.Line(w.State, 0) + " since " + s.p.when(*w.ExpiresAt)
	}
}

// lease shows a live lease, or how the latest one ended.
func (s *shell) lease(l *client.Lease) string {
	if l == nil {
		return ""
	}
	text := fmt.Sprintf("%d, %s on %s", l.Epoch, terminal.Line(l.State, 20), terminal.Line(l.Driver, 40))
	if l.Isolation != l.Driver {
		text += bracketed("isolation " + l.Isolation)
	}
	switch {
	case l.EndedAt != nil:
		text += " " + s.p.when(*l.EndedAt) + bracketed(l.EndReason)
	case l.CeilingAt != nil:
		text += ", ends at the latest " + s.p.when(*l.CeilingAt)
	}
	return text
}

func (s *shell) checkpoint(c *client.Checkpoint) string {
	if c == nil {
		return ""
	}
	text := fmt.Sprintf("%s, conversation %s%s, workspace %s%s, %d entries, %s", terminal.Line(c.ID, 60),
		terminal.Line(c.Conversation, 40), bracketed(c.ConversationReason), terminal.Line(c.Workspace, 40), bracketed(c.WorkspaceReason), c.Entries, size(c.Bytes))
	if c.SealedAt != nil {
		text += ", sealed " + s.p.when(*c.SealedAt)
	}
	return text
}

// continuation says what a next turn would get.
func continuation(c client.Continuation) string {
	text := fmt.Sprintf("%s: conversation %s, workspace %s", c.State, c.Conversation.Fidelity, c.Workspace.Fidelity)
	if !c.CanContinue {
		text = "not accepted; " + text
	}
	return terminal.Line(text, 0) + bracketed(strings.ReplaceAll(c.Reason, "_", " "))
}

// run shows a run on one line.
func (s *shell) run(r *client.Run) string {
	if r == nil {
		return ""
	}
	text := r.ID + " " + terminal.Line(r.State, 0) + bracketed(r.StopReason)
	switch {
	case r.EndedAt != nil:
		text += " " + s.p.when(*r.EndedAt)
	case r.StartedAt != nil:
		text += ", started " + s.p.when(*r.StartedAt)
	default:
		text += ", queued " + s.p.when(r.QueuedAt)
	}
	if r.LastError != nil {
		text += ": " + terminal.Line(r.LastError.Code, 80) + ": " + terminal.Line(r.LastError.Message, 2000)
	}
	return text
}

func prepareCancel(*flag.FlagSet) func(context.Context, *shell, []string) error {
	return func(ctx context.Context, s *shell, args []string) error {
		v, err := s.session(ctx, args[0])
		if err != nil {
			return s.failure(err)
		}
		var id string
		if len(args) > 1 {
			id, err = s.runID(ctx, v, args[1])
		} else if v.ActiveRun != nil {
			id = v.ActiveRun.ID
		} else {
			err = &exitError{exitRefused, fmt.Errorf("session %s has no active run to cancel", v.ID)}
		}
		if err != nil {
			return s.failure(err)
		}
		r, err := s.c.CancelRun(ctx, v.ID, id)
		if err != nil {
			return s.failure(err)
		}
		if s.p.json {
			return s.p.value(r)
		}
		if r.EndedAt == nil {
			s.p.printf("run %s: cancel requested\n", r.ID)
			return nil
		}
		s.p.printf("run %s: %s\n", r.ID, terminal.Line(r.State, 0))
		return nil
	}
}

func prepareArchive(*flag.FlagSet) func(context.Context, *shell, []string) error {
	return func(ctx context.Context, s *shell, args []string) error {
		v, err := s.session(ctx, args[0])
		if err == nil {
			v, err = s.c.ArchiveSession(ctx, v.ID)
		}
		if err != nil {
			return s.failure(err)
		}
		if s.p.json {
			return s.p.value(v)
		}
		s.p.printf("%s archived\n", v.ID)
		return nil
	}
}
