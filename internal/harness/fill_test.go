package harness_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/harness"
)

var someValues = harness.Values{
	Model: "acme/m-1", ModelURL: "http://127.0.0.1:3128/model", Token: "tok-en",
	Workspace: "/workspace", Home: "/home/agent",
}

// texts are all texts of a row that may have been templates.
func texts(r harness.Runtime) []string {
	all := slices.Clone(r.Command)
	for _, v := range r.Env {
		all = append(all, v)
	}
	for _, v := range r.Files {
		all = append(all, v)
	}
	for _, s := range r.Settings {
		all = append(all, s.Value)
	}
	return all
}

func TestEveryRowIsFilledCompletely(t *testing.T) {
	for _, approvals := range []harness.Approvals{"", harness.ApprovalsNever, harness.ApprovalsAsk} {
		for _, r := range harness.Runtimes() {
			if err := r.CheckTemplates(); err != nil {
				t.Errorf("%s: %v", r.ID, err)
			}
			if r.NeedsModel() != (r.API != "") {
				t.Errorf("%s needs a model: %v, of the API %q", r.ID, r.NeedsModel(), r.API)
			}
			r.Approvals = approvals
			full, err := r.Fill(someValues)
			if err != nil {
				t.Errorf("%s: %v", r.ID, err)
				continue
			}
			for _, text := range texts(full) {
				if strings.Contains(text, "{{") && !strings.Contains(text, `":{"`) || strings.Contains(text, "}}\"") {
					t.Errorf("%s still has a placeholder in %s", r.ID, text)
				}
			}
			for name, text := range full.Files {
				if filepath.Ext(name) == ".json" && !json.Valid([]byte(text)) {
					t.Errorf("%s: %s is not JSON: %s", r.ID, name, text)
				}
			}
			if config := full.Env["OPENCODE_CONFIG_CONTENT"]; config != "" && !json.Valid([]byte(config)) {
				t.Errorf("%s: not JSON: %s", r.ID, config)
			}
		}
	}
}

func TestTemplatesGetTheirModelAndItsAddress(t *testing.T) {
	for id, want := range map[string][]string{
		"codex":       {`model = "acme/m-1"`, `base_url = "http://127.0.0.1:3128/model/openai/v1"`, `[projects."/workspace"]`, "/home/agent/.codex", "tok-en", `approval_policy = "never"`},
		"opencode":    {`"baseURL":"http://127.0.0.1:3128/model/openai/v1"`, `"model":"sojourn/acme/m-1"`, `"bash":"allow"`},
		"claude-code": {"http://127.0.0.1:3128/model/anthropic", "acme/m-1", "bypassPermissions"},
		"qwen":        {"http://127.0.0.1:3128/model/openai/v1", `"name":"acme/m-1"`, "yolo"},
		"gemini":      {"http://127.0.0.1:3128/model/gemini", "acme/m-1", "yolo"},
	} {
		r, _ := harness.RuntimeByID(id)
		full, err := r.Fill(someValues)
		if err != nil {
			t.Errorf("%s: %v", id, err)
			continue
		}
		all := strings.Join(texts(full), "\n")
		for _, w := range want {
			if !strings.Contains(all, w) {
				t.Errorf("%s: %q is not in\n%s", id, w, all)
			}
		}
		if again, _ := r.Fill(harness.Values{Model: "other", ModelURL: "http://x", Token: "t"}); !strings.Contains(strings.Join(texts(again), "\n"), "other") {
			t.Errorf("%s: filling it has changed the row", id)
		}
	}
}

// No settings file may become part of a checkpoint: some hold what only this lease
// may know, and a restored one would go over the operator's.
func TestNoSettingsAreCaptured(t *testing.T) {
	secrets := []string{
		".codex/auth.json", ".codex/config.toml", ".local/share/opencode/auth.json", ".config/opencode/opencode.json",
		".claude/.credentials.json", ".claude/settings.json", ".claude.json", ".qwen/oauth_creds.json", ".qwen/settings.json",
		".gemini/oauth_creds.json", ".gemini/settings.json", ".gemini/google_accounts.json", ".netrc", ".npmrc", ".git-credentials",
	}
	for _, r := range harness.Runtimes() {
		for name := range r.Files {
			secrets = append(secrets, name)
			if !filepath.IsLocal(name) {
				t.Errorf("%s writes %q, which is not below the home", r.ID, name)
			}
		}
	}
	for _, r := range harness.Runtimes() {
		for _, name := range secrets {
			if r.Holds(name) {
				t.Errorf("%s captures %s", r.ID, name)
			}
		}
	}
}

func TestFillRefusesWhatItCannotHold(t *testing.T) {
	r, _ := harness.RuntimeByID("codex")
	for _, missing := range []func(*harness.Values){
		func(v *harness.Values) { v.Model = "" }, func(v *harness.Values) { v.ModelURL = "" }, func(v *harness.Values) { v.Token = "" },
	} {
		v := someValues
		missing(&v)
		if _, err := r.Fill(v); !errors.Is(err, harness.ErrNoModel) {
			t.Errorf("%+v: %v, want ErrNoModel", v, err)
		}
	}
	for _, model := range []string{"a\"\nevil = 1", `a\u0022`, "a b", "{{token}}", "a'b", "$HOME", "a\x00"} {
		v := someValues
		v.Model = model
		if full, err := r.Fill(v); err == nil || errors.Is(err, harness.ErrNoModel) {
			t.Errorf("the model %q was put into %v", model, full.Files)
		}
	}
	script, _ := harness.RuntimeByID("script")
	if _, err := script.Fill(harness.Values{}); err != nil {
		t.Errorf("a runtime that needs no model: %v", err)
	}
}

func TestCheckTemplatesNamesTheMisspelt(t *testing.T) {
	for text, ok := range map[string]bool{
		"{{modle}}": false, "x{{ model}}": true, `{"a":{"b":1}}`: true, `{"{{model}}":{"c":{{approval}}}}`: true,
		"{{token}}{{key}}": false, "{{": true, "{{{{nope}}": false,
	} {
		err := harness.Runtime{Env: map[string]string{"A": text}}.CheckTemplates()
		if (err == nil) != ok {
			t.Errorf("%s: %v, want it to be fine: %v", text, err, ok)
		}
	}
}
