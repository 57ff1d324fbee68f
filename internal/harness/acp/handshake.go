package acp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// protocolVersion is the only version of ACP that this package speaks.
const protocolVersion = 1

// The steps name our requests and their writes; see drive.id.
const (
	stepInitialize = "initialize"
	stepOpen       = "open"
	stepSetting    = "setting"
	stepPrompt     = "prompt"
	stepCancel     = "cancel"
)

// reuse attaches to the agent that an earlier run under this epoch has left, if
// it is alive and has the right conversation open, and reports whether it did.
// What it has said since then is dropped.
func (d *drive) reuse(ctx context.Context, old *state) (bool, error) {
	if old.Process == "" || old.Unfit || old.Stage != stageEnded ||
		old.Conversation == "" || old.Conversation != d.conversation {
		return false, nil
	}
	d.st = old.next(string(d.job.Run))
	d.reusing = true
	defer func() { d.reusing = false }()
	d.attach(ctx)
	for _, m := range d.st.Out {
		d.box.put(m)
	}
	if err := d.pump(ctx, func() bool { return d.caughtUp || d.exit != nil }); err != nil {
		return false, err
	}
	return d.exit == nil, nil
}

// handshake starts an agent and opens the conversation in it.
func (d *drive) handshake(ctx context.Context, old *state) error {
	d.startup.Reset(d.h.StartWithin)
	defer d.startup.Stop()
	err := d.launch(ctx, old)
	for _, step := range []func(context.Context) error{d.initialize, d.open, d.settings} {
		if err != nil || d.end != nil {
			break
		}
		err = step(ctx)
	}
	if err != nil || d.end == nil {
		return err
	}
	d.st.Unfit = true
	return nil
}

// silent ends a handshake that takes too long.
func (d *drive) silent() {
	d.end = failed(CodeAgentSilent, "The agent %s did not answer within %v of its start.", d.name(), d.h.StartWithin)
	d.end.Killed = true
}

// initialize introduces us and learns what the agent can do.
func (d *drive) initialize(ctx context.Context) error {
	result, refusal, err := d.call(ctx, stepInitialize, "initialize", map[string]any{
		"protocolVersion": protocolVersion,
		"clientCapabilities": map[string]any{
			"fs": map[string]any{"readTextFile": false, "writeTextFile": false}, "terminal": false,
		},
		"clientInfo": map[string]any{"name": "sojourn", "title": "Sojourn", "version": d.h.Version},
	})
	if err != nil || d.end != nil {
		return err
	}
	if refusal != nil {
		d.end = failed(CodeAgentError, "The agent %s refused to be initialized: %s", d.name(), refusal.text())
		return nil
	}
	d.caps = initialized{}
	if err := json.Unmarshal(result, &d.caps); err != nil || d.caps.ProtocolVersion != protocolVersion {
		d.end = failed(CodeAgentProtocol, "The agent %s does not speak version %d of the Agent Client Protocol.", d.name(), protocolVersion)
		return nil
	}
	info := d.caps.AgentInfo
	d.st.Agent = clip(or(info.Name, info.Title), 100)
	if info.Version != "" {
		d.st.Agent += " " + clip(info.Version, 100)
	}
	p := d.caps.AgentCapabilities.PromptCapabilities
	d.st.Image, d.st.Embedded = p.Image, p.EmbeddedContext
	return nil
}

// open opens the conversation to go on with, or a new one.
func (d *drive) open(ctx context.Context) error {
	if d.conversation == "" {
		return d.openNew(ctx)
	}
	advertised := map[string]bool{
		"resume": present(d.caps.AgentCapabilities.SessionCapabilities.Resume) != nil,
		"load":   d.caps.AgentCapabilities.LoadSession,
	}
	why := "it can neither resume nor load a conversation"
	for n, how := range d.job.Runtime.Resume {
		if !advertised[how] || slices.Index(d.job.Runtime.Resume, how) != n {
			continue
		}
		refusal, err := d.openOld(ctx, how)
		if err != nil || d.end != nil {
			return err
		}
		if refusal == "" {
			d.st.Conversation = d.conversation
			return nil
		}
		why = refusal
	}
	if d.job.Conversation == "" { // the agent ended before it had recorded anything of its first turn
		d.log(link.Stderr, fmt.Appendf(nil, "The agent %s did not keep its first conversation: %s. A new one was begun.", d.name(), why))
		return d.openNew(ctx)
	}
	d.end = failed(CodeNotRestorable, "The agent %s could not go on with its conversation: %s.", d.name(), why)
	d.end.ConversationLost = true
	return nil
}

func (d *drive) openNew(ctx context.Context) error {
	result, refusal, err := d.call(ctx, stepOpen, "session/new", map[string]any{
		"cwd": d.place(sandbox.WorkspacePath), "mcpServers": d.mcpServers(),
	})
	if err != nil || d.end != nil {
		return err
	}
	if refusal != nil {
		d.end = failed(CodeAgentError, "The agent %s could not begin a conversation: %s", d.name(), refusal.text())
		return nil
	}
	if d.st.Conversation, err = sessionID(result); err != nil {
		d.end = failed(CodeAgentProtocol, "The agent %s began a conversation without naming it.", d.name())
	}
	return nil
}

// openOld resumes or loads the conversation and says why it could not.
func (d *drive) openOld(ctx context.Context, how string) (refusal string, err error) {
	d.replayed = false
	_, no, err := d.call(ctx, stepOpen+"/"+how, "session/"+how, map[string]any{
		"sessionId": d.conversation, "cwd": d.place(sandbox.WorkspacePath), "mcpServers": d.mcpServers(),
	})
	if err != nil || d.end != nil {
		return "", err
	}
	if no != nil {
		return clip(no.text(), 1000), nil
	}
	if how != "load" {
		return "", nil
	}
	// Some agents replay after the answer.
	if err := d.rest(ctx, d.h.Quiet, d.h.QuietMost); err != nil {
		return "", err
	}
	if !d.replayed && d.job.Runtime.Replays && d.end == nil {
		return "it loaded an empty one", nil
	}
	return "", nil
}

// rest waits until the agent has been silent for quiet, at most for most.
func (d *drive) rest(ctx context.Context, quiet, most time.Duration) error {
	begun := time.Now()
	d.lastRead = begun
	defer d.alarm.Stop()
	return d.pump(ctx, func() bool {
		left := min(quiet-time.Since(d.lastRead), most-time.Since(begun))
		if left <= 0 || d.exit != nil {
			return true
		}
		d.alarm.Reset(left)
		return false
	})
}

// mcpServers are the job's MCP servers that the agent can use: all have those that
// are programs. An agent keeps none over its own end, so that each call that opens a
// conversation names them.
func (d *drive) mcpServers() []json.RawMessage {
	can := d.caps.AgentCapabilities.McpCapabilities
	use := make([]json.RawMessage, 0, len(d.job.MCPServers))
	for _, raw := range d.job.MCPServers {
		var s struct{ Type, Name string }
		if json.Unmarshal(raw, &s) != nil {
			continue // whoever made the job has checked it
		}
		if s.Type == "http" && !can.HTTP || s.Type == "sse" && !can.SSE {
			d.log(link.Stderr, fmt.Appendf(nil, "The agent %s takes no MCP servers of the type %s; %s was left out.", d.name(), s.Type, clip(s.Name, 100)))
			continue
		}
		use = append(use, raw)
	}
	return use
}

// settings applies the runtime's modes and options.
func (d *drive) settings(ctx context.Context) error {
	for n, s := range d.row.Settings {
		params := map[string]any{"sessionId": d.st.Conversation}
		switch s.Method {
		case "session/set_mode":
			params["modeId"] = s.Value
		case "session/set_config_option":
			params["configId"], params["value"] = s.ID, s.Value
		default:
			d.end = failed(CodeUnavailable, "The runtime %s has a setting with the unknown method %q.", d.name(), s.Method)
			return nil
		}
		_, refusal, err := d.call(ctx, fmt.Sprintf("%s/%d", stepSetting, n), s.Method, params)
		if err != nil || d.end != nil {
			return err
		}
		if refusal != nil {
			d.end = failed(CodeAgentError, "The agent %s did not take the setting %s %s: %s", d.name(), or(s.ID, "mode"), s.Value, refusal.text())
			return nil
		}
	}
	return nil
}
