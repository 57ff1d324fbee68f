package sandboxtest

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestMain(m *testing.M) {
	Main(nil)
	os.Exit(m.Run())
}

// TestAttemptsGetThroughWithoutAWall makes the attempts on the bare host. One that is
// stopped there too would also say "stopped" when a wall is missing.
func TestAttemptsGetThroughWithoutAWall(t *testing.T) {
	got := verdicts(t, bareHost(t))
	for _, a := range attempts() {
		t.Run(a.name, func(t *testing.T) {
			v, made := got[a.name]
			switch {
			case a.bare == bareNever:
				t.Skip("SKIPPED: it would leave the machine")
			case !made:
				t.Error("the attempt was not made")
			case v.Through:
			case a.bare == bareDepends:
				t.Skipf("SKIPPED: this host stops it by itself: %s", v.How)
			case a.bare == bareRoot && os.Geteuid() != 0:
				t.Skipf("SKIPPED: only root could: %s", v.How)
			default:
				t.Errorf("it was stopped where nothing stops it: %s", v.How)
			}
		})
	}
}

// bareHost makes the attempts as a child of this process.
func bareHost(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	s := newStage(t, dir)
	s.Workspace = filepath.Join(dir, "workspace")
	s.Keeper = filepath.Join(dir, "bin", "keeper")
	s.Bare, s.Other, s.OtherSock = true, s.Secret, s.Socket
	for _, d := range []string{s.Workspace, filepath.Dir(s.Keeper)} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	copyExecutable(t, s.Keeper)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, commandInside, "escape", s.encode(t))
	cmd.Stderr = io.Discard
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the attempts ended with %v: %s", err, out)
	}
	return string(out)
}
