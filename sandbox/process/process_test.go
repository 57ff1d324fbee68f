package process_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/process"
	"github.com/sojourn-dev/sojourn/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "process-guard":
			os.Exit(process.Guard(os.Args[2:]))
		case "process-confine":
			os.Exit(process.Confine(os.Args[2:]))
		}
	}
	sandboxtest.Main(open)
	os.Exit(m.Run())
}

func open(dir string) (sandbox.Driver, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return process.Open(process.Config{Dir: dir, Executable: self})
}

func TestSuite(t *testing.T) { sandboxtest.Run(t, sandboxtest.Suite{Open: open}) }

// TestSandboxLongPath runs sandboxes in a directory whose path is too long for a socket.
func TestSandboxLongPath(t *testing.T) {
	long := filepath.Join(strings.Repeat("long", 20), strings.Repeat("path", 20), strings.Repeat("name", 20))
	openLong := func(dir string) (sandbox.Driver, error) { return open(filepath.Join(dir, long)) }
	sandboxtest.Run(t, sandboxtest.Suite{Open: openLong, Only: []string{"Life", "Recover"}})
}

func TestProbe(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := process.Probe(t.Context(), process.Config{Dir: dir, Executable: self})
	if !r.Available || r.Driver != process.Name || !strings.Contains(r.Reason, "Landlock ABI") {
		t.Errorf("Probe = %+v", r)
	}
	r = process.Probe(t.Context(), process.Config{Dir: dir, Executable: "/bin/sh"})
	if r.Available || !strings.Contains(r.Reason, "dynamically linked") || r.Fix == "" {
		t.Errorf("Probe with a dynamic executable = %+v", r)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("Probe left %v, %v", left, err)
	}
}

// TestAsPlainUser runs the suite again without root.
func TestAsPlainUser(t *testing.T) { sandboxtest.RunAsPlainUser(t) }
