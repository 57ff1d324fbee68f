package gvisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/gvisor"
	"github.com/sojourn-dev/sojourn/sandbox/sandboxtest"
)

// TestSandboxLongPath runs sandboxes in a directory whose path is too long for a socket.
// runsc would make its control socket in a public directory then.
func TestSandboxLongPath(t *testing.T) {
	long := filepath.Join(strings.Repeat("long", 20), strings.Repeat("path", 20), strings.Repeat("name", 20))
	openLong := func(dir string) (sandbox.Driver, error) { return open(filepath.Join(dir, long)) }
	sandboxtest.Run(t, sandboxtest.Suite{Open: openLong, Only: []string{"Recover", "Snapshot"}})

	d, err := openLong(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	sb, err := d.Create(t.Context(), sandbox.Spec{Session: "long"})
	if err != nil {
		t.Fatal(err)
	}
	private := filepath.Join(filepath.Dir(sb.Dirs().Workspace), "private")
	sockets, err := filepath.Glob(filepath.Join(private, "state", "*.sock"))
	if err != nil || len(sockets) != 1 {
		t.Errorf("control sockets in the sandbox's directory: %q, %v, want one", sockets, err)
	}
	for _, socket := range sockets {
		for _, dir := range []string{"/run", "/var/run", "/tmp", os.TempDir()} {
			if _, err := os.Lstat(filepath.Join(dir, filepath.Base(socket))); err == nil {
				t.Errorf("the control socket is in %s", dir)
			}
		}
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Errorf("Destroy = %v", err)
	}
}

// script writes an executable script.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runsc")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSandboxExternalRunsc lets the driver use a runsc that is not in its executable: this
// one, behind a script, with a version that a release would print.
func TestSandboxExternalRunsc(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	runsc := script(t, fmt.Sprintf(`
if [ "$1" = --version ]; then echo "runsc version release-20260901.0"; echo "spec: 1.2.1"; exit; fi
case "$*" in *--sidecar-usage-policy*|*--rootless*) exit 99;; *" checkpoint "*) : > %s;; esac
exec %s runsc --sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK "$@"`, filepath.Join(t.TempDir(), "used"), self))
	openExternal := func(dir string) (sandbox.Driver, error) {
		return gvisor.Open(gvisor.Config{Dir: dir, Executable: self, Runsc: runsc})
	}
	sandboxtest.Run(t, sandboxtest.Suite{Open: openExternal, Only: []string{"Life", "Recover", "Snapshot"}})
}

func TestExternalRunscIsLookedAt(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ runsc, want string }{
		{"runsc", "is not an absolute path"},
		{"/nonexistent/runsc", "no such file"},
		{script(t, "echo hello"), "is no runsc"},
		{script(t, "exit 3"), "exit status 3"},
		{script(t, "if [ $1 = --version ]; then echo 'runsc version release-20190101.0'; echo 'spec: 1.0'; else echo '  -root string'; fi"), "too old: it has no flag --log"},
	} {
		d, err := gvisor.Open(gvisor.Config{Dir: t.TempDir(), Executable: self, Runsc: c.runsc})
		if err == nil {
			d.Close()
			t.Errorf("Open with runsc %s worked", c.runsc)
			continue
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("Open with runsc %s = %v, want %q", c.runsc, err, c.want)
		}
	}
}
