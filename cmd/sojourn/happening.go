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

// agentUpdate is what we read of an update of the agent's protocol. All of it is
// the agent's own words.
type agentUpdate struct {
	Kind       string          `json:"sessionUpdate"`
	Content    json.RawMessage `json:"content"`
	ToolCallID string          `json:"toolCallId"`
	Title      string          `json:"title"`
	ToolKind   string          `json:"kind"`
	Status     string          `json:"status"`
	Entries    []struct {
		Status string `json:"status"`
	} `json:"entries"`
}

// readUpdate reads the data of an agent.update event. What does not fit is left
// empty: an agent must not be able to break the narration.
func readUpdate(data json.RawMessage) agentUpdate {
	var d struct {
		Update json.RawMessage `json:"update"`
	}
	unpack(data, &d)
	var u agentUpdate
	unpack(d.Update, &u)
	return u
}

// text is the text of a chunk, or a sign for content that is none.
func (u agentUpdate) text() string {
	var c struct{ Type, Text, MimeType, URI, Name string }
	unpack(u.Content, &c)
	switch {
	case c.Type == "text" || c.Type == "" && c.Text != "":
		return c.Text
	case c.URI != "" || c.Name != "":
		return "[" + c.Type + " " + c.Name + " " + c.URI + "]"
	default:
		return "[" + c.Type + " " + c.MimeType + "]"
	}
}

// title names a tool call on one line.
func (u agentUpdate) title() string {
	for _, s := range []string{u.Title, u.ToolKind, u.ToolCallID} {
		if s = terminal.Line(s, lineRunes); s != "" {
			return s
		}
	}
	return "a tool"
}

// unpack reads what fits of a JSON object into v, whose fields keep their zero
// values otherwise.
func unpack(data json.RawMessage, v any) { _ = json.Unmarshal(data, v) }

// happening says in one line what an event is about.
func happening(e client.Event) string {
	var d eventData
	unpack(e.Data, &d)
	switch sojourn.EventType(e.Type) {
	case sojourn.EventSessionCreated:
		return "session created"
	case sojourn.EventSessionUpdated:
		return "session changed"
	case sojourn.EventSessionArchived:
		return "session archived"
	case sojourn.EventTurnSubmitted:
		return "turn submitted"
	case sojourn.EventRunQueued:
		return "run queued"
	case sojourn.EventRunStarted:
		return "run starting"
	case sojourn.EventRunActive:
		return "the agent has the prompt"
	case sojourn.EventRunRecovered:
		return "the run was taken up again"
	case sojourn.EventRunCancelRequested:
		return "cancel requested"
	case sojourn.EventRunCompleted, sojourn.EventRunFailed, sojourn.EventRunCrashed, sojourn.EventRunCancelled:
		return ending(e.Type, d, "")
	case sojourn.EventAgentUpdate:
		return updateInLine(readUpdate(e.Data))
	case sojourn.EventAgentLog:
		return "agent log: " + terminal.Line(d.Text, lineRunes)
	case sojourn.EventModelCalled:
		return calledModel(e.Data)
	}
	if text := ofBare(e); text != "" {
		return text
	}
	if text := ofSandbox(sojourn.EventType(e.Type), d); text != "" {
		return text
	}
	return elsewhere(sojourn.EventType(e.Type), d)
}

// elsewhere says what an event of workspace, checkpoint or interaction is about.
func elsewhere(t sojourn.EventType, d eventData) string {
	switch t {
	case sojourn.EventWorkspaceAttached:
		return fmt.Sprintf("workspace attached: lease %d, isolation %s, until %s", d.Epoch, terminal.Line(d.Isolation, 40), clock(d.ExpiresAt))
	case sojourn.EventWorkspaceRestored:
		return "workspace and conversation restored from checkpoint " + terminal.Line(d.CheckpointID, 60)
	case sojourn.EventWorkspaceLost, sojourn.EventWorkspaceExpired, sojourn.EventWorkspaceReleased:
		return fmt.Sprintf("workspace %s: lease %d%s", strings.TrimPrefix(string(t), "workspace."), d.Epoch, bracketed(d.Reason))
	case sojourn.EventCheckpointSealed:
		return fmt.Sprintf("checkpoint sealed: conversation %s, workspace %s, %d entries, %s (%s new)",
			terminal.Line(d.Conversation, 40), terminal.Line(d.Workspace, 40), d.Entries, size(d.Bytes), size(d.StoredBytes))
	case sojourn.EventCheckpointFailed:
		return fmt.Sprintf("checkpoint failed: conversation %s%s, workspace %s%s", terminal.Line(d.Conversation, 40),
			bracketed(d.ConversationReason), terminal.Line(d.Workspace, 40), bracketed(d.WorkspaceReason))
	case sojourn.EventInteractionRequested:
		return asked(d.Kind, d.Request) + " (interaction " + terminal.Line(d.InteractionID, 60) + ")"
	case sojourn.EventInteractionAnswered:
		answer := d.Answer.OptionID
		if answer == "" {
			answer = d.Answer.Text
		}
		return "answered: " + terminal.Line(answer, 60)
	case sojourn.EventInteractionExpired:
		return "the question can no longer be answered" + bracketed(d.Reason)
	case sojourn.EventInteractionWithdrawn:
		return "the agent took its question back"
	default:
		return terminal.Line(string(t), 60)
	}
}

// eventData is all that the payloads of our own events may hold.
type eventData struct {
	StopReason         string
	Reason             string
	Error              *struct{ Code, Message string }
	ModelError         *sojourn.ModelError
	Text               string
	Epoch              int64
	Isolation          string
	ExpiresAt          time.Time
	CheckpointID       string
	Conversation       string
	ConversationReason string
	Workspace          string
	WorkspaceReason    string
	Entries            int64
	Bytes              int64
	StoredBytes        int64
	InteractionID      string
	Kind               string
	Request            json.RawMessage
	Answer             struct{ OptionID, Text string }

	Detail    string
	FromEpoch int64
	Processes json.RawMessage
	Limits    map[string]int64
	Mode      string
	Allow     []string
	Decisions []sojourn.NetworkDecision
	Percent   int
	Limit     string
}

// ending says how a run ended; took is how long it did, or "".
func ending(kind string, d eventData, took string) string {
	text := strings.TrimPrefix(kind, "run.")
	if d.StopReason != text {
		text += bracketed(d.StopReason)
	}
	if took != "" {
		text += " after " + took
	}
	if d.Error == nil {
		return text + failedModel(d.ModelError)
	}
	if d.Error.Code != d.StopReason {
		text += ": " + terminal.Line(d.Error.Code, 80)
	}
	return text + ": " + terminal.Line(d.Error.Message, 2000) + failedModel(d.ModelError)
}

func bracketed(s string) string {
	if s = terminal.Line(s, 120); s == "" {
		return ""
	}
	return " (" + s + ")"
}

// clock shows when something will be, both ways.
func clock(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return t.Local().Format("15:04:05") + " (" + relative(time.Until(t)) + ")"
}

// updateInLine says in one line what an update of the agent is about.
func updateInLine(u agentUpdate) string {
	switch u.Kind {
	case "agent_message_chunk":
		return "agent: " + terminal.Line(u.text(), lineRunes)
	case "agent_thought_chunk":
		return "agent thinks: " + terminal.Line(u.text(), lineRunes)
	case "tool_call":
		return "tool: " + u.title() + bracketed(u.Status)
	case "tool_call_update":
		return "tool: " + u.title() + bracketed(u.Status)
	default:
		return "agent update " + terminal.Line(u.Kind, 60)
	}
}
