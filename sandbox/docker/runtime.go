package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/system"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// kinds says which wall a runtime builds, by a word in the name of its program or shim.
// The first that fits counts.
var kinds = []struct {
	word      string
	isolation sandbox.Isolation
}{
	{"kata", sandbox.IsolationMicroVM},
	{"firecracker", sandbox.IsolationMicroVM},
	{"krun", sandbox.IsolationMicroVM},
	{"runsc", sandbox.IsolationGVisor},
	{"gvisor", sandbox.IsolationGVisor},
	{"runc", sandbox.IsolationContainer},
	{"crun", sandbox.IsolationContainer},
	{"youki", sandbox.IsolationContainer},
}

// installs says how to get a runtime of each kind.
var installs = map[sandbox.Isolation]string{
	sandbox.IsolationMicroVM:   "Install Kata Containers and list it in the engine's configuration (daemon.json: \"runtimes\"; containers.conf: [engine.runtimes]).",
	sandbox.IsolationGVisor:    "Install runsc and list it in the engine's configuration (runsc install), or use the gvisor driver, which needs no engine.",
	sandbox.IsolationContainer: "Install runc or crun.",
}

// isolationOf returns the wall that a runtime builds, "" when its program is unknown. The
// program counts more than the name that an operator gave it.
func isolationOf(name string, r system.Runtime) sandbox.Isolation {
	for _, text := range []string{filepath.Base(r.Path), r.Type, name} {
		for _, k := range kinds {
			if strings.Contains(strings.ToLower(text), k.word) {
				return k.isolation
			}
		}
	}
	return ""
}

// choose picks the runtime, so that the wall is the one that was asked for.
func (e *engine) choose(cfg Config) error {
	switch cfg.Isolation {
	case "", sandbox.IsolationContainer, sandbox.IsolationGVisor, sandbox.IsolationMicroVM:
	default:
		return fmt.Errorf("isolation %.40q: %w", cfg.Isolation, sandbox.ErrUnsupported)
	}
	name := cfg.Runtime
	if name == "" {
		name = e.find(cfg.Isolation)
	}
	if name == "" {
		return &problem{
			fmt.Sprintf("the engine at %s has no runtime with the isolation %s, only %s", e.host, cfg.Isolation, e.runtimeNames()),
			installs[cfg.Isolation],
		}
	}
	r, listed := e.info.Runtimes[name]
	if !listed {
		return &problem{
			fmt.Sprintf("the engine at %s does not list the runtime %.80q, only %s", e.host, name, e.runtimeNames()),
			"List it in the engine's configuration (daemon.json: \"runtimes\"; containers.conf: [engine.runtimes]) and restart the engine.",
		}
	}
	e.runtime, e.isolation = name, isolationOf(name, r.Runtime)
	return e.checkRuntime(cfg.Isolation)
}

// find returns the engine's default runtime, or the first one, by name, with the
// isolation that is wanted; "" when there is none.
func (e *engine) find(want sandbox.Isolation) string {
	if d := e.info.DefaultRuntime; want == "" || isolationOf(d, e.info.Runtimes[d].Runtime) == want {
		return d
	}
	for _, name := range slices.Sorted(maps.Keys(e.info.Runtimes)) {
		r := e.info.Runtimes[name].Runtime
		if isolationOf(name, r) == want && !missing(r.Path) {
			return name
		}
	}
	return ""
}

// missing reports whether a runtime's program is known not to be there: Podman lists
// whatever it is configured for.
func missing(path string) bool {
	if !filepath.IsAbs(path) {
		return false
	}
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

func (e *engine) checkRuntime(want sandbox.Isolation) error {
	switch {
	case e.isolation == "":
		return &problem{
			fmt.Sprintf("nothing is known about the wall of the runtime %.80q", e.runtime),
			"Choose a runtime whose program is runc, crun, youki, runsc or of the Kata or Firecracker kind.",
		}
	case want != "" && want != e.isolation:
		return &problem{
			fmt.Sprintf("the runtime %.80q gives the isolation %s, not %s", e.runtime, e.isolation, want),
			installs[want],
		}
	case e.isolation == sandbox.IsolationMicroVM:
		return checkKVM("/dev/kvm")
	case e.isolation == sandbox.IsolationContainer && e.unfiltered():
		return &problem{
			"the engine runs without a system call filter",
			"Start the engine with its default seccomp profile, on a kernel with CONFIG_SECCOMP_FILTER.",
		}
	}
	return nil
}

// checkKVM reports why there can be no machines under a hypervisor here.
func checkKVM(device string) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err == nil {
		return f.Close()
	}
	p := &problem{
		fmt.Sprintf("this machine has no %s, which sandboxes in a machine of their own need", device),
		"Use a machine with hardware virtualisation (on a virtual one: nested), load the kvm module, or choose the gvisor driver.",
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return &problem{fmt.Sprintf("%s may not be opened by user %d", device, os.Geteuid()), "Add the user to the group kvm."}
	case !errors.Is(err, fs.ErrNotExist):
		p.reason = fmt.Sprintf("%s does not work: %v", device, errors.Unwrap(err))
	}
	return p
}

func (e *engine) runtimeNames() string {
	return strings.Join(slices.Sorted(maps.Keys(e.info.Runtimes)), ", ")
}
