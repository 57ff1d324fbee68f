package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// maxLogTail is how many bytes of runsc's logs go into an error.
const maxLogTail = 4 << 10

// launcher starts and ends the processes of a sandbox: a sentry and a gofer.
type launcher struct {
	roots      *local.Roots
	executable string
	rootless   bool
}

// Launch runs "runsc run --detach", which returns when process 1 of the sandbox has
// been started and leaves the sentry and the gofer behind.
func (l *launcher) Launch(ctx context.Context, c *local.Cell, spec sandbox.Spec) (local.Process, error) {
	if err := l.writeBundle(ctx, c, spec); err != nil {
		return local.Process{}, err
	}
	pidFile := filepath.Join(c.Private(), "pid")
	args := append(l.flags(c), "run", "--detach", "--pid-file="+pidFile, "--bundle="+c.Private(), c.ID)
	cmd := exec.CommandContext(ctx, l.executable, append([]string{command}, args...)...)
	cmd.Dir = "/"
	// runsc hands its standard files on to the sandbox, so all of them are the null
	// device: a file of the host could be filled up through them, and a pipe would
	// tie the sandbox to the server.
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return local.Process{}, fmt.Errorf("run runsc: %w", context.Cause(ctx))
		}
		return local.Process{}, fmt.Errorf("run runsc: %w: %s", err, logTail(c.Private()))
	}
	return readPID(pidFile)
}

// Kill ends the sentry, the gofer and a runsc that is still starting them: all of them
// have the id of the cell among their arguments.
func (l *launcher) Kill(ctx context.Context, c *local.Cell) error {
	return local.KillNaming(ctx, c.ID)
}

// flags are the global flags of runsc.
func (l *launcher) flags(c *local.Cell) []string {
	flags := []string{
		"--root=" + filepath.Join(c.Private(), "state"),
		"--log=" + filepath.Join(c.Private(), "runsc.log"),
		"--panic-log=" + filepath.Join(c.Private(), "panic.log"),
		"--network=none",
		// A namespace that is shared between gofers would be kept by a mount on the
		// host.
		"--gofer-network-namespace=new",
		"--ignore-cgroups",
		"--host-uds=open",
		"--overlay2=root:memory",
		"--host-settings=ignore",
		"--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
	}
	if l.rootless {
		flags = append(flags, "--rootless")
	}
	return flags
}

func (l *launcher) writeBundle(ctx context.Context, c *local.Cell, spec sandbox.Spec) error {
	root, err := l.roots.Find(ctx, c, spec)
	if err != nil {
		return err
	}
	b, err := json.Marshal(bundle(c, root, l.executable, spec))
	if err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(c.Private(), "config.json"), b, 0o600); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	return nil
}

func readPID(path string) (local.Process, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return local.Process{}, fmt.Errorf("read process id of sandbox: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return local.Process{}, fmt.Errorf("read process id of sandbox: %w", err)
	}
	p, err := local.FindProcess(pid)
	if err != nil {
		return local.Process{}, fmt.Errorf("sandbox ended at once: %w", err)
	}
	return p, nil
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
