package sandboxtest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// What the image that RunImage works with has to have: some files, links in awkward
// places, and an environment.
const (
	imageGreeting = "/etc/greeting"
	imageText     = "from the image\n"
)

// imageFiles are the files of the image, by their paths; those that start with "-> " are
// links.
var imageFiles = map[string]string{
	strings.TrimPrefix(imageGreeting, "/"): imageText,
	"usr/share/doc/readme":                 "read me\n",
	"run":                                  "-> /var/run", // as a sandbox's root would follow it
	"var/run/pid":                          "1\n",
	"home":                                 "-> srv/homes",
	"srv/homes/other/file":                 "other\n",
	"tmp":                                  "-> /var/lib/tmp",
	"workspace":                            "-> /etc",
	"dev":                                  "a file\n",
}

// imageEnv is what the image asks for. Only the first two may reach a sandbox.
var imageEnv = []string{"PATH=/image/bin:/usr/bin", "IMAGE_WORD=kept", "HOME=/root", sandbox.TokenVariable + "=forged", "SOJOURN_X=forged"}

// ImageArchive writes the image that [RunImage] wants into a file, in the form of "docker
// save", and returns its path.
func ImageArchive(t *testing.T) string {
	t.Helper()
	layer := tarOf(t, imageFiles)
	config, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": runtime.GOARCH, "config": map[string]any{"Env": imageEnv},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	archive := tarOf(t, map[string]string{
		"manifest.json": `[{"Config":"config.json","Layers":["layer.tar"]}]`, "config.json": string(config), "layer.tar": string(layer),
	})
	if err := os.WriteFile(path, archive, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func tarOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), Typeflag: tar.TypeReg}
		target, isLink := strings.CutPrefix(files[name], "-> ")
		if isLink {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, target, 0
		}
		err := w.WriteHeader(h)
		if err == nil && !isLink {
			_, err = w.Write([]byte(files[name]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// RunImage tries sandboxes whose root is the image of [ImageArchive]. It works without the suite's other parts, because not every driver has images everywhere.
func RunImage(t *testing.T, open Open, images sandbox.Images, reference string) {
	s := &Suite{Open: open}
	d := s.open(t, s.newDir(t))
	if !d.Capabilities().Images {
		t.Fatal("the driver was given images and does not claim to have them")
	}
	image, err := images.Ensure(t.Context(), reference)
	if err != nil {
		t.Fatal(err)
	}
	layer := filepath.Join(t.TempDir(), "layer")
	if err := errors.Join(os.Mkdir(layer, 0o755), os.Chmod(layer, 0o755), os.WriteFile(filepath.Join(layer, "tool"), []byte("tool\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	before := listTree(t, image.Dir)
	spec := sandbox.Spec{Image: reference, Layers: []sandbox.Mount{{Source: layer, Target: "/opt/agent/layer"}}}
	for i, session := range []string{"first", "second"} {
		w, warms := d.(sandbox.Warmer)
		if warms = warms && i == 1; warms { // the second one is made ahead
			warm(t, w, spec, 1)
		}
		spec.Session, spec.Epoch = session, int64(i)
		sb, err := d.Create(within(t), spec)
		if err != nil {
			t.Fatalf("Create(%s) on an image = %v", session, err)
		}
		if warms && w.Ready(spec) != 0 {
			t.Error("Create did not take the sandbox that was ready on this image")
		}
		c := connect(t, sb)
		p := link.StartParams{
			ProcessID: "image", Argv: []string{sandbox.KeeperPath, commandInside, "image"},
			Cwd: sandbox.WorkspacePath, Inherit: true,
		}
		if err := c.client.Start(within(t), p); err != nil {
			t.Fatal(err)
		}
		out, code := c.follow("image")
		if code != 0 {
			t.Fatalf("in the %s sandbox on the image: exit %d\n%s", session, code, out)
		}
		if got, err := os.ReadFile(filepath.Join(sb.Dirs().Workspace, "made")); err != nil || string(got) != "made" {
			t.Errorf("file made in the workspace = %q, %v", got, err)
		}
	}
	for path, was := range before {
		if is, err := os.ReadFile(path); err == nil && string(is) != was {
			t.Errorf("the sandboxes changed %s of the shared image to %q", path, is)
		} else if err != nil {
			t.Errorf("the sandboxes took from the shared image: %v", err)
		}
	}
	for path := range listTree(t, image.Dir) {
		if _, ok := before[path]; !ok {
			t.Errorf("the sandboxes left %s in the shared image", path)
		}
	}
}

// listTree returns the files of a tree with their content.
func listTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		files[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// insideImage checks an image from inside a sandbox, and changes whatever it can.
func insideImage() int {
	failed := 0
	check := func(ok bool, format string, args ...any) {
		if !ok {
			fmt.Printf(format+"\n", args...)
			failed = 1
		}
	}
	read := func(path string) string {
		b, err := os.ReadFile(path)
		check(err == nil, "read: %v", err)
		return string(b)
	}
	check(read(imageGreeting) == imageText, "%s is not that of the image: an earlier sandbox changed it", imageGreeting)
	check(read("/srv/homes/other/file") == "other\n", "file beside the home")
	check(read("/run/pid") == "1\n", "file behind a link")
	check(read("/opt/agent/layer/tool") == "tool\n", "file of a layer")
	_, err := os.Stat("/usr/bin/env")
	check(err != nil, "the host's /usr is there")

	for name, want := range map[string]string{"PATH": "/image/bin:/usr/bin", "IMAGE_WORD": "kept", "HOME": sandbox.HomePath, "SOJOURN_X": ""} {
		check(os.Getenv(name) == want, "inherited %s = %q, want %q", name, os.Getenv(name), want)
	}
	// The whole root is the sandbox's own to change.
	for _, path := range []string{imageGreeting, "/usr/share/doc/readme", "/usr/share/doc/new", "/new", "/var/run/new", "/etc/new"} {
		err := os.WriteFile(path, []byte("changed\n"), 0o644)
		check(err == nil, "change: %v", err)
		check(read(path) == "changed\n", "%s was not changed", path)
	}
	check(os.Remove("/srv/homes/other/file") == nil, "cannot remove a file of the image")
	check(os.WriteFile(sandbox.KeeperPath, nil, 0o755) != nil, "the keeper's executable can be written to")
	check(os.WriteFile("/opt/agent/layer/tool", nil, 0o755) != nil, "a layer can be written to")
	for _, dir := range []string{sandbox.WorkspacePath, sandbox.HomePath, "/tmp"} {
		err := os.WriteFile(filepath.Join(dir, "made"), []byte("made"), 0o644)
		check(err == nil, "write: %v", err)
	}
	return failed
}
