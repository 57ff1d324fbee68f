package image

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/sojourn-dev/sojourn/sandbox"
)

func TestPullUnpacksOnceAndKeepsTheEnvironment(t *testing.T) {
	t.Parallel()
	r := serve(t, nil)
	ref := r.push(t, "team/base:1", makeImage(t, []string{"PATH=/x", "A=b"}, here(t),
		archive(t, file{name: "a", body: "1"}, file{name: "b"}), archive(t, file{name: "a", body: "2"}, file{name: ".wh.b"})))
	var mu sync.Mutex
	var stages []Stage
	s := newStore(t, Config{Allow: []string{r.host + "/team/base"}, Progress: func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		if len(stages) == 0 || stages[len(stages)-1] != p.Stage {
			stages = append(stages, p.Stage)
		}
		if p.Total > 0 && p.Bytes > p.Total {
			t.Errorf("%d of %d bytes in stage %s", p.Bytes, p.Total, p.Stage)
		}
	}})
	image, err := s.Ensure(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if got := listing(t, image.Dir); got != `a "2"` {
		t.Errorf("the tree is\n%s", got)
	}
	if image.Reference != ref || !validDigest(image.Digest) || strings.Join(image.Env, " ") != "PATH=/x A=b" {
		t.Errorf("image = %+v", image)
	}
	if got, want := strings.Join(toStrings(stages), " "), "resolve download unpack verify ready"; got != want {
		t.Errorf("stages %q, want %q", got, want)
	}
	before := r.blobGets()
	again, err := s.Ensure(t.Context(), ref)
	if err != nil || again.Dir != image.Dir || r.blobGets() != before {
		t.Errorf("Ensure again = %+v, %v, and %d blobs more", again, err, r.blobGets()-before)
	}
	if err := s.Verify(t.Context(), image.Digest); err != nil {
		t.Errorf("Verify = %v", err)
	}
	pinned, err := s.Ensure(t.Context(), r.host+"/team/base@"+image.Digest)
	if err != nil || pinned.Dir != image.Dir || r.blobGets() != before+1 { // the configuration
		t.Errorf("Ensure by digest = %+v, %v, and %d blobs more", pinned, err, r.blobGets()-before)
	}
}

func toStrings[S ~string](in []S) (out []string) {
	for _, s := range in {
		out = append(out, string(s))
	}
	return out
}

func TestOnlyWhatTheConfigurationAllows(t *testing.T) {
	t.Parallel()
	disk := filepath.Join(t.TempDir(), "root.tar")
	if err := os.WriteFile(disk, archive(t, file{name: "a"}), 0o600); err != nil {
		t.Fatal(err)
	}
	digest := "@sha256:" + strings.Repeat("0", 64)
	for _, test := range []struct {
		reference string
		rules     []string
		want      bool
	}{
		{"debian", nil, false},
		{"debian", []string{"docker.io/library/debian"}, true},
		{"docker.io/debian:12", []string{"debian"}, true},
		{"debian" + digest, []string{"debian"}, true},
		{"debian:13", []string{"debian:12"}, false},
		{"index.docker.io/library/debian:12", []string{"debian:12"}, true},
		{"debian", []string{"debian:latest"}, true},
		{"debianx", []string{"debian"}, false},
		{"evil.example/library/debian", []string{"debian"}, false},
		{"ghcr.io/acme/a/b:1", []string{"ghcr.io/acme/*"}, true},
		{"ghcr.io/acmex/a", []string{"ghcr.io/acme/*"}, false},
		{"ghcr.io/acme", []string{"ghcr.io/acme/*"}, false},
		{"library/debian", []string{"docker.io/*"}, true},
		{"localhost:5000/x", []string{"localhost:5000/*"}, true},
		{"localhost:5001/x", []string{"localhost:5000/*"}, false},
		{"quay.io/any/thing", []string{"*"}, true},
		{"rootfs:" + disk, []string{"*"}, false},
		{"rootfs:" + disk, []string{"rootfs:" + disk}, true},
		{"rootfs:/etc/passwd", []string{"rootfs:" + disk}, false},
		{"dir:/", []string{"*", "debian"}, false},
	} {
		r, err := parse(test.reference, nil)
		if err != nil {
			t.Errorf("parse(%q) = %v", test.reference, err)
			continue
		}
		if got := allowed(r, test.rules); got != test.want {
			t.Errorf("with %q %q is allowed: %v, want %v", test.rules, test.reference, got, test.want)
		}
	}
	s := newStore(t, Config{Names: map[string]string{"base": "rootfs:" + disk}, Allow: []string{"ghcr.io/acme/*"}})
	if _, err := s.Ensure(t.Context(), "rootfs:"+disk); !errors.Is(err, ErrNotAllowed) || !errors.Is(err, sandbox.ErrInvalidSpec) {
		t.Errorf("Ensure of a path = %v, want ErrNotAllowed", err)
	}
	if image, err := s.Ensure(t.Context(), "base"); err != nil || image.Reference != "base" {
		t.Errorf("Ensure by name = %+v, %v", image, err)
	}
	for _, bad := range []string{
		"", "rootfs:relative", "rootfs:/a/../b", "dir:", "UPPER/case", "a b", "x@sha256:12", "a\nb", strings.Repeat("x", 5000),
		// Not what a rule for ghcr.io/acme/* would mean.
		"ghcr.io/acme/../evil/tool", "ghcr.io/acme/./tool", "ghcr.io/acme//tool", "ghcr.io/acme/../../../x@" + digestOf(nil),
	} {
		if _, err := s.Ensure(t.Context(), bad); !errors.Is(err, sandbox.ErrInvalidSpec) {
			t.Errorf("Ensure(%.20q) = %v, want ErrInvalidSpec", bad, err)
		}
	}
}

func TestConfigurationIsChecked(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"relative":  {Dir: "images"},
		"limit":     {Dir: "/x", Limits: Limits{Bytes: -1}},
		"owner":     {Dir: "/x", Owner: "../x"},
		"name":      {Dir: "/x", Names: map[string]string{"a": "rootfs:x"}},
		"rule":      {Dir: "/x", Allow: []string{"UPPER"}},
		"platform":  {Dir: "/x", Platform: "linux"},
		"platform2": {Dir: "/x", Platform: "a/b/c/d"},
	} {
		if s, err := Open(cfg); err == nil {
			t.Errorf("%s: Open = %v", name, s)
		}
	}
}

func TestPlatformIsChosenAndMissingOnesAreNamed(t *testing.T) {
	t.Parallel()
	r := serve(t, nil)
	index := v1.ImageIndex(empty.Index)
	for _, p := range []v1.Platform{
		{OS: "unknown", Architecture: "unknown"},
		{OS: "linux", Architecture: "arm", Variant: "v7"},
		{OS: "linux", Architecture: "arm64"},
		{OS: "linux", Architecture: "amd64", Variant: "v3"},
		{OS: "linux", Architecture: "amd64"},
	} {
		image := makeImage(t, nil, p, archive(t, file{name: "is", body: p.String()}))
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &p}})
	}
	ref := r.push(t, "multi", mutate.IndexMediaType(index, types.OCIImageIndex))
	for platform, want := range map[string]string{
		"linux/amd64": "linux/amd64", "linux/amd64/v3": "linux/amd64/v3", "linux/arm64": "linux/arm64",
		"linux/arm/v7": "linux/arm/v7", "linux/arm": "linux/arm/v7",
	} {
		s := newStore(t, Config{Allow: []string{"*"}, Platform: platform})
		image, err := s.Ensure(t.Context(), ref)
		if err != nil {
			t.Errorf("for %s: %v", platform, err)
			continue
		}
		if got := listing(t, image.Dir); got != "is \""+want+"\"" {
			t.Errorf("for %s there is %s", platform, got)
		}
	}
	s := newStore(t, Config{Allow: []string{"*"}, Platform: "linux/riscv64"})
	_, err := s.Ensure(t.Context(), ref)
	if !errors.Is(err, ErrPlatform) || !strings.Contains(err.Error(), "linux/amd64, linux/amd64/v3, linux/arm/v7, linux/arm64") {
		t.Errorf("for a platform that is not there: %v", err)
	}
	single := r.push(t, "single", makeImage(t, nil, v1.Platform{OS: "linux", Architecture: "s390x"}, archive(t, file{name: "a"})))
	if _, err := s.Ensure(t.Context(), single); !errors.Is(err, ErrPlatform) || !strings.Contains(err.Error(), "linux/s390x") {
		t.Errorf("an image for another platform: %v", err)
	}
}

func TestManyWhoWantOneImageShareOnePull(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	r := serve(t, func(_ http.ResponseWriter, req *http.Request) bool {
		if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/") {
			<-release
		}
		return false
	})
	ref := r.push(t, "shared", makeImage(t, nil, here(t), archive(t, file{name: "a"})))
	dir := filepath.Join(t.TempDir(), "images")
	stores := []*Store{newStore(t, Config{Dir: dir, Allow: []string{"*"}}), newStore(t, Config{Dir: dir, Allow: []string{"*"}, Owner: "second"})}

	// One who gives up does not break it off for others.
	gaveUp, giveUp := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := stores[0].Ensure(gaveUp, ref); !errors.Is(err, context.Canceled) {
			t.Errorf("Ensure of one who gave up = %v", err)
		}
	})
	dirs := make(chan string, 16)
	for i := range 16 {
		wg.Go(func() {
			image, err := stores[i%2].Ensure(t.Context(), ref)
			if err != nil {
				t.Errorf("Ensure = %v", err)
			}
			dirs <- image.Dir
		})
	}
	giveUp()
	close(release)
	wg.Wait()
	close(dirs)
	for d := range dirs {
		if d != filepath.Join(stores[0].cfg.Dir, filepath.Base(filepath.Dir(d)), treeName) {
			t.Errorf("an image at %s", d)
		}
	}
	layers := 0
	for path, n := range r.gets {
		if strings.Contains(path, "/blobs/") {
			layers += n
		}
	}
	// Each store asks for the configuration; the layer may come once for a store that
	// had begun, and for nobody else. One more is what the one who gave up had begun.
	if layers > 2*3 {
		t.Errorf("%d blobs were asked for by 17 callers", layers)
	}
	noDrafts(t, dir)
}

// noDrafts reports what is left half made in a store.
func noDrafts(t testing.TB, dir string) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(dir, newPrefix+"*")); len(left) > 0 {
		t.Errorf("left in the store: %q", left)
	}
}

func TestPullThatIsGivenUpEnds(t *testing.T) {
	t.Parallel()
	asked, ended := make(chan struct{}, 8), make(chan struct{}, 8)
	r := serve(t, func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != http.MethodGet || !strings.Contains(req.URL.Path, "/blobs/") {
			return false
		}
		asked <- struct{}{}
		<-req.Context().Done() // the client has gone
		ended <- struct{}{}
		return true
	})
	ref := r.push(t, "slow", makeImage(t, nil, here(t), archive(t, file{name: "a"})))
	s := newStore(t, Config{Allow: []string{"*"}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := s.Ensure(ctx, ref); done <- err }()
	<-asked
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Ensure = %v", err)
	}
	<-ended
	if err := s.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	noDrafts(t, s.cfg.Dir)
	if _, err := s.Ensure(t.Context(), ref); !errors.Is(err, errClosed) {
		t.Errorf("Ensure after Close = %v", err)
	}
}

func TestWhatIsNotAsDescribedIsRefused(t *testing.T) {
	t.Parallel()
	good := archive(t, file{name: "a", body: "good"})
	for _, test := range []struct {
		name  string
		serve func(path string, b []byte) []byte
		want  error
	}{
		{"layer with a changed byte", func(path string, b []byte) []byte {
			if strings.Contains(path, "/blobs/") && b[0] == 0x1f {
				b[len(b)-1] ^= 1
			}
			return b
		}, nil}, // found by the reader of blobs
		{"short layer", func(path string, b []byte) []byte {
			if strings.Contains(path, "/blobs/") && b[0] == 0x1f {
				return b[:len(b)-1]
			}
			return b
		}, nil},
		{"manifest of another layer", func(path string, b []byte) []byte {
			if strings.Contains(path, "/manifests/sha256:") {
				b[len(b)-2] ^= 1
			}
			return b
		}, nil},
		{"endless manifest", func(path string, b []byte) []byte {
			if strings.Contains(path, "/manifests/") {
				return append(b, make([]byte, maxManifest)...)
			}
			return b
		}, ErrTooLarge},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var change atomic.Bool
			r := serveChanged(t, func(path string, b []byte) []byte {
				if change.Load() && len(b) > 0 {
					return test.serve(path, b)
				}
				return b
			})
			image := makeImage(t, nil, here(t), good)
			ref := r.push(t, "x:1", image)
			digest, err := image.Digest()
			if err != nil {
				t.Fatal(err)
			}
			change.Store(true)
			s := newStore(t, Config{Allow: []string{"*"}})
			pinned := strings.TrimSuffix(ref, ":1") + "@" + digest.String()
			_, err = s.Ensure(t.Context(), pinned)
			if err == nil || test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("Ensure = %v, want %v", err, test.want)
			}
			noDrafts(t, s.cfg.Dir)
			if list, err := s.List(t.Context()); err != nil || len(list) > 0 {
				t.Errorf("List = %v, %v", list, err)
			}
		})
	}
}

func TestTagIsAskedForAgainAfterAWhile(t *testing.T) {
	t.Parallel()
	down := false
	r := serve(t, func(w http.ResponseWriter, req *http.Request) bool {
		if down {
			http.Error(w, "down for the day", http.StatusForbidden)
		}
		return down
	})
	ref := r.push(t, "moving:tag", makeImage(t, nil, here(t), archive(t, file{name: "v", body: "1"})))
	dir := filepath.Join(t.TempDir(), "images")
	content := func(refresh time.Duration) string {
		t.Helper()
		s := newStore(t, Config{Dir: dir, Allow: []string{"*"}, Refresh: refresh})
		defer s.Close()
		image, err := s.Ensure(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		return listing(t, image.Dir)
	}
	if got := content(time.Hour); got != `v "1"` {
		t.Errorf("at first there is %s", got)
	}
	r.push(t, "moving:tag", makeImage(t, nil, here(t), archive(t, file{name: "v", body: "2"})))
	if got := content(time.Hour); got != `v "1"` {
		t.Errorf("before the refresh there is %s", got)
	}
	if got := content(1); got != `v "2"` {
		t.Errorf("after the refresh there is %s", got)
	}
	down = true
	if got := content(1); got != `v "2"` {
		t.Errorf("without the registry there is %s", got)
	}
	s := newStore(t, Config{Allow: []string{"*"}})
	_, err := s.Ensure(t.Context(), ref)
	if err == nil || !strings.Contains(err.Error(), "needs credentials") {
		t.Errorf("an image that was never there, without the registry: %v", err)
	}
}

func TestMirrorsComeFirstAndMayBeDown(t *testing.T) {
	t.Parallel()
	image := makeImage(t, nil, here(t), archive(t, file{name: "a"}))
	origin, mirror := serve(t, nil), serve(t, nil)
	ref := origin.push(t, "lib/x:1", image)
	mirror.push(t, "lib/x:1", image)
	dead := "127.0.0.1:1" // nothing listens there
	s := newStore(t, Config{Allow: []string{"*"}, Insecure: []string{dead}, Mirrors: map[string][]string{origin.host: {dead, mirror.host}}})
	before := len(origin.gets)
	if _, err := s.Ensure(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	if len(origin.gets) != before {
		t.Errorf("the registry was asked though a mirror has the image: %v", origin.gets)
	}
	s = newStore(t, Config{Allow: []string{"*"}, Mirrors: map[string][]string{origin.host: {serve(t, nil).host}}})
	if _, err := s.Ensure(t.Context(), ref); err != nil {
		t.Errorf("with a mirror that does not have it: %v", err)
	}
	if len(origin.gets) == before {
		t.Error("the registry was not asked")
	}
}

func TestPrivateRegistry(t *testing.T) {
	t.Parallel()
	const user, password = "robot", "s3cret-word"
	r := serve(t, func(w http.ResponseWriter, req *http.Request) bool {
		u, p, _ := req.BasicAuth()
		if u == user && p == password || req.Header.Get("X-Test") != "" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"who are you"}]}`, http.StatusUnauthorized)
		return true
	})
	ref := r.push(t, "private/x", makeImage(t, nil, here(t), archive(t, file{name: "a"})), asUser(user, password))
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good", " "+password+"\n")
	for name, test := range map[string]struct {
		cfg Config
		ok  bool
	}{
		"none":          {Config{}, false},
		"password file": {Config{Credentials: []Credential{{r.host, user, good}}}, true},
		"wrong":         {Config{Credentials: []Credential{{r.host, user, write("bad", "guess")}}}, false},
		"of another":    {Config{Credentials: []Credential{{"other.example", user, good}}}, false},
		"no file":       {Config{Credentials: []Credential{{r.host, user, filepath.Join(dir, "missing")}}}, false},
		"docker":        {Config{DockerConfig: write("docker.json", `{"auths":{"http://`+r.host+`/v1/":{"username":"robot","password":"s3cret-word"}}}`)}, true},
		"docker broken": {Config{DockerConfig: write("broken.json", `{"auths":{"x":"s3cret-word`)}, false},
		"docker helper": {Config{DockerConfig: write("helper.json", `{"credsStore":"desktop"}`)}, false},
	} {
		test.cfg.Allow = []string{"*"}
		_, err := newStore(t, test.cfg).Ensure(t.Context(), ref)
		if (err == nil) != test.ok {
			t.Errorf("%s: Ensure = %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), password) {
			t.Errorf("%s: the error has the password: %v", name, err)
		}
	}
}

func TestPauseBetweenTriesEndsWithTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		tries := 0
		l := layer{size: 1, digest: digestOf(nil), open: failing(&tries)}
		start := time.Now()
		err := download(ctx, l, filepath.Join(t.TempDir(), "blob"), newTeller(nil, ""))
		if !errors.Is(err, context.DeadlineExceeded) || tries != 2 || time.Since(start) != 700*time.Millisecond {
			t.Errorf("download = %v after %d tries and %v", err, tries, time.Since(start))
		}
		tries = 0
		err = download(t.Context(), l, filepath.Join(t.TempDir(), "blob"), newTeller(nil, ""))
		if err == nil || tries != downloadTries {
			t.Errorf("download = %v after %d tries, want %d", err, tries, downloadTries)
		}
	})
}

func TestDownloadThatBringsNothingIsBrokenOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := layer{size: 1, digest: digestOf(nil), open: hanging}
		start := time.Now()
		_, err := downloadOnce(t.Context(), l, filepath.Join(t.TempDir(), "blob"), 0, newTeller(nil, ""))
		if !errors.Is(err, errStalled) || time.Since(start) != stallTime {
			t.Errorf("download = %v after %v", err, time.Since(start))
		}
	})
}
