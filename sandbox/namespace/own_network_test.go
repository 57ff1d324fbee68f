package namespace_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inOwnNetwork is set in the environment of a test that runs in a network namespace of its own.
const inOwnNetwork = "NAMESPACETEST_OWN_NETWORK"

// againInOwnNetwork runs the calling test again in a process with such a namespace, so that
// nothing of it touches the machine's interfaces, rules and settings.
func againInOwnNetwork(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inOwnNetwork+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("in a network namespace of its own: %v\n%s", err, out)
	}
}
