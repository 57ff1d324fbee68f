package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// unpacked unpacks archives as the layers of an image, or the only one as a plain root.
func unpacked(t testing.TB, limits Limits, isPlain bool, layers ...[]byte) (root string, err error) {
	t.Helper()
	top := t.TempDir()
	root = filepath.Join(top, treeName)
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	tr, err := newTree(root, filepath.Join(top, "trash"), os.Geteuid() == 0, limits)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	for i, l := range layers {
		if i > 0 {
			if err := tr.nextLayer(); err != nil {
				return root, err
			}
		}
		if err := tr.extract(t.Context(), bytes.NewReader(l), !isPlain); err != nil {
			return root, err
		}
	}
	if err := tr.furnish(); err != nil {
		return root, err
	}
	err = tr.finish()
	if left, readErr := os.ReadDir(filepath.Join(top, "trash")); readErr != nil || len(left) > 0 {
		t.Errorf("the trash holds %v, %v", left, readErr)
	}
	return root, err
}

var wide = Limits{Bytes: 1 << 30, Entries: 10_000}

func TestLayersAddUp(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		layers [][]file
		want   string
	}{
		{"a file is replaced", [][]file{{{name: "a", body: "1"}}, {{name: "a", body: "2"}}}, `a "2"`},
		{"the last of two entries counts", [][]file{{{name: "a", body: "1"}, {name: "./a", body: "2"}}}, `a "2"`},
		{"a directory is kept", [][]file{{dir("d"), {name: "d/a"}}, {dir("d/"), {name: "d/b"}}}, "d/\nd/a \"\"\nd/b \"\""},
		{"a file replaces a directory", [][]file{{{name: "d/e/a"}}, {{name: "d", body: "x"}}}, `d "x"`},
		{"a directory replaces a link", [][]file{{symlink("l", "d"), {name: "d/a"}}, {dir("l"), {name: "l/b"}}}, "d/\nd/a \"\"\nl/\nl/b \"\""},
		{"a link is followed on the way", [][]file{{dir("usr/lib"), symlink("lib", "usr/lib")}, {{name: "lib/a"}}}, "lib -> usr/lib\nusr/\nusr/lib/\nusr/lib/a \"\""},
		{"a link to the root is the tree's", [][]file{{dir("var"), symlink("v", "/var")}, {{name: "v/a"}}}, "v -> /var\nvar/\nvar/a \"\""},
		{"a link out leads to the tree's own", [][]file{{dir("d"), symlink("d/up", "../../../../d")}, {{name: "d/up/a"}}}, "d/\nd/a \"\"\nd/up -> ../../../../d"},
		{"a hard link is the same file", [][]file{{{name: "a", body: "x"}, hardlink("b", "a"), hardlink("c", "/a")}}, "a \"x\"\nb \"x\"\nc \"x\""},
		{"a replaced name leaves the other", [][]file{{{name: "a", body: "x"}, hardlink("b", "a")}, {{name: "a", body: "y"}}}, "a \"y\"\nb \"x\""},
		{"a hard link to itself stays", [][]file{{{name: "a", body: "x"}, hardlink("a", "a")}}, `a "x"`},
		{"a hard link to a link is one", [][]file{{symlink("l", "/etc/shadow"), hardlink("m", "l")}}, "l -> /etc/shadow\nm -> /etc/shadow"},
		{"whiteout", [][]file{{{name: "d/a"}, {name: "d/b"}}, {{name: "d/.wh.a"}}}, "d/\nd/b \"\""},
		{"whiteout of a directory", [][]file{{{name: "d/e/a"}}, {{name: ".wh.d"}}}, ""},
		{"whiteout of nothing", [][]file{{{name: "a"}}, {{name: ".wh.b"}, {name: "x/.wh.y"}}}, `a ""`},
		{"whiteout after its replacement", [][]file{{{name: "d/a"}}, {{name: "d/n"}, {name: ".wh.d"}}}, "d/\nd/n \"\""},
		{"whiteout before its replacement", [][]file{{{name: "d/a"}}, {{name: ".wh.d"}, {name: "d/n"}}}, "d/\nd/n \"\""},
		{"whiteout of a link", [][]file{{{name: "d/a"}, symlink("l", "d")}, {{name: ".wh.l"}}}, "d/\nd/a \"\""},
		{"opaque", [][]file{{{name: "d/a"}, {name: "d/e/b"}}, {{name: "d/.wh..wh..opq"}, {name: "d/n"}}}, "d/\nd/n \"\""},
		{"opaque after new files", [][]file{{{name: "d/a"}, {name: "d/e/b"}}, {{name: "d/n"}, {name: "d/e/m"}, {name: "d/.wh..wh..opq"}}}, "d/\nd/e/\nd/e/m \"\"\nd/n \"\""},
		{"opaque root", [][]file{{{name: "a"}, dir("d")}, {{name: "n"}, {name: ".wh..wh..opq"}}}, `n ""`},
		{"notes of a union file system", [][]file{{{name: "a"}}, {{name: ".wh..wh.plnk"}, {name: ".wh..wh.aufs"}}}, `a ""`},
		{"devices and pipes are left out", [][]file{{{name: "a"}, {name: "p", kind: tar.TypeFifo}, {name: "n", kind: tar.TypeChar}, {name: "b", kind: tar.TypeBlock}}, {{name: "a", kind: tar.TypeChar}}}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var layers [][]byte
			for _, l := range test.layers {
				layers = append(layers, archive(t, l...))
			}
			root, err := unpacked(t, wide, false, layers...)
			if err != nil {
				t.Fatal(err)
			}
			if got := listing(t, root); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func TestPlainRootHasNoWhiteouts(t *testing.T) {
	t.Parallel()
	root, err := unpacked(t, wide, true, archive(t, file{name: "a"}, file{name: ".wh.a", body: "x"}))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := listing(t, root), ".wh.a \"x\"\na \"\""; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestHostileArchivesAreRefused(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("d/", 300)
	var deep []file // each link leads deeper than a name could
	at := "top"
	for i := range 4 {
		at += "/" + strings.Repeat("x/", 100) + "y"
		deep = append(deep, dir(at))
		if i < 3 {
			link := fmt.Sprintf("l%d", i)
			deep = append(deep, symlink(link, "/"+at))
			at = link
		}
	}
	for _, test := range []struct {
		name  string
		files []file
		want  error
	}{
		{"absolute", []file{{name: "/etc/passwd"}}, ErrCorrupt},
		{"parent", []file{{name: "../x"}}, ErrCorrupt},
		{"parent in the middle", []file{{name: "a/../../x"}}, ErrCorrupt},
		{"a file as the root", []file{{name: "."}}, ErrCorrupt},
		{"a file on the way", []file{{name: "a"}, {name: "a/b"}}, ErrCorrupt},
		{"a link to nothing on the way", []file{symlink("l", "/nowhere"), {name: "l/a"}}, ErrCorrupt},
		{"a link to itself on the way", []file{symlink("l", "l"), {name: "l/a"}}, ErrCorrupt},
		{"hard link out", []file{hardlink("a", "../../etc/passwd")}, ErrCorrupt},
		{"hard link to the host", []file{hardlink("a", "/etc/passwd")}, ErrCorrupt},
		{"hard link through a link", []file{symlink("l", "/"), hardlink("a", "l/etc/passwd")}, ErrCorrupt},
		{"hard link to a directory", []file{dir("d"), hardlink("a", "d")}, ErrCorrupt},
		{"link to nothing at all", []file{symlink("a", "")}, ErrCorrupt},
		{"whiteout of its own directory", []file{{name: "d/a"}, {name: "d/.wh.."}}, ErrCorrupt},
		{"whiteout of the parent", []file{{name: "d/a"}, {name: "d/.wh..."}}, ErrCorrupt},
		{"whiteout of no name", []file{{name: "d/.wh."}}, ErrCorrupt},
		{"deep", []file{{name: long + "a"}}, ErrTooLarge},
		{"deep through links", deep, ErrTooLarge},
		{"too many entries", []file{{name: "a/b/c/d"}, {name: "e"}, {name: "f/g"}, {name: "h"}}, ErrTooLarge},
		{"too many bytes", []file{{name: "a", body: strings.Repeat("x", 600)}, {name: "b", body: strings.Repeat("y", 600)}}, ErrTooLarge},
		{"unknown kind", []file{{name: "a", kind: 'Z'}}, ErrCorrupt},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			limits := Limits{Bytes: 1000, Entries: 7}
			if strings.HasPrefix(test.name, "deep") {
				limits = wide
			}
			root, err := unpacked(t, limits, false, archive(t, test.files...))
			if !errors.Is(err, test.want) {
				t.Errorf("unpack = %v, want %v\n%.2000s", err, test.want, listing(t, root))
			}
			nothingBeside(t, root)
		})
	}
}

// nothingBeside reports what was made outside of a root.
func nothingBeside(t testing.TB, root string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(root))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != treeName && e.Name() != "trash" {
			t.Errorf("outside of the root there is %s", e.Name())
		}
	}
}

func TestAttributesAreKept(t *testing.T) {
	t.Parallel()
	root, err := unpacked(t, wide, false, archive(t,
		file{name: "su", mode: 0o4755, uid: 1000, body: "x", xattrs: map[string]string{"user.note": "yes", "trusted.overlay.opaque": "y", "user.overlay.redirect": "/", "security.selinux": "x"}},
		file{name: "secret", mode: 0o040},
		file{name: "d", kind: tar.TypeDir, mode: 0o1777, uid: 7},
		file{name: "d/in", mode: 0o600},
		symlink("l", "su"),
	))
	if err != nil {
		t.Fatal(err)
	}
	isRoot := os.Geteuid() == 0
	for name, want := range map[string]struct{ mode, plain, uid uint32 }{
		"su": {0o104755, 0o104755, 1000}, "secret": {0o100040, 0o100640, 0}, "d": {0o41777, 0o41777, 7}, "d/in": {0o100600, 0o100600, 0},
	} {
		var st syscall.Stat_t
		if err := syscall.Lstat(filepath.Join(root, name), &st); err != nil {
			t.Fatal(err)
		}
		mode, uid := want.mode, want.uid
		if !isRoot {
			mode, uid = want.plain, uint32(os.Geteuid())
		}
		if st.Mode != mode || st.Uid != uid {
			t.Errorf("%s has mode %o and owner %d, want %o and %d", name, st.Mode, st.Uid, mode, uid)
		}
		if st.Mtim.Sec != at.Unix() {
			t.Errorf("%s is of %d, want %d", name, st.Mtim.Sec, at.Unix())
		}
	}
	buf := make([]byte, 1024)
	n, err := unix.Llistxattr(filepath.Join(root, "su"), buf)
	if errors.Is(err, unix.ENOTSUP) {
		t.Skip("SKIPPED in part: the file system has no extended attributes")
	}
	if got := strings.Trim(string(buf[:max(n, 0)]), "\x00"); err != nil || got != "user.note" {
		t.Errorf("extended attributes %q, %v, want user.note", got, err)
	}
}

func TestSparseFilesCostWhatTheyHold(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	root, err := unpacked(t, wide, false, archive(t, file{name: "sparse", body: "x" + strings.Repeat("\x00", size-1)}))
	if err != nil {
		t.Fatal(err)
	}
	var st syscall.Stat_t
	if err := syscall.Lstat(filepath.Join(root, "sparse"), &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != size || st.Blocks*512 > 1<<20 {
		t.Errorf("the file has %d bytes and takes %d, want %d and hardly any", st.Size, st.Blocks*512, size)
	}
}

func TestMountPointsAreRealWhateverTheImageHas(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	root, err := unpacked(t, wide, false, archive(t,
		symlink("proc", "/workspace"), symlink("tmp", outside), symlink("workspace", "../../../../.."),
		symlink("run", "/var/run"), dir("var/run"), symlink("home", "/nowhere/else"), file{name: "dev"},
		symlink(".sojourn", outside), symlink("etc", "../../.."+outside), file{name: "sys", kind: tar.TypeFifo},
	))
	if err != nil {
		t.Fatal(err)
	}
	if err := checkPoints(root, points); err != nil {
		t.Error(err)
	}
	if info, err := os.Lstat(filepath.Join(root, "var/run/sojourn")); err != nil || !info.IsDir() {
		t.Errorf("the mount point behind the image's own link: %v, %v", info, err)
	}
	b, err := os.ReadFile(filepath.Join(root, "etc/resolv.conf"))
	if err != nil || !strings.Contains(string(b), "nameserver 127.0.0.1") {
		t.Errorf("resolv.conf = %q, %v", b, err)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside there is %v, %v", left, err)
	}
	nothingBeside(t, root)
}

func TestHostsOfTheImageStay(t *testing.T) {
	t.Parallel()
	root, err := unpacked(t, wide, false, archive(t, file{name: "etc/hosts", body: "127.0.0.1 mine\n"}, file{name: "etc/resolv.conf", body: "nameserver 8.8.8.8\n"}))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"hosts": "127.0.0.1 mine\n", "resolv.conf": settings[0].content, "hostname": "sojourn\n"} {
		if b, err := os.ReadFile(filepath.Join(root, "etc", name)); err != nil || string(b) != want {
			t.Errorf("/etc/%s = %q, %v, want %q", name, b, err, want)
		}
	}
}

// FuzzUnpack unpacks whatever comes over a tree with awkward links, and looks that nothing
// was made or changed outside of it.
func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, file{name: "a", body: "x"}, symlink("l", "/etc"), file{name: "l/b"}), true)
	f.Add(archive(f, dir("d"), hardlink("d/h", "base/file"), file{name: "d/.wh..wh..opq"}, file{name: ".wh.base"}), true)
	f.Add(archive(f, file{name: "out/x"}, file{name: "../y"}, file{name: "abs/z"}, hardlink("h", "out/guard")), false)
	f.Add([]byte("\x1f\x8b not gzip"), true)
	base := archive(f, dir("base"), file{name: "base/file", body: "1"}, symlink("out", "../guard"), symlink("abs", "/"), symlink("self", "."))
	f.Fuzz(func(t *testing.T, b []byte, isLayer bool) {
		top := t.TempDir()
		root := filepath.Join(top, "x", treeName)
		guard := filepath.Join(top, "x", "guard")
		if err := errors.Join(os.MkdirAll(root, 0o755), os.Mkdir(guard, 0o755), os.WriteFile(guard+"/guard", []byte("guard"), 0o600)); err != nil {
			t.Fatal(err)
		}
		tr, err := newTree(root, filepath.Join(top, "trash"), os.Geteuid() == 0, Limits{Bytes: 1 << 20, Entries: 1000})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.close()
		if err := tr.extract(context.Background(), bytes.NewReader(base), true); err != nil {
			t.Fatal(err)
		}
		if err := tr.nextLayer(); err != nil {
			t.Fatal(err)
		}
		if tr.extract(context.Background(), bytes.NewReader(b), isLayer) == nil {
			if err := errors.Join(tr.furnish(), tr.finish()); err != nil {
				t.Fatalf("an archive that was accepted cannot be finished: %v", err)
			}
			if err := checkPoints(root, points); err != nil {
				t.Fatal(err)
			}
			if _, err := sumTree(context.Background(), root, nil, true); err != nil {
				t.Fatalf("a tree that was accepted cannot be read: %v", err)
			}
		}
		if got, err := os.ReadFile(guard + "/guard"); err != nil || string(got) != "guard" {
			t.Fatalf("the file outside = %q, %v", got, err)
		}
		for d, want := range map[string]int{top: 2, filepath.Join(top, "x"): 2, guard: 1} {
			if entries, err := os.ReadDir(d); err != nil || len(entries) != want {
				t.Fatalf("in %s there are %v, %v", d, entries, err)
			}
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(guard+"/guard", &st); err != nil || st.Nlink != 1 || st.Mode != 0o100600 {
			t.Fatalf("the file outside has %d names and mode %o, %v", st.Nlink, st.Mode, err)
		}
	})
}
