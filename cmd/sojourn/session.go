package main

import (
	"context"
	"flag"
	"fmt"
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
		detail: createHelp,
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
		name: "cancel", args: "ID [RUN]", summary: "ask a run to end, the active one without RUN; or end a session without an agent",
		detail: "A session without an agent is ended for good, and what runs in it is killed;\nsession stop ends it in good order.\n\n" + idHelp, min: 1, max: 2, prepare: prepareCancel,
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
	startVerb, pauseVerb, resumeVerb, stopVerb, deleteVerb,
	budgetVerb, contextVerb, toolsVerb, heartbeatVerb, reattachVerb,
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
		s.p.table([]string{"ID", "CONTRACT", "STATUS", "WORKSPACE", "NEXT TURN", "EVENTS", "CHANGED", "TITLE"}, rows)
		if more {
			fmt.Fprintf(s.err, "there are more; --limit 0 lists all\n")
		}
		return nil
	}
}

// runColumn is what a session's row says of its runs.
func runColumn(v client.Session) string {
	switch {
	case v.Status != "":
		return terminal.Line(v.Status, 20)
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
		if v.Status != "" {
			return s.cancelBare(ctx, v, args[1:])
		}
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
