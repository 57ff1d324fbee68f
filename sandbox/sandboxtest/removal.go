package sandboxtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// testRemoval lets a sandbox make trees that are hard to remove, and destroys it.
func testRemoval(t *testing.T, s *Suite) {
	d := s.open(t, s.newDir(t))
	if d.Capabilities().Isolation == sandbox.IsolationNone {
		t.Skip("SKIPPED: this driver runs no programs that could")
	}
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "keep"), []byte("keep"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := start(t, d, "hostile", 1)
	depth := "1500"
	if testing.Short() {
		depth = "300"
	}
	for _, dir := range []string{sandbox.WorkspacePath, sandbox.HomePath} {
		c.must("sh", "-c", `cd "$1" && mkdir names deep locked &&
			(cd names && "$3" "$4" fill 300) &&
			(cd deep && "$3" "$4" deep "$5") &&
			ln -s "$2" out && ln -s / root && ln -s .. names/up && ln -s loop loop && ln "$1/names/f0" hard &&
			mkfifo fifo &&
			mkdir locked/in && echo x > locked/in/f && chmod 0300 locked/in && chmod 0000 locked &&
			mkdir empty && chmod 0000 empty && mkdir removed.1 removed.2 && mkdir removed.1/removed.3`,
			"sh", dir, outside, sandbox.KeeperPath, commandInside, depth)
	}
	if err := c.Destroy(within(t)); err != nil {
		t.Fatalf("Destroy = %v", err)
	}
	if _, err := os.Lstat(c.Dirs().Workspace); !os.IsNotExist(err) {
		t.Errorf("the workspace is left: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(outside, "keep")); err != nil || string(b) != "keep" {
		t.Errorf("a file that the sandbox linked to = %q, %v", b, err)
	}
	if hs := list(t, d); len(hs) != 0 {
		t.Errorf("List = %+v, want none", hs)
	}
}
