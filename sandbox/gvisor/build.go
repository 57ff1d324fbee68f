package gvisor

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/cpuid"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// buildForm is the first word of a build; its number grows when what the driver saves
// changes.
const buildForm = "gvisor/1"

// build names all that a restore must have the same of. Every part is a word without
// spaces.
type build struct {
	Executable string // digest of our executable: programs of the snapshot have it mapped
	Runsc      string // version of gVisor, and the digest of an external runsc
	CPU        string // architecture, and digest of the processor's features
	Root       string // digest of the root file system and the layers, as far as is cheap
	Spec       string // digest of the description for runsc, without host paths
}

// parts are the names of the parts and what they are for people.
var parts = []struct {
	name, what string
	of         func(*build) *string
}{
	{"executable", "the executable of this server", func(b *build) *string { return &b.Executable }},
	{"runsc", "the version of gVisor", func(b *build) *string { return &b.Runsc }},
	{"cpu", "the kind of processor", func(b *build) *string { return &b.CPU }},
	{"root", "the root file system", func(b *build) *string { return &b.Root }},
	{"spec", "what the sandbox was asked to be (its layers or limits)", func(b *build) *string { return &b.Spec }},
}

// String is the form in which a snapshot has it.
func (b build) String() string {
	words := []string{buildForm}
	for _, p := range parts {
		words = append(words, p.name+"="+*p.of(&b))
	}
	return strings.Join(words, " ")
}

func parseBuild(s string) (build, error) {
	words := strings.Split(s, " ")
	if words[0] != buildForm {
		return build{}, fmt.Errorf("a snapshot of another version of this driver (%.40q): %w", words[0], sandbox.ErrUnsupported)
	}
	var b build
	for _, p := range parts {
		for _, w := range words[1:] {
			if value, ok := strings.CutPrefix(w, p.name+"="); ok {
				*p.of(&b) = value
			}
		}
	}
	return b, nil
}

// differs says which parts are not the same, for people; "" when all are.
func (b build) differs(from build) string {
	var what []string
	for _, p := range parts {
		if *p.of(&b) != *p.of(&from) {
			what = append(what, p.what)
		}
	}
	return strings.Join(what, " and ")
}

// note is what a cell's private directory says about the start of its sandbox.
type note struct {
	Build  build           `json:"build"`
	Root   local.Root      `json:"root"`
	Layers []sandbox.Mount `json:"layers,omitempty"`
}

// noteBuild writes down what a sandbox is made of, before it is whole.
func (l *launcher) noteBuild(c *local.Cell, description *specs.Spec, root local.Root, layers []sandbox.Mount) error {
	b, err := l.identify(root, layers)
	if err != nil {
		return err
	}
	b.Spec = digestSpec(description)
	text, err := json.Marshal(note{Build: b, Root: root, Layers: layers})
	if err != nil {
		return fmt.Errorf("note what the sandbox is made of: %w", err)
	}
	if err := os.WriteFile(filepath.Join(c.Private(), buildName), text, 0o600); err != nil {
		return fmt.Errorf("note what the sandbox is made of: %w", err)
	}
	return nil
}

// identify is the build of sandboxes with this root that are made now, without the part
// that differs between them.
func (l *launcher) identify(root local.Root, layers []sandbox.Mount) (build, error) {
	executable, err := l.digests.of(l.executable)
	if err != nil {
		return build{}, err
	}
	runsc := "embedded-" + l.tool.version
	if l.tool.external {
		digest, err := l.digests.of(l.tool.path)
		if err != nil {
			return build{}, err
		}
		runsc = l.tool.version + "-" + digest
	}
	files, err := digestRoot(root, layers)
	if err != nil {
		return build{}, err
	}
	return build{Executable: executable, Runsc: runsc, CPU: processor(), Root: files}, nil
}

// processor names the architecture and the features of the processor.
var processor = sync.OnceValue(func() string {
	cpuid.Initialize()
	return runtime.GOARCH + "-" + short([]byte(cpuid.HostFeatureSet().FlagString()))
})

// digestSpec is a digest of what runsc compares between a sandbox and its snapshot.
func digestSpec(s *specs.Spec) string {
	same := *s
	process := *s.Process
	process.Args, process.Env = nil, nil
	same.Process = &process
	same.Root = &specs.Root{Readonly: s.Root.Readonly}
	same.Mounts = slices.Clone(s.Mounts)
	for i := range same.Mounts {
		same.Mounts[i].Source = ""
	}
	b, err := json.Marshal(same)
	if err != nil {
		panic(err) // strings and numbers
	}
	return short(b)
}

// packages are where package managers of hosts note what they installed.
var packages = []string{"/var/lib/dpkg/status", "/var/lib/rpm", "/usr/lib/sysimage/rpm", "/lib/apk/db/installed", "/var/lib/pacman/local"}

// digestRoot is a digest of an image and the layers; or of a skeleton, the layers, and of
// when the host's own directories that are mounted into it, the directories in them and
// theirs, and the list of packages were last changed. An update of the host makes
// another one, because it puts new files in the place of old ones.
func digestRoot(root local.Root, layers []sandbox.Mount) (string, error) {
	h := sha256.New()
	if root.IsImage() {
		fmt.Fprintln(h, root.Digest)
	} else {
		fmt.Fprintln(h, filepath.Base(root.Dir)) // named after a digest of its content
	}
	for _, l := range layers {
		fmt.Fprintln(h, l.Target)
		if err := digestTree(h, l.Source, 1); err != nil {
			return "", err
		}
	}
	for _, dir := range root.Binds {
		if err := digestTree(h, dir, 2); err != nil {
			return "", err
		}
	}
	if len(root.Binds) == 0 {
		return hex.EncodeToString(h.Sum(nil)[:16]), nil
	}
	for _, path := range packages {
		if err := digestTree(h, path, 0); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// bulky are directories in which no program and no library is.
var bulky = []string{"share", "include", "src", "games"}

// digestTree adds the size and the time of a file or directory, and those of the
// directories in it down to a depth.
func digestTree(h hash.Hash, path string, depth int) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	fmt.Fprintln(h, path, info.Mode(), info.Size(), info.ModTime().UnixNano())
	if !info.IsDir() || depth == 0 {
		return nil
	}
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	for _, e := range entries {
		if !e.IsDir() || slices.Contains(bulky, e.Name()) {
			continue
		}
		if err := digestTree(h, filepath.Join(path, e.Name()), depth-1); err != nil {
			return err
		}
	}
	return nil
}

// digests remembers the digests of files that are read whole.
type digests struct {
	mu    sync.Mutex
	known map[string]knownDigest
}

type knownDigest struct {
	size   int64
	mod    time.Time
	inode  uint64
	digest string
}

// of returns the digest of a file's content. It is computed again when the file is not
// the same any more.
func (d *digests) of(path string) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("digest executable: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("digest executable: %w", err)
	}
	k := knownDigest{size: info.Size(), mod: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		k.inode = st.Ino
	}
	if old := d.known[path]; old.size == k.size && old.mod.Equal(k.mod) && old.inode == k.inode && old.digest != "" {
		return old.digest, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("digest executable: %w", err)
	}
	k.digest = hex.EncodeToString(h.Sum(nil)[:16])
	if d.known == nil {
		d.known = make(map[string]knownDigest)
	}
	d.known[path] = k
	return k.digest, nil
}

// short is a digest that is long enough to tell builds apart.
func short(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}
