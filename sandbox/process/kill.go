package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// guardTime is how long the guard may take to end all that it guards.
const guardTime = 10 * time.Second

// Kill asks the guard to end the sandbox. Then it looks for what the guard could not have
// seen because something had killed it: processes with the sandbox's mark.
func (l *launcher) Kill(ctx context.Context, c *local.Cell) error {
	guards := []local.Process{c.Record.Process}
	if c.Record.Process.PID == 0 {
		guards = naming(c.ID)
	} else if err := c.Begun(local.Process{}); err != nil {
		// Its processes take a moment to end; a server that comes back meanwhile must
		// not take them over.
		return err
	}
	for _, g := range guards {
		if err := endGuard(ctx, g); err != nil {
			return err
		}
	}
	for {
		left := marked(c.ID)
		if len(left) == 0 {
			return nil
		}
		for _, p := range left {
			if err := p.Kill(); err != nil {
				return fmt.Errorf("kill process %d: %w", p.PID, err)
			}
		}
		for _, p := range left {
			if err := p.Wait(ctx); err != nil {
				return fmt.Errorf("wait for process %d to end: %w", p.PID, err)
			}
		}
	}
}

// endGuard tells a guard to end everything and waits until it has. One that does not is
// killed: what it guarded is found by its mark.
func endGuard(ctx context.Context, guard local.Process) error {
	if guard.PID == 0 || !guard.Alive() {
		return nil
	}
	if err := unix.Kill(guard.PID, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end guard: %w", err)
	}
	_ = unix.Kill(guard.PID, unix.SIGCONT) // somebody may have stopped it
	patient, cancel := context.WithTimeout(ctx, guardTime)
	defer cancel()
	err := guard.Wait(patient)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if err := guard.Kill(); err != nil {
		return fmt.Errorf("kill guard: %w", err)
	}
	return guard.Wait(ctx)
}

// marked returns the processes with the mark of a sandbox in their first environment. The
// guard has it too.
func marked(id string) []local.Process {
	mark := []byte(markVariable + "=" + id + "\x00")
	return find(func(dir string) bool {
		env, err := os.ReadFile(dir + "/environ") // unreadable: not ours, or gone
		return err == nil && bytes.Contains(env, mark)
	})
}

// naming returns the processes that have the id of a sandbox as an argument: its guard, and
// what the guard starts before that becomes the keeper.
func naming(id string) []local.Process {
	arg := []byte("\x00" + id + "\x00")
	return find(func(dir string) bool {
		args, err := os.ReadFile(dir + "/cmdline")
		return err == nil && bytes.Contains(args, arg)
	})
}

// find returns the processes that which says yes to, given their directory in /proc.
func find(which func(dir string) bool) []local.Process {
	var found []local.Process
	for _, pid := range processes() {
		if pid == os.Getpid() || !which("/proc/"+strconv.Itoa(pid)) {
			continue
		}
		if p, err := local.FindProcess(pid); err == nil {
			found = append(found, p)
		}
	}
	return found
}
