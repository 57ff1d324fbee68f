package sandboxtest

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"gocloud.dev/blob/memblob"
	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/checkpoint"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// captures is how often the host reads what the sandbox moves about.
const captures = 40

// testEscapeByCapture lets a sandbox swap its files and directories for links to the
// host's while the host reads them, as it does for a checkpoint.
func testEscapeByCapture(t *testing.T, s *Suite) {
	d := s.open(t, s.newDir(t))
	if d.Capabilities().Isolation == sandbox.IsolationNone {
		t.Skip("SKIPPED: this driver runs no programs that could")
	}
	c := start(t, d, "swapper", 1)
	st := newStage(t, "")
	for _, dir := range []string{sandbox.WorkspacePath, sandbox.HomePath} {
		c.launch("swap "+dir, sandbox.KeeperPath, commandInside, "swap", dir, st.Secret)
	}
	ticks := filepath.Join(c.Dirs().Workspace, "ticks")
	grows(t, ticks)
	grows(t, filepath.Join(c.Dirs().Home, "ticks"))
	before := size(t, ticks)
	for range captures {
		captured(t, c.Dirs())
	}
	if after := size(t, ticks); after == before {
		t.Error("the sandbox moved nothing about meanwhile")
	}
}

// captured captures the directories as they are, restores what came of it, and looks for
// the host's secret in it.
func captured(t *testing.T, dirs sandbox.Dirs) {
	t.Helper()
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	store := checkpoint.New(bucket, checkpoint.Config{})
	spec := checkpoint.Spec{Workspace: dirs.Workspace, Home: dirs.Home, State: []string{"**"}, AllowTorn: true}
	got, err := store.Capture(within(t), spec)
	if err != nil {
		t.Fatalf("Capture = %v", err)
	}
	to := checkpoint.Target{Workspace: t.TempDir(), Home: t.TempDir()}
	if _, err := store.Restore(within(t), got.Ref, to); err != nil {
		t.Fatalf("Restore = %v", err)
	}
	for _, dir := range []string{to.Workspace, to.Home} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			b, err := os.ReadFile(path)
			if bytes.Contains(b, []byte(secretText)) {
				t.Errorf("the host's file is in a checkpoint as %s", path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// insideSwap exchanges, for ever, a file and a link to a file of the host, and a directory
// and a link to the directory of that file.
func insideSwap(dir, secret string) int {
	fmt.Println(swapForever(dir, secret))
	return 1
}

func swapForever(dir, secret string) error {
	if err := os.Chdir(dir); err != nil {
		return err
	}
	name := filepath.Base(secret)
	for _, d := range []string{"a/dir", "b"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	for _, f := range []string{"a/file", "a/dir/" + name} {
		if err := os.WriteFile(f, []byte("harmless"), 0o644); err != nil {
			return err
		}
	}
	if err := os.Symlink(secret, "b/file"); err != nil {
		return err
	}
	if err := os.Symlink(filepath.Dir(secret), "b/dir"); err != nil {
		return err
	}
	ticks, err := os.Create("ticks")
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		for _, n := range []string{"file", "dir"} {
			if err := exchange("a/"+n, "b/"+n); err != nil {
				return err
			}
		}
		if i%100 == 0 {
			if _, err := ticks.WriteString("x"); err != nil {
				return err
			}
		}
	}
}

// exchange swaps two names in one step, or where the kernel cannot, in three.
func exchange(a, b string) error {
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	if err == nil {
		return nil
	}
	for _, move := range [][2]string{{a, "spare"}, {b, a}, {"spare", b}} {
		if err := os.Rename(move[0], move[1]); err != nil {
			return err
		}
	}
	return nil
}

// testSetUserID lets a sandbox leave programs for the users of the host that would run
// with its own rights, or with the server's.
func testSetUserID(t *testing.T, s *Suite) {
	dir := s.newDir(t)
	d := s.open(t, dir)
	if d.Capabilities().Isolation == sandbox.IsolationNone {
		t.Skip("SKIPPED: this driver runs no programs that could")
	}
	c := start(t, d, "planter", 1)
	for _, at := range []string{sandbox.WorkspacePath, sandbox.HomePath} {
		c.must("sh", "-c", `cd "$1" && cp /bin/sh sh && chmod 6755 sh && chmod 0777 . && test -u sh`, "sh", at)
	}
	for _, at := range []string{c.Dirs().Workspace, c.Dirs().Home} {
		if !closedToOthers(t, filepath.Dir(at), dir) {
			t.Errorf("other users of the host can reach a set-user-id program in %s", at)
		}
	}
}

// closedToOthers reports whether a directory from path up to top lets nobody but its owner
// pass.
func closedToOthers(t *testing.T, path, top string) bool {
	t.Helper()
	for {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o011 == 0 {
			return true
		}
		if path == top || path == "/" {
			return false
		}
		path = filepath.Dir(path)
	}
}
