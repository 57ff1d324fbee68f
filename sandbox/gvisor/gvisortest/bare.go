// Package gvisortest runs gVisor by hand, beside the driver that embeds it.
package gvisortest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Bare is gVisor as one would run it by hand: what a sandbox is measured against.
type Bare struct {
	self, dir string
	runs      int
}

// NewBare prepares runs of /bin/true with the runsc that the executable self is.
func NewBare(b *testing.B, self string) *Bare {
	b.Helper()
	dir := b.TempDir()
	root := filepath.Join(dir, "root")
	for _, d := range []string{"usr", "proc", "dev", "tmp", "sys"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			b.Fatal(err)
		}
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+d, filepath.Join(root, d)); err != nil {
			b.Fatal(err)
		}
	}
	spec := specs.Spec{
		Version: "1.0.0",
		Root:    &specs.Root{Path: root},
		Process: &specs.Process{Args: []string{"/bin/true"}, Cwd: "/", Env: []string{"PATH=/bin"}},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/usr", Type: "bind", Source: "/usr", Options: []string{"rbind", "ro"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: "pid"}, {Type: "network"}, {Type: "ipc"}, {Type: "uts"}, {Type: "mount"}}},
	}
	config, err := json.Marshal(spec)
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644); err != nil {
		b.Fatal(err)
	}
	return &Bare{self: self, dir: dir}
}

// Run runs it once and returns how long that took.
func (r *Bare) Run(b *testing.B) time.Duration {
	b.Helper()
	r.runs++
	args := []string{
		"runsc", "--root=" + filepath.Join(r.dir, "state"), "--network=none", "--gofer-network-namespace=new", "--ignore-cgroups", "--overlay2=root:memory",
		"--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
	}
	if os.Geteuid() != 0 {
		args = append(args, "--rootless")
	}
	cmd := exec.Command(r.self, append(args, "run", "--bundle="+r.dir, fmt.Sprintf("bare%08d", r.runs))...)
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("run runsc by hand: %v: %s", err, out)
	}
	return time.Since(began)
}
