package docker_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// podmanTests are the tests that run again on Podman.
const podmanTests = "^Test(Suite|Probe|LimitsAreFelt|MemoryHogIsReported|Images|MountsBelowALayerAreReadOnly|LateSandboxIsListedAndRemoved|PrunedRootImageComesBack)$"

// TestPodman runs the tests again on Podman's service, in a process of their own because
// servers that are killed look for their engine in the environment.
func TestPodman(t *testing.T) {
	if os.Geteuid() != 0 || testing.Short() {
		t.Skip("SKIPPED: it needs root, and is not short")
	}
	for _, program := range []string{"podman", "conmon", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIPPED: %s is not installed (apt install podman runc)", program)
		}
	}
	e, err := startPodman()
	if err != nil {
		t.Skipf("SKIPPED: Podman's service does not start here: %v", err)
	}
	t.Cleanup(func() {
		if err := e.stop(); err != nil {
			t.Error(err)
		}
	})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run="+podmanTests, "-test.v", "-test.short", "-test.parallel=2")
	cmd.Env = append(os.Environ(), hostVariable+"="+e.host())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("on Podman: %v\n%s", err, out)
	}
}

const podmanSocket = "podman.sock"

// podman is Podman's service with all of its state in one directory.
type podman struct {
	testEngine
	service *exec.Cmd
}

func (p *podman) host() string { return "unix://" + p.path(podmanSocket) }

func startPodman() (_ *podman, err error) {
	dir, err := os.MkdirTemp("", "podman-")
	if err != nil {
		return nil, err
	}
	p := &podman{testEngine: testEngine{dir: dir}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.stop())
		}
	}()
	settings := fmt.Sprintf("[engine]\nlock_type = \"file\"\ntmp_dir = %q\nevents_logger = \"file\"\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\n", p.path("tmp"))
	if err := os.WriteFile(p.path("containers.conf"), []byte(settings), 0o600); err != nil {
		return nil, err
	}
	for _, storage := range []string{"overlay", "vfs"} {
		p.service = p.command("podman", "--root", p.path("root"), "--runroot", p.path("run"), "--storage-driver", storage,
			"system", "service", "--time", "0", p.host())
		p.service.Env = append(p.service.Env, "CONTAINERS_CONF="+p.path("containers.conf"))
		if err = p.start(p.service, p.path(podmanSocket)); err == nil {
			return p, nil
		}
	}
	return nil, err
}

// stop ends the service and removes all of it.
func (p *podman) stop() error {
	p.dockerd = p.service
	return p.testEngine.stop()
}
