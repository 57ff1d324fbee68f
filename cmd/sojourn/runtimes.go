package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sojourn-dev/sojourn/internal/config"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/runtimes"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

// runtimesCommand is everything about the agents of this installation. It works on
// the data directory; a server need not run.
func runtimesCommand(ctx context.Context, std stdio, args []string) error {
	return runVerbs(ctx, std, "runtimes", runtimesVerbs, args)
}

var runtimesVerbs = []verb{
	{name: "list", summary: "list the runtimes, and what is installed", local: true, prepare: prepareRuntimesList},
	{name: "show", args: "NAME", summary: "show a runtime and its quirks", min: 1, max: 1, local: true, prepare: prepareRuntimesShow},
	{
		name: "install", args: "NAME[@VERSION]", summary: "fetch an agent from npm into a read-only layer",
		detail: "It needs npm on this host, whose own settings say which registry is asked. No\nscript of a package is run. A server that runs uses it after its next start.",
		min:    1, max: 1, local: true, prepare: prepareRuntimesInstall,
	},
	{
		name: "remove", args: "NAME[@VERSION]", summary: "remove an installed agent that no sandbox uses",
		min: 1, max: 1, local: true, prepare: prepareRuntimesRemove,
	},
}

// layersDir is where installed runtimes are in a data directory.
func layersDir(data string) string { return filepath.Join(data, "layers") }

// runtimeTable makes the table of an installation.
func runtimeTable(cfg config.Config, data string, log *slog.Logger) ([]harness.Runtime, error) {
	installed, err := runtimes.Layers(layersDir(data))
	if err != nil {
		log.Warn("some installed runtimes cannot be used", "error", err)
	}
	site := runtimes.Site{Config: cfg, Installed: installed}
	if cfg.Sandbox.Image == "" {
		site.Have = runtimes.HostHas
	}
	return runtimes.Table(harness.Runtimes(), site)
}

// runtimesFlags are those that say which installation is meant.
type runtimesFlags struct{ data, config *string }

func (f *runtimesFlags) define(fs *flag.FlagSet) {
	f.data = fs.String("data", env("SOJOURN_DATA", defaultData()), "the server's `directory`")
	f.config = fs.String("config", env("SOJOURN_CONFIG", ""), "the server's configuration `file`")
}

func (f *runtimesFlags) read(s *shell) (table []harness.Runtime, installed []runtimes.Installed, err error) {
	cfg, err := config.Load(*f.config)
	if err != nil {
		return nil, nil, err
	}
	log := slog.New(slog.NewTextHandler(s.err, nil))
	if table, err = runtimeTable(cfg, *f.data, log); err != nil {
		return nil, nil, err
	}
	installed, _ = runtimes.All(layersDir(*f.data)) // the table has logged what is broken
	return table, installed, nil
}

// runtimeView is a runtime as JSON shows it.
type runtimeView struct {
	ID        string               `json:"id"`
	Label     string               `json:"label"`
	Available bool                 `json:"available"`
	Reason    string               `json:"reason,omitempty"`
	Exact     bool                 `json:"exact"`
	Default   bool                 `json:"default"`
	API       string               `json:"api,omitempty"`
	Model     string               `json:"model,omitempty"`
	Install   string               `json:"install,omitempty"`
	Quirks    []string             `json:"quirks,omitempty"`
	Installed []runtimes.Installed `json:"installed,omitempty"`
}

func viewRuntime(r harness.Runtime, first bool, installed []runtimes.Installed) runtimeView {
	v := runtimeView{
		ID: r.ID, Label: r.Label, Available: r.Unavailable == "", Reason: r.Unavailable, Exact: r.Exact, Default: first,
		API: r.API, Model: r.Model, Install: r.Install, Quirks: r.Quirks,
	}
	for _, i := range installed {
		if i.Runtime == r.ID {
			v.Installed = append(v.Installed, i)
		}
	}
	return v
}

// versions are those of a runtime's layers, the one in use first.
func (v runtimeView) versions() string {
	var all []string
	for _, i := range v.Installed {
		if !slices.Contains(all, i.Version) {
			all = append(all, i.Version)
		}
	}
	return strings.Join(all, " ")
}

func (v runtimeView) fidelity() string {
	if v.Exact {
		return "exact"
	}
	return "not exact"
}

func prepareRuntimesList(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	var f runtimesFlags
	f.define(fs)
	verify := fs.Bool("verify", false, "read all that is installed and compare it with its digest")
	return func(_ context.Context, s *shell, _ []string) error {
		table, installed, err := f.read(s)
		if err != nil {
			return err
		}
		var broken error
		if *verify {
			for _, i := range installed {
				broken = errors.Join(broken, runtimes.Verify(i))
			}
		}
		views, rows := make([]runtimeView, len(table)), make([][]string, len(table))
		for n, r := range table {
			v := viewRuntime(r, n == 0, installed)
			state := "usable"
			if !v.Available {
				state = v.Reason
			}
			views[n], rows[n] = v, []string{v.ID, terminal.Line(v.Label, 24), v.fidelity(), v.API, v.versions(), terminal.Line(state, 0)}
		}
		if s.p.json {
			return errors.Join(s.p.value(map[string]any{"runtimes": views}), broken)
		}
		s.p.table([]string{"ID", "LABEL", "CONVERSATION", "API", "INSTALLED", "STATE"}, rows)
		return broken
	}
}

func prepareRuntimesShow(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	var f runtimesFlags
	f.define(fs)
	return func(_ context.Context, s *shell, args []string) error {
		table, installed, err := f.read(s)
		if err != nil {
			return err
		}
		n := slices.IndexFunc(table, func(r harness.Runtime) bool { return r.ID == args[0] })
		if n < 0 {
			return &exitError{exitNotFound, fmt.Errorf("there is no runtime %q; see sojourn runtimes list", terminal.Visible(args[0], ""))}
		}
		v := viewRuntime(table[n], n == 0, installed)
		if s.p.json {
			return s.p.value(v)
		}
		state := "usable"
		if !v.Available {
			state = v.Reason
		}
		s.p.fields([]field{
			{"runtime", v.ID},
			{"label", terminal.Line(v.Label, 0)},
			{"state", terminal.Line(state, 0)},
			{"conversation", v.fidelity()},
			{"api", v.API},
			{"model", terminal.Line(v.Model, 0)},
			{"installed", v.versions()},
			{"recommended", runtimes.Recommended(v.ID)},
		})
		for _, q := range v.Quirks {
			s.p.printf("\n- %s", terminal.Line(q, 0))
		}
		if len(v.Quirks) > 0 {
			s.p.printf("\n")
		}
		return nil
	}
}

// nameAndVersion reads NAME or NAME@VERSION.
func nameAndVersion(word string) (name, version string) {
	name, version, _ = strings.Cut(word, "@")
	return name, version
}

func prepareRuntimesInstall(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	data := fs.String("data", env("SOJOURN_DATA", defaultData()), "the server's `directory`")
	npm := fs.String("npm", "", "npm's `path`; without it the one in PATH")
	return func(ctx context.Context, s *shell, args []string) error {
		id, version := nameAndVersion(args[0])
		if !slices.Contains(runtimes.Installable(), id) {
			return &exitError{exitNotFound, fmt.Errorf("%q cannot be installed; there are %s", terminal.Visible(id, ""), strings.Join(runtimes.Installable(), ", "))}
		}
		done, err := runtimes.Installer{Dir: layersDir(*data), NPM: *npm, Progress: shownWriter{s.err}}.Install(ctx, id, version)
		switch {
		case errors.Is(err, runtimes.ErrVersion):
			return usagef("%s", terminal.Visible(err.Error(), ""))
		case err != nil && ctx.Err() == nil:
			return errors.New(terminal.Shown(err.Error()))
		case err != nil:
			return err
		case s.p.json:
			return s.p.value(done)
		}
		s.p.fields([]field{
			{"runtime", done.Runtime},
			{"version", done.Version},
			{"digest", done.Digest},
			{"size", fmt.Sprintf("%d MB", done.Bytes/1_000_000)},
		})
		s.p.printf("\nA server that runs uses it after its next start.\n")
		return nil
	}
}

// shownWriter makes what is written to it harmless.
type shownWriter struct{ to io.Writer }

func (w shownWriter) Write(b []byte) (int, error) {
	if _, err := io.WriteString(w.to, terminal.Shown(string(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

func prepareRuntimesRemove(flags *flag.FlagSet) func(context.Context, *shell, []string) error {
	data := flags.String("data", env("SOJOURN_DATA", defaultData()), "the server's `directory`")
	return func(_ context.Context, s *shell, args []string) error {
		id, version := nameAndVersion(args[0])
		gone, err := runtimes.Remove(layersDir(*data), id, version)
		names := make([]string, len(gone))
		for n, i := range gone {
			names[n] = i.Name()
		}
		switch {
		case errors.Is(err, runtimes.ErrInUse):
			err = &exitError{exitRefused, err}
		case errors.Is(err, fs.ErrNotExist):
			err = &exitError{exitNotFound, fmt.Errorf("%s is not installed", terminal.Visible(args[0], ""))}
		}
		if s.p.json {
			return errors.Join(s.p.value(map[string]any{"removed": names}), err)
		}
		for _, n := range names {
			s.p.printf("%s removed\n", n)
		}
		return err
	}
}
