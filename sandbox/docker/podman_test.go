package docker_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox/docker/dockertest"
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
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run="+podmanTests, "-test.v", "-test.short", "-test.parallel=2")
	cmd.Env = append(os.Environ(), hostVariable+"="+e.Host())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("on Podman: %v\n%s", err, out)
	}
}

// startPodman starts Podman's service.
func startPodman() (_ *dockertest.Engine, err error) {
	e, err := dockertest.New("podman-", "podman.sock")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Stop())
		}
	}()
	settings := fmt.Sprintf("[engine]\nlock_type = \"file\"\ntmp_dir = %q\nevents_logger = \"file\"\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\n", e.Path("tmp"))
	if err := os.WriteFile(e.Path("containers.conf"), []byte(settings), 0o600); err != nil {
		return nil, err
	}
	for _, storage := range []string{"overlay", "vfs"} {
		service := e.Command("podman", "--root", e.Path("root"), "--runroot", e.Path("run"), "--storage-driver", storage,
			"system", "service", "--time", "0", e.Host())
		service.Env = append(service.Env, "CONTAINERS_CONF="+e.Path("containers.conf"))
		if err = e.Run(service, e.Path("podman.sock")); err == nil {
			return e, nil
		}
	}
	return nil, err
}
