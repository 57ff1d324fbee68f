package docker_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/client"

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

// TestUninstallLeavesNothingInTheEngine uninstalls the driver of a directory.
func TestUninstallLeavesNothingInTheEngine(t *testing.T) {
	needEngine(t)
	engine := engineClient(t)
	dir := t.TempDir()
	d, err := docker.Open(config(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	id, err := os.ReadFile(filepath.Join(dir, "server"))
	if err != nil {
		t.Fatal(err)
	}
	roots := func() (n int) {
		t.Helper()
		r, err := engine.ImageList(t.Context(), client.ImageListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, img := range r.Items {
			if slices.ContainsFunc(img.RepoTags, func(tag string) bool { return strings.Contains(tag, "-root-"+strings.TrimSpace(string(id))+":") }) {
				n++
			}
		}
		return n
	}
	if n := roots(); n != 1 {
		t.Errorf("a driver has %d images", n)
	}
	if err := d.Uninstall(t.Context()); err != nil {
		t.Error(err)
	}
	if n := roots(); n != 0 {
		t.Errorf("%d images are left", n)
	}
}
