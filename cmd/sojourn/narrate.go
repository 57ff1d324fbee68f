package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

// lineRunes is how much foreign text a line of the narration holds.
const lineRunes = 200

// narrator tells people what happens in a run, as it happens.
type narrator struct {
	p       *printer
	session string
	text    terminal.Stream
	voice   string            // whose text is open: a kind of update, or ""
	tools   map[string]string // titles of the tool calls under way
	begun   time.Time         // when the run was taken up by a worker
}

func newNarrator(p *printer, session string) *narrator {
	return &narrator{p: p, session: session, text: terminal.Stream{W: p.out}, tools: map[string]string{}}
}

// note writes one line of ours.
func (n *narrator) note(s style, sign, format string, args ...any) {
	n.text.Fresh()
	n.voice = ""
	n.p.printf("%s\n", n.p.styled(s, sign+" "+fmt.Sprintf(format, args...)))
}

// tell narrates one event.
func (n *narrator) tell(e client.Event) {
	switch sojourn.EventType(e.Type) {
	case sojourn.EventAgentUpdate:
		n.update(e.Data)
	case sojourn.EventAgentLog:
		var d struct{ Text string }
		unpack(e.Data, &d)
		n.note(dim, "|", "%s", terminal.Line(d.Text, lineRunes))
	case sojourn.EventInteractionRequested:
		n.question(e.Data)
	case sojourn.EventRunStarted:
		if n.begun.IsZero() {
			n.begun = e.OccurredAt
		}
		n.note(dim, "·", "%s", happening(e))
	case sojourn.EventRunCompleted:
		n.note(green, "✓", "%s", n.outcome(e))
	case sojourn.EventRunFailed, sojourn.EventRunCrashed, sojourn.EventRunCancelled:
		n.note(red, "✗", "%s", n.outcome(e))
	case sojourn.EventModelCalled:
		var c sojourn.ModelCall
		if unpack(e.Data, &c); c.Failure != "" && c.Failure != sojourn.ModelCancelled {
			n.note(yellow, "!", "%s", happening(e))
		}
	case sojourn.EventCheckpointFailed, sojourn.EventWorkspaceLost, sojourn.EventWorkspaceExpired, sojourn.EventWorkspaceSilent:
		n.note(yellow, "!", "%s", happening(e))
	default:
		if text := happening(e); text != "" {
			n.note(dim, "·", "%s", text)
		}
	}
}

// outcome is the last line of a run.
func (n *narrator) outcome(e client.Event) string {
	var d eventData
	unpack(e.Data, &d)
	took := ""
	if !n.begun.IsZero() && e.OccurredAt.After(n.begun) {
		took = span(e.OccurredAt.Sub(n.begun))
	}
	return ending(e.Type, d, took)
}

// update narrates one update of the agent's protocol.
func (n *narrator) update(data json.RawMessage) {
	u := readUpdate(data)
	switch u.Kind {
	case "agent_message_chunk", "agent_thought_chunk":
		if n.voice != u.Kind {
			n.text.Fresh()
			n.voice = u.Kind
			if u.Kind == "agent_thought_chunk" {
				n.text.Write("(thinking) ")
			}
		}
		n.text.Write(u.text())
	case "tool_call", "tool_call_update":
		n.tool(u)
	case "plan":
		done := 0
		for _, e := range u.Entries {
			if e.Status == "completed" {
				done++
			}
		}
		n.note(dim, "·", "plan: %d of %d steps done", done, len(u.Entries))
	case "user_message_chunk", "available_commands_update", "current_mode_update", "config_option_update",
		"session_info_update", "usage_update":
		// The agent's own affairs.
	default:
		n.note(dim, "·", "agent update %s", terminal.Line(u.Kind, 60))
	}
}

// tool gives a tool call one line when it begins, and one more only if it fails.
func (n *narrator) tool(u agentUpdate) {
	title, known := n.tools[u.ToolCallID]
	if !known || title == "" {
		title = u.title()
	}
	if !known && len(n.tools) < maxTools {
		n.tools[u.ToolCallID] = title
	}
	if !known {
		n.note(dim, "→", "%s", title)
	}
	if u.Status == "failed" {
		n.note(yellow, "✗", "%s failed", title)
	}
}

// maxTools is how many tool calls of one run are told apart.
const maxTools = 10_000

// question narrates what the agent asks, with the commands that answer it.
func (n *narrator) question(data json.RawMessage) {
	var d struct {
		InteractionID string
		Kind          string
		Request       json.RawMessage
		Options       []client.Option
	}
	unpack(data, &d)
	n.note(yellow, "?", "%s", asked(d.Kind, d.Request))
	for _, c := range choices(n.session, d.InteractionID, d.Options) {
		n.p.printf("    %s\n      %s\n", c.name, c.command)
	}
}

// asked puts a question into one line.
func asked(kind string, request json.RawMessage) string {
	var r struct {
		ToolCall struct{ Title, Kind string }
		Message  string
		Question string
		Title    string
		Command  []string
		Tool     string
	}
	unpack(request, &r)
	if kind == "approval" {
		return "an execution waits for an approval: " + commandLine(client.Execution{Command: r.Command, Tool: r.Tool})
	}
	for _, text := range []string{r.ToolCall.Title, r.Message, r.Question, r.Title, r.ToolCall.Kind} {
		if text = terminal.Line(text, lineRunes); text != "" {
			return "the agent asks for " + article(kind) + ": " + text
		}
	}
	return "the agent asks for " + article(kind)
}

func article(kind string) string {
	switch kind {
	case "permission":
		return "permission"
	case "question":
		return "an answer"
	default:
		return "a decision (" + terminal.Line(kind, 40) + ")"
	}
}

// choice is one way to answer an interaction.
type choice struct{ name, command string }

// choices lists the ways to answer an interaction. A command can be pasted: what
// the agent chose is quoted for a shell, and what an option means is never on
// the same line, because not every shell takes a # for a comment.
func choices(session, interaction string, options []client.Option) []choice {
	command := "sojourn interaction answer " + quoted(session) + " " + quoted(interaction) + " "
	if len(options) == 0 {
		return []choice{{"in your own words", command + "--text 'YOUR ANSWER'"}}
	}
	out := make([]choice, len(options))
	for i, o := range options {
		out[i] = choice{terminal.Line(o.Name, 80), command + quoted(shortest(o, options))}
	}
	return out
}

// shortest names an option: by its kind when no other has it, else by its id.
func shortest(o client.Option, options []client.Option) string {
	switch o.Kind {
	case "allow_once", "allow_always", "reject_once", "reject_always":
	default:
		return o.OptionID
	}
	for _, other := range options {
		if other.OptionID != o.OptionID && (other.Kind == o.Kind || other.OptionID == o.Kind) {
			return o.OptionID
		}
	}
	return o.Kind
}

// quoted makes a word safe to paste into a shell.
func quoted(s string) string {
	s = terminal.Visible(s, "")
	plain := func(r rune) bool {
		return r < 0x7f && (r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune("_-.,:/@+", r))
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		if s[0] == '-' {
			return "-- " + s
		}
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
