package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRuntimesSayWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("SOJOURN_DATA", dir)
	config := filepath.Join(dir, "sojourn.yaml")
	text := "models: {providers: [{name: a, api: openai, baseURL: 'http://a/v1', models: [{name: m}]}]}\n" +
		"runtimes: {ours: {label: \"Ours\\e[31m\", command: [no-such-agent], install: ask}}\ndefaultRuntime: ours\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := runLine(t.Context(), "", "runtimes", "list", "--config", config, "--json")
	var list struct{ Runtimes []runtimeView }
	if err := json.Unmarshal([]byte(got.out), &list); err != nil || got.code != 0 {
		t.Fatalf("%v, code %d: %s%s", err, got.code, got.out, got.err)
	}
	byID := map[string]runtimeView{}
	for _, v := range list.Runtimes {
		byID[v.ID] = v
	}
	if list.Runtimes[0].ID != "ours" || !list.Runtimes[0].Default || !byID["script"].Available {
		t.Errorf("runtimes: %s", got.out)
	}
	if v := byID["codex"]; v.Available || v.Model != "m" || !strings.Contains(v.Reason, "sojourn runtimes install codex") {
		t.Errorf("codex: %+v", v)
	}
	got = runLine(t.Context(), "", "runtimes", "list", "--config", config)
	if strings.Contains(got.out, "\x1b") || !strings.Contains(got.out, "Install it with: ask") {
		t.Errorf("list: %q", got.out)
	}
	for _, tt := range []struct {
		code int
		say  string
		args []string
	}{
		{exitOK, "half a gigabyte", []string{"show", "opencode"}},
		{exitNotFound, "no runtime", []string{"show", "nope"}},
		{exitNotFound, "codex, gemini", []string{"install", "script"}},
		{exitUsage, "exact version", []string{"install", "codex@latest"}},
		{exitFailure, "npm could not fetch", []string{"install", "codex", "--npm", "/bin/false"}},
		{exitNotFound, "not installed", []string{"remove", "codex@0.16.0"}},
	} {
		got := runLine(t.Context(), "", append([]string{"runtimes"}, tt.args...)...)
		if got.code != tt.code || !strings.Contains(got.out+got.err, tt.say) {
			t.Errorf("%v: code %d, want %d and something about %q: %s%s", tt.args, got.code, tt.code, tt.say, got.out, got.err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "layers", ".new-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}
