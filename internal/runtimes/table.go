package runtimes

import (
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/sojourn-dev/sojourn/internal/config"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// Site is what an installation has for runtimes.
type Site struct {
	Config    config.Config
	Installed map[string]Installed // by id of the runtime
	// Have reports whether programs in a sandbox find a program of that name or path.
	// nil says that nobody knows beforehand, as with an image.
	Have func(program string) bool
}

// Table makes the table of a server from the product's rows: with the operator's
// changes, with what is installed, and with the reason where a row cannot be used. The
// default runtime is the first.
func Table(rows []harness.Runtime, site Site) ([]harness.Runtime, error) {
	cfg := site.Config
	var table []harness.Runtime
	known := map[string]bool{}
	for _, r := range rows {
		known[r.ID] = true
		if c := cfg.Runtimes[r.ID]; c.Disabled || len(c.Command) == 0 && r.ID == "custom" {
			continue
		}
		table = append(table, r)
	}
	for _, id := range slices.Sorted(maps.Keys(cfg.Runtimes)) {
		if !known[id] && !cfg.Runtimes[id].Disabled {
			table = append(table, harness.Runtime{ID: id, Label: id, Resume: []string{"resume", "load"}, Approval: approvalWords})
		}
	}
	for i, r := range table {
		r, err := change(r, cfg.Runtimes[r.ID])
		if err == nil {
			r, err = site.complete(r)
		}
		if err != nil {
			return nil, fmt.Errorf("runtimes.%s: %w", r.ID, err)
		}
		table[i] = r
	}
	if len(table) == 0 {
		return nil, fmt.Errorf("runtimes: all are disabled")
	}
	return defaultFirst(table, cfg.DefaultRuntime)
}

// approvalWords are those of rows that the operator adds.
var approvalWords = map[harness.Approvals]string{harness.ApprovalsNever: "never", harness.ApprovalsAsk: "ask"}

func defaultFirst(table []harness.Runtime, id string) ([]harness.Runtime, error) {
	if id == "" {
		return table, nil
	}
	i := slices.IndexFunc(table, func(r harness.Runtime) bool { return r.ID == id })
	if i < 0 {
		return nil, fmt.Errorf("defaultRuntime: there is no runtime %q", id)
	}
	first := table[i]
	return slices.Insert(slices.Delete(table, i, i+1), 0, first), nil
}

// change lays the operator's words over a row. On an error the row still has its id.
func change(r harness.Runtime, c config.Runtime) (harness.Runtime, error) {
	set(&r.Label, c.Label)
	set(&r.API, c.API)
	set(&r.Model, c.Model)
	set(&r.Install, c.Install)
	set(&r.Approvals, harness.Approvals(c.Approvals))
	setList(&r.Command, c.Command)
	setList(&r.State, c.State)
	setList(&r.Resume, c.Resume)
	r.Env, r.Files = over(r.Env, c.Env), over(r.Files, c.Files)
	if c.Exact != nil {
		r.Exact = *c.Exact
	}
	if c.Settings != nil {
		r.Settings = nil
		for _, s := range c.Settings {
			if s.Mode != "" {
				r.Settings = append(r.Settings, harness.Setting{Method: "session/set_mode", Value: s.Mode})
			} else {
				r.Settings = append(r.Settings, harness.Setting{Method: "session/set_config_option", ID: s.Option, Value: s.Value})
			}
		}
	}
	switch {
	case len(r.Command) == 0 && r.Harness != harness.HarnessLoop:
		return r, fmt.Errorf("it has no command")
	case r.Exact && len(r.State) == 0:
		return r, fmt.Errorf("it cannot be exact without state")
	case r.NeedsModel() && r.API == "":
		return r, fmt.Errorf("its templates ask for a model; say of which api")
	}
	for name := range r.Files {
		if r.Holds(name) {
			return r, fmt.Errorf("files: %s is also state: settings must not become part of a checkpoint", name)
		}
	}
	return r, r.CheckTemplates()
}

func set[T ~string](to *T, v T) {
	if v != "" {
		*to = v
	}
}

func setList(to *[]string, v []string) {
	if v != nil {
		*to = v
	}
}

// over returns base with top laid over it. Neither is changed.
func over(base, top map[string]string) map[string]string {
	if len(top) == 0 {
		return base
	}
	all := maps.Clone(base)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, top)
	return all
}

// complete puts the site's layers and model into a row, and says what is missing.
func (s Site) complete(r harness.Runtime) (harness.Runtime, error) {
	set(&r.Install, InstallCommand(r.ID))
	if i, ok := s.Installed[r.ID]; ok {
		target := Target(r.ID)
		r.Layers = append(r.Layers, sandbox.Mount{Source: i.Dir, Target: target})
		r.Path = append([]string{target + "/bin"}, r.Path...)
	}
	if r.API != "" {
		model, err := s.model(r.API, r.Model)
		if err != nil {
			return r, err
		}
		r.Model = model
	}
	switch {
	case r.API != "" && r.NeedsModel() && r.Model == "":
		r.Unavailable = fmt.Sprintf("%s needs a model of the API %s: name a provider in the configuration, under models.", r.Label, r.API)
	case r.Harness == harness.HarnessLoop && len(s.Config.Models.Providers) == 0:
		r.Unavailable = fmt.Sprintf("%s needs a model: name a provider in the configuration, under models.", r.Label)
	case s.missing(r):
		r.Unavailable = r.Label + " is not installed."
		if r.Install != "" {
			r.Unavailable += " Install it with: " + r.Install
		}
	}
	return r, nil
}

// missing reports whether the program of a row is known not to be in sandboxes.
func (s Site) missing(r harness.Runtime) bool {
	if r.Harness == harness.HarnessLoop || len(r.Layers) > 0 || s.Have == nil {
		return false
	}
	program := r.Command[0]
	return !strings.HasPrefix(program, path.Dir(sandbox.KeeperPath)+"/") && !strings.Contains(program, "{{") && !s.Have(program)
}

// model is the name of the model that a runtime gets when a session names none: want,
// or the first of its API. There may be none.
func (s Site) model(api, want string) (string, error) {
	for _, p := range s.Config.Models.Providers {
		if p.API != api {
			continue
		}
		for _, m := range p.Models {
			pattern := strings.ContainsAny(m.Name, `*?[\`)
			fits, _ := path.Match(m.Name, want) // the gateway refuses malformed ones
			switch {
			case want != "" && (m.Name == want || pattern && fits):
				return want, nil
			case want == "" && !pattern:
				return m.Name, nil
			}
		}
	}
	if want != "" {
		return "", fmt.Errorf("model: no provider of the API %s has %q", api, want)
	}
	return "", nil
}

// hostPath is where programs of the host are that sandboxes without an image see.
const hostPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// HostHas reports whether sandboxes without an image find a program of this host.
func HostHas(program string) bool {
	dirs := strings.Split(hostPath, ":")
	if path.IsAbs(program) {
		dirs = []string{"/"}
	}
	return slices.ContainsFunc(dirs, func(dir string) bool {
		info, err := os.Stat(path.Join(dir, program))
		return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
	})
}
