package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
)

// Runtime is what an operator says of an agent program. An id that the product knows
// changes its row where a field is given; another one is a row of its own.
type Runtime struct {
	Label   string   `yaml:"label"`
	Command []string `yaml:"command"`
	// Env and Files go over those of the row, one name at a time. Their values and
	// the command are templates; see docs/runtimes.md.
	Env       map[string]string `yaml:"env"`
	Files     map[string]string `yaml:"files"`
	API       string            `yaml:"api"`       // of the models that it calls
	Model     string            `yaml:"model"`     // the one that it gets; "" is the first of its API
	Approvals string            `yaml:"approvals"` // never or ask
	State     []string          `yaml:"state"`
	Resume    []string          `yaml:"resume"`
	Settings  []Setting         `yaml:"settings"`
	Exact     *bool             `yaml:"exact"`
	Install   string            `yaml:"install"` // the command line that installs it, for people
	Disabled  bool              `yaml:"disabled"`
}

// Setting is a mode or an option that is set whenever a conversation was opened:
// exactly one of Mode and Option is given.
type Setting struct {
	Mode   string `yaml:"mode"`
	Option string `yaml:"option"`
	Value  string `yaml:"value"` // of the option
}

// runtimeID is what a runtime can be called.
var runtimeID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)

// checkRuntimes refuses what would only show in the first run.
func checkRuntimes(rows map[string]Runtime) error {
	for _, id := range slices.Sorted(maps.Keys(rows)) {
		if err := rows[id].check(id); err != nil {
			return fmt.Errorf("runtimes.%s: %w", id, err)
		}
	}
	return nil
}

func (r Runtime) check(id string) error {
	if !runtimeID.MatchString(id) {
		return fmt.Errorf("an id has small letters, digits and hyphens, at most 40")
	}
	if r.API != "" && !slices.Contains(apis, r.API) {
		return fmt.Errorf("api %q is none of anthropic, openai, gemini", r.API)
	}
	if r.Approvals != "" && r.Approvals != "never" && r.Approvals != "ask" {
		return fmt.Errorf("approvals %q is neither never nor ask", r.Approvals)
	}
	for name := range r.Files {
		if !filepath.IsLocal(name) || filepath.Clean(name) != name {
			return fmt.Errorf("files: %q is not the path of a file below the home", name)
		}
	}
	for _, glob := range r.State {
		if _, err := filepath.Match(glob, ""); err != nil || !filepath.IsLocal(glob) || filepath.Clean(glob) != glob {
			return fmt.Errorf("state: %q is no pattern of paths below the home", glob)
		}
	}
	for _, how := range r.Resume {
		if how != "resume" && how != "load" {
			return fmt.Errorf("resume: %q is neither resume nor load", how)
		}
	}
	for _, s := range r.Settings {
		if (s.Mode == "") == (s.Option == "") || s.Option != "" && s.Value == "" || s.Mode != "" && s.Value != "" {
			return fmt.Errorf("settings: each has a mode, or an option and its value")
		}
	}
	return nil
}
