package gvisor_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/gvisor"
	"github.com/sojourn-dev/sojourn/sandbox/sandboxtest"
)

type tree string

func (d tree) Ensure(context.Context, string) (sandbox.Image, error) {
	return sandbox.Image{Dir: string(d), Digest: "sha256:x", Env: sandboxtest.ImageEnv()}, nil
}

func TestSandboxOnImage(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Chmod(dir, 0o755))
	for p, c := range sandboxtest.ImageFiles() {
		p = filepath.Join(dir, p)
		must(os.MkdirAll(filepath.Dir(p), 0o755))
		if l, ok := strings.CutPrefix(c, "-> "); ok {
			must(os.Symlink(l, p))
			continue
		}
		must(os.WriteFile(p, []byte(c), 0o644))
	}
	for _, d := range []string{"workspace", "srv/homes/agent", "var/run/sojourn", "proc", "sys", "dev", "tmp", ".sojourn", "opt/agent/layer"} {
		must(os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	must(os.WriteFile(filepath.Join(dir, ".sojourn/sojourn"), nil, 0o755))
	sandboxtest.RunImage(t, func(d string) (sandbox.Driver, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		return gvisor.Open(gvisor.Config{Dir: d, Executable: self, Images: tree(dir)})
	}, tree(dir), "x")
}
