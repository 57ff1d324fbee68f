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
	if c.Record.Ready {
		// Its processes take a moment to end; a server that comes back meanwhile must
		// not take them over.
		c.Record.Ready = false
		if err := c.Begun(c.Record.Process); err != nil {
			return err
		}
	}
	if err := endGuard(ctx, c.Record.Process); err != nil {
		return err
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

// marked returns the processes with the mark of a sandbox in their first environment, and
// those that have its id among their arguments: a guard that has only begun.
func marked(id string) []local.Process {
	mark := []byte(markVariable + "=" + id + "\x00")
	var found []local.Process
	for _, pid := range processes() {
		if pid == os.Getpid() {
			continue
		}
		dir := "/proc/" + strconv.Itoa(pid)
		env, _ := os.ReadFile(dir + "/environ") // unreadable: not ours, or gone
		args, _ := os.ReadFile(dir + "/cmdline")
		if !bytes.Contains(env, mark) && !bytes.Contains(args, []byte("\x00"+id+"\x00")) {
			continue
		}
		if p, err := local.FindProcess(pid); err == nil {
			found = append(found, p)
		}
	}
	return found
}
