package gvisor

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/runsc/boot"

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
func (l *launcher) limitProcesses(ctx context.Context, c *local.Cell) error {
	n := c.Record.Limits.Processes
	if n <= 0 {
		return nil
	}
	file := control.CgroupsWriteArg{File: pidsFile(c, "pids.max"), Value: strconv.Itoa(n)}
	_, err := askKernel(ctx, c, boot.CgroupsWriteControlFiles, &control.CgroupsWriteArgs{Args: []control.CgroupsWriteArg{file}})
	if err != nil {
		return fmt.Errorf("limit processes: %w", err)
	}
	return nil
}

// Processes asks gVisor's kernel; see local.Kernel.
func (l *launcher) Processes(ctx context.Context, c *local.Cell) (running int, denied int64, err error) {
	if !l.tool.counts() {
		return 0, 0, nil
	}
	said, err := askKernel(ctx, c, boot.CgroupsReadControlFiles, &control.CgroupsReadArgs{Args: []control.CgroupsReadArg{
		{File: pidsFile(c, "pids.current")}, {File: pidsFile(c, "pids.events")},
	}})
	if err == nil && len(said) != 2 {
		err = fmt.Errorf("%d answers to two questions", len(said))
	}
	if err == nil {
		running, err = strconv.Atoi(strings.TrimSpace(said[0]))
	}
	if err == nil {
		denied, err = strconv.ParseInt(strings.TrimPrefix(strings.TrimSpace(said[1]), "max "), 10, 64)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("count processes: %w", err)
	}
	return running, denied, nil
}

// askKernel makes a call about control files and returns what came of each. It ends with
// ctx, also when the kernel does not answer: it may be stopped.
func askKernel(ctx context.Context, c *local.Cell, method string, args any) ([]string, error) {
	state, err := openState(c)
	if err != nil {
		return nil, err
	}
	defer state.Close()
	// Through the descriptor the path of the socket is short enough.
	conn, err := client.ConnectTo(fmt.Sprintf("/proc/self/fd/%d/runsc-%s.sock", state.Fd(), c.ID))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Socket.Shutdown() })() // fails when the call is over
	var out control.CgroupsResults
	if err := conn.Call(method, args, &out); err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	said := make([]string, len(out.Results))
	for i, r := range out.Results {
		if said[i], err = r.Unpack(); err != nil {
			return nil, err
		}
	}
	return said, nil
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
