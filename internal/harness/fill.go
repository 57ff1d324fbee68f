package harness

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Values are what stands for the placeholders of a runtime's templates:
//
//	{{model}}      the model's name
//	{{model_url}}  the base address of the runtime's API at the model gateway
//	{{token}}      what the gateway takes in place of a key
//	{{workspace}}  the absolute path of the work tree
//	{{home}}       the absolute path of the home
//	{{approval}}   the runtime's word for its Approvals
//
// They go into JSON, TOML and shell words, so that characters which mean something
// there are refused.
type Values struct {
	Model string
	// ModelURL is the gateway's address without the part of an API.
	ModelURL        string
	Token           string
	Workspace, Home string
}

// ErrNoModel reports a runtime that needs a model where there is none for it.
var ErrNoModel = errors.New("it needs a model, and the installation has none for it: name one in the configuration, under models")

// apiPaths are the base addresses of the APIs below the gateway, as the runtimes
// expect them.
var apiPaths = map[string]string{
	APIAnthropic: "/anthropic",
	APIOpenAI:    "/openai/v1",
	APIGemini:    "/gemini",
}

// APIAddress returns the base address of an API at the model gateway, whose address
// gateway is.
func APIAddress(gateway, api string) string { return gateway + apiPaths[api] }

// modelPlaceholders are those that need a model.
var modelPlaceholders = []string{"{{model}}", "{{model_url}}", "{{token}}"}

// NeedsModel reports whether a template of the row asks for a model.
func (r Runtime) NeedsModel() bool {
	return slices.ContainsFunc(r.templates(), func(t string) bool {
		return slices.ContainsFunc(modelPlaceholders, func(p string) bool { return strings.Contains(t, p) })
	})
}

// templates are all texts of the row that may hold placeholders.
func (r Runtime) templates() []string {
	all := slices.Clone(r.Command)
	all = slices.AppendSeq(all, maps.Values(r.Env))
	all = slices.AppendSeq(all, maps.Values(r.Files))
	for _, s := range r.Settings {
		all = append(all, s.Value)
	}
	return all
}

// Fill returns a copy of the row with the values in its templates. It returns
// ErrNoModel when one that a model gives is needed and empty.
func (r Runtime) Fill(v Values) (Runtime, error) {
	if r.NeedsModel() && (v.Model == "" || v.ModelURL == "" || v.Token == "" || apiPaths[r.API] == "") {
		return Runtime{}, ErrNoModel
	}
	approvals := r.Approvals
	if approvals == "" {
		approvals = ApprovalsNever
	}
	pairs := []string{
		"{{model}}", v.Model, "{{model_url}}", APIAddress(v.ModelURL, r.API), "{{token}}", v.Token,
		"{{workspace}}", v.Workspace, "{{home}}", v.Home, "{{approval}}", r.Approval[approvals],
	}
	for i := 0; i < len(pairs); i += 2 {
		if strings.ContainsFunc(pairs[i+1], special) {
			return Runtime{}, fmt.Errorf("the value of %s has a character that settings cannot hold", pairs[i])
		}
	}
	fill := strings.NewReplacer(pairs...).Replace
	r = r.clone()
	for i := range r.Command {
		r.Command[i] = fill(r.Command[i])
	}
	for name, text := range r.Env {
		r.Env[name] = fill(text)
	}
	for name, text := range r.Files {
		r.Files[name] = fill(text)
	}
	for i := range r.Settings {
		r.Settings[i].Value = fill(r.Settings[i].Value)
	}
	return r, nil
}

// special reports whether a character means something in JSON, TOML or the shell.
func special(c rune) bool { return c <= ' ' || c == 0x7f || strings.ContainsRune("\"'\\`${}", c) }

// CheckTemplates refuses placeholders that nobody fills: a misspelt one would reach
// the agent as it is.
func (r Runtime) CheckTemplates() error {
	known := append(slices.Clone(modelPlaceholders), "{{workspace}}", "{{home}}", "{{approval}}")
	for _, t := range r.templates() {
		for rest := t; ; {
			i := strings.Index(rest, "{{")
			if i < 0 {
				break
			}
			rest = rest[i:]
			if end := strings.Index(rest, "}}"); end >= 0 && isWord(rest[2:end]) && !slices.Contains(known, rest[:end+2]) {
				return fmt.Errorf("there is no placeholder %s; there are %s", rest[:end+2], strings.Join(known, " "))
			}
			rest = rest[2:]
		}
	}
	return nil
}

// isWord reports whether s could be the name of a placeholder, unlike what stands
// between the braces of JSON.
func isWord(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool { return c != '_' && (c < 'a' || c > 'z') })
}
