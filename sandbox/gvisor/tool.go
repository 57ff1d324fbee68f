package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// askTime is how long an external runsc may take to say what it is.
const askTime = 30 * time.Second

// tool is the runsc in use: our own executable, or one that the operator chose.
type tool struct {
	path    string
	prefix  []string // before the flags
	flags   []string // that not every version knows
	version string
	// external says that path is not our executable.
	external bool
}

// embedded is our executable as runsc.
func embedded(executable string) tool {
	return tool{
		path:    executable,
		prefix:  []string{command},
		version: embeddedVersion(),
		flags: []string{
			goferNamespace, hostSettings, sandboxGroups,
			"--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
		},
	}
}

const (
	// goferNamespace: a namespace that is shared between gofers would be kept by a
	// mount on the host.
	goferNamespace = "--gofer-network-namespace=new"
	// hostSettings keeps runsc from changing settings of the host's kernel.
	hostSettings = "--host-settings=ignore"
	// sandboxGroups lets the sandbox's own kernel have control groups, which bound
	// its processes.
	sandboxGroups = "--in-sandbox-cgroup=v2"
)

// needed are the flags without which a runsc is of no use to this driver.
var needed = []string{"root", "log", "panic-log", "network", "ignore-cgroups", "host-uds", "overlay2"}

// versionLine is what "runsc --version" begins with.
var versionLine = regexp.MustCompile(`^runsc version ([A-Za-z0-9._+-]{1,100})\s`)

// external asks the runsc at a path what it is and which flags it knows.
func external(ctx context.Context, path string) (tool, error) {
	if !filepath.IsAbs(path) {
		return tool{}, fmt.Errorf("runsc %q is not an absolute path", path)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, errors.New("it did not answer"))
	defer cancel()
	t := tool{path: path, external: true}
	said, err := t.ask(ctx, "--version")
	if err != nil {
		return tool{}, err
	}
	match := versionLine.FindStringSubmatch(said)
	if match == nil {
		return tool{}, fmt.Errorf("%s is no runsc: for --version it prints %.100q", path, said)
	}
	t.version = match[1]
	listed, err := t.ask(ctx, "flags")
	if err != nil {
		return tool{}, err
	}
	for _, name := range needed {
		if !knows(listed, name) {
			return tool{}, fmt.Errorf("runsc %s at %s is too old: it has no flag --%s", t.version, path, name)
		}
	}
	for _, flag := range []string{goferNamespace, hostSettings, sandboxGroups} {
		name, _, _ := strings.Cut(strings.TrimPrefix(flag, "--"), "=")
		if knows(listed, name) {
			t.flags = append(t.flags, flag)
		}
	}
	return t, nil
}

// counts reports whether processes in a sandbox can be limited.
func (t tool) counts() bool { return slices.Contains(t.flags, sandboxGroups) }

// knows reports whether a flag is in the list that "runsc flags" prints.
func knows(listed, name string) bool {
	for line := range strings.Lines(listed) {
		word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		word, _, _ = strings.Cut(word, "=")
		if strings.TrimLeft(word, "-") == name {
			return true
		}
	}
	return false
}

func (t tool) ask(ctx context.Context, arg string) (string, error) {
	cmd := t.command(ctx, arg)
	var out limited
	cmd.Stdout, cmd.Stderr = &out, &out // some print their flags to one, some to the other
	cmd.WaitDelay = time.Second         // a script's children may hold the pipe
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf("ask %s for %s: %w", t.path, arg, err)
	}
	return out.String(), nil
}

// command is one call of runsc.
func (t tool) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, t.path, append(t.prefix[:len(t.prefix):len(t.prefix)], args...)...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	return cmd
}

// embeddedVersion is the version of the gVisor module in this executable.
func embeddedVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range info.Deps {
		if m.Path == "gvisor.dev/gvisor" {
			return m.Version
		}
	}
	return "unknown"
}
