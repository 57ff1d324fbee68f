package local

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

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

// MakeSkeleton returns the skeleton for this host below dir, with mount points for
// the layers too. It is made once and kept under the digest of its content: it never
// changes under a running sandbox, and an update of the host makes another one.
func MakeSkeleton(dir string, layers []sandbox.Mount) (Skeleton, error) {
	entries, binds, err := plan(layers)
	if err != nil {
		return Skeleton{}, err
	}
	h := sha256.New()
	for _, e := range entries {
		fmt.Fprintf(h, "%q %v %d %q\n", e.path, e.mode, len(e.data), e.data)
	}
	path := filepath.Join(dir, "root-"+hex.EncodeToString(h.Sum(nil)[:12]))
	if _, err := os.Stat(path); err == nil {
		return Skeleton{Dir: path, Binds: binds}, nil
	}
	tmp, err := os.MkdirTemp(dir, "root-new-")
	if err != nil {
		return Skeleton{}, fmt.Errorf("make root directory: %w", err)
	}
	if err = materialise(tmp, entries); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.RemoveAll(tmp)
		if _, statErr := os.Stat(path); statErr != nil { // else another Create was faster
			return Skeleton{}, fmt.Errorf("make root directory: %w", err)
		}
	}
	return Skeleton{Dir: path, Binds: binds}, nil
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

// plan lists what belongs into the skeleton, in a stable order.
func plan(layers []sandbox.Mount) (entries []entry, binds []string, err error) {
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
	for _, m := range layers {
		info, err := os.Stat(m.Source)
		if err != nil {
			return nil, nil, fmt.Errorf("layer: %w", err)
		}
		e := entry{path: strings.TrimPrefix(m.Target, "/"), mode: 0o644}
		if info.IsDir() {
			e.mode = fs.ModeDir
		}
		entries = append(entries, e)
	}
	etc, err := planEtc()
	if err != nil {
		return nil, nil, err
	}
	entries = append(entries, etc...)
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(a.path, b.path) })
	entries = slices.CompactFunc(entries, func(a, b entry) bool { return a.path == b.path })
	return entries, binds, nil
}

// etcMade are files of /etc with content of ours.
var etcMade = map[string]string{
	"passwd":        "root:x:0:0:root:/home/agent:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
	"group":         "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
	"hosts":         "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 sojourn\n",
	"hostname":      "sojourn\n",
	"resolv.conf":   "",
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
