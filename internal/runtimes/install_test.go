package runtimes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fakeNPM is a program that installs what a real npm would, as far as the caller can
// tell: files of a package and an account of it.
func fakeNPM(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "npm")
	// Written by another process: a fork of a parallel test could otherwise hold it
	// open for writing while it is to be run.
	write := exec.CommandContext(t.Context(), "/bin/sh", "-c", `cat > "$1"; chmod 755 "$1"`, "sh", path)
	write.Stdin = strings.NewReader("#!/bin/sh\nset -eu\n" + body)
	if out, err := write.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// account is a shell line that writes npm's account of packages: name, version, hash.
func account(packages ...[3]string) string {
	all := map[string]map[string]string{}
	for _, p := range packages {
		all["node_modules/"+p[0]] = map[string]string{"version": p[1], "integrity": p[2], "resolved": "https://registry.test/x.tgz"}
	}
	b, _ := json.Marshal(map[string]any{"packages": all}) // strings always marshal
	return "cat > node_modules/.package-lock.json <<'END'\n" + string(b) + "\nEND\n"
}

// codex is the recipe's package on this machine.
func codex(t *testing.T) (name, pin string) {
	t.Helper()
	p, err := planFor("codex", "", machine())
	if err != nil {
		t.Skipf("there are no agents for this machine: %v", err)
	}
	name = slices.Collect(maps.Keys(p.packages))[0]
	return name, p.pins[name]
}

// goodNPM installs a codex whose program prints what word says.
func goodNPM(t *testing.T, version, word string) string {
	t.Helper()
	name, pin := codex(t)
	if version != Recommended("codex") {
		pin = "sha512-other"
	}
	return fakeNPM(t, `echo "added 1 package"
[ "$1" = install ]; case " $* " in *" --ignore-scripts "*) ;; *) exit 9;; esac
grep -q '"`+name+`":"`+version+`"' package.json
mkdir -p node_modules/`+name+`/bin node_modules/.bin
printf '#!/bin/sh\necho `+word+`\n' > node_modules/`+name+`/bin/codex-acp
echo doc > node_modules/`+name+`/README; chmod 0600 node_modules/`+name+`/README
ln -s ../`+name+`/bin/codex-acp node_modules/.bin/codex
`+account([3]string{name, version, pin}))
}

func TestInstallMakesALayer(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "layers")
	var said strings.Builder
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	in := Installer{Dir: dir, NPM: goodNPM(t, "0.16.0", "hello"), Progress: &said, Now: func() time.Time { return at }}
	done, err := in.Install(t.Context(), "codex", "")
	if err != nil {
		t.Fatal(err)
	}
	if done.Version != "0.16.0" || !done.InstalledAt.Equal(at) || done.Bytes == 0 || len(done.Packages) != 1 || !strings.Contains(said.String(), "added 1") {
		t.Errorf("%+v, and npm said %q", done, said.String())
	}
	got, err := Layers(dir)
	if err != nil || got["codex"].Dir != done.Dir || got["codex"].Digest != done.Digest {
		t.Errorf("layers %+v, %v; want %+v", got, err, done)
	}
	if err := Verify(done); err != nil {
		t.Errorf("verify what was just installed: %v", err)
	}
	to, err := os.Readlink(filepath.Join(done.Dir, "bin", "codex-acp"))
	if err != nil || filepath.IsAbs(to) {
		t.Errorf("bin/codex-acp leads to %q, %v; want a way that also holds in a sandbox", to, err)
	}
	info, err := os.Stat(filepath.Join(done.Dir, "bin", "codex-acp"))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the program has mode %v, %v", info.Mode(), err)
	}
	name, _ := codex(t)
	if info, err := os.Stat(filepath.Join(done.Dir, "node_modules", name, "README")); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("a file has mode %v, %v; want it readable to all", info.Mode(), err)
	}
	for _, trace := range []string{"package.json", "node_modules/.package-lock.json"} {
		if _, err := os.Lstat(filepath.Join(done.Dir, trace)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still in the layer: %v", trace, err)
		}
	}
}

func TestInstallAgainIsTheSameLayer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	day := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	install := func(version, word string, n int) Installed {
		t.Helper()
		in := Installer{Dir: dir, NPM: goodNPM(t, version, word), Now: func() time.Time { return day.AddDate(0, 0, n) }}
		i, err := in.Install(t.Context(), "codex", version)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	first := install("0.16.0", "one", 1)
	second := install("0.17.0", "two", 2)
	if got, _ := Layers(dir); got["codex"].Version != "0.17.0" {
		t.Errorf("sandboxes get %s, want the one that was installed last", got["codex"].Version)
	}
	// Going back is installing again.
	again := install("0.16.0", "one", 3)
	if got, _ := Layers(dir); again.Digest != first.Digest || got["codex"].Version != "0.16.0" {
		t.Errorf("digest %s, then %s; sandboxes get %s", first.Digest, again.Digest, got["codex"].Version)
	}
	// A broken layer is replaced by a whole one.
	if err := os.WriteFile(filepath.Join(first.Dir, "bin", "extra"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Verify(first); err == nil {
		t.Error("a layer with a file too many was verified")
	}
	if again = install("0.16.0", "one", 4); Verify(again) != nil {
		t.Errorf("the broken layer is still there: %v", Verify(again))
	}
	install("0.18.0", "three", 5)
	all, err := All(dir)
	if err != nil || len(all) != keptVersions || slices.ContainsFunc(all, func(i Installed) bool { return i.Digest == second.Digest }) {
		t.Errorf("%d layers, %v; want the last %d", len(all), err, keptVersions)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, newPrefix+"*")); len(left) > 1 {
		t.Errorf("left behind: %v", left)
	}
}

func TestBadPackagesAreRefused(t *testing.T) {
	t.Parallel()
	name, pin := codex(t)
	files := "mkdir -p node_modules/" + name + "/bin; echo x > node_modules/" + name + "/bin/codex-acp\n"
	for what, tt := range map[string]struct{ npm, say string }{
		"fails":           {"echo E404 no such version >&2; exit 1", "E404"},
		"says nothing":    {files, "no account"},
		"another hash":    {files + account([3]string{name, "0.16.0", "sha512-AAAA"}), "not what it was"},
		"no hash":         {files + account([3]string{name, "0.16.0", pin}, [3]string{"b", "1.0.0", ""}), "not compared"},
		"a weak hash":     {files + account([3]string{name, "0.16.0", pin}, [3]string{"b", "1.0.0", "sha1-AAAA"}), "not compared"},
		"another version": {files + account([3]string{name, "0.16.1", pin}), "0.16.1"},
		"another package": {files + account([3]string{"b", "1.0.0", pin}), "did not install"},
		"no program":      {"mkdir -p node_modules/" + name + "\n" + account([3]string{name, "0.16.0", pin}), "bin/codex-acp"},
		"program a link": {
			"mkdir -p node_modules/" + name + "/bin; ln -s /bin/sh node_modules/" + name + "/bin/codex-acp\n" + account([3]string{name, "0.16.0", pin}), "no file",
		},
		"a pipe":             {files + "mkfifo node_modules/pipe\n" + account([3]string{name, "0.16.0", pin}), "pipe"},
		"bin there already":  {files + "mkdir bin\n" + account([3]string{name, "0.16.0", pin}), "bin"},
		"modules a link out": {"ln -s / node_modules\n", "no account"},
	} {
		dir := t.TempDir()
		_, err := Installer{Dir: dir, NPM: fakeNPM(t, tt.npm)}.Install(t.Context(), "codex", "")
		if err == nil || !strings.Contains(err.Error(), tt.say) {
			t.Errorf("%s: %v; want something about %q", what, err, tt.say)
		}
		if all, err := All(dir); len(all) != 0 || err != nil {
			t.Errorf("%s: left %v, %v", what, all, err)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, newPrefix+"*")); len(left) != 0 {
			t.Errorf("%s: left behind %v", what, left)
		}
	}
}

func TestOnlyExactVersionsOfKnownRuntimes(t *testing.T) {
	t.Parallel()
	for _, tt := range [][2]string{{"codex", "latest"}, {"codex", "^0.16.0"}, {"codex", "../x"}, {"codex", "1.0.0 --registry=x"}, {"script", ""}, {"", ""}} {
		if _, err := (Installer{Dir: t.TempDir(), NPM: "/bin/true"}).Install(t.Context(), tt[0], tt[1]); err == nil {
			t.Errorf("%v was installed", tt)
		}
	}
	if _, err := planFor("opencode", "", "arm64"); err == nil {
		t.Error("a runtime was planned for a machine that has none")
	}
	for _, id := range Installable() {
		p, err := planFor(id, "", "x64")
		if err != nil || len(p.pins) != len(p.packages) {
			t.Errorf("%s: %v; %d of %d packages are pinned", id, err, len(p.pins), len(p.packages))
		}
		other, err := planFor(id, "99.0.0", "x64")
		if err != nil || len(other.pins) != len(p.pins)-1 {
			t.Errorf("%s: another version: %v, pins %v; want no hash for the package that was chosen", id, err, other.pins)
		}
	}
}

func TestInterruptedInstallLeavesNothingVisible(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ready := filepath.Join(t.TempDir(), "ready")
	if err := unix.Mkfifo(ready, 0o600); err != nil {
		t.Fatal(err)
	}
	codex(t)
	npm := fakeNPM(t, "mkdir -p node_modules/half; echo > "+ready+"; exec sleep 600")
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	done := make(chan error, 1)
	go func() {
		_, err := Installer{Dir: dir, NPM: npm}.Install(ctx, "codex", "")
		done <- err
	}()
	if _, err := os.ReadFile(ready); err != nil { // blocks until npm is in the middle
		t.Fatal(err)
	}
	if _, err := (Installer{Dir: dir, NPM: npm}).Install(t.Context(), "codex", ""); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("two at a time: %v", err)
	}
	cancel(stopped)
	if err := <-done; !errors.Is(err, stopped) {
		t.Errorf("interrupted: %v", err)
	}
	// One that was killed could not clean up.
	if err := os.MkdirAll(filepath.Join(dir, newPrefix+"codex-1", treeName, "node_modules"), 0o700); err != nil {
		t.Fatal(err)
	}
	if all, err := All(dir); len(all) != 0 || err != nil {
		t.Errorf("visible: %v, %v", all, err)
	}
	if _, err := (Installer{Dir: dir, NPM: goodNPM(t, "0.16.0", "x")}).Install(t.Context(), "codex", ""); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, newPrefix+"*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestForgedRecordsAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	done, err := Installer{Dir: dir, NPM: goodNPM(t, "0.16.0", "x")}.Install(t.Context(), "codex", "")
	if err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(dir, done.Name(), recordName)
	for what, change := range map[string]func(*Installed){
		"another runtime": func(i *Installed) { i.Runtime = "opencode" },
		"no runtime":      func(i *Installed) { i.Runtime = "../../etc" },
		"another version": func(i *Installed) { i.Version = "9.9.9" },
		"another digest":  func(i *Installed) { i.Digest = strings.Repeat("0", 64) },
		"a short digest":  func(i *Installed) { i.Digest = "0" },
	} {
		forged := done
		change(&forged)
		b, _ := json.Marshal(forged) // it was read as JSON
		if err := os.WriteFile(record, b, 0o644); err != nil {
			t.Fatal(err)
		}
		if all, err := All(dir); err == nil || len(all) != 0 {
			t.Errorf("%s: %v, %v", what, all, err)
		}
	}
}

func TestRemoveTakesOneVersionOrAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, v := range []string{"0.16.0", "0.17.0"} {
		if _, err := (Installer{Dir: dir, NPM: goodNPM(t, v, v)}).Install(t.Context(), "codex", v); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Remove(dir, "codex", "1.0.0"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a version that is not there: %v", err)
	}
	if gone, err := Remove(dir, "codex", "0.17.0"); err != nil || len(gone) != 1 || gone[0].Version != "0.17.0" {
		t.Errorf("removed %v, %v", gone, err)
	}
	if gone, err := Remove(dir, "codex", ""); err != nil || len(gone) != 1 {
		t.Errorf("removed %v, %v", gone, err)
	}
	if all, err := All(dir); len(all) != 0 || err != nil {
		t.Errorf("left %v, %v", all, err)
	}
}

func TestMountsAreSeen(t *testing.T) {
	t.Parallel()
	table := filepath.Join(t.TempDir(), "mountinfo")
	const name = "codex-0.16.0-0123456789abcdef"
	text := fmt.Sprintf("22 28 0:20 / /proc rw - proc proc rw\n100 90 254:0 /var/lib/sojourn/layers/%s/root /agents/codex ro - ext4 /dev/vda rw\n", name)
	if err := os.WriteFile(table, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{name + "/root": true, name[1:] + "/root": false, "codex": false} {
		if got, err := mentions(table, path); got != want || err != nil {
			t.Errorf("%s: %v, %v", path, got, err)
		}
	}
	if used, err := mounted("no-such-layer"); used || err != nil {
		t.Errorf("a layer that is not: %v, %v", used, err)
	}
}

func TestDigestSeesEveryDifference(t *testing.T) {
	t.Parallel()
	build := func(change func(dir string) error) string {
		t.Helper()
		dir := t.TempDir()
		err := errors.Join(os.MkdirAll(filepath.Join(dir, "a/b"), 0o755), os.WriteFile(filepath.Join(dir, "a/f"), []byte("one"), 0o644),
			os.Symlink("f", filepath.Join(dir, "a/l")))
		if change != nil {
			err = errors.Join(err, change(dir))
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := measure(dir)
		if err != nil {
			t.Fatal(err)
		}
		return got.digest
	}
	plain := build(nil)
	if again := build(nil); again != plain {
		t.Errorf("the same tree has the digests %s and %s", plain, again)
	}
	for what, change := range map[string]func(string) error{
		"content":     func(d string) error { return os.WriteFile(d+"/a/f", []byte("two"), 0o644) },
		"mode":        func(d string) error { return os.Chmod(d+"/a/f", 0o755) },
		"link":        func(d string) error { return errors.Join(os.Remove(d+"/a/l"), os.Symlink("b", d+"/a/l")) },
		"empty dir":   func(d string) error { return os.Mkdir(d+"/a/c", 0o755) },
		"renamed dir": func(d string) error { return os.Rename(d+"/a/b", d+"/a/c") },
		"file to dir": func(d string) error { return errors.Join(os.Remove(d+"/a/f"), os.Mkdir(d+"/a/f", 0o755)) },
	} {
		if build(change) == plain {
			t.Errorf("a tree with another %s has the same digest", what)
		}
	}
	if same := build(func(d string) error { return os.Chtimes(d+"/a/f", time.Now(), time.Unix(1, 0)) }); same != plain {
		t.Error("a time changes the digest")
	}
}

// BenchmarkMeasure digests a tree like an agent's, beside the plain reading of it.
func BenchmarkMeasure(b *testing.B) {
	dir := b.TempDir()
	block := make([]byte, 1<<20)
	for i := range 32 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%02d", i)), block, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(32 << 20)
	var read time.Duration
	for b.Loop() {
		begun := time.Now()
		for i := range 32 {
			if _, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("f%02d", i))); err != nil {
				b.Fatal(err)
			}
		}
		read += time.Since(begun)
		if _, err := measure(dir); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed()-read)/float64(read), "x-plain-read")
}
