package tarball_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/tarball"
)

// pack writes paths as one archive.
func pack(t testing.TB, paths ...string) ([]byte, tarball.Report) {
	t.Helper()
	var b bytes.Buffer
	var r tarball.Report
	if err := tarball.Write(t.Context(), &b, &r, paths...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), r
}

// unpack takes an archive apart in dir.
func unpack(t testing.TB, archive []byte, to tarball.Target) (tarball.Report, error) {
	t.Helper()
	var r tarball.Report
	err := tarball.Extract(t.Context(), bytes.NewReader(archive), to, &r)
	return r, err
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// describe lists a tree: names with modes, contents, links and times.
func describe(t testing.TB, root string) []string {
	t.Helper()
	var list []string
	inodes := map[uint64]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, p)
		line := name + " " + info.Mode().String()
		if !d.IsDir() && d.Type() != fs.ModeSymlink || d.IsDir() {
			line += " " + info.ModTime().UTC().Format(time.RFC3339Nano)
		}
		switch d.Type() {
		case fs.ModeSymlink:
			to, _ := os.Readlink(p)
			line += " -> " + to
		case 0:
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			line += " " + string(data)
			st := info.Sys().(*syscall.Stat_t)
			if first, ok := inodes[st.Ino]; ok {
				line += " = " + first
			}
			inodes[st.Ino] = name
		}
		list = append(list, line)
		return nil
	})
	must(t, err)
	return list
}

// plant makes a tree of everything that travels.
func plant(t testing.TB) string {
	root := filepath.Join(t.TempDir(), "tree")
	must(t, os.MkdirAll(filepath.Join(root, "sub", "empty"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "a"), []byte("a"), 0o640))
	must(t, os.WriteFile(filepath.Join(root, "nothing"), nil, 0o644))
	must(t, os.WriteFile(filepath.Join(root, "sub", "run"), []byte("#!"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "sub", "no\xffutf8\n\x1b[0m"), []byte("bytes"), 0o600))
	must(t, os.WriteFile(filepath.Join(root, strings.Repeat("n", 250)), []byte("long"), 0o600))
	must(t, os.Symlink("../a\xfe", filepath.Join(root, "sub", "dangling")))
	must(t, os.Symlink("/etc/passwd", filepath.Join(root, "outside")))
	must(t, os.Link(filepath.Join(root, "a"), filepath.Join(root, "sub", "z-same-as-a")))
	old := time.Date(1969, 3, 1, 2, 3, 4, 5_000, time.UTC)
	must(t, os.Chtimes(filepath.Join(root, "nothing"), old, old))
	must(t, os.Chtimes(filepath.Join(root, "a"), old, time.Date(2011, 1, 2, 3, 4, 5, 6_789_000, time.UTC)))
	must(t, os.Chmod(filepath.Join(root, "sub", "empty"), 0o555))
	return root
}

func TestTreeComesBackAsItWas(t *testing.T) {
	t.Parallel()
	root := plant(t)
	archive, report := pack(t, root)
	if report.LeftOut != 0 || report.Files != int64(len(describe(t, root))) {
		t.Errorf("report = %+v", report)
	}
	to := t.TempDir()
	if _, err := unpack(t, archive, tarball.Target{Dir: to, Top: "tree"}); err != nil {
		t.Fatal(err)
	}
	if got, want := describe(t, filepath.Join(to, "tree")), describe(t, root); !slices.Equal(got, want) {
		t.Errorf("came back as\n%q\nwant\n%q", got, want)
	}
}

func TestSecondCopyReplacesFilesAndKeepsTheRest(t *testing.T) {
	t.Parallel()
	root := plant(t)
	archive, _ := pack(t, root)
	to := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(to, "tree", "sub"), 0o755))
	must(t, os.WriteFile(filepath.Join(to, "tree", "sub", "run"), []byte("an older and longer one"), 0o600))
	must(t, os.WriteFile(filepath.Join(to, "tree", "mine"), []byte("mine"), 0o600))
	must(t, os.Symlink(filepath.Join(to, "elsewhere"), filepath.Join(to, "tree", "a")))
	must(t, os.WriteFile(filepath.Join(to, "elsewhere"), []byte("untouched"), 0o600))
	for range 2 {
		if _, err := unpack(t, archive, tarball.Target{Dir: to, Top: "tree"}); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"tree/sub/run": "#!", "tree/mine": "mine", "tree/a": "a", "elsewhere": "untouched"} {
		if got, err := os.ReadFile(filepath.Join(to, name)); string(got) != want {
			t.Errorf("%s = %q (%v), want %q", name, got, err, want)
		}
	}
	left, err := filepath.Glob(filepath.Join(to, "tree", "*", ".sojourn-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %q (%v)", left, err)
	}
}

// entry is one entry of a forged archive.
type entry struct {
	tar.Header
	data string
}

func forge(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.Size = int64(len(e.data))
		if e.Mode == 0 {
			e.Mode = 0o644
		}
		if e.Typeflag == 0 {
			e.Typeflag = tar.TypeReg
		}
		must(t, w.WriteHeader(&e.Header))
		_, err := io.WriteString(w, e.data)
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func reg(name, data string) entry { return entry{tar.Header{Name: name}, data} }

func link(kind byte, name, to string) entry {
	return entry{tar.Header{Typeflag: kind, Name: name, Linkname: to}, ""}
}

func TestHostileArchivesReachNothingOutside(t *testing.T) {
	t.Parallel()
	const sym, hard = tar.TypeSymlink, tar.TypeLink
	for name, entries := range map[string][]entry{
		"absolute":                    {reg("/tmp/evil", "x")},
		"dots":                        {reg("../evil", "x")},
		"dots inside":                 {reg("top/../../evil", "x")},
		"through a link":              {link(sym, "top/l", ".."), reg("top/l/../evil", "x")},
		"through a link to outside":   {link(sym, "top/l", "../.."), reg("top/l/evil", "x")},
		"through an absolute link":    {link(sym, "top/l", "/tmp"), reg("top/l/evil", "x")},
		"through links in a row":      {link(sym, "top/a", "b"), link(sym, "top/b", "../.."), reg("top/a/evil", "x")},
		"top is a link":               {link(sym, "top", ".."), reg("top/evil", "x")},
		"directory through a link":    {link(sym, "top/l", "../.."), {tar.Header{Typeflag: tar.TypeDir, Name: "top/l/evil"}, ""}},
		"hard link to outside":        {link(hard, "top/h", "../secret"), reg("top/h", "x")},
		"hard link to absolute":       {link(hard, "top/h", "/etc/passwd")},
		"hard link through a link":    {link(sym, "top/l", "../.."), link(hard, "top/h", "top/l/secret")},
		"hard link to a link":         {link(sym, "top/l", "../../secret"), link(hard, "top/h", "top/l")},
		"another top":                 {reg("other/evil", "x")},
		"no name":                     {reg("..", "x")},
		"file where a directory is":   {{tar.Header{Typeflag: tar.TypeDir, Name: "top/d"}, ""}, reg("top/d", "x")},
		"below a file":                {reg("top/f", "x"), reg("top/f/evil", "x")},
		"empty link":                  {link(sym, "top/l", "")},
		"symlink beside, then chmod":  {link(sym, "top/l", "../../secret"), {tar.Header{Typeflag: tar.TypeDir, Name: "top/l/", Mode: 0o777}, ""}, reg("top/l/../../secret", "x")},
		"name is too long for a name": {reg("top/"+strings.Repeat("x", 300), "x")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			around := t.TempDir()
			to := filepath.Join(around, "to")
			must(t, os.Mkdir(to, 0o755))
			must(t, os.WriteFile(filepath.Join(around, "secret"), []byte("secret"), 0o600))
			_, err := unpack(t, forge(t, entries...), tarball.Target{Dir: to, Top: "top"})
			if err == nil {
				t.Error("was taken")
			}
			got := describe(t, around)
			for _, line := range got {
				if strings.HasPrefix(line, "evil") || strings.Contains(line, "..") && !strings.HasPrefix(line, "to/") {
					t.Errorf("reached outside: %q", got)
				}
			}
			if data, err := os.ReadFile(filepath.Join(around, "secret")); string(data) != "secret" {
				t.Errorf("the file outside holds %q (%v)", data, err)
			}
			if list, _ := os.ReadDir(around); len(list) != 2 {
				t.Errorf("there is something new outside: %v", list)
			}
			if _, err := os.Lstat("/tmp/evil"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("/tmp/evil: %v", err)
			}
		})
	}
}

func TestPrivilegesAndDevicesDoNotTravel(t *testing.T) {
	t.Parallel()
	to := t.TempDir()
	r, err := unpack(t, forge(t,
		entry{tar.Header{Name: "top/suid", Mode: 0o6777}, "x"},
		entry{tar.Header{Name: "top/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, ""},
		entry{tar.Header{Name: "top/pipe", Typeflag: tar.TypeFifo}, ""},
	), tarball.Target{Dir: to, Top: "top", As: "mine", Umask: 0o022})
	must(t, err)
	info, err := os.Stat(filepath.Join(to, "mine", "suid"))
	must(t, err)
	if info.Mode() != 0o755 {
		t.Errorf("mode = %v, want -rwxr-xr-x", info.Mode())
	}
	if list, _ := os.ReadDir(filepath.Join(to, "mine")); len(list) != 1 || r.LeftOut != 2 || len(r.Notes) != 2 {
		t.Errorf("made %v, report %+v", list, r)
	}
}

func TestSparseFilesAreRefused(t *testing.T) {
	t.Parallel()
	// An old GNU sparse header of 512 bytes that stands for an exbibyte.
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	must(t, w.WriteHeader(&tar.Header{Name: "top/hole", Mode: 0o644, Typeflag: tar.TypeReg, Format: tar.FormatGNU}))
	h := b.Bytes()
	h[156] = 'S'
	copy(h[386:], "00000000000\x0000000000000\x00")                   // one piece, of no bytes, at 0
	copy(h[483:], "\x80\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00") // the real size
	copy(h[148:156], "        ")
	sum := 0
	for _, c := range h[:512] {
		sum += int(c)
	}
	copy(h[148:], []byte{byte('0' + sum>>15&7), byte('0' + sum>>12&7), byte('0' + sum>>9&7), byte('0' + sum>>6&7), byte('0' + sum>>3&7), byte('0' + sum&7), 0, ' '})
	_, err := unpack(t, h, tarball.Target{Dir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "sparse") {
		t.Errorf("extract = %v, want a refusal of sparse files", err)
	}
}

func TestBrokenArchiveLeavesNoHalfFile(t *testing.T) {
	t.Parallel()
	archive := forge(t, reg("top/first", "whole"), reg("top/second", strings.Repeat("x", 5000)))
	to := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(to, "top"), 0o755))
	must(t, os.WriteFile(filepath.Join(to, "top", "second"), []byte("before"), 0o600))
	for _, cut := range []int{1600, 2500, 4000} {
		if _, err := unpack(t, archive[:cut], tarball.Target{Dir: to}); err == nil {
			t.Errorf("an archive cut at %d was taken", cut)
		}
		list, err := os.ReadDir(filepath.Join(to, "top"))
		must(t, err)
		if len(list) != 2 {
			t.Errorf("cut at %d left %v", cut, list)
		}
		if data, _ := os.ReadFile(filepath.Join(to, "top", "second")); string(data) != "before" {
			t.Errorf("cut at %d, the file holds %.20q, want what was there", cut, data)
		}
	}
}

// TestArchiveWithoutItsEndIsRefused cuts an archive at the borders of its entries,
// where nothing but the missing end mark shows that there was more.
func TestArchiveWithoutItsEndIsRefused(t *testing.T) {
	t.Parallel()
	zeros := strings.Repeat("\x00", 2048)
	archive := forge(t, reg("top/first", zeros), reg("top/second", "two"), reg("top/third", zeros[:1025]))
	end := len(archive) - 1024
	for _, cut := range []int{0, 512, 512 + 2048, 2*512 + 2048, 3*512 + 2048, end, end + 511, end + 512, end + 1023} {
		r, err := unpack(t, archive[:cut], tarball.Target{Dir: t.TempDir()})
		if !errors.Is(err, tarball.ErrCut) {
			t.Errorf("cut at %d of %d: %d entries, %v", cut, len(archive), r.Files, err)
		}
	}
	for _, more := range []string{"", zeros, "whatever"} {
		if r, err := unpack(t, append(slices.Clone(archive), more...), tarball.Target{Dir: t.TempDir()}); err != nil || r.Files != 3 {
			t.Errorf("whole, with %d bytes behind it: %d entries, %v", len(more), r.Files, err)
		}
	}
	if _, err := unpack(t, []byte(zeros[:1024]), tarball.Target{Dir: t.TempDir()}); err != nil {
		t.Errorf("an archive of nothing: %v", err)
	}
	if _, err := unpack(t, []byte(strings.Repeat("no archive", 100)), tarball.Target{Dir: t.TempDir()}); err == nil || strings.Contains(err.Error(), "archive/tar") {
		t.Errorf("what is no archive: %v", err)
	}
}

func TestUnreadableFilesAreReportedAndTheRestGoes(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "tree")
	must(t, os.MkdirAll(root, 0o755))
	must(t, os.WriteFile(filepath.Join(root, "z"), []byte("z"), 0o644))
	must(t, syscall.Mkfifo(filepath.Join(root, "pipe"), 0o644))
	archive, report := pack(t, root)
	if report.LeftOut != 1 || len(report.Notes) != 1 || !strings.Contains(report.Notes[0], "tree/pipe") {
		t.Errorf("report = %+v, want the pipe left out", report)
	}
	if !bytes.Contains(archive, []byte("tree/z")) {
		t.Error("what comes behind the pipe is not in the archive")
	}
}

func TestWriteEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var r tarball.Report
	if err := tarball.Write(ctx, io.Discard, &r, plant(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("write = %v, want context.Canceled", err)
	}
}

func TestPlaceIsWhereCpWouldPutIt(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	must(t, os.WriteFile(filepath.Join(root, "file"), nil, 0o600))
	for _, c := range []struct{ path, dir, as string }{
		{root, root, ""},
		{root + "/new", root, "new"},
		{root + "/file", root, "file"},
		{root + "/new/", "", ""},
		{root + "/file/", "", ""},
		{root + "/no/new", "", ""},
		{root + "/file/new", "", ""},
	} {
		dir, as, err := tarball.Place(c.path)
		if dir != c.dir || as != c.as || (err == nil) != (c.dir != "") {
			t.Errorf("Place(%q) = %q, %q, %v; want %q, %q", c.path, dir, as, err, c.dir, c.as)
		}
	}
}

func FuzzExtract(f *testing.F) {
	f.Add(forge(f, reg("top/f", "x"), link(tar.TypeSymlink, "top/l", ".."), link(tar.TypeLink, "top/h", "top/f")))
	f.Add(forge(f, reg("top/l/evil", "x")))
	f.Fuzz(func(t *testing.T, archive []byte) {
		around := t.TempDir()
		to := filepath.Join(around, "to")
		must(t, os.Mkdir(to, 0o755))
		_, _ = unpack(t, archive, tarball.Target{Dir: to})
		if list, err := os.ReadDir(around); err != nil || len(list) != 1 {
			t.Fatalf("there is something outside: %v (%v)", list, err)
		}
		filepath.WalkDir(to, func(p string, d fs.DirEntry, _ error) error {
			if d != nil && d.IsDir() {
				os.Chmod(p, 0o700) // so that it can be cleared away
			}
			return nil
		})
	})
}

func BenchmarkCopyTree(b *testing.B) {
	root := filepath.Join(b.TempDir(), "tree")
	must(b, os.MkdirAll(root, 0o755))
	for i := range 500 {
		must(b, os.WriteFile(filepath.Join(root, "f"+string(rune('a'+i%26))+strings.Repeat("x", i/26)), make([]byte, 4<<10), 0o600))
	}
	var floor, ours time.Duration
	for b.Loop() {
		to := b.TempDir()
		began := time.Now()
		must(b, os.CopyFS(filepath.Join(to, "plain"), os.DirFS(root)))
		floor += time.Since(began)
		began = time.Now()
		r, w := io.Pipe()
		go func() {
			var report tarball.Report
			w.CloseWithError(tarball.Write(context.Background(), w, &report, root))
		}()
		var report tarball.Report
		must(b, tarball.Extract(b.Context(), r, tarball.Target{Dir: to, Top: "tree"}, &report))
		ours += time.Since(began)
	}
	b.ReportMetric(ours.Seconds()/floor.Seconds(), "x-of-CopyFS")
}

// TestNamesOfDirectoriesTakeBoundedMemory: what is remembered of each until the end is
// more than a compressed archive has to send for it.
func TestNamesOfDirectoriesTakeBoundedMemory(t *testing.T) {
	t.Parallel()
	long := strings.Repeat(strings.Repeat("n", 250)+"/", 15)
	const most = 64 << 20
	r, w := io.Pipe()
	go func() {
		tw := tar.NewWriter(w)
		h := &tar.Header{Name: long, Typeflag: tar.TypeDir, Mode: 0o755, Format: tar.FormatPAX}
		for range 2 * most / len(long) {
			if tw.WriteHeader(h) != nil {
				return // as it should be
			}
		}
		w.CloseWithError(tw.Close())
	}()
	var report tarball.Report
	err := tarball.Extract(t.Context(), r, tarball.Target{Dir: t.TempDir()}, &report)
	r.Close()
	if err == nil || report.Files > most/(int64(len(long))-1) {
		t.Errorf("%d directories were taken, %v", report.Files, err)
	}
}

// TestAFullDiskIsNoFaultOfTheArchive unpacks into a file system that is too small.
func TestAFullDiskIsNoFaultOfTheArchive(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can mount a file system")
	}
	from, to := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "large"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", to, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("SKIPPED: nothing can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(to, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	archive, _ := pack(t, filepath.Join(from, "large"))
	var r tarball.Report
	err := tarball.Extract(t.Context(), bytes.NewReader(archive), tarball.Target{Dir: to}, &r)
	if !errors.Is(err, tarball.ErrNoSpace) || !strings.Contains(err.Error(), `"large"`) {
		t.Errorf("Extract = %v, want ErrNoSpace of the entry", err)
	}
	if left, err := os.ReadDir(to); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}
