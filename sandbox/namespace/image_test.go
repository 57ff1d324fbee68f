package namespace_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/image"
	"github.com/sojourn-dev/sojourn/sandbox/namespace"
	"github.com/sojourn-dev/sojourn/sandbox/sandboxtest"
)

// TestSandboxOnImage has the prefix of the tests that run without root, too.
func TestSandboxOnImage(t *testing.T) {
	images, err := image.Open(image.Config{
		Dir:   filepath.Join(t.TempDir(), "images"),
		Names: map[string]string{"test": "oci-archive:" + sandboxtest.ImageArchive(t)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { images.Close() })
	sandboxtest.RunImage(t, func(dir string) (sandbox.Driver, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		return namespace.Open(namespace.Config{Dir: dir, Executable: self, Images: images})
	}, images, "test")
}
