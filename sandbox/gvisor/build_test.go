package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

func TestBuildNamesWhatDiffers(t *testing.T) {
	b := build{Executable: "e", Runsc: "embedded-v0.0.0", CPU: "amd64-c", Root: "r", Spec: "s"}
	back, err := parseBuild(b.String())
	if err != nil || back != b {
		t.Errorf("parseBuild(%q) = %+v, %v, want %+v", b, back, err, b)
	}
	if what := b.differs(back); what != "" {
		t.Errorf("a build differs from itself in %q", what)
	}
	for _, p := range parts {
		other := b
		*p.of(&other) = "x"
		if what := b.differs(other); what != p.what {
			t.Errorf("builds with another %s differ in %q, want %q", p.name, what, p.what)
		}
	}
	missing, err := parseBuild(strings.Replace(b.String(), " cpu=amd64-c", "", 1))
	if what := b.differs(missing); err != nil || what != "the kind of processor" {
		t.Errorf("a build without a processor differs in %q, %v", what, err)
	}
	for _, s := range []string{"", "x", "gvisor/0 executable=e", "gvisor/10"} {
		if got, err := parseBuild(s); !errors.Is(err, sandbox.ErrUnsupported) {
			t.Errorf("parseBuild(%q) = %+v, %v, want ErrUnsupported", s, got, err)
		}
	}
}

func TestDigestRootSeesUpdates(t *testing.T) {
	usr := t.TempDir()
	lib := filepath.Join(usr, "lib")
	layer := t.TempDir()
	if err := os.Mkdir(lib, 0o755); err != nil {
		t.Fatal(err)
	}
	digest := func(change func(*local.Root, *[]sandbox.Mount)) string {
		root, layers := local.Root{Dir: "/x/root-1", Binds: []string{usr}}, []sandbox.Mount{{Source: layer, Target: "/agents"}}
		if change != nil {
			change(&root, &layers)
		}
		d, err := digestRoot(root, layers)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	before := digest(nil)
	if digest(nil) != before {
		t.Error("the digest of the same root is another one")
	}
	changes := map[string]func(*local.Root, *[]sandbox.Mount){
		"skeleton": func(r *local.Root, _ *[]sandbox.Mount) { r.Dir = "/x/root-2" },
		"image":    func(r *local.Root, _ *[]sandbox.Mount) { *r = local.Root{Dir: "/x/root-1", Digest: "sha256:1"} },
		"layer":    func(_ *local.Root, ls *[]sandbox.Mount) { *ls = nil },
	}
	for name, change := range changes {
		if digest(change) == before {
			t.Errorf("another %s has the same digest", name)
		}
	}
	// As a package manager replaces a library.
	if err := os.WriteFile(filepath.Join(lib, "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Minute) // whatever the resolution of the file system's clock
	if err := os.Chtimes(lib, later, later); err != nil {
		t.Fatal(err)
	}
	if digest(nil) == before {
		t.Error("a new library does not change the digest")
	}
}

func TestDigestsSeeAnotherFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var d digests
	seen := make(map[string]bool)
	for _, text := range []string{"one", "other"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			digest, err := d.of(path)
			if err != nil {
				t.Fatal(err)
			}
			seen[digest] = true
		}
	}
	if len(seen) != 2 {
		t.Errorf("two contents have %d digests", len(seen))
	}
}

// BenchmarkIdentify is what the note of a sandbox's build adds to its start, the digest of
// the executable aside, which is computed once.
func BenchmarkIdentify(b *testing.B) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	l := &launcher{roots: local.NewRoots(b.TempDir(), nil), executable: self, tool: embedded(self)}
	root, err := l.roots.Look(b.Context(), sandbox.Spec{})
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	if _, err := l.digests.of(self); err != nil {
		b.Fatal(err)
	}
	took := time.Since(began)
	for b.Loop() {
		if _, err := l.identify(root, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(took.Microseconds())/1000, "digest-ms")
}
