package gvisor

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/runsc/container"
	runsc "gvisor.dev/gvisor/runsc/sandbox"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

var _ local.Kernel = (*launcher)(nil)

// limitProcesses bounds the processes and threads in the sandbox, in gVisor's kernel:
// those that the host sees are not the sandbox's. A fork beyond the limit fails with
// EAGAIN. Inside, the groups are read-only. A program that makes a user namespace to
// mount them once more can raise the limit, for itself and at the cost of its own
// sandbox: the group on the host bounds that as well. The sandbox has no namespace of
// groups, which would stop that too, because gVisor then dies of a write from outside.
func (l *launcher) limitProcesses(c *local.Cell) error {
	n := c.Record.Limits.Processes
	if n <= 0 {
		return nil
	}
	err := inSandbox(c, func(sb *runsc.Sandbox) error {
		return sb.CgroupsWriteControlFile(pidsFile(c, "pids.max"), strconv.Itoa(n))
	})
	if err != nil {
		return fmt.Errorf("limit processes: %w", err)
	}
	return nil
}

// Processes asks gVisor's kernel; see local.Kernel.
func (l *launcher) Processes(_ context.Context, c *local.Cell) (running int, denied int64, err error) {
	if !l.tool.counts() {
		return 0, 0, nil
	}
	err = inSandbox(c, func(sb *runsc.Sandbox) error {
		current, err := sb.CgroupsReadControlFile(pidsFile(c, "pids.current"))
		if err != nil {
			return err
		}
		events, err := sb.CgroupsReadControlFile(pidsFile(c, "pids.events"))
		if err != nil {
			return err
		}
		if running, err = strconv.Atoi(strings.TrimSpace(current)); err != nil {
			return err
		}
		denied, err = strconv.ParseInt(strings.TrimPrefix(strings.TrimSpace(events), "max "), 10, 64)
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("count processes: %w", err)
	}
	return running, denied, nil
}

// inSandbox calls do with the sandbox as runsc has noted it. Its directory is named by
// descriptor, as it is for runsc, so that the path of the control socket is short.
func inSandbox(c *local.Cell, do func(*runsc.Sandbox) error) error {
	state, err := openState(c)
	if err != nil {
		return err
	}
	defer state.Close()
	dir := fmt.Sprintf("/proc/self/fd/%d", state.Fd())
	id := container.FullID{SandboxID: c.ID, ContainerID: c.ID}
	loaded, err := container.Load(dir, id, container.LoadOpts{Exact: true, SkipCheck: true})
	if err != nil {
		return err
	}
	// What is noted is a descriptor of the process that started the sandbox.
	loaded.Sandbox.ControlSocketPath = filepath.Join(dir, "runsc-"+c.ID+".sock")
	return do(loaded.Sandbox)
}

// stateDir is where runsc notes what it has made.
func stateDir(c *local.Cell) string { return filepath.Join(c.Private(), "state") }

func pidsFile(c *local.Cell, name string) control.CgroupControlFile {
	return control.CgroupControlFile{Controller: "pids", Path: "/" + c.KernelID(), Name: name}
}

// rlimits are the limits of each process. No file can be larger than the disk: where disks
// are only measured that makes up for the time between.
func rlimits(l sandbox.Limits) []specs.POSIXRlimit {
	files := local.OpenFiles(l, openFiles)
	ls := []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: files, Hard: files}}
	if n := uint64(l.DiskBytes); n > 0 {
		ls = append(ls, specs.POSIXRlimit{Type: "RLIMIT_FSIZE", Soft: n, Hard: n})
	}
	return ls
}

// overlaySize bounds what is written to the root directory, in the form of a flag.
func overlaySize(l sandbox.Limits) string {
	if n := local.ShareOf(l).Root; n > 0 {
		return fmt.Sprintf(",size=%d", n)
	}
	return ""
}

// sized adds a size to options of a file system in memory, if there is one.
func sized(bytes int64, options ...string) []string {
	if bytes > 0 {
		options = append(options, fmt.Sprintf("size=%d", bytes))
	}
	return options
}
