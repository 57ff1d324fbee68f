// Package dockertest runs container engines for tests: each with all of its state in one
// directory, beside whatever the machine has.
package dockertest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// PlainUser is the user that tests without root run as; the engine's socket is its too.
const PlainUser = 65534

const (
	startTime = time.Minute
	stopTime  = 30 * time.Second
	lookEvery = 20 * time.Millisecond
)

// Engine is a container engine. Its programs end with the thread that started it: the
// caller of Start locks its goroutine to its thread.
type Engine struct {
	Dir    string
	socket string
	// programs are what was started, first to last. Each ended channel is closed when its
	// program has.
	programs []program
}

type program struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// Runtime is a runtime of an engine: a name, and the program with arguments in front of
// the engine's own. "{dir}" stands for the engine's directory.
type Runtime struct{ Name, Program string }

// Start starts Debian's Docker engine on private sockets. It touches no firewall, no
// bridge and no other engine. The error says what is missing.
func Start(runtimes ...Runtime) (_ *Engine, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("an engine needs root")
	}
	for _, program := range []string{"containerd", "dockerd", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%s is not installed (apt install docker.io)", program)
		}
	}
	e, err := New("engine-", "docker.sock")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Stop())
		}
	}()
	if err := os.Chmod(e.Dir, 0o711); err != nil { // a plain user's test comes through
		return nil, err
	}
	containerd := e.Command("containerd", "--root", e.Path("containerd"), "--state", e.Path("state"), "--address", e.Path("cd.sock"))
	if err := e.Run(containerd, e.Path("cd.sock")); err != nil {
		return nil, err
	}
	var added []string
	for _, r := range runtimes {
		path, err := e.wrap(r)
		if err != nil {
			return nil, err
		}
		added = append(added, "--add-runtime", r.Name+"="+path)
	}
	for _, storage := range []string{"overlay2", "vfs"} {
		dockerd := e.Command("dockerd", append(added, "--containerd", e.Path("cd.sock"), "-H", e.Host(), "--group", strconv.Itoa(PlainUser),
			"--data-root", e.Path("data"), "--exec-root", e.Path("exec"), "--pidfile", e.Path("docker.pid"),
			"--storage-driver", storage, "--cgroup-parent", e.cgroup(), "--bridge=none",
			"--iptables=false", "--ip6tables=false", "--ip-forward=false")...)
		if err = e.Run(dockerd, e.Path("docker.sock")); err == nil {
			return e, nil
		}
	}
	return nil, err
}

// New makes the directory of an engine whose programs the caller runs, and which is to
// listen on a socket of that name in it.
func New(prefix, socket string) (*Engine, error) {
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return nil, err
	}
	return &Engine{Dir: dir, socket: socket}, nil
}

// wrap writes a program that is the runtime, and returns its path.
func (e *Engine) wrap(r Runtime) (string, error) {
	text := "#!/bin/sh\nexec " + strings.ReplaceAll(r.Program, "{dir}", e.Dir) + " \"$@\"\n"
	path := e.Path(r.Name)
	return path, os.WriteFile(path, []byte(text), 0o755)
}

// Path is that of a file in the engine's directory.
func (e *Engine) Path(name string) string { return filepath.Join(e.Dir, name) }

// Host is where the engine listens.
func (e *Engine) Host() string { return "unix://" + e.Path(e.socket) }

func (e *Engine) cgroup() string { return "/" + filepath.Base(e.Dir) }

// Command prepares a program that ends with this thread.
func (e *Engine) Command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = e.Dir, append(os.Environ(), "TMPDIR="+e.Dir) // some leave files where they are
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGTERM}
	return cmd
}

// Run starts a program and waits until it listens on a socket.
func (e *Engine) Run(cmd *exec.Cmd, socket string) error {
	log, err := os.Create(e.Path(filepath.Base(cmd.Path) + ".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	p := program{cmd, make(chan struct{})}
	e.programs = append(e.programs, p)
	go func() { _ = cmd.Wait(); close(p.ended) }() // Stop waits for it
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for deadline := time.Now().Add(startTime); time.Now().Before(deadline); {
		if conn, err := net.Dial("unix", socket); err == nil {
			return conn.Close()
		}
		select {
		case <-p.ended:
			b, _ := os.ReadFile(log.Name())
			return fmt.Errorf("%s ended: %s", cmd.Path, bytes.TrimSpace(b[max(0, len(b)-1000):]))
		case <-look.C:
		}
	}
	return fmt.Errorf("%s does not listen", cmd.Path)
}

// Stop ends the engine and removes all of it.
func (e *Engine) Stop() error {
	for _, p := range slices.Backward(e.programs) {
		_ = p.cmd.Process.Signal(unix.SIGTERM) // it may have ended
		select {
		case <-p.ended:
		case <-time.After(stopTime):
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
	}
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(string(info), "\n")
	for _, line := range slices.Backward(lines) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], e.Dir+"/") {
			_ = unix.Unmount(f[4], unix.MNT_DETACH)
		}
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*" + e.cgroup())
	if err != nil {
		return err
	}
	for _, g := range append(groups, "/sys/fs/cgroup"+e.cgroup()) {
		_ = os.Remove(g) // not there, or not empty
	}
	return os.RemoveAll(e.Dir)
}
