package runtimes

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Names in the directory of layers.
const (
	recordName = "record.json"
	treeName   = "root"
	lockName   = ".lock"
	newPrefix  = ".new-"
	maxRecord  = 1 << 20
)

// Installed is one layer.
type Installed struct {
	Runtime string `json:"runtime"` // id of the row
	Version string `json:"version"`
	Digest  string `json:"digest"` // sha256 of the tree, hex
	Arch    string `json:"arch"`   // npm's word
	Bytes   int64  `json:"bytes"`
	Files   int    `json:"files"`
	// Packages are all that are in it, with the hash that each was compared with.
	Packages    []Package `json:"packages"`
	InstalledAt time.Time `json:"installedAt"`
	// Dir is the tree on this host.
	Dir string `json:"-"`
}

// Package is one package of a layer.
type Package struct {
	Name      string `json:"name"`
	Version   string `json:"version"`
	Integrity string `json:"integrity"`
}

// Name is what the layer's directory is called.
func (i Installed) Name() string {
	return i.Runtime + "-" + i.Version + "-" + i.Digest[:digestChars]
}

// Target is where sandboxes see the layers of a runtime.
func Target(id string) string { return "/agents/" + id }

// digestChars are those of a digest that are in a name.
const digestChars = 16

// digestForm is a whole digest.
var digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// All returns the layers in a directory, the newest first. A directory that is not
// there has none. Errors name what could not be read; the rest is returned.
func All(dir string) ([]Installed, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the directory of runtimes: %w", err)
	}
	var all []Installed
	var errs []error
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		i, err := readLayer(filepath.Join(dir, e.Name()))
		if err != nil {
			errs = append(errs, fmt.Errorf("runtime in %s: %w", e.Name(), err))
			continue
		}
		all = append(all, i)
	}
	slices.SortStableFunc(all, func(a, b Installed) int {
		return cmp.Or(b.InstalledAt.Compare(a.InstalledAt), strings.Compare(a.Name(), b.Name()))
	})
	return all, errors.Join(errs...)
}

// Layers returns, by id of the runtime, the layers that new sandboxes get: the ones
// that were installed last.
func Layers(dir string) (map[string]Installed, error) {
	all, err := All(dir)
	newest := map[string]Installed{}
	for _, i := range all {
		if _, ok := newest[i.Runtime]; !ok && i.Arch == machine() {
			newest[i.Runtime] = i
		}
	}
	return newest, err
}

func readLayer(path string) (Installed, error) {
	f, err := os.Open(filepath.Join(path, recordName))
	if err != nil {
		return Installed{}, err
	}
	defer f.Close()
	var i Installed
	if err := json.NewDecoder(io.LimitReader(f, maxRecord)).Decode(&i); err != nil {
		return Installed{}, fmt.Errorf("read its record: %w", err)
	}
	if recipes[i.Runtime].packages == nil || !versionForm.MatchString(i.Version) || !digestForm.MatchString(i.Digest) || i.Name() != filepath.Base(path) {
		return Installed{}, errors.New("its record is of another one")
	}
	i.Dir = filepath.Join(path, treeName)
	if info, err := os.Lstat(i.Dir); err != nil || !info.IsDir() {
		return Installed{}, errors.Join(errors.New("its files are gone"), err)
	}
	return i, nil
}

// Verify reads a layer and compares it with its digest.
func Verify(i Installed) error {
	t, err := measure(i.Dir)
	if err != nil {
		return err
	}
	if t.digest != i.Digest {
		return fmt.Errorf("%s was changed after it was installed: its digest is %s", i.Name(), t.digest)
	}
	return nil
}

// ErrInUse reports a layer that sandboxes have mounted.
var ErrInUse = errors.New("sandboxes use it")

// Remove removes the layers of a runtime, or of one version of it, that no sandbox
// uses, and says which. It returns ErrInUse beside them when there are others.
func Remove(dir, id, version string) (removed []Installed, err error) {
	unlock, err := lock(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	all, err := All(dir)
	var errs []error
	found := false
	for _, i := range all {
		if i.Runtime != id || version != "" && i.Version != version {
			continue
		}
		found = true
		if err := removeLayer(dir, i); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, i)
	}
	if !found {
		errs = append(errs, fmt.Errorf("%s is not installed: %w", strings.Trim(id+"@"+version, "@"), errors.Join(fs.ErrNotExist, err)))
	}
	return removed, errors.Join(errs...)
}

// removeLayer takes a layer away. It goes out of sight in one step.
func removeLayer(dir string, i Installed) error {
	used, err := mounted(i.Name())
	if err != nil {
		return fmt.Errorf("find out who uses %s: %w", i.Name(), err)
	}
	if used {
		return fmt.Errorf("%s stays: %w", i.Name(), ErrInUse)
	}
	gone := filepath.Join(dir, newPrefix+"gone-"+i.Name())
	if err := os.Rename(filepath.Join(dir, i.Name()), gone); err != nil {
		return err
	}
	return os.RemoveAll(gone)
}

// mounted reports whether any process sees a mount of the layer with that name. The
// name has a digest in it, so that nothing else is called so.
func mounted(name string) (bool, error) {
	tables, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		return false, err
	}
	seen := map[string]bool{} // mount namespaces
	for _, table := range tables {
		ns, err := os.Readlink(filepath.Join(filepath.Dir(table), "ns/mnt"))
		if err == nil && seen[ns] {
			continue
		}
		seen[ns] = ns != ""
		if has, err := mentions(table, name+"/"+treeName); err == nil && has {
			return true, nil
		} // a process that is gone, or another user's, has nothing of ours
	}
	return false, nil
}

// mentions reports whether a mount of the table has that path at the end of its root.
func mentions(table, path string) (bool, error) {
	f, err := os.Open(table)
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, 16<<20))
	lines.Buffer(nil, 64<<10)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 3 && strings.HasSuffix(fields[3], "/"+path) {
			return true, nil
		}
	}
	return false, lines.Err()
}

// lock makes sure that nobody else changes the directory, which it makes if need be.
func lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of runtimes: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.New("another process is installing or removing runtimes there")
		}
		return nil, fmt.Errorf("lock the directory of runtimes: %w", err)
	}
	return func() {
		// By hand: a child that is just being forked may still hold the file.
		_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
		f.Close()
	}, nil
}
