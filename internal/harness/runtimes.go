package harness

import (
	"maps"
	"slices"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// Runtimes is the table of agent programs that the product knows. "custom" has
// no command of its own: the operator's configuration gives it one. Names, addresses
// and keys of models are not in here, but placeholders for them: see [Runtime.Fill].
//
// Commands, settings and state globs are measured facts about the named versions;
// change a row together with the version in its comment.
func Runtimes() []Runtime {
	rows := make([]Runtime, len(runtimes))
	for i, r := range runtimes {
		rows[i] = r.clone()
	}
	return rows
}

// clone returns a row that shares nothing with r.
func (r Runtime) clone() Runtime {
	r.Command = slices.Clone(r.Command)
	r.Env = maps.Clone(r.Env)
	r.Files = maps.Clone(r.Files)
	r.Approval = maps.Clone(r.Approval)
	r.State = slices.Clone(r.State)
	r.Resume = slices.Clone(r.Resume)
	r.Settings = slices.Clone(r.Settings)
	r.Quirks = slices.Clone(r.Quirks)
	r.Layers = slices.Clone(r.Layers)
	r.Path = slices.Clone(r.Path)
	return r
}

// RuntimeByID finds a row of Runtimes.
func RuntimeByID(id string) (Runtime, bool) {
	for _, r := range Runtimes() {
		if r.ID == id {
			return r, true
		}
	}
	return Runtime{}, false
}

// resumeFirst is the order for agents that can do both: a load replays the
// whole conversation, only to be thrown away.
var resumeFirst = []string{"resume", "load"}

var runtimes = []Runtime{
	{
		// Ships in the binary and needs no model.
		ID: "script", Label: "Script agent",
		Command: []string{sandbox.KeeperPath, "script-agent"},
		State:   []string{".script-agent/**"},
		Resume:  resumeFirst,
		Exact:   true, Replays: true, Synced: true,
	},
	{
		// Our own agent: it runs on the server, only its tools and its
		// conversation are in the sandbox.
		ID: "loop", Label: "Built-in loop", Harness: HarnessLoop,
		State: []string{".sojourn-loop/**"},
		Exact: true, Synced: true,
	},
	{
		// @zed-industries/codex-acp 0.16.0: one native process.
		ID: "codex", Label: "Codex",
		Command: []string{"codex-acp"},
		Env: map[string]string{
			"CODEX_HOME": "{{home}}/.codex", "NO_BROWSER": "1", "SOJOURN_MODEL_KEY": "{{token}}",
		},
		Files:    map[string]string{".codex/config.toml": codexConfig},
		API:      APIOpenAI,
		Approval: map[Approvals]string{ApprovalsNever: "never", ApprovalsAsk: "untrusted"},
		State:    []string{".codex/sessions/**"},
		Resume:   resumeFirst,
		Stop:     Stop{Grace: 5 * time.Second}, // it does not heed the end of its input
		Exact:    true, Replays: true,
		Quirks: []string{
			"A rejected permission ends the whole turn, with the stop reason cancelled.",
			"It warns in each turn that it has no metadata of a model it does not know.",
		},
	},
	{
		// opencode-linux-x64-baseline 1.18.33; the database is in WAL mode, so
		// its three files belong together.
		ID: "opencode", Label: "OpenCode",
		Command: []string{"opencode", "acp"},
		Env: map[string]string{
			"OPENCODE_CONFIG_CONTENT":     opencodeConfig,
			"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
			"OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
		},
		API:      APIOpenAI,
		Approval: map[Approvals]string{ApprovalsNever: "allow", ApprovalsAsk: "ask"},
		State:    []string{".local/share/opencode/opencode.db*"},
		Resume:   resumeFirst,
		Stop:     Stop{EOF: true, Grace: 5 * time.Second},
		Exact:    true, Replays: true,
		Quirks: []string{
			"It takes half a gigabyte of memory, and some seconds of processor time to start.",
			"It looks for plugins in the npm registry when it starts; the refusal does not hurt it.",
			"It asks a failing model again for more than 45 seconds.",
			"A rejected permission ends the turn in order.",
		},
	},
	{
		// @agentclientprotocol/claude-agent-acp 0.101.0; proprietary, so the
		// user installs it. Without a limit on retries a failing model keeps a
		// turn open for minutes.
		ID: "claude-code", Label: "Claude Code",
		Command: []string{"claude-agent-acp"},
		Env: map[string]string{
			"ANTHROPIC_BASE_URL": "{{model_url}}", "ANTHROPIC_API_KEY": "{{token}}", "ANTHROPIC_MODEL": "{{model}}",
			"ANTHROPIC_SMALL_FAST_MODEL":               "{{model}}",
			"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1",
			"DISABLE_ERROR_REPORTING": "1", "DISABLE_AUTOUPDATER": "1", "IS_SANDBOX": "1",
			"CLAUDE_CODE_MAX_RETRIES": "2",
		},
		API:      APIAnthropic,
		Approval: map[Approvals]string{ApprovalsNever: "bypassPermissions", ApprovalsAsk: "default"},
		State:    []string{".claude/projects/**"},
		Resume:   resumeFirst,
		Settings: []Setting{{Method: "session/set_mode", Value: "{{approval}}"}},
		Stop:     Stop{EOF: true, Grace: 5 * time.Second},
		Exact:    true, Replays: true,
		Quirks: []string{
			"The agent itself is proprietary: mind its licence.",
			"A restored conversation has a fresh reminder of the state of git.",
			"It sends a cancelled prompt again as the first part of the next one.",
			"It hides the tools of MCP servers behind its own search for tools.",
		},
	},
	{
		// @qwen-code/qwen-code 0.24.4; its own mode "auto" spends model calls
		// on judging commands that the sandbox already bounds.
		ID: "qwen", Label: "Qwen Code",
		Command: []string{"qwen", "--acp"},
		Env: map[string]string{
			"OPENAI_API_KEY": "{{token}}", "OPENAI_BASE_URL": "{{model_url}}", "OPENAI_MODEL": "{{model}}",
		},
		Files:    map[string]string{".qwen/settings.json": qwenSettings},
		API:      APIOpenAI,
		Approval: map[Approvals]string{ApprovalsNever: "yolo", ApprovalsAsk: "default"},
		State:    []string{".qwen/projects/**"},
		Resume:   resumeFirst,
		Settings: []Setting{{Method: "session/set_mode", Value: "{{approval}}"}},
		Stop:     Stop{EOF: true, Grace: 5 * time.Second},
		Exact:    true, Replays: true,
		Quirks: []string{
			"A restored conversation has a fresh date and listing of the workspace in its system text.",
			"It asks a failing model again for more than 45 seconds.",
		},
	},
	{
		// @google/gemini-cli 0.61.0; after a restore its history is damaged.
		ID: "gemini", Label: "Gemini CLI",
		Command: []string{"gemini", "--acp", "-m", "{{model}}"},
		Env: map[string]string{
			"GEMINI_API_KEY": "{{token}}", "GOOGLE_GEMINI_BASE_URL": "{{model_url}}",
			"GEMINI_CLI_TRUST_WORKSPACE": "true", "GEMINI_CLI_NO_RELAUNCH": "true",
		},
		Files:    map[string]string{".gemini/settings.json": geminiSettings},
		API:      APIGemini,
		Approval: map[Approvals]string{ApprovalsNever: "yolo", ApprovalsAsk: "default"},
		State: []string{
			".gemini/tmp/*/chats/**", ".gemini/projects.json",
			".gemini/tmp/*/.project_root", ".gemini/history/*/.project_root",
		},
		Resume:   []string{"load"},
		Settings: []Setting{{Method: "session/set_mode", Value: "{{approval}}"}},
		Stop:     Stop{EOF: true, Grace: 10 * time.Second},
		Quirks: []string{
			"Its history is damaged by a restore: tool calls are merged, results doubled and thought signatures dropped.",
			"It keeps its conversations by the name of the workspace's folder, and often does not find them again.",
			"It asks a failing model again for more than 45 seconds.",
		},
	},
	{
		// Any program that speaks ACP: what it advertises decides what it can
		// do, and without state globs its conversation ends with its sandbox.
		ID: "custom", Label: "Custom agent",
		Resume:   resumeFirst,
		Approval: map[Approvals]string{ApprovalsNever: "never", ApprovalsAsk: "ask"},
	},
}
