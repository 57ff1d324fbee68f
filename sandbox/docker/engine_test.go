package docker_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/docker"
	"github.com/sojourn-dev/sojourn/sandbox/sandboxtest"
)

// hostVariable tells test binaries that this one starts where the engine is.
const hostVariable = "SOJOURN_TEST_ENGINE"

// plainUser is the user that tests without root run as; the engine's socket is its too.
const plainUser = 65534

func TestMain(m *testing.M) {
	sandboxtest.Main(open)
	os.Exit(run(m))
}

// run runs the tests with an engine of their own, if one can be started.
func run(m *testing.M) int {
	if os.Getenv(hostVariable) != "" { // the parent has one
		return m.Run()
	}
	runtime.LockOSThread() // the engine ends with the thread that started it
	e, err := startEngine()
	if err != nil {
		noEngine = err.Error()
		return m.Run()
	}
	os.Setenv(hostVariable, e.host())
	code := m.Run()
	if err := e.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop engine:", err)
		return max(code, 1)
	}
	return code
}

// ownName is the file in the engine's directory that its runtime runsc runs.
const ownName = "sojourn"

// noEngine is why there is none.
var noEngine string

// needEngine skips a test where there is no engine, and returns its address.
func needEngine(t testing.TB) string {
	t.Helper()
	host := os.Getenv(hostVariable)
	if host == "" {
		t.Skip("SKIPPED: no engine could be started: " + noEngine)
	}
	return host
}

func config(dir string) docker.Config {
	self, err := os.Executable()
	if err != nil {
		panic(err) // a running program has a path
	}
	return docker.Config{Dir: dir, Executable: self, Host: os.Getenv(hostVariable)}
}

func open(dir string) (sandbox.Driver, error) { return docker.Open(config(dir)) }

// testEngine is a Docker engine with all of its state in one directory.
type testEngine struct {
	dir        string
	containerd *exec.Cmd
	dockerd    *exec.Cmd
}

// startEngine starts Debian's engine on private sockets. It touches no firewall, no
// bridge and no other engine.
func startEngine() (_ *testEngine, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("an engine needs root")
	}
	for _, program := range []string{"containerd", "dockerd", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%s is not installed (apt install docker.io)", program)
		}
	}
	dir, err := os.MkdirTemp("", "engine-")
	if err != nil {
		return nil, err
	}
	e := &testEngine{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.stop())
		}
	}()
	if err := os.Chmod(dir, 0o711); err != nil { // a plain user's test comes through
		return nil, err
	}
	e.containerd = e.command("containerd", "--root", e.path("containerd"), "--state", e.path("state"), "--address", e.path("cd.sock"))
	if err := e.start(e.containerd, e.path("cd.sock")); err != nil {
		return nil, err
	}
	for _, storage := range []string{"overlay2", "vfs"} {
		e.dockerd = e.command("dockerd", "--containerd", e.path("cd.sock"), "-H", e.host(), "--group", strconv.Itoa(plainUser),
			"--data-root", e.path("data"), "--exec-root", e.path("exec"), "--pidfile", e.path("docker.pid"),
			"--storage-driver", storage, "--cgroup-parent", e.cgroup(), "--bridge=none",
			"--iptables=false", "--ip6tables=false", "--ip-forward=false",
			"--add-runtime", "mislabelled-runsc="+e.wrapper("mislabelled-runsc", "runc"),
			// Our own executable is gVisor's runtime as well; it is built when a test needs it.
			"--add-runtime", "runsc="+e.wrapper("runsc", e.path(ownName)+" runsc --host-uds=open"+
				" --sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK"))
		if err = e.start(e.dockerd, e.path("docker.sock")); err == nil {
			return e, nil
		}
	}
	return nil, err
}

// wrapper writes a program that runs another one, and returns its path.
func (e *testEngine) wrapper(name, program string) string {
	path := e.path(name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexec "+program+" \"$@\"\n"), 0o755); err != nil {
		panic(err) // dockerd says that it is not there
	}
	return path
}

func (e *testEngine) path(name string) string { return filepath.Join(e.dir, name) }
func (e *testEngine) host() string            { return "unix://" + e.path("docker.sock") }
func (e *testEngine) cgroup() string          { return "/" + filepath.Base(e.dir) }

// command prepares a program that ends with this one.
func (e *testEngine) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+e.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGTERM}
	return cmd
}

// start starts a program and waits until it listens.
func (e *testEngine) start(cmd *exec.Cmd, socket string) error {
	log, err := os.Create(e.path(filepath.Base(cmd.Path) + ".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	for deadline := time.Now().Add(time.Minute); ; {
		if conn, err := net.Dial("unix", socket); err == nil {
			return conn.Close()
		}
		select {
		case <-ended:
			b, _ := os.ReadFile(log.Name())
			return fmt.Errorf("%s ended: %s", cmd.Path, bytes.TrimSpace(b[max(0, len(b)-1000):]))
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not listen", cmd.Path)
		}
	}
}

// stop ends the engine and removes all of it.
func (e *testEngine) stop() error {
	for _, cmd := range []*exec.Cmd{e.dockerd, e.containerd} {
		if cmd == nil || cmd.Process == nil {
			continue
		}
		_ = cmd.Process.Signal(unix.SIGTERM)
		deadline := time.Now().Add(30 * time.Second)
		for cmd.Process.Signal(syscall.Signal(0)) == nil && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
		}
		_ = cmd.Process.Kill()
	}
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(string(info), "\n")
	slices.Reverse(lines)
	for _, line := range lines {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], e.dir+"/") {
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
	return os.RemoveAll(e.dir)
}
