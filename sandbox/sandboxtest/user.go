package sandboxtest

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// nobody is the user that tests without root run as.
const nobody = 65534

// plainTests are the tests that run again without root: those of TestSuite in which it
// makes a difference, and all others that start with TestSandbox.
const plainTests = "^TestS(uite$|andbox)/^(Life|Recover|Removal|Walls|Limits|Warm|WarmRestart|Remains|Snapshot.*|Escapes|Egress)$"

// RunAsPlainUser runs tests of the test binary again as a user without privileges, with
// these variables ("NAME=value") added to its environment. It needs root to become one.
func RunAsPlainUser(t *testing.T, env ...string) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can become another user; this test binary runs as a plain user already")
	}
	if testing.Short() {
		t.Skip("SKIPPED: short")
	}
	// The binary of the test and its directories are not for everybody.
	dir, err := os.MkdirTemp("", "sandboxtest-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	self := filepath.Join(dir, "test")
	copyExecutable(t, self)
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run="+plainTests, "-test.v", "-test.short")
	cmd.Dir = dir
	cmd.Env = append([]string{"TMPDIR=" + dir, "PATH=" + os.Getenv("PATH"), "HOME=" + dir}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("as user %d: %v\n%s", nobody, err, out)
	}
}

func copyExecutable(t *testing.T, to string) {
	t.Helper()
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(f, from)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		t.Fatal(err)
	}
}
