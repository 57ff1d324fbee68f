package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// onDisk writes a file and returns its path.
func onDisk(t testing.TB, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstdCompressed(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(b, nil)
}

// layoutOf writes images into a layout directory.
func layoutOf(t testing.TB, images map[string]v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	for called, image := range images {
		if err := p.AppendImage(image, layout.WithAnnotations(map[string]string{refAnnotation: called})); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// packed is a directory as an archive.
func packed(t testing.TB, dir string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// saved is images as "docker save" writes them.
func saved(t testing.TB, images map[string]v1.Image) []byte {
	t.Helper()
	tagged := make(map[name.Tag]v1.Image)
	for text, image := range images {
		tag, err := name.NewTag(text)
		if err != nil {
			t.Fatal(err)
		}
		tagged[tag] = image
	}
	var out bytes.Buffer
	if err := tarball.MultiWrite(tagged, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestImagesOnDisk(t *testing.T) {
	t.Parallel()
	one := makeImage(t, []string{"A=1"}, here(t), archive(t, file{name: "a", body: "1"}))
	two := makeImage(t, []string{"A=1"}, here(t), archive(t, file{name: "a", body: "2"}))
	single, both := map[string]v1.Image{"test.example/x:1": one}, map[string]v1.Image{"test.example/x:1": one, "test.example/x:2": two}
	root := archive(t, file{name: "./a", body: "1"})
	for what, test := range map[string]struct{ reference, want string }{
		"layout":                {"oci:" + layoutOf(t, single), "1"},
		"one of a layout":       {"oci:" + layoutOf(t, both) + "#test.example/x:2", "2"},
		"archive":               {"oci-archive:" + onDisk(t, "x.tar", packed(t, layoutOf(t, single))), "1"},
		"compressed archive":    {"oci-archive:" + onDisk(t, "x.tgz", gzipped(t, packed(t, layoutOf(t, single)))), "1"},
		"Docker's archive":      {"oci-archive:" + onDisk(t, "x.tar", saved(t, single)), "1"},
		"Docker's in zstd":      {"oci-archive:" + onDisk(t, "x.zst", zstdCompressed(t, saved(t, single))), "1"},
		"one of Docker's":       {"oci-archive:" + onDisk(t, "x.tar", saved(t, both)) + "#test.example/x:2", "2"},
		"plain root":            {"rootfs:" + onDisk(t, "x.tar", root), "1"},
		"root in gzip":          {"rootfs:" + onDisk(t, "x.tar.gz", gzipped(t, root)), "1"},
		"root in zstd":          {"rootfs:" + onDisk(t, "x.tar.zst", zstdCompressed(t, root)), "1"},
		"root without an entry": {"rootfs:" + onDisk(t, "x.tar", nil), ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newStore(t, Config{Names: map[string]string{"x": test.reference}})
			image, err := s.Ensure(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			want := ""
			if test.want != "" {
				want = `a "` + test.want + `"`
			}
			if got := listing(t, image.Dir); got != want {
				t.Errorf("the tree is %s, want %s", got, want)
			}
			if isRoot := strings.HasPrefix(test.reference, "rootfs:"); isRoot != (len(image.Env) == 0) {
				t.Errorf("its environment is %q", image.Env)
			}
			if again, err := s.Ensure(t.Context(), "x"); err != nil || again.Digest != image.Digest {
				t.Errorf("Ensure again = %+v, %v", again, err)
			}
			noDrafts(t, s.cfg.Dir)
		})
	}
}

func TestBrokenImagesOnDisk(t *testing.T) {
	t.Parallel()
	one := makeImage(t, nil, here(t), archive(t, file{name: "a", body: strings.Repeat("1", 1000)}))
	two := makeImage(t, nil, here(t), archive(t, file{name: "a", body: "2"}))
	both := map[string]v1.Image{"test.example/x:1": one, "test.example/x:2": two}
	damaged := layoutOf(t, map[string]v1.Image{"x": one})
	layers, err := one.Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(damaged, "blobs/sha256", digest.Hex), gzipped(t, archive(t, file{name: "a", body: "evil"})), 0o600); err != nil {
		t.Fatal(err)
	}
	outside := layoutOf(t, map[string]v1.Image{"x": one})
	if err := errors.Join(os.Remove(filepath.Join(outside, indexFile)), os.Symlink("/etc/hostname", filepath.Join(outside, indexFile))); err != nil {
		t.Fatal(err)
	}
	loop := archive(t, file{name: dockerFile, body: `[{"Config":"c","Layers":[]}]`}, symlink("c", "d"), symlink("d", "c"))
	bomb := zstdCompressed(t, make([]byte, 64<<20))
	for what, test := range map[string]struct {
		reference string
		want      error
	}{
		"which of two":         {"oci:" + layoutOf(t, both), ErrCorrupt},
		"none of two":          {"oci:" + layoutOf(t, both) + "#x:3", errNotThere},
		"which of Docker's":    {"oci-archive:" + onDisk(t, "x", saved(t, both)), errNotThere},
		"changed layer":        {"oci:" + damaged, ErrCorrupt},
		"index is a link out":  {"oci:" + outside, nil},
		"no such file":         {"rootfs:/does/not/exist", fs.ErrNotExist},
		"a directory":          {"rootfs:" + t.TempDir(), nil},
		"no archive":           {"rootfs:" + onDisk(t, "x", bytes.Repeat([]byte("no archive"), 100)), ErrCorrupt},
		"short":                {"rootfs:" + onDisk(t, "x", archive(t, file{name: "a", body: strings.Repeat("x", 5000)})[:3000]), ErrCorrupt},
		"xz":                   {"rootfs:" + onDisk(t, "x", []byte("\xfd7zXZ\x00....")), ErrCorrupt},
		"archive without list": {"oci-archive:" + onDisk(t, "x", archive(t, file{name: "a"})), ErrCorrupt},
		"links in a circle":    {"oci-archive:" + onDisk(t, "x", loop), ErrCorrupt},
		"bomb":                 {"rootfs:" + onDisk(t, "x", bomb), ErrTooLarge},
		"bomb as an archive":   {"oci-archive:" + onDisk(t, "x", bomb), ErrTooLarge},
		"large file":           {"rootfs:" + onDisk(t, "x", archive(t, file{name: "a", body: strings.Repeat("x", 2<<20)})), ErrTooLarge},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newStore(t, Config{Names: map[string]string{"x": test.reference}, Limits: Limits{Bytes: 1 << 20, Entries: 100}})
			_, err := s.Ensure(t.Context(), "x")
			if err == nil || test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("Ensure = %v, want %v", err, test.want)
			}
			noDrafts(t, s.cfg.Dir)
		})
	}
}

func TestFileThatWasReplacedIsAnotherImage(t *testing.T) {
	t.Parallel()
	path := onDisk(t, "x.tar", archive(t, file{name: "a", body: "1"}))
	s := newStore(t, Config{Names: map[string]string{"x": "rootfs:" + path}})
	first, err := s.Ensure(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(path+".new", archive(t, file{name: "a", body: "2"}), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
	second, err := s.Ensure(t.Context(), "x")
	if err != nil || second.Digest == first.Digest || listing(t, second.Dir) != `a "2"` {
		t.Errorf("after it was replaced there is %+v, %v", second, err)
	}
	if got := listing(t, first.Dir); got != `a "1"` {
		t.Errorf("the first has become %s", got)
	}
}

func TestTreeThatIsUsedAsItIs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newStore(t, Config{Names: map[string]string{"x": "dir:" + dir}})
	_, err := s.Ensure(t.Context(), "x")
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "directory /workspace") || !strings.Contains(err.Error(), "file /.sojourn/sojourn") {
		t.Errorf("without mount points: %v", err)
	}
	for _, p := range points {
		full := filepath.Join(dir, p.path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if p.isDir {
			err = os.MkdirAll(full, 0o755)
		} else {
			err = os.WriteFile(full, nil, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	image, err := s.Ensure(t.Context(), "x")
	if err != nil || image.Dir != dir || !validDigest(image.Digest) {
		t.Fatalf("Ensure = %+v, %v", image, err)
	}
	layer := sandbox.Mount{Source: t.TempDir(), Target: "/opt/layer"}
	if err := s.AddMountPoints(t.Context(), image, []sandbox.Mount{layer}); err == nil || !strings.Contains(err.Error(), "directory /opt/layer") {
		t.Errorf("AddMountPoints = %v", err)
	}
}

func TestMountPointsForLayersAreNotTakenForDamage(t *testing.T) {
	t.Parallel()
	tool := onDisk(t, "tool", []byte("x"))
	path := onDisk(t, "x.tar", archive(t, dir("usr/lib/real"), symlink("opt", "usr/lib/real"), file{name: "srv", body: "a file"}))
	storeDir := filepath.Join(t.TempDir(), "images")
	cfg := Config{Dir: storeDir, Names: map[string]string{"x": "rootfs:" + path}}
	s := newStore(t, cfg)
	image, err := s.Ensure(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	layers := []sandbox.Mount{{Source: t.TempDir(), Target: "/opt/a/b"}, {Source: tool, Target: "/opt/a/tool"}, {Source: tool, Target: "/other"}}
	for range 2 {
		if err := s.AddMountPoints(t.Context(), image, layers); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := listing(t, filepath.Join(image.Dir, "usr")), "lib/\nlib/real/\nlib/real/a/\nlib/real/a/b/\nlib/real/a/tool \"\""; got != want {
		t.Errorf("mount points are\n%s\nwant\n%s", got, want)
	}
	if err := s.AddMountPoints(t.Context(), image, []sandbox.Mount{{Source: tool, Target: "/srv/x"}}); err == nil {
		t.Error("a file of the image was taken for a directory")
	}
	if err := s.Verify(t.Context(), image.Digest); err != nil {
		t.Errorf("Verify = %v", err)
	}
	s.Close()
	if err := os.WriteFile(filepath.Join(filepath.Dir(image.Dir), verifiedName), []byte("an earlier boot"), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := newStore(t, cfg).Ensure(t.Context(), "x")
	if err != nil || again.Dir != image.Dir {
		t.Fatalf("after a boot: %+v, %v", again, err)
	}
	if _, err := os.Lstat(filepath.Join(again.Dir, "other")); err != nil {
		t.Errorf("the image was made again: %v", err)
	}
}
