package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// Probe reports whether the driver works on this machine, by making a sandbox in a
// directory of its own below that of the configuration, or below the system's for
// temporary files if that is empty.
func Probe(ctx context.Context, cfg Config) sandbox.Report {
	name := nameOf(cfg)
	e, err := connect(ctx, cfg)
	if err != nil {
		return refused(name, cfg, err)
	}
	defer e.Close()
	// The sandbox is tried with the engine that was found.
	cfg.Host, cfg.Runtime = e.host, e.runtime
	r := local.Probe(ctx, name, e.capabilities(len(cfg.Images) > 0), cfg.Dir, func(dir string) (sandbox.Driver, error) {
		cfg.Dir = dir
		return Open(cfg)
	})
	if r.Available {
		r.Reason = e.describe()
		return r
	}
	r.Fix = "Look at the engine's log, or choose another driver."
	if e.isolation == sandbox.IsolationMicroVM {
		r.Fix = "Use a runtime that passes Unix sockets of shared directories into the machine: the keeper calls through one. Else choose the gvisor driver."
	}
	if e.secured("selinux") {
		r.Fix = "The engine confines with SELinux, which may keep sandboxes from the data directory: allow it, or choose the gvisor driver."
	}
	return r
}

// refused reports why no sandbox was tried.
func refused(name string, cfg Config, err error) sandbox.Report {
	r := sandbox.Report{
		Driver: name, Isolation: cmp.Or(cfg.Isolation, sandbox.IsolationContainer),
		Reason: sentence(err.Error()), Fix: "Choose another driver.",
	}
	if p, ok := errors.AsType[*problem](err); ok {
		r.Reason, r.Fix = sentence(p.reason), p.fix
	}
	return r
}

// describe says in one sentence which engine it is and what works.
func (e *engine) describe() string {
	who := "root"
	switch {
	case !e.ownRoot():
		who = fmt.Sprintf("user %d, so that the server can handle its files,", e.uid)
	case e.rootless:
		who = "the rootless engine's root"
	}
	return fmt.Sprintf("A sandbox was made as %s by the engine %s at %s with its runtime %s (%s) and its keeper called.",
		who, e.info.ServerVersion, strings.TrimPrefix(e.host, "unix://"), e.runtime, e.isolation)
}

// sentence makes a sentence of an error.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}
