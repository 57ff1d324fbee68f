package harness

import (
	"maps"
	"slices"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// Runtimes is the table of agent programs that the product knows. "custom" has
// no command of its own: the operator's configuration gives it one. Model
// addresses and keys are not in here; they come with the environment.
//
// Commands and state globs are measured facts about the named versions; change
// a row together with the version in its comment.
func Runtimes() []Runtime {
	rows := slices.Clone(runtimes)
	for i := range rows {
		rows[i].Command = slices.Clone(rows[i].Command)
		rows[i].Env = maps.Clone(rows[i].Env)
		rows[i].Files = maps.Clone(rows[i].Files)
		rows[i].State = slices.Clone(rows[i].State)
		rows[i].Resume = slices.Clone(rows[i].Resume)
		rows[i].Settings = slices.Clone(rows[i].Settings)
	}
	return rows
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
		// @zed-industries/codex-acp 0.16.0
		ID: "codex", Label: "Codex",
		Command: []string{"codex-acp"},
		Env:     map[string]string{"CODEX_HOME": sandbox.HomePath + "/.codex", "NO_BROWSER": "1"},
		State:   []string{".codex/sessions/**"},
		Resume:  resumeFirst,
		Exact:   true, Replays: true,
	},
	{
		// opencode-linux-x64-baseline 1.18.33; the database is in WAL mode, so
		// its three files belong together.
		ID: "opencode", Label: "OpenCode",
		Command: []string{"opencode", "acp"},
		Env: map[string]string{
			"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
			"OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
		},
		State:  []string{".local/share/opencode/opencode.db*"},
		Resume: resumeFirst,
		Exact:  true, Replays: true,
	},
	{
		// @agentclientprotocol/claude-agent-acp 0.101.0; proprietary, so the
		// user installs it. Without a limit on retries a failing model keeps a
		// turn open for minutes.
		ID: "claude-code", Label: "Claude Code",
		Command: []string{"claude-agent-acp"},
		Env: map[string]string{
			"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1",
			"DISABLE_ERROR_REPORTING": "1", "DISABLE_AUTOUPDATER": "1", "IS_SANDBOX": "1",
			"CLAUDE_CODE_MAX_RETRIES": "2",
		},
		State:  []string{".claude/projects/**"},
		Resume: resumeFirst,
		Exact:  true, Replays: true,
	},
	{
		// @qwen-code/qwen-code 0.24.4; its own mode "auto" spends model calls
		// on judging commands that the sandbox already bounds.
		ID: "qwen", Label: "Qwen Code",
		Command: []string{"qwen", "--acp"},
		Files: map[string]string{".qwen/settings.json": `{"security":{"auth":{"selectedType":"openai"},` +
			`"folderTrust":{"enabled":false}},"privacy":{"usageStatisticsEnabled":false},` +
			`"telemetry":{"enabled":false},"general":{"enableAutoUpdate":false}}`},
		State:    []string{".qwen/projects/**"},
		Resume:   resumeFirst,
		Settings: []Setting{{Method: "session/set_mode", Value: "yolo"}},
		Exact:    true, Replays: true,
	},
	{
		// @google/gemini-cli 0.61.0; after a restore its history is damaged.
		ID: "gemini", Label: "Gemini CLI",
		Command: []string{"gemini", "--acp"},
		Env:     map[string]string{"GEMINI_CLI_TRUST_WORKSPACE": "true", "GEMINI_CLI_NO_RELAUNCH": "true"},
		Files: map[string]string{".gemini/settings.json": `{"security":{"auth":{"selectedType":"gemini-api-key"},` +
			`"folderTrust":{"enabled":false}},"privacy":{"usageStatisticsEnabled":false},` +
			`"telemetry":{"enabled":false},"general":{"enableAutoUpdate":false}}`},
		State: []string{
			".gemini/tmp/*/chats/**", ".gemini/projects.json",
			".gemini/tmp/*/.project_root", ".gemini/history/*/.project_root",
		},
		Resume: []string{"load"},
	},
	{
		// Any program that speaks ACP: what it advertises decides what it can
		// do, and without state globs its conversation ends with its sandbox.
		ID: "custom", Label: "Custom agent",
		Resume: resumeFirst,
	},
}
