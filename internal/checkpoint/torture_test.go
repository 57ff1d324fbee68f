package checkpoint

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// must fails the test on the first error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func randomBytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	r.Read(b)
	return b
}

func setMTime(t testing.TB, path string, sec, nsec int64) {
	t.Helper()
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: sec, Nsec: nsec}}
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, ts, unix.AT_SYMLINK_NOFOLLOW))
}

// tortureTree fills dir with everything that a tree can hold and that some tool
// is known to lose.
func tortureTree(t testing.TB, dir string) {
	t.Helper()
	root := os.Geteuid() == 0
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, b []byte, mode os.FileMode) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Dir(at(name)), 0o755), os.WriteFile(at(name), b, 0o644), os.Chmod(at(name), mode))
	}
	// Names.
	long := strings.Repeat("n", 255)
	for i, name := range []string{
		"plain", "new\nline", "back\\slash", "quote\"d", " lead and trail ", "-rf", "*", "a:b?|", "tab\t",
		"\xff\xfe not utf-8", "caf\u00e9", "cafe\u0301", long, "emoji 🎈", "trailing.", ".hidden", "a", "a-b", "a.b", "%2e%2e",
	} {
		write("names/"+name, []byte(name), 0o644)
		setMTime(t, at("names/"+name), int64(1e9)+int64(i), int64(i))
	}
	write("a/inner", []byte("x"), 0o600)
	write("a-b/inner", []byte("y"), 0o600)
	// Sizes around every boundary of the format.
	for _, n := range []int{0, 1, 4095, 4096, 4097, 65535, 65536, 512<<10 - 1, 512 << 10, 512<<10 + 1, 1 << 20, 3<<20 + 17} {
		write(fmt.Sprintf("size/%d", n), randomBytes(uint64(n), n), 0o644)
	}
	write("size/zeros", make([]byte, 700<<10), 0o644)
	write("size/text", []byte(strings.Repeat("the same line again and again\n", 40_000)), 0o644)
	// Modes.
	write("mode/none", []byte("secret"), 0)
	write("mode/readonly", []byte("r"), 0o444)
	write("mode/exec", []byte("#!/bin/sh\n"), 0o755)
	for name, mode := range map[string]uint32{"suid": 0o4755, "sgid": 0o2755, "sticky": 0o1644, "all": 0o7777} {
		write("mode/"+name, []byte(name), 0o644)
		must(t, unix.Chmod(at("mode/"+name), mode))
	}
	// Links.
	must(t, os.MkdirAll(at("links/deep/er"), 0o755))
	write("links/one", []byte("linked"), 0o640)
	must(t, os.Link(at("links/one"), at("links/deep/two")), os.Link(at("links/one"), at("a/three")), os.Link(at("size/1048576"), at("links/big")))
	for name, target := range map[string]string{
		"dangling": "no/such/file", "abs": "/etc/passwd", "self": "self", "up": "../../..", "dot": ".",
		"nonutf8": "\xff\xfe", "long": strings.Repeat("x/", 2000) + "y", "dir": "deep",
	} {
		must(t, os.Symlink(target, at("links/"+name)))
		setMTime(t, at("links/"+name), 86400, 5)
	}
	must(t, unix.Linkat(unix.AT_FDCWD, at("links/dangling"), unix.AT_FDCWD, at("links/dangling2"), 0))
	// Holes.
	sparse := func(name string, size int64, data map[int64]int) {
		write(name, nil, 0o644)
		f, err := os.OpenFile(at(name), os.O_WRONLY, 0)
		must(t, err)
		for off, n := range data {
			_, err := f.WriteAt(randomBytes(uint64(off+1), n), off)
			must(t, err)
		}
		must(t, f.Truncate(size), f.Close())
	}
	sparse("sparse/empty", 8<<30, nil)
	sparse("sparse/middle", 64<<20, map[int64]int{32 << 20: 100_000})
	sparse("sparse/odd", 5<<20+123, map[int64]int{1<<20 + 7: 9, 4<<20 + 4095: 2})
	sparse("sparse/many", 16<<20, map[int64]int{0: 1, 1 << 20: 4096, 2 << 20: 70_000, 3<<20 + 1: 70_000, 16<<20 - 1: 1})
	sparse("sparse/small", 300<<10, map[int64]int{100 << 10: 10})
	// Directories.
	must(t, os.MkdirAll(at("dirs/empty"), 0o755), os.MkdirAll(at("dirs/sticky"), 0o755), unix.Chmod(at("dirs/sticky"), 0o1777))
	must(t, os.MkdirAll(at("dirs/sgid"), 0o755), unix.Chmod(at("dirs/sgid"), 0o2775))
	write("dirs/ro/file", []byte("in a read-only directory"), 0o444)
	write("dirs/wx/file", []byte("in a 0300 directory"), 0o644)
	deep := "dirs/deep"
	for range 60 {
		deep += "/d"
	}
	write(deep+"/leaf", []byte("deep"), 0o644)
	// Attributes.
	for _, name := range []string{"names/plain", "dirs/empty", "mode/readonly", "."} {
		must(t, unix.Setxattr(at(name), "user.binary", []byte{0, 1, 2, 255}, 0), unix.Setxattr(at(name), "user.empty", nil, 0))
	}
	if root {
		must(t, os.Lchown(at("names/a"), 12345, 54321), os.Lchown(at("links/abs"), 7, 8), os.Lchown(at("dirs/sgid"), 0, 999))
		write("mode/cap", []byte("elf"), 0o755)
		caps := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		must(t, unix.Setxattr(at("mode/cap"), "security.capability", caps, 0))
		must(t, unix.Mknod(at("special-null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	}
	must(t, unix.Mkfifo(at("special-fifo"), 0o644))
	l, err := net.Listen("unix", at("special-sock"))
	must(t, err)
	t.Cleanup(func() { l.Close() })
	// Times, and what closes directories, last.
	write("time/old", nil, 0o644)
	setMTime(t, at("time/old"), -1e9, 999_999_999)
	write("time/far", nil, 0o644)
	setMTime(t, at("time/far"), time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).Unix(), 1)
	setMTime(t, at("time"), -1, 1)
	must(t, os.Chmod(at("dirs/ro"), 0o555), os.Chmod(at("dirs/wx"), 0o300))
	setMTime(t, at("dirs/ro"), 1234567890, 987654321)
	setMTime(t, dir, 1111111111, 222222222)
}

func TestTortureTreeComesBackExactly(t *testing.T) {
	src := t.TempDir()
	tortureTree(t, src)
	want := look(t, src)
	s := New(localBucket(t), Config{Workers: 3})
	c, err := s.Capture(t.Context(), Spec{Workspace: src})
	must(t, err)
	if !c.Workspace.Exact || c.Workspace.Entries != int64(len(want)) {
		t.Fatalf("captured %+v, want exact and %d entries; notes %v", c.Workspace, len(want), c.Notes)
	}
	if c.Counts[NoteFifo] != 1 || c.Counts[NoteSocket] != 1 || os.Geteuid() == 0 && c.Counts[NoteDevice] != 1 {
		t.Errorf("skipped %v, want one fifo, socket and device each", c.Counts)
	}
	if c.Workspace.Data > 16<<20 {
		t.Errorf("data = %d bytes, want the holes left out", c.Workspace.Data)
	}
	if d := differences(want, look(t, src)); len(d) > 0 {
		t.Errorf("capture changed the tree: %v", d)
	}
	must(t, s.Verify(t.Context(), c.Ref))
	dst := t.TempDir()
	_, err = s.Restore(t.Context(), c.Ref, Target{Workspace: dst})
	must(t, err)
	mustEqualTrees(t, want, look(t, dst))

	// The digest speaks of the tree alone: not of time, place, packs or workers.
	again, err := New(localBucket(t), Config{Workers: 1}).Capture(t.Context(), Spec{Workspace: dst})
	must(t, err)
	if again.Workspace.Digest != c.Workspace.Digest {
		t.Errorf("restored tree has digest %s, want %s", again.Workspace.Digest, c.Workspace.Digest)
	}
	var listed int64
	root, err := s.Read(t.Context(), c.Ref)
	must(t, err)
	for e, err := range s.Entries(t.Context(), root, Workspace) {
		must(t, err)
		name := e.Path
		if name == "" {
			name = "."
		}
		if _, ok := want[name]; !ok {
			t.Errorf("listed %q, which is not in the tree", e.Path)
		}
		listed++
	}
	if listed != int64(len(want)) {
		t.Errorf("listed %d entries, want %d", listed, len(want))
	}
}
