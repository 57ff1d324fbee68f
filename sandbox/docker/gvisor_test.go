package docker_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/docker"
	"github.com/sojourn-dev/sojourn/sandbox/sandboxtest"
)

// TestGVisorAsRuntime runs sandboxes with our own executable as the engine's runtime.
func TestGVisorAsRuntime(t *testing.T) {
	buildRuntime(t)
	openGVisor := func(dir string) (sandbox.Driver, error) {
		cfg := config(dir)
		cfg.Isolation, cfg.Runtime = sandbox.IsolationGVisor, "runsc"
		return docker.Open(cfg)
	}
	d, err := openGVisor(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeDriver(t, d) })
	if c := d.Capabilities(); c.Isolation != sandbox.IsolationGVisor || c.Limits.Processes || !strings.Contains(c.Limits.How, "not counted") {
		t.Errorf("Capabilities = %+v", c)
	}
	_, c := create(t, d, sandbox.Spec{Session: "kernel", Limits: sandbox.Limits{MemoryBytes: 512 * mebi}})
	host, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	if inside := must(t, c, "uname", "uname", "-r"); inside == string(host) {
		t.Errorf("the sandbox runs on the host's kernel %q", inside)
	}
	sandboxtest.Run(t, sandboxtest.Suite{Open: openGVisor})
}

// buildRuntime puts our executable where the engine's runtime runsc looks for it.
func buildRuntime(t *testing.T) {
	t.Helper()
	host := strings.TrimPrefix(needEngine(t), "unix://")
	if testing.Short() {
		t.Skip("SKIPPED: short: the executable would have to be linked")
	}
	if !strings.Contains(host, "/engine-") {
		t.Skip("SKIPPED: only an engine of this test's own has our executable as a runtime")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("SKIPPED: our executable cannot be built: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(filepath.Dir(host), ownName), "../../cmd/sojourn")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the executable: %v\n%s", err, out)
	}
}
