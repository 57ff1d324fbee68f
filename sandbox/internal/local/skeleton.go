package local

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
)

const (
	maxSkeletonFile  = 8 << 20  // bytes; a larger file of the host is left out
	maxSkeletonBytes = 64 << 20 // of all files
	maxSkeletonFiles = 20_000
)

// Skeleton is a root directory for sandboxes: the links, the mount points and the
// few harmless files of /etc that programs of the host need, so that no image has to
// be installed.
type Skeleton struct {
	Dir string
	// Binds are the directories of the host that must be mounted read-only at the
	// same paths.
	Binds []string
}

// entry is one thing in a skeleton.
type entry struct {
	path string      // relative
	mode fs.FileMode // type and permissions
	data string      // content, or the target of a link
}

// unusedTime is how long a skeleton stays after its last use when no sandbox is left.
const unusedTime = 30 * 24 * time.Hour

// Skeletons makes the skeletons of a driver's directory. What the host's /etc holds is
// read once: the next driver sees an update of the host.
type Skeletons struct {
	dir  string
	host func() (hostPlan, error)

	mu   sync.Mutex
	made map[string]bool // paths that are there and have been marked as used
}

// hostPlan is what all skeletons of a host have in common.
type hostPlan struct {
	entries []entry
	binds   []string
	digest  []byte
}

// NewSkeletons returns the skeletons below dir.
func NewSkeletons(dir string) *Skeletons {
	return &Skeletons{dir: dir, host: sync.OnceValues(planHost), made: make(map[string]bool)}
}

// For returns the skeleton for a sandbox with these layers, which get mount points in
// it. It is made once and kept under the digest of its content, and it never changes
// under a running sandbox.
func (s *Skeletons) For(layers []sandbox.Mount) (Skeleton, error) {
	host, err := s.host()
	if err != nil {
		return Skeleton{}, err
	}
	points, err := planLayers(layers)
	if err != nil {
		return Skeleton{}, err
	}
	path := filepath.Join(s.dir, skeletonPrefix+hex.EncodeToString(digest(points, host.digest)[:12]))
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.made[path] {
		if err := s.makeLocked(path, host.entries, points); err != nil {
			return Skeleton{}, fmt.Errorf("make root directory: %w", err)
		}
		s.made[path] = true
	}
	return Skeleton{Dir: path, Binds: host.binds}, nil
}

// Prepare makes the skeleton of sandboxes without layers, so that the first Create is as
// fast as others, and prunes if the machine of the same directory has no sandboxes.
func (s *Skeletons) Prepare(m *Machine) error {
	if _, err := s.For(nil); err != nil {
		return err
	}
	hs, err := m.List(context.Background())
	if err != nil || len(hs) > 0 {
		return err
	}
	return s.Prune(time.Now())
}

// Prune removes skeletons that have not been used for long, and unfinished ones. The
// caller knows that no sandbox is left in the driver's directory.
func (s *Skeletons) Prune(now time.Time) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("remove old root directories: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), skeletonPrefix) {
			continue
		}
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), unfinishedPrefix) && now.Sub(info.ModTime()) < unusedTime {
			continue
		}
		if err := RemoveTree(filepath.Join(s.dir, e.Name())); err != nil {
			return fmt.Errorf("remove old root directories: %w", err)
		}
	}
	return nil
}

const (
	skeletonPrefix   = "root-"
	unfinishedPrefix = skeletonPrefix + "new-"
)

func (s *Skeletons) makeLocked(path string, plans ...[]entry) error {
	if now := time.Now(); os.Chtimes(path, now, now) == nil {
		return nil // it is there, and now marked as used
	}
	tmp, err := os.MkdirTemp(s.dir, unfinishedPrefix)
	if err != nil {
		return err
	}
	for _, entries := range plans {
		if err == nil {
			err = materialise(tmp, entries)
		}
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, RemoveTree(tmp))
	}
	return nil
}

// digest is a digest of a plan that follows on another.
func digest(entries []entry, before []byte) []byte {
	h := sha256.New()
	h.Write(before)
	for _, e := range entries {
		fmt.Fprintf(h, "%q %v %d %q\n", e.path, e.mode, len(e.data), e.data)
	}
	return h.Sum(nil)
}

func materialise(root string, entries []entry) error {
	if err := os.Chmod(root, 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(root, e.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		var err error
		switch e.mode.Type() {
		case fs.ModeDir:
			err = os.MkdirAll(path, 0o755)
		case fs.ModeSymlink:
			err = os.Symlink(e.data, path)
		default:
			err = os.WriteFile(path, []byte(e.data), e.mode.Perm())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// planHost lists what belongs into every skeleton, in a stable order.
func planHost() (hostPlan, error) {
	var entries []entry
	var binds []string
	var dirs []string
	for _, d := range []string{"usr", "opt", "bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		target, linkErr := os.Readlink("/" + d)
		switch info, statErr := os.Lstat("/" + d); {
		case statErr != nil: // the host has none
		case linkErr == nil:
			entries = append(entries, entry{d, fs.ModeSymlink, strings.TrimPrefix(target, "/")})
		case info.IsDir():
			dirs, binds = append(dirs, d), append(binds, "/"+d)
		}
	}
	dirs = append(dirs, strings.TrimPrefix(sandbox.WorkspacePath, "/"), strings.TrimPrefix(sandbox.HomePath, "/"),
		strings.TrimPrefix(sandbox.SocketDir, "/"), "tmp", "dev", "proc", "sys", "mnt", "srv",
		"var/cache", "var/lib", "var/log", "etc")
	for _, d := range dirs {
		entries = append(entries, entry{path: d, mode: fs.ModeDir})
	}
	entries = append(entries,
		entry{strings.TrimPrefix(sandbox.KeeperPath, "/"), 0o755, ""},
		entry{"root", fs.ModeSymlink, strings.TrimPrefix(sandbox.HomePath, "/")},
		entry{"var/tmp", fs.ModeSymlink, "../tmp"},
		entry{"var/run", fs.ModeSymlink, "../run"})
	etc, err := planEtc()
	if err != nil {
		return hostPlan{}, err
	}
	entries = tidy(append(entries, etc...))
	return hostPlan{entries: entries, binds: binds, digest: digest(entries, nil)}, nil
}

// planLayers lists the mount points of layers.
func planLayers(layers []sandbox.Mount) ([]entry, error) {
	var entries []entry
	for _, m := range layers {
		info, err := os.Stat(m.Source)
		if err != nil {
			return nil, fmt.Errorf("layer: %w", err)
		}
		e := entry{path: strings.TrimPrefix(m.Target, "/"), mode: 0o644}
		if info.IsDir() {
			e.mode = fs.ModeDir
		}
		entries = append(entries, e)
	}
	return tidy(entries), nil
}

// tidy sorts entries and leaves one for each path.
func tidy(entries []entry) []entry {
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(a.path, b.path) })
	return slices.CompactFunc(entries, func(a, b entry) bool { return a.path == b.path })
}

// etcMade are files of /etc with content of ours.
var etcMade = map[string]string{
	"passwd":        "root:x:0:0:root:/home/agent:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
	"group":         "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
	"hosts":         "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 sojourn\n",
	"hostname":      "sojourn\n",
	"resolv.conf":   "nameserver 127.0.0.1\noptions timeout:2 attempts:1\n", // the keeper
	"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
}

// etcCopied are files and directories of the host's /etc that programs need and that
// hold nothing private. What other users of the host cannot read is left out of them.
var etcCopied = []string{
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld-musl-x86_64.path", "ld-musl-aarch64.path",
	"alternatives", "localtime", "timezone", "os-release", "debian_version", "alpine-release", "redhat-release",
	"ssl/certs", "ssl/openssl.cnf", "ssl/cert.pem", "ssl/ca-bundle.pem", "pki/tls/certs", "pki/tls/cert.pem",
	"pki/tls/openssl.cnf", "pki/ca-trust/extracted", "ca-certificates/extracted", "crypto-policies",
	"services", "protocols", "mime.types", "magic", "host.conf", "gai.conf",
	"profile", "bash.bashrc", "inputrc", "terminfo", "fonts", "perl", "python3", "python3.11", "python3.12", "python3.13",
	"java-17-openjdk", "java-21-openjdk", "java-25-openjdk",
}

func planEtc() ([]entry, error) {
	entries := []entry{{"etc/mtab", fs.ModeSymlink, "../proc/self/mounts"}}
	for name, content := range etcMade {
		entries = append(entries, entry{"etc/" + name, 0o644, content})
	}
	total := 0
	for _, name := range etcCopied {
		err := filepath.WalkDir(filepath.Join("/etc", name), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return skipUnreadable(d, err)
			}
			e, ok := hostFile(path, d)
			if !ok {
				if d.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			total += len(e.data)
			if total > maxSkeletonBytes || len(entries) >= maxSkeletonFiles {
				return fmt.Errorf("selected files of /etc are more than %d bytes or %d files", maxSkeletonBytes, maxSkeletonFiles)
			}
			entries = append(entries, e)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read %s for sandboxes: %w", name, err)
		}
	}
	return entries, nil
}

// hostFile reads a file of the host that anybody may read.
func hostFile(path string, d fs.DirEntry) (entry, bool) {
	e := entry{path: strings.TrimPrefix(path, "/")}
	info, err := d.Info()
	if err != nil {
		return e, false
	}
	switch mode := info.Mode(); mode.Type() {
	case fs.ModeSymlink:
		e.mode = fs.ModeSymlink
		e.data, err = os.Readlink(path)
		return e, err == nil
	case fs.ModeDir:
		e.mode = fs.ModeDir
		return e, mode&0o005 == 0o005
	case 0:
		if mode&0o004 == 0 || info.Size() > maxSkeletonFile {
			return e, false
		}
		b, err := os.ReadFile(path)
		e.mode, e.data = mode.Perm()&0o755, string(b)
		return e, err == nil
	}
	return e, false
}

// skipUnreadable leaves out what is not there or not for everybody.
func skipUnreadable(d fs.DirEntry, err error) error {
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	if d != nil && d.IsDir() {
		return fs.SkipDir
	}
	return nil
}
