package runtimes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// keptVersions is how many layers of a runtime stay when a newer one is installed, to
// go back to.
const keptVersions = 2

// Installer installs runtimes.
type Installer struct {
	Dir string // of layers
	// NPM is the program; "" means the npm in PATH. The registry, certificates and
	// cache are what its own configuration says.
	NPM string
	// Progress is told what npm says; nil drops it.
	Progress io.Writer
	Now      func() time.Time // nil is time.Now
}

// ErrNoNPM reports a host without npm.
var ErrNoNPM = errors.New("npm is needed to fetch agents and is not in PATH: install Node.js with npm on this host")

// Install fetches a runtime and makes it the one that new sandboxes get. version is
// exact; "" is the recommended one. Of a version that is there already nothing
// changes but that it is the newest again.
func (in Installer) Install(ctx context.Context, id, version string) (Installed, error) {
	p, err := planFor(id, version, machine())
	if err != nil {
		return Installed{}, err
	}
	npm := in.NPM
	if npm == "" {
		if npm, err = exec.LookPath("npm"); err != nil {
			return Installed{}, ErrNoNPM
		}
	}
	unlock, err := lock(in.Dir)
	if err != nil {
		return Installed{}, err
	}
	defer unlock()
	in.removeLeftovers()
	work, err := os.MkdirTemp(in.Dir, newPrefix+id+"-")
	if err != nil {
		return Installed{}, err
	}
	defer os.RemoveAll(work) // after a success there is nothing left of it
	if err := in.fetch(ctx, npm, filepath.Join(work, treeName), p); err != nil {
		return Installed{}, err
	}
	done, err := in.finish(work, p)
	if err != nil {
		return Installed{}, fmt.Errorf("install %s %s: %w", p.id, p.version, err)
	}
	in.forget(done)
	return done, nil
}

// removeLeftovers removes what interrupted installations have left. Whoever made it is
// gone: we hold the lock.
func (in Installer) removeLeftovers() {
	left, err := filepath.Glob(filepath.Join(in.Dir, newPrefix+"*"))
	if err != nil {
		return
	}
	for _, path := range left {
		_ = os.RemoveAll(path) // what cannot be removed only takes space
	}
}

// fetch lets npm install the plan's packages into root. No script of theirs is run.
func (in Installer) fetch(ctx context.Context, npm, root string, p plan) error {
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	manifest, err := json.Marshal(map[string]any{"private": true, "dependencies": p.packages})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "package.json"), manifest, 0o644); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, npm, "install", "--ignore-scripts", "--no-package-lock", "--omit=dev", "--include=optional",
		"--install-strategy=hoisted", "--workspaces=false", "--global=false", "--prefix", root, "--no-audit", "--no-fund",
		"--no-update-notifier", "--loglevel=error")
	cmd.Dir = root
	said := &tail{to: in.Progress}
	cmd.Stdout, cmd.Stderr = said, said
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("npm could not fetch %s %s: %w\n%s", p.id, p.version, err, said.text())
	}
	return nil
}

// tail passes on what is written and keeps its end.
type tail struct {
	to  io.Writer
	end []byte
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	const most = 4 << 10
	t.end = append(t.end, b...)
	t.end = slices.Clone(t.end[max(0, len(t.end)-most):])
	if t.to != nil {
		_, _ = t.to.Write(b) // it is only shown
	}
	return len(b), nil
}

func (t *tail) text() string { return strings.TrimSpace(string(bytes.ToValidUTF8(t.end, []byte("?")))) }

// finish makes a layer of what npm has left in work, and puts it in its place.
func (in Installer) finish(work string, p plan) (Installed, error) {
	root := filepath.Join(work, treeName)
	packages, err := fetched(root, p)
	if err != nil {
		return Installed{}, err
	}
	if err := link(root, p.bin); err != nil {
		return Installed{}, err
	}
	if err := settle(root); err != nil {
		return Installed{}, err
	}
	t, err := measure(root)
	if err != nil {
		return Installed{}, err
	}
	now := time.Now
	if in.Now != nil {
		now = in.Now
	}
	done := Installed{
		Runtime: p.id, Version: p.version, Digest: t.digest, Arch: machine(), Bytes: t.bytes, Files: t.files,
		Packages: packages, InstalledAt: now().UTC().Truncate(time.Microsecond),
	}
	place := filepath.Join(in.Dir, done.Name())
	done.Dir = filepath.Join(place, treeName)
	if there, err := readLayer(place); err == nil && Verify(there) == nil {
		return done, writeRecord(place, done)
	}
	if err := writeRecord(work, done); err != nil {
		return Installed{}, err
	}
	if err := syncAll(work); err != nil {
		return Installed{}, err
	}
	if err := os.Chmod(work, 0o755); err != nil {
		return Installed{}, err
	}
	if err := setAside(in.Dir, done.Name()); err != nil {
		return Installed{}, err
	}
	return done, os.Rename(work, place)
}

// setAside moves a broken layer of the same name out of the way.
func setAside(dir, name string) error {
	err := os.Rename(filepath.Join(dir, name), filepath.Join(dir, newPrefix+"broken-"+name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// fetched reads which packages npm has installed and with which hash it has compared
// each, checks those that the recipe pins, and removes npm's notes, which say where
// they came from.
func fetched(root string, p plan) ([]Package, error) {
	notes := filepath.Join(root, "node_modules", ".package-lock.json")
	f, err := os.Open(notes)
	if err != nil {
		return nil, fmt.Errorf("npm has left no account of what it did: %w", err)
	}
	defer f.Close()
	var account struct {
		Packages map[string]struct {
			Version   string `json:"version"`
			Integrity string `json:"integrity"`
		} `json:"packages"`
	}
	if err := json.NewDecoder(io.LimitReader(f, 16<<20)).Decode(&account); err != nil {
		return nil, fmt.Errorf("read npm's account: %w", err)
	}
	var all []Package
	for path, got := range account.Packages {
		_, name, ok := cutLast(path, "node_modules/")
		if !ok {
			return nil, fmt.Errorf("npm's account has %q, which is no package", path)
		}
		if !strings.HasPrefix(got.Integrity, "sha512-") {
			return nil, fmt.Errorf("package %s %s was not compared with a hash", name, got.Version)
		}
		if path == "node_modules/"+name {
			if want := p.packages[name]; want != "" && want != got.Version {
				return nil, fmt.Errorf("package %s has the version %s and not %s", name, got.Version, want)
			}
			if pin := p.pins[name]; pin != "" && pin != got.Integrity {
				return nil, fmt.Errorf("package %s %s is not what it was when its recipe was written: %s and not %s", name, got.Version, got.Integrity, pin)
			}
		}
		all = append(all, Package{Name: name, Version: got.Version, Integrity: got.Integrity})
	}
	for name := range p.packages {
		if !slices.ContainsFunc(all, func(a Package) bool { return a.Name == name }) {
			return nil, fmt.Errorf("npm did not install %s", name)
		}
	}
	slices.SortFunc(all, func(a, b Package) int { return strings.Compare(a.Name+" "+a.Version, b.Name+" "+b.Version) })
	return all, errors.Join(os.Remove(notes), os.Remove(filepath.Join(root, "package.json")))
}

// cutLast cuts s around the last sep.
func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// link makes the bin directory: links that also hold where the layer is mounted.
func link(root string, bin map[string]string) error {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Mkdir("bin", 0o755); err != nil {
		return err
	}
	for name, path := range bin {
		target := filepath.Join("node_modules", path)
		info, err := dir.Lstat(target)
		if err != nil {
			return fmt.Errorf("its package has no %s: %w", path, err)
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s of its package is no file", path)
		}
		if err := dir.Chmod(target, 0o755); err != nil {
			return err
		}
		if err := dir.Symlink(filepath.Join("..", target), filepath.Join("bin", name)); err != nil {
			return err
		}
	}
	return nil
}

// writeRecord writes a layer's record in one step.
func writeRecord(place string, i Installed) error {
	b, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(place, recordName+".new")
	if err := os.WriteFile(tmp, append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(place, recordName))
}

// syncAll puts the file system of a directory on the disk.
func syncAll(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// forget removes the older layers of a runtime but the last ones and those in use.
func (in Installer) forget(newest Installed) {
	all, _ := All(in.Dir) // what cannot be read stays
	kept := 0
	for _, i := range all {
		if i.Runtime != newest.Runtime {
			continue
		}
		if kept++; kept > keptVersions {
			_ = removeLayer(in.Dir, i) // stays for now when it is in use
		}
	}
}
