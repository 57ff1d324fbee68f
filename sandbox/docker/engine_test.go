package docker_test

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/docker"
	"github.com/sojourn-dev/sojourn/sandbox/docker/dockertest"
	"github.com/sojourn-dev/sojourn/sandbox/sandboxtest"
)

// hostVariable tells test binaries that this one starts where the engine is.
const hostVariable = "SOJOURN_TEST_ENGINE"

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
	e, err := dockertest.Start(
		dockertest.Runtime{Name: "mislabelled-runsc", Program: "runc"},
		// Our own executable is gVisor's runtime as well; it is built when a test needs it.
		dockertest.Runtime{Name: "runsc", Program: "{dir}/" + ownName + " runsc --host-uds=open" +
			" --sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK"},
	)
	if err != nil {
		noEngine = err.Error()
		return m.Run()
	}
	os.Setenv(hostVariable, e.Host())
	code := m.Run()
	if err := e.Stop(); err != nil {
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
