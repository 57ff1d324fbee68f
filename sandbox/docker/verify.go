package docker

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// settleTime is how long a runtime may take to become the keeper after the engine has
// said that the sandbox runs.
const settleTime = 10 * time.Second

// guards are words in the name of the process that stands between a sandbox and the
// host's kernel, by isolation.
var guards = map[sandbox.Isolation][]string{
	sandbox.IsolationGVisor:  {"runsc"},
	sandbox.IsolationMicroVM: {"qemu", "firecracker", "cloud-hypervisor", "dragonball", "stratovirt", "kata", "krun"},
}

// verify reports whether the process that the engine calls the first of a sandbox is one
// of this machine, belongs to that sandbox and has the wall that was promised.
func (l *launcher) verify(ctx context.Context, c *local.Cell, id string, p local.Process) error {
	if words, guarded := guards[l.engine.isolation]; guarded {
		args := arguments(p.PID)
		if !belongs(p.PID, c, id) {
			return invisible(p.PID)
		}
		for _, w := range words {
			if len(args) > 0 && strings.Contains(filepath.Base(args[0]), w) {
				return nil
			}
		}
		return &problem{
			fmt.Sprintf("the runtime %s was to give the isolation %s, but process %d is %.100q", l.engine.runtime, l.engine.isolation, p.PID, args),
			"Correct the engine's runtime.",
		}
	}
	if err := l.settle(ctx, p); err != nil {
		return err
	}
	if !belongs(p.PID, c, id) {
		return invisible(p.PID)
	}
	return checkStatus(p.PID)
}

// settle waits until the runtime has become the keeper.
func (l *launcher) settle(ctx context.Context, p local.Process) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settleTime, fmt.Errorf("no keeper after %v", settleTime))
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, retryPause) {
		args := arguments(p.PID)
		if len(args) > 1 && args[0] == sandbox.KeeperPath {
			return nil
		}
		if !p.Alive() {
			return fmt.Errorf("it ended at once: %w", sandbox.ErrGone)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("process %d is %.100q: %w", p.PID, args, context.Cause(ctx))
		}
	}
}

// belongs reports whether a process is the sandbox's: it sees our socket directory, or
// its control group or arguments name the sandbox.
func belongs(pid int, c *local.Cell, id string) bool {
	proc := procDir(pid)
	inside, err := os.Stat(filepath.Join(proc, "root", sandbox.SocketDir))
	if err == nil {
		if ours, err := os.Stat(c.Run()); err == nil && os.SameFile(inside, ours) {
			return true
		}
	}
	for _, name := range []string{"cgroup", "cmdline"} {
		b, err := os.ReadFile(filepath.Join(proc, name))
		if err == nil && bytes.Contains(b, []byte(id)) {
			return true
		}
	}
	return false
}

// checkStatus reports whether a keeper on the host's kernel has the walls that the engine
// was asked for.
func checkStatus(pid int) error {
	b, err := os.ReadFile(filepath.Join(procDir(pid), "status"))
	if err != nil {
		return fmt.Errorf("look at the keeper: %w", err)
	}
	return judgeStatus(string(b))
}

// mayHold is the set of the capabilities that a sandbox can have, as in
// /proc/PID/status: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID and
// NET_BIND_SERVICE.
const mayHold = 1<<0 | 1<<1 | 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<10

func judgeStatus(status string) error {
	fields := make(map[string]string)
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.TrimSpace(value)
	}
	bounding, err := strconv.ParseUint(fields["CapBnd"], 16, 64)
	switch {
	case err != nil || bounding&^mayHold != 0:
		return &problem{fmt.Sprintf("the engine left the capabilities %q to the sandbox", fields["CapBnd"]), "Use an engine that drops capabilities."}
	case fields["NoNewPrivs"] != "1":
		return &problem{"the engine lets the sandbox gain privileges", "Use an engine that knows no-new-privileges."}
	case fields["Seccomp"] != "2":
		return &problem{"the engine started the sandbox without a system call filter", "Start the engine with its default seccomp profile."}
	}
	return nil
}

func invisible(pid int) error {
	return &problem{
		fmt.Sprintf("process %d, which the engine has started, is not the sandbox's here", pid),
		"Run the server where the engine runs: on the same machine and in the same process namespace, not in a sandbox of that engine.",
	}
}

// arguments are those of a process; none when it has ended or is a zombie.
func arguments(pid int) []string {
	b, err := os.ReadFile(filepath.Join(procDir(pid), "cmdline"))
	if err != nil || len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

func procDir(pid int) string { return "/proc/" + strconv.Itoa(pid) }
