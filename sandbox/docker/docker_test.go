package docker_test

import (
	"os"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/docker"
	"github.com/sojourn-dev/sojourn/sandbox/sandboxtest"
)

func TestSuite(t *testing.T) {
	needEngine(t)
	sandboxtest.Run(t, sandboxtest.Suite{Open: open})
}

func TestProbe(t *testing.T) {
	needEngine(t)
	dir := t.TempDir()
	cfg := config(dir)
	r := docker.Probe(t.Context(), cfg)
	if !r.Available || r.Driver != docker.Name || r.Isolation != sandbox.IsolationContainer || !strings.Contains(r.Reason, "runc") {
		t.Errorf("Probe = %+v", r)
	}
	cfg.Executable = "/bin/sh"
	r = docker.Probe(t.Context(), cfg)
	if r.Available || !strings.Contains(r.Reason, "dynamically linked") || r.Fix == "" {
		t.Errorf("Probe with a dynamic executable = %+v", r)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("Probe left %v, %v", left, err)
	}
}

// TestAsPlainUser runs the suite again with a server that is not root, which may use the
// engine.
func TestAsPlainUser(t *testing.T) {
	sandboxtest.RunAsPlainUser(t, hostVariable+"="+needEngine(t))
}
