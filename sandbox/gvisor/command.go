package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

const (
	// maxLogTail is how many bytes of runsc's logs go into an error.
	maxLogTail = 4 << 10
	// maxAnswer is how many bytes a command of runsc may print.
	maxAnswer = 64 << 10
	// stateFD is the descriptor under which runsc gets the directory for its state.
	// The control socket is made below --root, and a path of a socket has at most 107
	// bytes; a runsc that finds its own too long makes the socket in a public
	// directory, where nobody would remove it. This one is short wherever the
	// driver's directory is. The sentry and the gofer get other files under the
	// number.
	stateFD = 3
)

// runsc runs a command of runsc on a cell and returns what it prints. Without privileges
// it runs in a user namespace of its own, in which it is root and may mount: as
// --rootless does for some commands, but for all of them.
func (l *launcher) runsc(ctx context.Context, c *local.Cell, args ...string) ([]byte, error) {
	state, err := openState(c)
	if err != nil {
		return nil, err
	}
	defer state.Close()
	cmd := l.tool.command(ctx, append(l.flags(c), args...)...)
	cmd.ExtraFiles = []*os.File{state} // the first gets stateFD
	cmd.SysProcAttr = l.attributes()
	// runsc hands its standard files on to the sandbox, so for commands that start one
	// all of them are the null device: a file of the host could be filled up through
	// them, and a pipe would tie the sandbox to the server.
	var out limited
	if !starts(args[0]) {
		cmd.Stdout = &out
	}
	run := cmd.Run
	if starts(args[0]) {
		run = func() error { return runWithin(c, cmd) }
	}
	if err := run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("runsc %s: %w: %s", args[0], err, logTail(c.Private()))
	}
	return out.Bytes(), nil
}

// starts reports whether a command of runsc starts a sandbox.
func starts(command string) bool { return command == "run" || command == "restore" }

// runWithin runs a command within the limits of the cell.
func runWithin(c *local.Cell, cmd *exec.Cmd) error {
	if err := c.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// attributes are how a command of runsc is started.
func (l *launcher) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if l.unprivileged {
		attr.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return attr
}

// openState opens the directory for runsc's state, which it makes if it must.
func openState(c *local.Cell) (*os.File, error) {
	dir := stateDir(c)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make directory for runsc's state: %w", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open directory for runsc's state: %w", err)
	}
	return f, nil
}

// flags are the global flags of runsc.
func (l *launcher) flags(c *local.Cell) []string {
	return append([]string{
		fmt.Sprintf("--root=/proc/self/fd/%d", stateFD),
		"--log=" + filepath.Join(c.Private(), "runsc.log"),
		"--panic-log=" + filepath.Join(c.Private(), "panic.log"),
		"--network=" + networkOf(c),
		"--ignore-cgroups",
		"--host-uds=open",
		"--overlay2=root:memory" + overlaySize(c.Record.Limits),
	}, l.tool.flags...)
}

// limited keeps the first bytes of what is written to it.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	l.Buffer.Write(p[:min(len(p), max(0, maxAnswer-l.Len()))])
	return len(p), nil
}

// logTail is the end of what runsc and the sentry wrote.
func logTail(dir string) string {
	var out []string
	for _, name := range []string{"panic.log", "runsc.log"} {
		if tail := fileTail(filepath.Join(dir, name), maxLogTail/2); tail != "" {
			out = append(out, tail)
		}
	}
	if len(out) == 0 {
		return "it wrote no log"
	}
	return strings.Join(out, "; ")
}

func fileTail(path string, limit int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if _, err := f.Seek(-limit, io.SeekEnd); err != nil && !errors.Is(err, syscall.EINVAL) { // shorter
		return ""
	}
	b, _ := io.ReadAll(io.LimitReader(f, limit))
	return string(bytes.TrimSpace(b))
}
