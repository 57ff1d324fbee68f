package files_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/files"
)

// rig is a tree that no path leads out of, and a directory beside it that nobody
// may reach.
type rig struct {
	files.Where
	t       testing.TB
	outside string
}

func newRig(t testing.TB) *rig {
	t.Helper()
	top := t.TempDir()
	r := &rig{t: t, outside: filepath.Join(top, "workbeside")}
	r.Where = files.Where{Dir: filepath.Join(top, "work"), Names: []string{"/workspace", filepath.Join(top, "work")}}
	r.must(os.Mkdir(r.Dir, 0o755))
	r.must(os.Mkdir(r.outside, 0o755))
	r.must(os.WriteFile(filepath.Join(r.outside, "secret"), []byte("secret"), 0o644))
	return r
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) at(name string) string { return filepath.Join(r.Dir, name) }

func (r *rig) write(name, text string) error {
	_, err := r.WriteFile(r.t.Context(), name, strings.NewReader(text), files.Writing{Size: -1})
	return err
}

func (r *rig) read(name string) (string, error) {
	f, info, err := r.OpenFile(name)
	if err != nil || f == nil {
		return string(info.Type), err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	return string(b), err
}

// untouched fails the test when anything was made outside.
func (r *rig) untouched() {
	r.t.Helper()
	names, err := os.ReadDir(r.outside)
	r.must(err)
	if b, _ := os.ReadFile(filepath.Join(r.outside, "secret")); len(names) != 1 || string(b) != "secret" {
		r.t.Errorf("outside there is now %v, and the secret is %q", names, b)
	}
}

// clean fails the test when a write has left something of its own.
func (r *rig) clean() {
	r.t.Helper()
	r.must(filepath.WalkDir(r.Dir, func(p string, _ fs.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(p), ".sojourn-") {
			r.t.Errorf("%s was left behind", p)
		}
		return err
	}))
}

func kindOf(err error) files.Kind {
	if e, ok := errors.AsType[*files.Error](err); ok {
		return e.Kind
	}
	return ""
}

func TestWrittenFilesComeBackByteForByte(t *testing.T) { // FI-01
	t.Parallel()
	r := newRig(t)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	names := []string{"plain", "a/b/c/deep", "é.txt", "e\u0301.txt", "-dash", "new\nline", `quo"te;`, "a:b", "dot.", ".hidden", "\xff\xfe", strings.Repeat("n", 255)}
	for b := 1; b < 256; b++ {
		if b != '/' {
			names = append(names, "byte"+string([]byte{byte(b)}))
		}
	}
	for _, name := range names {
		r.must(r.write(name, string(all)+name))
	}
	for _, name := range names {
		if got, err := r.read(name); err != nil || got != string(all)+name {
			t.Errorf("%q holds %q, %v", name, got, err)
		}
	}
	r.clean()
}

func TestAWriteKeepsModeAndLinks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.must(os.WriteFile(r.at("run.sh"), []byte("old"), 0o750))
	r.must(os.Symlink("run.sh", r.at("link")))
	r.must(os.Link(r.at("run.sh"), r.at("other")))
	r.must(r.write("link", "new"))
	if to, err := os.Readlink(r.at("link")); err != nil || to != "run.sh" {
		t.Errorf("the link is now %q, %v", to, err)
	}
	info, err := os.Stat(r.at("run.sh"))
	r.must(err)
	if got, _ := r.read("run.sh"); got != "new" || info.Mode() != 0o750 {
		t.Errorf("run.sh holds %q with mode %v", got, info.Mode())
	}
	if got, _ := r.read("other"); got != "old" {
		t.Errorf("the other name of the old file holds %q", got)
	}
	written, err := r.WriteFile(t.Context(), "fresh", strings.NewReader("abc"), files.Writing{Size: 3, Mode: new(fs.FileMode(0o4711))})
	if err != nil || written.Mode != 0o711 || written.Size != 3 || written.Type != files.File {
		t.Errorf("a new file is %+v, %v: permissions and nothing else were asked for", written, err)
	}
}

func TestAnEndedWriteLeavesTheOldFile(t *testing.T) { // FI-02
	t.Parallel()
	r := newRig(t)
	r.must(r.write("f", "old"))
	broken := errors.New("the line broke")
	half := io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken))
	if _, err := r.WriteFile(t.Context(), "f", half, files.Writing{Size: -1}); !errors.Is(err, broken) {
		t.Errorf("a write that broke off = %v", err)
	}
	for _, size := range []int64{3, 5} {
		if _, err := r.WriteFile(t.Context(), "f", strings.NewReader("four"), files.Writing{Size: size}); kindOf(err) != files.Cut {
			t.Errorf("four bytes instead of %d = %v, want %s", size, err, files.Cut)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := io.MultiReader(strings.NewReader("x"), readerFunc(func([]byte) (int, error) { cancel(); return 0, io.EOF }))
	if _, err := r.WriteFile(ctx, "f", cancelled, files.Writing{Size: -1}); !errors.Is(err, context.Canceled) {
		t.Errorf("a write whose caller left at its end = %v", err)
	}
	if got, err := r.read("f"); err != nil || got != "old" {
		t.Errorf("f holds %q, %v", got, err)
	}
	r.clean()
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func TestNothingLeadsOut(t *testing.T) { // FI-05, FI-06
	t.Parallel()
	r := newRig(t)
	for name, target := range map[string]string{
		"dangling": filepath.Join(r.outside, "new.txt"), "dir": r.outside, "up": "..", "beside": "../workbeside",
		"secret": filepath.Join(r.outside, "secret"), "passwd": "/etc/passwd", "root": "/proc/self/root", "prefix": r.Dir + "beside",
		"far": strings.Repeat("../", 200) + "etc/passwd", "via": "dir/secret", "trick": "/workspace/../etc/passwd", "sub/out": "../../workbeside",
	} {
		r.must(os.MkdirAll(filepath.Dir(r.at(name)), 0o755))
		r.must(os.Symlink(target, r.at(name)))
	}
	for _, name := range []string{
		"dangling", "dir/x", "dir/secret", "up/workbeside/secret", "up/x", "beside/secret", "secret", "passwd", "root/etc/passwd",
		"prefix/x", "far", "via", "trick", "sub/out/secret", "../workbeside/secret", "sub/../../workbeside/x", "..",
	} {
		if err := r.write(name, "mine"); kindOf(err) != files.Escapes {
			t.Errorf("write %q = %v, want %s", name, err, files.Escapes)
		}
		if got, err := r.read(name); kindOf(err) != files.Escapes {
			t.Errorf("read %q = %q, %v, want %s", name, got, err, files.Escapes)
		}
	}
	for _, name := range []string{"dir", "up", "beside", "root"} {
		_, err := r.List(t.Context(), name, files.Listing{Limit: 10}, func(e files.Entry) error { return fmt.Errorf("entry %q", e.Path) })
		if kindOf(err) != files.Escapes {
			t.Errorf("list %q = %v, want %s", name, err, files.Escapes)
		}
	}
	r.untouched()
	r.clean()
}

func TestLinksThatStayInsideAreFollowed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.must(r.write("a/b/file", "text"))
	for name, target := range map[string]string{
		"abs": "/workspace/a/b/file", "host": r.at("a/b/file"), "rel": "a/./b//file", "a/b/updown": "../../a/b/../b/file",
		"dir": "/workspace/a/", "chain": "dir/b/updown", "top": "/workspace",
	} {
		r.must(os.Symlink(target, r.at(name)))
	}
	for _, name := range []string{"abs", "host", "rel", "a/b/updown", "dir/b/file", "chain", "top/top/chain"} {
		if got, err := r.read(name); err != nil || got != "text" {
			t.Errorf("read %q = %q, %v", name, got, err)
		}
	}
	r.must(os.Symlink("dir/made/new", r.at("later"))) // to nothing yet, inside
	r.must(r.write("later", "new"))
	if got, err := r.read("a/made/new"); err != nil || got != "new" {
		t.Errorf("through a link to nothing inside came %q, %v", got, err)
	}
}

func TestWhatIsNoFileIsSaid(t *testing.T) { // FI-04
	t.Parallel()
	r := newRig(t)
	r.must(r.write("file", "text"))
	r.must(os.Mkdir(r.at("dir"), 0o755))
	r.must(unix.Mkfifo(r.at("pipe"), 0o644))
	r.must(os.Symlink("loop", r.at("loop")))
	r.must(os.Symlink("ping/x", r.at("pong")))
	r.must(os.Symlink("pong/x", r.at("ping")))
	for name, want := range map[string]files.Kind{
		"nothing": files.NotFound, "dir/nothing": files.NotFound, "nothing/below": files.NotFound, "file/": files.NotDirectory,
		"file/below": files.NotDirectory, "loop": files.Loop, "ping": files.Loop,
		strings.Repeat("n", 256): files.TooLong, strings.Repeat("n/", 2049): files.TooLong,
	} {
		if got, err := r.read(name); kindOf(err) != want {
			t.Errorf("read %.20q = %q, %v, want %s", name, got, err, want)
		}
	}
	for name, want := range map[string]string{"dir": "directory", "dir/": "directory", "": "directory", ".": "directory", "pipe": "other"} {
		if got, err := r.read(name); err != nil || got != want {
			t.Errorf("read %q = %q, %v, want %s", name, got, err, want)
		}
	}
	for name, want := range map[string]files.Kind{
		"dir": files.IsDirectory, "": files.IsDirectory, "pipe": files.NotRegular, "file/below": files.NotDirectory, "loop": files.Loop,
	} {
		if err := r.write(name, "x"); kindOf(err) != want {
			t.Errorf("write %q = %v, want %s", name, err, want)
		}
	}
	r.clean()
}

// TestWhatTheSystemMakesUpIsNoFile: /proc/self would be the server's own process.
func TestWhatTheSystemMakesUpIsNoFile(t *testing.T) {
	t.Parallel()
	w := files.Where{Dir: "/", Names: []string{"/"}, Open: true}
	for _, name := range []string{"proc/self/environ", "/proc/self/root/proc/self/status", "../proc/self/maps"} {
		if f, _, err := w.OpenFile(name); kindOf(err) != files.NotRegular {
			t.Errorf("open %q = %v, %v, want %s", name, f, err, files.NotRegular)
		}
	}
}

// TestSwapsLeadNowhereElse renames directories and links under the feet of
// readers and writers.
func TestSwapsLeadNowhereElse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.must(os.Mkdir(r.at("real"), 0o755))
	r.must(os.WriteFile(r.at("real/secret"), []byte("public"), 0o644))
	r.must(os.Symlink(r.outside, r.at("evil")))
	r.must(os.Rename(r.at("real"), r.at("d")))
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default: // both names are there at any time
				_ = unix.Renameat2(unix.AT_FDCWD, r.at("d"), unix.AT_FDCWD, r.at("evil"), unix.RENAME_EXCHANGE)
			}
		}
	})
	var served, refused int
	for i := range 2000 {
		switch got, err := r.read("d/secret"); {
		case err == nil && got == "public":
			served++
		case err == nil:
			t.Fatalf("read %q from outside", got)
		default:
			refused++
		}
		if i%4 == 0 {
			_ = r.write("d/made", "mine") // either way is right; outside is looked at below
			_, _ = r.List(t.Context(), "", files.Listing{Recursive: true, Limit: 100}, func(e files.Entry) error {
				if strings.HasSuffix(e.Path, "/secret") && e.Info.Size != int64(len("public")) {
					t.Errorf("listed %q of outside", e.Path)
				}
				return nil
			})
		}
	}
	close(stop)
	swapping.Wait()
	r.untouched()
	if served == 0 || refused == 0 {
		t.Errorf("served %d, refused %d times: the race was not met", served, refused)
	}
}

// all lists a tree in pages.
func (r *rig) all(l files.Listing) (list []files.Entry, pages int) {
	r.t.Helper()
	for {
		pages++
		more, err := r.List(r.t.Context(), "", l, func(e files.Entry) error {
			list = append(list, e)
			return nil
		})
		r.must(err)
		if !more {
			return list, pages
		}
		l.After = list[len(list)-1].Path
	}
}

func paths(list []files.Entry) []string {
	var names []string
	for _, e := range list {
		names = append(names, e.Path)
	}
	return names
}

func TestListingsOfAnyPageSizeAgree(t *testing.T) { // FI-12, FI-14, FI-15
	t.Parallel()
	r := newRig(t)
	for _, name := range []string{
		"a/1", "a/2/x", "a/2/y", "a/3", "a.b", "a-b", "é.txt", "e\u0301.txt", "q?", "x|y", "new\nline", "\xff", "b", "z/z/z/z/z",
	} {
		r.must(r.write(name, name))
	}
	for name, target := range map[string]string{"loop": ".", "m1": "m2", "m2": "m1", "a/up": "..", "out": r.outside} {
		r.must(os.Symlink(target, r.at(name)))
	}
	r.must(os.Mkdir(r.at("empty"), 0o700))
	want, _ := r.all(files.Listing{Recursive: true, Limit: 1000})
	var walked []string
	r.must(filepath.WalkDir(r.Dir, func(p string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(r.Dir, p); rel != "." {
			walked = append(walked, rel)
		}
		return err
	}))
	if !slices.Equal(paths(want), walked) {
		t.Errorf("listed %q\nwalked %q", paths(want), walked)
	}
	top, _ := r.all(files.Listing{Limit: 1000})
	for limit := 1; limit < 12; limit++ {
		if got, pages := r.all(files.Listing{Recursive: true, Limit: limit}); !slices.Equal(got, want) || pages != (len(want)+limit-1)/limit {
			t.Errorf("in %d pages of %d: %q\nwant %q", pages, limit, paths(got), paths(want))
		}
		if got, _ := r.all(files.Listing{Limit: limit}); !slices.Equal(got, top) {
			t.Errorf("the top in pages of %d: %q\nwant %q", limit, paths(got), paths(top))
		}
	}
	i := slices.IndexFunc(want, func(e files.Entry) bool { return e.Path == "loop" })
	if e := want[i]; e.Info.Type != files.Symlink || e.Target != "." {
		t.Errorf("loop is %+v", e)
	}
}

func TestDeepTreesAndBigDirectoriesAreListed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	deep := ""
	for range 700 {
		deep = filepath.Join(deep, "d")
	}
	r.must(os.MkdirAll(r.at(deep), 0o755))
	list, _ := r.all(files.Listing{Recursive: true, Limit: 10000})
	if last := list[len(list)-1]; len(list) != 512 || !last.Closed {
		t.Errorf("%d directories, the last one %+v: want the limit, said", len(list), last)
	}
	for i := range 9000 {
		r.must(os.WriteFile(r.at(fmt.Sprintf("f%06d", i)), nil, 0o644))
	}
	if list, pages := r.all(files.Listing{Limit: 1000}); len(list) != 9001 || pages != 10 || !slices.IsSorted(paths(list)) {
		t.Errorf("%d names in %d pages", len(list), pages)
	}
}

func TestHolesAreReadAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f, err := os.Create(r.at("sparse"))
	r.must(err)
	const size = 5 << 30
	_, err = f.WriteAt([]byte("end"), size-3)
	r.must(errors.Join(err, f.Close()))
	g, info, err := r.OpenFile("sparse")
	r.must(err)
	defer g.Close()
	tail := make([]byte, 6)
	_, err = g.ReadAt(tail, size-6)
	r.must(err)
	if info.Size != size || !bytes.Equal(tail, []byte("\x00\x00\x00end")) {
		t.Errorf("%d bytes that end with %q", info.Size, tail)
	}
}

func BenchmarkList(b *testing.B) {
	r := newRig(b)
	for i := range 10000 {
		r.must(os.WriteFile(r.at(fmt.Sprintf("f%06d", i)), nil, 0o644))
	}
	for b.Loop() {
		n := 0
		_, err := r.List(b.Context(), "", files.Listing{Limit: 10000}, func(files.Entry) error { n++; return nil })
		if err != nil || n != 10000 {
			b.Fatal(n, err)
		}
	}
}
