package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gocloud.dev/blob/memblob"
	"golang.org/x/sys/unix"
)

// during runs f again and again until stop is called, which waits for it.
func during(f func(i int)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			f(i)
		}
	})
	return func() { cancel(); wg.Wait() }
}

// paths lists what a checkpoint holds.
func paths(t testing.TB, s *Store, ref Ref, tree Tree) map[string]Entry {
	t.Helper()
	root, err := s.Read(t.Context(), ref)
	must(t, err)
	out := make(map[string]Entry)
	for e, err := range s.Entries(t.Context(), root, tree) {
		must(t, err)
		out[e.Path] = e
	}
	return out
}

// TestWalkDoesNotFollowASwappedDirectory replaces a directory by a link to the
// outside at the worst moment: after it was seen, before it is listed.
func TestWalkDoesNotFollowASwappedDirectory(t *testing.T) {
	for _, swap := range []string{"link", "file", "other directory", "nothing"} {
		t.Run(swap, func(t *testing.T) {
			top, outside := t.TempDir(), t.TempDir()
			must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("s"), 0o644))
			d := filepath.Join(top, "d")
			must(t, os.Mkdir(d, 0o755), os.WriteFile(filepath.Join(d, "x"), nil, 0o644))
			ds := &dirs{}
			td, err := ds.openTop(top)
			must(t, err)
			defer ds.closeAll(td)
			gone := 0
			var seen []string
			w := &walker{ctx: t.Context(), dirs: ds, gone: func(*node) { gone++ }, visit: func(n *node) error {
				seen = append(seen, n.path)
				if n.path != "d" {
					return nil
				}
				must(t, os.Rename(d, filepath.Join(t.TempDir(), "away")))
				switch swap {
				case "link":
					return os.Symlink(outside, d)
				case "file":
					return os.WriteFile(d, nil, 0o644)
				case "other directory":
					return errors.Join(os.Mkdir(d, 0o755), os.WriteFile(filepath.Join(d, "secret"), nil, 0o644))
				}
				return nil
			}}
			must(t, w.walk(td))
			if gone != 1 || !slices.Equal(seen, []string{"d"}) {
				t.Errorf("saw %q and %d directories gone, want d and one", seen, gone)
			}
		})
	}
}

// TestSwapsNeverLeadOutside captures while files and directories turn into
// links to the outside, fifos and back as fast as they can.
func TestSwapsNeverLeadOutside(t *testing.T) {
	top, outside := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("SECRET SECRET SECRET"), 0o644))
	d, f := filepath.Join(top, "d"), filepath.Join(top, "f")
	secret := sha([]byte("SECRET SECRET SECRET"))
	stop := during(func(i int) {
		time.Sleep(20 * time.Microsecond)
		os.RemoveAll(d)
		os.Remove(f)
		switch i % 3 {
		case 0:
			os.Symlink(outside, d)
			os.Symlink(filepath.Join(outside, "secret"), f)
		case 1:
			os.Mkdir(d, 0o755)
			os.WriteFile(filepath.Join(d, "in"), []byte("inside"), 0o644)
			os.WriteFile(f, []byte("inside"), 0o644)
		case 2:
			unix.Mkfifo(f, 0o644)
		}
	})
	defer stop()
	s := New(memblob.OpenBucket(nil), Config{Workers: 2})
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		c, err := s.Capture(t.Context(), Spec{Workspace: top})
		must(t, err)
		if !c.Workspace.Captured {
			continue
		}
		for path, e := range paths(t, s, c.Ref, Workspace) {
			if path == "d/secret" || len(e.chunks) == 1 && e.chunks[0].hash == secret {
				t.Fatalf("captured %q with bytes from outside", path)
			}
		}
	}
}

// TestMovingFiles is CP-03: a file that grows and one that is rewritten during
// captures.
func TestMovingFiles(t *testing.T) {
	top := t.TempDir()
	grow, flip := filepath.Join(top, "grow.log"), filepath.Join(top, "flip.json")
	line := strings.Repeat("x", 99) + "\n"
	a, b := strings.Repeat("a", 300_000), strings.Repeat("b", 200_000)
	must(t, os.WriteFile(flip, []byte(a), 0o644), os.WriteFile(grow, []byte(line), 0o644))
	stopGrow := during(func(i int) {
		time.Sleep(100 * time.Microsecond)
		if i%500 == 499 {
			os.Truncate(grow, 100) // bounds the disk it takes
		}
		f, err := os.OpenFile(grow, os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			f.WriteString(strings.Repeat(line, 20))
			f.Close()
		}
	})
	defer stopGrow()
	stopFlip := during(func(i int) {
		time.Sleep(100 * time.Microsecond)
		os.WriteFile(flip, []byte([]string{a, b}[i%2]), 0o644)
	})
	defer stopFlip()
	b2 := memblob.OpenBucket(nil)
	defer b2.Close()
	s := New(b2, Config{Workers: 2})
	left, torn, inexact := 0, 0, 0
	for i := 0; i < 20 || left+inexact == 0 && i < 300; i++ {
		c, err := s.Capture(t.Context(), Spec{Workspace: top, AllowTorn: i%2 == 1})
		must(t, err)
		switch {
		case !c.Workspace.Captured && i%2 == 0:
			left++
			if c.Workspace.Reason != ReasonTorn || !strings.Contains(c.Workspace.Detail, ".") {
				t.Errorf("left out with %+v, want torn and the file", c.Workspace)
			}
			continue
		case !c.Workspace.Captured:
			t.Fatalf("left out with AllowTorn: %+v", c.Workspace)
		}
		must(t, s.Verify(t.Context(), c.Ref))
		dst := t.TempDir()
		_, err = s.Restore(t.Context(), c.Ref, Target{Workspace: dst})
		must(t, err)
		files := paths(t, s, c.Ref, Workspace)
		got, err := os.ReadFile(filepath.Join(dst, "grow.log"))
		must(t, err)
		if len(got) == 0 || string(got) != strings.Repeat(line, len(got)/100)+line[:len(got)%100] {
			t.Errorf("grow.log: %d bytes that are no prefix", len(got))
		}
		got, err = os.ReadFile(filepath.Join(dst, "flip.json"))
		must(t, err)
		// Empty or short is a moment of its life too; both letters are not.
		if mixed := strings.Contains(string(got), "ab") || strings.Contains(string(got), "ba"); mixed && !files["flip.json"].Torn {
			t.Errorf("flip.json: %d mixed bytes, not marked as torn", len(got))
		}
		if !c.Workspace.Exact {
			inexact++
		}
		for _, e := range files {
			if e.Torn {
				torn++
				if c.Workspace.Exact || c.Counts[NoteTorn] == 0 {
					t.Errorf("torn file in %+v", c.Workspace)
				}
			}
		}
	}
	t.Logf("%d left out, %d not exact, %d torn files", left, inexact, torn)
	if left+inexact == 0 {
		t.Error("no capture noticed that files move")
	}
}

// TestTreeRemovedDuringCapture is CP-04.
func TestTreeRemovedDuringCapture(t *testing.T) {
	s := New(memblob.OpenBucket(nil), Config{Workers: 2})
	for range 3 {
		top := t.TempDir()
		sourceTree(t, top, 600)
		var wg sync.WaitGroup
		wg.Go(func() { os.RemoveAll(filepath.Join(top, "pkg1")) })
		wg.Go(func() {
			for i := range 200 {
				os.Rename(filepath.Join(top, fmt.Sprintf("pkg0/sub0/file%d.go", i%25)), filepath.Join(top, fmt.Sprintf("pkg2/moved%d", i)))
			}
		})
		c, err := s.Capture(t.Context(), Spec{Workspace: top})
		wg.Wait()
		must(t, err)
		if n := c.Counts[NoteVanished] + c.Counts[NoteReplaced]; n > 0 && c.Workspace.Exact {
			t.Errorf("%d entries vanished and the tree is called exact", n)
		}
		if c.Workspace.Captured {
			must(t, s.Verify(t.Context(), c.Ref))
			_, err = s.Restore(t.Context(), c.Ref, Target{Workspace: t.TempDir()})
			must(t, err)
		}
	}
}

func TestCapEndsEarly(t *testing.T) {
	top, home := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(home, "log"), []byte("conversation"), 0o600))
	sourceTree(t, top, 300)
	f, err := os.Create(filepath.Join(top, "pkg0", "sparse.img"))
	must(t, err)
	_, err = f.WriteAt(randomBytes(1, 1<<20), 4<<30)
	must(t, err, f.Truncate(8<<30), f.Close())
	must(t, os.WriteFile(filepath.Join(top, "zz-random"), randomBytes(2, 6<<20), 0o644))
	inner := memblob.OpenBucket(nil)
	fb := &faultBucket{inner: inner}
	s := New(fb.bucket(), Config{})
	spec := Spec{Workspace: top, Home: home, State: []string{"log"}, WorkspaceMaxBytes: 8 << 20}
	c, err := s.Capture(t.Context(), spec)
	must(t, err)
	if w := c.Workspace; w.Captured || w.Reason != ReasonTooLarge || !strings.Contains(w.Detail, "zz-random") {
		t.Errorf("workspace over its cap: %+v, want too_large with the file named", w)
	}
	if !c.Conversation.Exact || c.Stored > 4096 {
		t.Errorf("stored %d bytes, want only the conversation: %+v", c.Stored, c.Conversation)
	}
	for _, op := range fb.ops {
		if strings.HasPrefix(op, "delete") {
			t.Errorf("something was stored before the cap was noticed: %q", fb.ops)
		}
	}
	dst := t.TempDir()
	r, err := s.Restore(t.Context(), c.Ref, Target{Workspace: dst})
	must(t, err)
	if r.Workspace.Captured || r.Workspace.Reason != ReasonTooLarge {
		t.Errorf("report calls the workspace %+v", r.Workspace)
	}
	// Holes do not count, and the cap holds for increments too.
	cache, err := OpenCache(t.TempDir(), 0)
	must(t, err, os.Remove(filepath.Join(top, "zz-random")))
	waitOutSlack()
	spec.Cache = cache
	c, err = s.Capture(t.Context(), spec)
	must(t, err)
	if !c.Workspace.Exact {
		t.Fatalf("sparse 8 GiB file in 8 MiB: %+v", c.Workspace)
	}
	must(t, os.WriteFile(filepath.Join(top, "zz-random"), randomBytes(2, 6<<20), 0o644))
	spec.Parent = &c.Ref
	c, err = s.Capture(t.Context(), spec)
	must(t, err)
	if c.Workspace.Captured || c.Workspace.Reason != ReasonTooLarge {
		t.Errorf("increment over the cap: %+v", c.Workspace)
	}
	// The conversation over its cap leaves the workspace.
	spec.WorkspaceMaxBytes, spec.ConversationMaxBytes = 0, 5
	c, err = s.Capture(t.Context(), spec)
	must(t, err)
	if !c.Workspace.Exact || c.Conversation.Reason != ReasonTooLarge {
		t.Errorf("conversation over its cap: %+v %+v", c.Workspace, c.Conversation)
	}
	must(t, s.Verify(t.Context(), c.Ref))
}

func TestStatePatterns(t *testing.T) {
	home := t.TempDir()
	for _, p := range []string{
		".claude/projects/x/1.jsonl", ".claude/projects/x/y/2.jsonl", ".claude/cache/big", ".claude.json", ".ssh/id",
		"deep/a/b/state.db", "deep/a/other", "dir/one", "dir/sub/two",
	} {
		must(t, os.MkdirAll(filepath.Join(home, filepath.Dir(p)), 0o700), os.WriteFile(filepath.Join(home, p), []byte(p), 0o600))
	}
	s := New(memblob.OpenBucket(nil), Config{})
	c, err := s.Capture(t.Context(), Spec{Home: home, State: []string{".claude/projects/**", ".claude.json", "deep/**/*.db", "dir", "absent/*"}})
	must(t, err)
	var got []string
	for p := range paths(t, s, c.Ref, Conversation) {
		got = append(got, p)
	}
	slices.Sort(got)
	want := []string{
		".claude", ".claude.json", ".claude/projects", ".claude/projects/x", ".claude/projects/x/1.jsonl", ".claude/projects/x/y",
		".claude/projects/x/y/2.jsonl", "deep", "deep/a", "deep/a/b", "deep/a/b/state.db", "dir", "dir/one", "dir/sub", "dir/sub/two",
	}
	if !slices.Equal(got, want) {
		t.Errorf("captured %q, want %q", got, want)
	}
	for _, bad := range []string{"", "../x", "a/../b", "a//b", "[", "."} {
		if _, err := s.Capture(t.Context(), Spec{Home: home, State: []string{bad}}); err == nil {
			t.Errorf("pattern %q was accepted", bad)
		}
	}
}

func TestDeepTreesAndCycles(t *testing.T) {
	top := t.TempDir()
	must(t, os.Symlink(".", filepath.Join(top, "loop")))
	fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	const depth = 2500 // with these names three times PATH_MAX
	for range depth {
		must(t, unix.Mkdirat(fd, "deeper", 0o755))
		next, err := unix.Openat(fd, "deeper", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	f, err := unix.Openat(fd, "leaf", unix.O_CREAT|unix.O_WRONLY, 0o644)
	must(t, err)
	unix.Write(f, []byte("leaf"))
	unix.Close(f)
	b := memblob.OpenBucket(nil)
	defer b.Close()
	s := New(b, Config{})
	c, err := s.Capture(t.Context(), Spec{Workspace: top})
	must(t, err)
	if !c.Workspace.Exact || c.Workspace.Entries != depth+3 {
		t.Fatalf("%+v", c.Workspace)
	}
	dst := t.TempDir()
	_, err = s.Restore(t.Context(), c.Ref, Target{Workspace: dst})
	must(t, err)
	again, err := s.Capture(t.Context(), Spec{Workspace: dst})
	must(t, err)
	if again.Workspace.Digest != c.Workspace.Digest {
		t.Error("the deep tree came back differently")
	}
	for range maxDepth - depth + 5 {
		must(t, unix.Mkdirat(fd, "d", 0o755))
		next, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	c, err = s.Capture(t.Context(), Spec{Workspace: top})
	must(t, err)
	if c.Workspace.Captured || c.Workspace.Reason != ReasonLimit {
		t.Errorf("too deep: %+v, want limit", c.Workspace)
	}
}

// TestAsOrdinaryUser runs the part below as a user without privileges.
func TestAsOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT ROOT: TestOrdinaryUserPart covers this directly")
	}
	dir, err := os.MkdirTemp("", "checkpoint-user-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	bin := filepath.Join(dir, "test")
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err, os.WriteFile(bin, self, 0o755), os.Chmod(dir, 0o755))
	tmp := filepath.Join(dir, "tmp")
	must(t, os.Mkdir(tmp, 0o700), os.Chown(tmp, 65534, 65534))
	cmd := exec.Command(bin, "-test.run", "^TestOrdinaryUserPart$", "-test.v")
	cmd.Dir = dir
	cmd.Env = []string{"TMPDIR=" + tmp, "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestOrdinaryUserPart") {
		t.Fatalf("as user 65534: %v\n%s", err, out)
	}
}

// TestOrdinaryUserPart is CP-10: what cannot be read is refused with its name,
// and what was captured restores.
func TestOrdinaryUserPart(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("ROOT: TestAsOrdinaryUser runs this as another user")
	}
	s := New(localBucket(t), Config{})
	src := t.TempDir()
	smallTree(t, src)
	must(t, os.WriteFile(filepath.Join(src, "d/ro"), []byte("r"), 0o400), unix.Setxattr(filepath.Join(src, "random"), "user.a", []byte("b"), 0))
	must(t, os.Chmod(filepath.Join(src, "d"), 0o555))
	t.Cleanup(func() { os.Chmod(filepath.Join(src, "d"), 0o755) })
	c, err := s.Capture(t.Context(), Spec{Workspace: src})
	must(t, err)
	dst := t.TempDir()
	_, err = s.Restore(t.Context(), c.Ref, Target{Workspace: dst})
	must(t, err)
	mustEqualTrees(t, look(t, src), look(t, dst))
	must(t, os.Chmod(filepath.Join(dst, "d"), 0o755))
	for _, name := range []string{"random", "d"} {
		must(t, os.Chmod(filepath.Join(src, name), 0))
		c, err := s.Capture(t.Context(), Spec{Workspace: src})
		must(t, err)
		if w := c.Workspace; w.Captured || w.Reason != ReasonUnreadable || !strings.Contains(w.Detail, `"`+name) {
			t.Errorf("%s with mode 000: %+v, want unreadable with its name", name, w)
		}
		must(t, os.Chmod(filepath.Join(src, name), 0o755))
	}
}

// TestDetailsNameNoPathOfTheHost: what is said of a tree that is not there is read by
// whoever owns it.
func TestDetailsNameNoPathOfTheHost(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	s := New(localBucket(t), Config{})
	for _, top := range []string{filepath.Join(dir, "gone"), file} {
		c, err := s.Capture(t.Context(), Spec{Workspace: top})
		must(t, err)
		w := c.Workspace
		if w.Captured || w.Reason != ReasonUnreadable || !strings.HasPrefix(w.Detail, "the top: ") || strings.Contains(w.Detail, dir) {
			t.Errorf("%s: %+v, want unreadable without its path", top, w)
		}
	}
}
