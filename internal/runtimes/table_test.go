package runtimes

import (
	"slices"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/config"
	"github.com/sojourn-dev/sojourn/internal/harness"
)

const someModels = `
models:
  providers:
    - {name: a, api: openai, baseURL: "http://a/v1", models: [{name: "gpt-*"}, {name: small}]}
    - {name: b, api: anthropic, baseURL: "http://b", models: [{name: large}]}
`

// tableOf makes a table from the text of a configuration.
func tableOf(t *testing.T, text string, site Site) (map[string]harness.Runtime, []string, error) {
	t.Helper()
	cfg, err := config.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	site.Config = cfg
	rows, err := Table(harness.Runtimes(), site)
	byID, ids := map[string]harness.Runtime{}, []string{}
	for _, r := range rows {
		byID[r.ID], ids = r, append(ids, r.ID)
	}
	return byID, ids, err
}

func TestTableWithoutAConfiguration(t *testing.T) {
	t.Parallel()
	rows, ids, err := tableOf(t, "", Site{Have: func(string) bool { return false }})
	if err != nil || ids[0] != "script" || slices.Contains(ids, "custom") {
		t.Fatalf("rows %v, %v; want the script agent first, and no row without a command", ids, err)
	}
	for id, r := range rows {
		if (r.Unavailable == "") != (id == "script") {
			t.Errorf("%s is unavailable: %q; want that of all but the script agent", id, r.Unavailable)
		}
	}
	if !strings.Contains(rows["codex"].Unavailable, "models") {
		t.Errorf("codex: %q does not say that it needs a model", rows["codex"].Unavailable)
	}
}

func TestTableSaysWhatToInstall(t *testing.T) {
	t.Parallel()
	rows, _, err := tableOf(t, someModels, Site{Have: func(p string) bool { return p == "opencode" }})
	if err != nil {
		t.Fatal(err)
	}
	if got := rows["codex"]; !strings.HasSuffix(got.Unavailable, "Install it with: sojourn runtimes install codex") || got.Model != "small" {
		t.Errorf("codex: %q with the model %q", got.Unavailable, got.Model)
	}
	if got := rows["opencode"]; got.Unavailable != "" {
		t.Errorf("opencode, which the host has: %q", got.Unavailable)
	}
	if got := rows["claude-code"]; got.Model != "large" {
		t.Errorf("claude-code gets the model %q, want the first of its API", got.Model)
	}
	if got := rows["gemini"]; !strings.Contains(got.Unavailable, "gemini") {
		t.Errorf("gemini: %q; want that there is no model for it", got.Unavailable)
	}
	// In an image nobody knows what there is.
	rows, _, err = tableOf(t, someModels, Site{})
	if err != nil || rows["codex"].Unavailable != "" || rows["codex"].Install == "" {
		t.Errorf("codex: %+v, %v", rows["codex"], err)
	}
}

func TestInstalledRuntimesHaveTheirLayer(t *testing.T) {
	t.Parallel()
	rows, _, err := tableOf(t, someModels, Site{
		Installed: map[string]Installed{"codex": {Runtime: "codex", Dir: "/data/layers/c/root"}},
		Have:      func(string) bool { return false },
	})
	r := rows["codex"]
	if err != nil || r.Unavailable != "" || len(r.Layers) != 1 || r.Layers[0].Source != "/data/layers/c/root" ||
		r.Layers[0].Target != "/agents/codex" || !slices.Equal(r.Path, []string{"/agents/codex/bin"}) {
		t.Errorf("codex: %+v, %v", r, err)
	}
}

func TestOperatorsChangeAndAddRows(t *testing.T) {
	t.Parallel()
	rows, ids, err := tableOf(t, someModels+`
defaultRuntime: ours
runtimes:
  codex: {model: gpt-9, approvals: ask, env: {RUST_LOG: debug}, exact: false}
  gemini: {disabled: true}
  custom: {command: [/opt/agent]}
  ours:
    label: Ours
    command: [ours, --acp]
    api: openai
    env: {KEY: "{{token}}"}
    state: [".ours/log/**"]
    exact: true
    settings: [{mode: fast}, {option: effort, value: high}]
    install: ask the operator
`, Site{Have: func(p string) bool { return p == "/opt/agent" }})
	if err != nil {
		t.Fatal(err)
	}
	c := rows["codex"]
	if c.Model != "gpt-9" || c.Approvals != harness.ApprovalsAsk || c.Exact || c.Env["RUST_LOG"] != "debug" || c.Env["NO_BROWSER"] != "1" {
		t.Errorf("codex: %+v", c)
	}
	if _, there := rows["gemini"]; there {
		t.Error("a disabled row is there")
	}
	if rows["custom"].Unavailable != "" {
		t.Errorf("custom: %q", rows["custom"].Unavailable)
	}
	o := rows["ours"]
	want := []harness.Setting{{Method: "session/set_mode", Value: "fast"}, {Method: "session/set_config_option", ID: "effort", Value: "high"}}
	if ids[0] != "ours" || !slices.Equal(o.Settings, want) || o.Model != "small" || !o.Exact || o.Unavailable != "Ours is not installed. Install it with: ask the operator" {
		t.Errorf("rows %v; ours: %+v", ids, o)
	}
	if fresh, _ := harness.RuntimeByID("codex"); fresh.Env["RUST_LOG"] != "" {
		t.Error("the product's own row was changed")
	}
}

func TestRowsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	for text, say := range map[string]string{
		"runtimes: {a: {label: x}}":                                        "no command",
		"runtimes: {a: {command: [x], exact: true}}":                       "state",
		"runtimes: {a: {command: [x], env: {K: '{{token}}'}}}":             "api",
		"runtimes: {a: {command: [x], env: {K: '{{tokn}}'}}}":              "{{tokn}}",
		"runtimes: {a: {command: [x], files: {.a/s: y}, state: ['.a/*']}}": "state",
		"runtimes: {codex: {state: ['.codex/**']}}":                        "config.toml",
		"defaultRuntime: nope":                                             "nope",
		"{runtimes: {codex: {disabled: true}}, defaultRuntime: codex}":     "codex",
		someModels + "runtimes: {codex: {model: large}}":                   "large",
	} {
		if _, _, err := tableOf(t, text, Site{}); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("%s: %v; want something about %q", text, err, say)
		}
	}
}
