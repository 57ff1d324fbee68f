package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/docker"
	"github.com/sojourn-dev/sojourn/sandbox/sandboxtest"
)

// engineClient talks to the engine beside the driver.
func engineClient(t testing.TB) *client.Client {
	t.Helper()
	c, err := client.New(client.WithHost(needEngine(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// imageFiles are what [sandboxtest.RunImage] looks for. Where the suite's own archive has
// files in the place of directories, an engine refuses, as it may.
var imageFiles = map[string]string{
	"etc/greeting":         "from the image\n",
	"usr/share/doc/readme": "read me\n",
	"run":                  "-> /var/run",
	"var/run/pid":          "1\n",
	"home":                 "-> srv/homes",
	"srv/homes/other/file": "other\n",
}

// imageEnv is what the image asks for. Only the first two may reach a sandbox.
var imageEnv = []string{"PATH=/image/bin:/usr/bin", "IMAGE_WORD=kept", "HOME=/root", sandbox.TokenVariable + "=forged", "SOJOURN_X=forged"}

// importImage gives the engine an image with these files, of which those that start
// with "-> " are links, and with an environment.
func importImage(t *testing.T, c *client.Client, ref string, files map[string]string, env []string) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), Typeflag: tar.TypeReg}
		content := files[name]
		if target, isLink := strings.CutPrefix(content, "-> "); isLink {
			h.Typeflag, h.Linkname, h.Size, content = tar.TypeSymlink, target, 0, ""
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.WriteHeader(&tar.Header{Name: "tmp/", Mode: 0o1777, Typeflag: tar.TypeDir}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	changes := []string{"LABEL sojourn.server=forged", `CMD ["/nothing"]`, "USER 4711"}
	for _, e := range env {
		changes = append(changes, "ENV "+e)
	}
	r, err := c.ImageImport(t.Context(), client.ImageImportSource{Source: &b, SourceName: "-"}, ref, client.ImageImportOptions{Changes: changes})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if reply, err := io.ReadAll(r); err != nil || bytes.Contains(reply, []byte("errorDetail")) {
		t.Fatalf("import = %s, %v", reply, err)
	}
}

// unpacked is the image as other drivers have it, for the suite to look at.
type unpacked struct{ dir string }

func (u unpacked) Ensure(_ context.Context, reference string) (sandbox.Image, error) {
	return sandbox.Image{Reference: reference, Digest: "sha256:0", Dir: u.dir}, nil
}

// TestImages runs sandboxes on an image that the engine has.
func TestImages(t *testing.T) {
	t.Parallel()
	c := engineClient(t)
	const ref = "localhost/sandboxtest-image:one"
	importImage(t, c, ref, imageFiles, imageEnv)
	var mu sync.Mutex
	var seen []docker.Progress
	openImages := func(dir string) (sandbox.Driver, error) {
		cfg := config(dir)
		cfg.Images = []string{"localhost/sandboxtest-*"}
		cfg.Progress = func(p docker.Progress) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, p)
		}
		return docker.Open(cfg)
	}
	sandboxtest.RunImage(t, openImages, unpacked{t.TempDir()}, ref)
	if len(seen) == 0 || seen[len(seen)-1].Stage != "Ready" || seen[0].Reference != ref {
		t.Errorf("progress = %+v", seen)
	}

	d, err := openImages(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeDriver(t, d) })
	for name, test := range map[string]struct {
		ref  string
		want error
	}{
		"not allowed": {"localhost/another:one", sandbox.ErrUnsupported},
		"not there":   {"localhost/sandboxtest-none:one", nil},
		"no name":     {"localhost/sandboxtest-!", nil},
	} {
		_, err := d.Create(t.Context(), sandbox.Spec{Session: "refused", Image: test.ref})
		if err == nil || test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s: Create on %s = %v", name, test.ref, err)
		}
		t.Logf("%s: %v", name, err)
	}
	if hs, err := d.List(t.Context()); err != nil || len(hs) != 0 {
		t.Errorf("List after refusals = %v, %v", hs, err)
	}
}

// TestMislabelledRuntimeIsFoundOut uses a runtime that is called runsc and is runc.
func TestMislabelledRuntimeIsFoundOut(t *testing.T) {
	t.Parallel()
	host := needEngine(t)
	if !strings.Contains(host, "/engine-") {
		t.Skip("SKIPPED: only an engine of this test's own has such a runtime")
	}
	cfg := config(t.TempDir())
	cfg.Isolation, cfg.Runtime = sandbox.IsolationGVisor, "mislabelled-runsc"
	d, err := docker.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeDriver(t, d) })
	_, err = d.Create(t.Context(), sandbox.Spec{Session: "fooled"})
	if err == nil || !strings.Contains(err.Error(), "isolation gvisor, but process") {
		t.Errorf("Create = %v, want a refusal", err)
	}
	if hs, err := d.List(t.Context()); err != nil || len(hs) != 0 {
		t.Errorf("List after the refusal = %v, %v", hs, err)
	}
}

// TestMountsBelowALayerAreReadOnly shows a layer below which the host has another mount.
func TestMountsBelowALayerAreReadOnly(t *testing.T) {
	t.Parallel()
	needEngine(t)
	layer := t.TempDir()
	below := filepath.Join(layer, "below")
	if err := errors.Join(os.Chmod(layer, 0o755), os.Mkdir(below, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", below, "tmpfs", 0, "size=1m,mode=0755"); err != nil {
		t.Skipf("SKIPPED: nothing can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(below, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(below, "file"), []byte("host"), 0o644); err != nil {
		t.Fatal(err)
	}
	d := openDriver(t, t.TempDir())
	_, c := create(t, d, sandbox.Spec{Session: "layers", Layers: []sandbox.Mount{{Source: layer, Target: "/agents"}}})
	if got := must(t, c, "read", "cat", "/agents/below/file"); got != "host" {
		t.Errorf("the mount below the layer shows %q", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i, path := range []string{"/agents/new", "/agents/below/new", "/agents/below/file"} {
		out, code, err := execute(ctx, c, "write"+string(rune('0'+i)), "sh", "-c", `echo x > "$1"`, "sh", path)
		if err != nil || code == 0 {
			t.Errorf("%s can be written: %q, %v", path, out, err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(below, "file")); err != nil || string(b) != "host" {
		t.Errorf("the host's file = %q, %v", b, err)
	}
}

// TestLateSandboxIsListedAndRemoved plays an engine that was still making a sandbox when
// the server that had asked died.
func TestLateSandboxIsListedAndRemoved(t *testing.T) {
	t.Parallel()
	c := engineClient(t)
	dir := t.TempDir()
	d := openDriver(t, dir)
	sb, _ := create(t, d, sandbox.Spec{Session: "model", Epoch: 3})
	model := labelsOf(t, c, sb)
	late := func(name string, epoch string) string {
		labels := maps.Clone(model)
		labels["sojourn.cell"], labels["sojourn.session"], labels["sojourn.epoch"] = filepath.Join(dir, "sandboxes", name), "late", epoch
		r, err := c.ContainerCreate(t.Context(), client.ContainerCreateOptions{
			Config: &container.Config{Image: imageOf(t, c, model["sojourn.server"]), Entrypoint: []string{"/nothing"}, Labels: labels},
		})
		if err != nil {
			t.Fatal(err)
		}
		return r.ID
	}
	id := late("late-4", "4")
	hs, err := d.List(t.Context())
	if err != nil || len(hs) != 2 || hs[1].Session != "late" || hs[1].Epoch != 4 {
		t.Fatalf("List = %+v, %v, want the late one as well", hs, err)
	}
	if _, err := d.Recover(t.Context(), hs[1]); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Recover of the late one = %v, want ErrGone", err)
	}
	// Another directory on the same engine sees and touches nothing of it.
	other := openDriver(t, t.TempDir())
	if hs, err := other.List(t.Context()); err != nil || len(hs) != 0 {
		t.Errorf("List of another directory = %+v, %v", hs, err)
	}
	if err := other.Remove(t.Context(), hs[1]); err != nil {
		t.Errorf("Remove by another directory = %v", err)
	}
	if _, err := c.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{}); err != nil {
		t.Errorf("after another directory removed its own: %v", err)
	}
	if err := d.Remove(t.Context(), hs[1]); err != nil {
		t.Fatalf("Remove = %v", err)
	}
	if _, err := c.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{}); err == nil {
		t.Error("the late one is still there after Remove")
	}
	// A server that starts removes what it finds.
	id = late("late-5", "5")
	again := openDriver(t, dir)
	if _, err := c.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{}); err == nil {
		t.Error("the late one is still there after a restart")
	}
	if left := again.(sandbox.Cleaner).Leftovers(); left != nil {
		t.Errorf("Leftovers = %v", left)
	}
	if hs, err := again.List(t.Context()); err != nil || len(hs) != 1 || hs[0].Session != "model" {
		t.Errorf("List after a restart = %+v, %v, want the one that runs", hs, err)
	}
}

// labelsOf returns what the engine knows of a sandbox.
func labelsOf(t testing.TB, c *client.Client, sb sandbox.Sandbox) map[string]string {
	t.Helper()
	r, err := c.ContainerList(t.Context(), client.ContainerListOptions{
		Filters: make(client.Filters).Add("label", "sojourn.cell="+filepath.Dir(sb.Dirs().Workspace)),
	})
	if err != nil || len(r.Items) != 1 {
		t.Fatalf("the engine has %d sandboxes of this directory, %v", len(r.Items), err)
	}
	return r.Items[0].Labels
}

// imageOf returns the root image of a driver.
func imageOf(t testing.TB, c *client.Client, server string) string {
	t.Helper()
	r, err := c.ImageList(t.Context(), client.ImageListOptions{Filters: make(client.Filters).Add("reference", "localhost/sojourn-root-"+server)})
	if err != nil || len(r.Items) != 1 {
		t.Fatalf("the engine has %d root images of this directory, %v", len(r.Items), err)
	}
	return r.Items[0].RepoTags[0]
}

// TestPrunedRootImageComesBack lets an operator remove all images that no sandbox uses.
func TestPrunedRootImageComesBack(t *testing.T) {
	t.Parallel()
	c := engineClient(t)
	d := openDriver(t, t.TempDir())
	sb, _ := create(t, d, sandbox.Spec{Session: "first"})
	name := imageOf(t, c, labelsOf(t, c, sb)["sojourn.server"])
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := sb.Destroy(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ImageRemove(ctx, name, client.ImageRemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	create(t, d, sandbox.Spec{Session: "second"})
}
