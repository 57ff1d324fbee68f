package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// at is the time of all files in archives of tests.
var at = time.Unix(1_600_000_000, 0)

// file is an entry of an archive: a regular file unless it says otherwise.
type file struct {
	name, body string
	kind       byte
	mode       int64
	uid        int
	link       string
	xattrs     map[string]string
}

func dir(name string) file          { return file{name: name, kind: tar.TypeDir, mode: 0o755} }
func symlink(name, to string) file  { return file{name: name, kind: tar.TypeSymlink, link: to} }
func hardlink(name, to string) file { return file{name: name, kind: tar.TypeLink, link: to} }

// archive is a tar archive.
func archive(t testing.TB, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{
			Name: f.name, Typeflag: cmp.Or(f.kind, tar.TypeReg), Mode: cmp.Or(f.mode, 0o644), Uid: f.uid, Gid: f.uid,
			Linkname: f.link, Size: int64(len(f.body)), ModTime: at, Format: tar.FormatPAX,
		}
		for k, v := range f.xattrs {
			if h.PAXRecords == nil {
				h.PAXRecords = make(map[string]string)
			}
			h.PAXRecords["SCHILY.xattr."+k] = v
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// listing is a tree in one line an entry, without what is in every one.
func listing(t testing.TB, root string) string {
	t.Helper()
	var lines []string
	ours := make(map[string]bool)
	for _, p := range points {
		ours[p.path] = true
	}
	for _, s := range settings {
		ours[s.path] = true
	}
	for _, d := range []string{"etc", "home", "run"} {
		ours[d] = true
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		if err != nil || rel == "." || ours[rel] && d.Type()&fs.ModeSymlink == 0 {
			return err
		}
		line := rel
		switch d.Type() {
		case fs.ModeDir:
			line += "/"
		case fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + target
		default:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q", b)
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// newStore opens a store in a directory of its own.
func newStore(t testing.TB, cfg Config) *Store {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(t.TempDir(), "images")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(testLog{t}, nil))
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// makeImage is an image with a layer for each archive.
func makeImage(t testing.TB, env []string, platform v1.Platform, layers ...[]byte) v1.Image {
	t.Helper()
	image := empty.Image
	for _, b := range layers {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if image, err = mutate.AppendLayers(image, l); err != nil {
			t.Fatal(err)
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant, config.Config.Env = platform.OS, platform.Architecture, platform.Variant, env
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	return image
}

// here is the platform of this machine.
func here(t testing.TB) v1.Platform {
	t.Helper()
	p, err := parsePlatform("")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// testRegistry is a registry in this process.
type testRegistry struct {
	host string
	gets map[string]int // how often each path was asked for; read it when nothing runs
}

// serve runs a registry behind a handler that may do what it wants first; it reports
// whether it has answered.
func serve(t testing.TB, before func(http.ResponseWriter, *http.Request) bool) *testRegistry {
	t.Helper()
	r := &testRegistry{gets: make(map[string]int)}
	inner := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, 0)))
	lock := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			lock <- struct{}{}
			r.gets[req.URL.Path]++
			<-lock
		}
		if before == nil || !before(w, req) {
			inner.ServeHTTP(w, req)
		}
	}))
	t.Cleanup(server.Close)
	r.host = strings.TrimPrefix(server.URL, "http://")
	return r
}

// push puts an image or an index into the registry and returns its reference there.
func (r *testRegistry) push(t testing.TB, repository string, what remote.Taggable, options ...remote.Option) string {
	t.Helper()
	text := r.host + "/" + repository
	ref, err := name.ParseReference(text, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if index, ok := what.(v1.ImageIndex); ok {
		err = remote.WriteIndex(ref, index, options...)
	} else {
		err = remote.Write(ref, what.(v1.Image), options...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// blobGets is how often blobs were asked for.
func (r *testRegistry) blobGets() (n int) {
	for path := range maps.Keys(r.gets) {
		if strings.Contains(path, "/blobs/") {
			n += r.gets[path]
		}
	}
	return n
}

// serveChanged runs a registry whose answers pass through change.
func serveChanged(t testing.TB, change func(path string, b []byte) []byte) *testRegistry {
	t.Helper()
	inner := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, 0)))
	return serve(t, func(w http.ResponseWriter, req *http.Request) bool {
		rec := httptest.NewRecorder()
		inner.ServeHTTP(rec, req)
		maps.Copy(w.Header(), rec.Header())
		b := rec.Body.Bytes()
		if req.Method == http.MethodGet {
			b = change(req.URL.Path, b)
			w.Header().Set("Content-Length", strconv.Itoa(len(b)))
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(b) // the client may have enough
		return true
	})
}

// asUser shows a name and a password when pushing.
func asUser(name, password string) remote.Option {
	return remote.WithAuth(&authn.Basic{Username: name, Password: password})
}

// failing is a layer that cannot be opened; it counts the tries.
func failing(tries *int) func(context.Context, int) (io.ReadCloser, error) {
	return func(context.Context, int) (io.ReadCloser, error) {
		*tries++
		return nil, errors.New("broken off")
	}
}

// hanging is a layer of which nothing comes.
func hanging(ctx context.Context, _ int) (io.ReadCloser, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
