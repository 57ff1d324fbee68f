package engine_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// desk is a bare session on a whole server.
type desk struct {
	testing.TB
	*servertest.Server
	ref engine.Ref
}

const deskWait = 30 * time.Second

func newDesk(t testing.TB) *desk {
	t.Helper()
	d := &desk{TB: t, Server: servertest.Start(t, servertest.Config{})}
	made, err := d.engine().CreateSession(t.Context(), engine.Create{
		Project: sojourn.DefaultProject, Contract: sojourn.ContractExec, Runtime: sojourn.RuntimeNone,
	})
	d.must(err)
	d.ref = engine.Ref{Project: sojourn.DefaultProject, Contract: sojourn.ContractExec, ID: made.Facts.Session.ID}
	return d
}

// engine is that of the server, which changes when it is restarted.
func (d *desk) engine() *engine.Engine { return d.Server.Server.Engine }

// started is a desk whose session runs.
func started(t testing.TB) *desk {
	t.Helper()
	d := newDesk(t)
	_, err := d.engine().StartSession(t.Context(), d.ref, deskWait)
	d.must(err)
	return d
}

func (d *desk) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

func (d *desk) write(name, text string) (engine.FileInfo, error) {
	list, err := d.engine().WriteFiles(d.Context(), d.ref, []engine.FileWrite{{Path: name, Size: int64(len(text)), Data: strings.NewReader(text)}}, deskWait)
	if len(list) == 0 {
		return engine.FileInfo{}, err
	}
	return list[0], err
}

func (d *desk) read(name string, from, n int64) (engine.FileInfo, string, error) {
	r, err := d.engine().ReadFile(d.Context(), d.ref, name, from, n, deskWait)
	if err != nil {
		return engine.FileInfo{}, "", err
	}
	defer r.Close()
	var b bytes.Buffer
	err = r.Copy(d.Context(), &b)
	return r.Info, b.String(), err
}

// list lists all pages of a directory as "path type".
func (d *desk) list(q engine.FileQuery) ([]string, error) {
	var names []string
	for {
		page, err := d.engine().ListFiles(d.Context(), d.ref, q, deskWait)
		if err != nil {
			return names, err
		}
		for _, e := range page.Entries {
			names = append(names, e.Path+" "+string(e.Type))
		}
		if q.After = page.Next; q.After == "" {
			return names, nil
		}
	}
}

// pack returns the files of an archive: their contents, what links hold, "/" for
// directories.
func (d *desk) pack(name string) (map[string]string, error) {
	a, err := d.engine().PackFiles(d.Context(), d.ref, name, deskWait)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	var b bytes.Buffer
	if left, err := a.Copy(d.Context(), &b); err != nil || left != "" {
		return nil, fmt.Errorf("%w, left out %q", err, left)
	}
	return contents(tar.NewReader(&b))
}

func contents(r *tar.Reader) (map[string]string, error) {
	files := map[string]string{}
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return files, err
		}
		text, err := io.ReadAll(r)
		if err != nil {
			return files, err
		}
		switch files[h.Name] = string(text); h.Typeflag {
		case tar.TypeDir:
			files[h.Name] = "/"
		case tar.TypeSymlink:
			files[h.Name] = "-> " + h.Linkname
		case tar.TypeLink:
			files[h.Name] = "= " + h.Linkname
		}
	}
}

// workspace is where the files of the session's sandbox lie on the host.
func (d *desk) workspace() string {
	d.Helper()
	list, err := d.Fake.List(d.Context())
	d.must(err)
	dirs, err := d.Fake.Remains(d.Context(), list[0])
	d.must(err)
	return dirs.Workspace
}

func reasonOf(err error) string {
	if e, ok := errors.AsType[*sojourn.Error](err); ok && e.Details["reason"] != "" {
		return e.Details["reason"]
	}
	return string(sojourn.CodeOf(err))
}

// events counts the events of a type.
func (d *desk) events(kind sojourn.EventType) int {
	d.Helper()
	list, _, err := d.engine().EventsOf(d.Context(), d.ref, 0, 1000, []sojourn.EventType{kind})
	d.must(err)
	return len(list)
}

func TestFilesComeBackAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	d := started(t)
	big := strings.Repeat("0123456789abcdef", 300_000)
	for name, want := range map[string]string{"big": "/workspace/big", "a/b/\xff": "/workspace/a/b/\xff", "/workspace/a/./c": "/workspace/a/c", "/etc/deep/x": "/etc/deep/x"} {
		info, err := d.write(name, big)
		if err != nil || info.Path != want || info.Size != int64(len(big)) || info.Survives() != strings.HasPrefix(want, "/workspace") {
			t.Fatalf("write %q = %+v, %v", name, info, err)
		}
		for _, part := range []struct{ from, n, lo, hi int64 }{
			{0, -1, 0, 4_800_000}, {4_799_990, 5, 4_799_990, 4_799_995}, {-3, -1, 4_799_997, 4_800_000}, {9e9, 1, 0, 0}, {7, 0, 0, 0},
		} {
			got, text, err := d.read(name, part.from, part.n)
			if err != nil || text != big[part.lo:part.hi] || got.Tag() != info.Tag() || got.Saved {
				t.Errorf("%d bytes from %d of %q: %d bytes, %+v, %v", part.n, part.from, name, len(text), got, err)
			}
		}
	}
	if n := d.events(sojourn.EventFileWritten); n != 4 {
		t.Errorf("%d events say that files were written, want 4", n)
	}
	facts, err := d.engine().Session(t.Context(), d.ref)
	d.must(err)
	if !facts.Unsaved() && facts.Head == nil { // a quiet sandbox is captured
		t.Error("what was written is neither known to be unsaved nor in a checkpoint")
	}
}

func TestPathsOfFilesAreRefused(t *testing.T) { // FI-04, FI-05, FI-06
	t.Parallel()
	d := started(t)
	_, err := d.write("file", "text")
	d.must(err)
	outside := t.TempDir()
	for name, target := range map[string]string{"dangling": outside + "/new", "dir": outside, "up": "..", "loop": "loop"} {
		d.must(os.Symlink(target, filepath.Join(d.workspace(), name)))
	}
	for name, want := range map[string]string{
		"../x": "escapes", "a/../../x": "escapes", "/workspace/../etc/x": "escapes", "dangling": "escapes", "dir/x": "escapes",
		"up/x": "escapes", "a\x00b": "too_long", strings.Repeat("a/", 2500): "too_long", strings.Repeat("n", 256): "too_long", "loop": "loop",
		"file/x": "not_directory", "file/": "",
	} {
		_, _, err := d.read(name, 0, -1)
		read := want
		if want == "" {
			read = "not_directory"
		}
		if got := reasonOf(err); got != read {
			t.Errorf("read %.40q = %v, want %s", name, err, read)
		}
		if want == "" || strings.HasSuffix(name, "/") {
			want = "is_directory"
			if len(name) > 4096 {
				want = "too_long"
			}
		}
		if _, err := d.write(name, "mine"); reasonOf(err) != want {
			t.Errorf("write %.40q = %v, want %s", name, err, want)
		}
	}
	for _, name := range []string{"none", "/none/x"} {
		if _, _, err := d.read(name, 0, -1); sojourn.CodeOf(err) != sojourn.CodeNotFound {
			t.Errorf("read %q = %v", name, err)
		}
		if _, err := d.list(engine.FileQuery{Path: name}); sojourn.CodeOf(err) != sojourn.CodeNotFound {
			t.Errorf("list %q = %v", name, err)
		}
		if _, err := d.pack(name); sojourn.CodeOf(err) != sojourn.CodeNotFound {
			t.Errorf("pack %q = %v", name, err)
		}
	}
	if _, err := d.list(engine.FileQuery{Path: "file"}); reasonOf(err) != "not_directory" {
		t.Errorf("list a file = %v", err)
	}
	if _, err := d.list(engine.FileQuery{After: "Li4"}); sojourn.CodeOf(err) != sojourn.CodeInvalidCursor { // ".."
		t.Errorf("a made-up cursor = %v", err)
	}
	info, text, err := d.read(".", 0, -1)
	if err != nil || info.Type != engine.TypeDirectory || text != "" {
		t.Errorf("read the workspace = %+v, %q, %v", info, text, err)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside there is %v, %v", left, err)
	}
}

func TestACutUploadLeavesTheOldFile(t *testing.T) { // FI-02
	t.Parallel()
	d := started(t)
	_, err := d.write("f", "old")
	d.must(err)
	long := strings.Repeat("x", 3<<20)
	broken := func() io.Reader {
		return io.MultiReader(strings.NewReader(long), iotest.ErrReader(io.ErrUnexpectedEOF))
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the caller is gone")
	leaving := io.MultiReader(strings.NewReader(long), readFunc(func([]byte) (int, error) { cancel(gone); <-ctx.Done(); return 0, io.EOF }))
	for what, w := range map[string]engine.FileWrite{
		"a body that breaks off":    {Path: "f", Size: -1, Data: broken()},
		"a body that is too short":  {Path: "f", Size: int64(len(long)) + 1, Data: strings.NewReader(long)},
		"a body that is too long":   {Path: "f", Size: 5, Data: strings.NewReader(long)},
		"a caller who leaves":       {Path: "f", Size: -1, Data: leaving},
		"a path that is no file":    {Path: ".", Size: -1, Data: strings.NewReader(long)},
		"a body that cannot be had": {Path: "f", Size: 1, Data: iotest.ErrReader(os.ErrDeadlineExceeded)},
	} {
		if _, err := d.engine().WriteFiles(ctx, d.ref, []engine.FileWrite{w}, deskWait); err == nil || sojourn.CodeOf(err) == sojourn.CodeInternal && !errors.Is(err, gone) {
			t.Errorf("%s = %v", what, err)
		}
		if _, text, err := d.read("f", 0, -1); err != nil || text != "old" {
			t.Errorf("behind %s f holds %d bytes, %v", what, len(text), err)
		}
	}
	names, err := d.list(engine.FileQuery{})
	if err != nil || !slices.Equal(names, []string{"/workspace/f file"}) {
		t.Errorf("left is %q, %v", names, err)
	}
	if n := d.events(sojourn.EventFileWritten); n != 1 {
		t.Errorf("%d events say that files were written, want 1", n)
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(b []byte) (int, error) { return f(b) }

// furnish makes a tree of all kinds, and returns what an archive of it holds.
func (d *desk) furnish() map[string]string {
	d.Helper()
	dir := d.workspace()
	for _, err := range []error{
		os.MkdirAll(dir+"/tree/a/b", 0o755), os.Mkdir(dir+"/tree/empty", 0o755), os.WriteFile(dir+"/tree/zero", nil, 0o600),
		os.WriteFile(dir+"/tree/a/file", []byte("text"), 0o640), os.Link(dir+"/tree/a/file", dir+"/tree/second"),
		os.Symlink("a", dir+"/tree/link"), os.Symlink(".", dir+"/tree/a/loop"), os.Symlink("/workspace/tree/a/file", dir+"/tree/abs"),
		os.Symlink("/etc/passwd", dir+"/tree/out"), os.WriteFile(dir+"/tree/e\u0301\n\xff", []byte("odd"), 0o644),
		os.WriteFile(dir+"/tree/é", []byte(strings.Repeat("long", 1<<20)), 0o644),
	} {
		d.must(err)
	}
	// What was put there from outside the session has to be known to it.
	_, err := d.write("tree/mark", "mark")
	d.must(err)
	return map[string]string{
		"a/": "/", "a/b/": "/", "a/file": "text", "a/loop": "-> .", "abs": "-> /workspace/tree/a/file", "empty/": "/", "e\u0301\n\xff": "odd",
		"link": "-> a", "mark": "mark", "out": "-> /etc/passwd", "second": "= a/file", "zero": "", "é": strings.Repeat("long", 1<<20),
	}
}

// compare reads a furnished tree in every way.
func (d *desk) compare(want map[string]string, saved bool) {
	d.Helper()
	for _, name := range []string{"tree", "/workspace/tree/", "tree/../tree"} {
		if got, err := d.pack(name); err != nil || !maps.Equal(got, want) {
			d.Errorf("packed %q: %.300q, %v", name, got, err)
		}
	}
	if got, err := d.pack("tree/link"); err != nil || !maps.Equal(got, map[string]string{"link": "-> a"}) {
		d.Errorf("packed a link: %q, %v", got, err)
	}
	if got, err := d.pack("tree/link/"); err != nil || !maps.Equal(got, map[string]string{"b/": "/", "file": "text", "loop": "-> ."}) {
		d.Errorf("packed what a link leads to: %q, %v", got, err)
	}
	for name, text := range map[string]string{
		"tree/a/file": "text", "tree/second": "text", "tree/link/loop/loop/file": "text", "tree/abs": "text", "tree/e\u0301\n\xff": "odd", "tree/zero": "",
	} {
		info, got, err := d.read(name, 0, -1)
		if err != nil || got != text || info.Saved != saved {
			d.Errorf("read %q = %q, %+v, %v", name, got, info, err)
		}
	}
	for name, why := range map[string]string{"tree/out": "escapes", "tree/a/none": "not_found", "tree/zero/x": "not_directory"} {
		if _, _, err := d.read(name, 0, -1); reasonOf(err) != why {
			d.Errorf("read %q = %v, want %s", name, err, why)
		}
	}
	if _, got, err := d.read("tree/é", -6, 4); err != nil || got != "ngli"[:2]+"lo" {
		d.Errorf("a part of a long file = %q, %v", got, err)
	}
	all := []string{
		"a directory", "a/b directory", "a/file file", "a/loop symlink", "abs symlink", "empty directory", "e\u0301\n\xff file", "link symlink",
		"mark file", "out symlink", "second file", "zero file", "é file",
	}
	for _, limit := range []int{1, 3, 1000} {
		names, err := d.list(engine.FileQuery{Path: "tree", Recursive: true, Limit: limit})
		for i := range names {
			names[i] = strings.TrimPrefix(names[i], "/workspace/tree/")
		}
		if err != nil || !slices.Equal(names, all) {
			d.Errorf("listed in pages of %d: %q, %v", limit, names, err)
		}
		names, err = d.list(engine.FileQuery{Path: "tree/link", Limit: limit})
		if want := []string{"/workspace/tree/link/b directory", "/workspace/tree/link/file file", "/workspace/tree/link/loop symlink"}; err != nil || !slices.Equal(names, want) {
			d.Errorf("listed through a link in pages of %d: %q, %v", limit, names, err)
		}
	}
}

// TestFilesOutliveTheSandbox reads the same tree from a sandbox, from the next one,
// and from checkpoints when there is none.
func TestFilesOutliveTheSandbox(t *testing.T) { // FI-04, FI-12, FI-14, FI-15
	t.Parallel()
	d := started(t)
	want := d.furnish()
	d.compare(want, false)

	_, err := d.engine().PauseSession(t.Context(), d.ref)
	d.must(err)
	d.compare(want, true)
	if _, err := d.write("tree/x", "x"); sojourn.CodeOf(err) != sojourn.CodeInvalidState {
		t.Errorf("a write while paused = %v", err)
	}
	if _, _, err := d.read("/etc/passwd", 0, -1); sojourn.CodeOf(err) != sojourn.CodeNotFound {
		t.Errorf("a file outside the workspace while paused = %v", err)
	}

	_, err = d.engine().ResumeSession(t.Context(), d.ref, deskWait)
	d.must(err)
	d.compare(want, false)
	info, _, err := d.read("tree/mark", 0, -1)
	d.must(err)

	_, err = d.engine().StopSession(t.Context(), d.ref, "done")
	d.must(err)
	d.compare(want, true)
	if ended, _, err := d.read("tree/mark", 0, -1); err != nil || ended.Tag() != info.Tag() {
		t.Errorf("the tag of a file was %s, and is %s, %v", info.Tag(), ended.Tag(), err)
	}
}

func TestFilesNeedASandboxOrACheckpoint(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	if _, _, err := d.read("x", 0, -1); sojourn.CodeOf(err) != sojourn.CodeInvalidState {
		t.Errorf("read before the start = %v", err)
	}
	if _, err := d.write("x", "x"); sojourn.CodeOf(err) != sojourn.CodeInvalidState {
		t.Errorf("write before the start = %v", err)
	}
	_, err := d.engine().CancelSession(t.Context(), d.ref)
	d.must(err)
	if _, _, err := d.read("x", 0, -1); sojourn.CodeOf(err) != sojourn.CodeNotFound {
		t.Errorf("read what never was = %v", err)
	}
	foreign := d.ref
	foreign.Project = "another"
	if _, err := d.engine().ReadFile(t.Context(), foreign, "x", 0, -1, deskWait); sojourn.CodeOf(err) != sojourn.CodeNotFound {
		t.Errorf("read a foreign session = %v", err)
	}
}

func TestTreesAreUnpacked(t *testing.T) { // FI-08, FI-10
	t.Parallel()
	d := started(t)
	want := d.furnish()
	a, err := d.engine().PackFiles(t.Context(), d.ref, "tree", deskWait)
	d.must(err)
	var b bytes.Buffer
	_, err = a.Copy(t.Context(), &b)
	d.must(err)
	a.Close()
	for _, to := range []string{"copy/deep", "/elsewhere"} {
		u, err := d.engine().UnpackFiles(t.Context(), d.ref, to, bytes.NewReader(b.Bytes()), deskWait)
		if err != nil || u.LeftOut != "" || u.Bytes < 4<<20 || u.Entries != int64(len(want)) {
			t.Fatalf("unpack to %s: %+v, %v", to, u, err)
		}
		if got, err := d.pack(to); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s has come back as %.300q, %v", to, got, err)
		}
	}
	d.must(os.Symlink(t.TempDir(), filepath.Join(d.workspace(), "out")))
	for name, refused := range map[string]string{"evil": `"../x"`, "out/x": "", "../x": ""} {
		var evil bytes.Buffer
		w := tar.NewWriter(&evil)
		d.must(w.WriteHeader(&tar.Header{Name: "../x", Typeflag: tar.TypeReg, Mode: int64(fs.ModePerm)}))
		d.must(w.Close())
		_, err := d.engine().UnpackFiles(t.Context(), d.ref, name, &evil, deskWait)
		if sojourn.CodeOf(err) != sojourn.CodeInvalid || !strings.Contains(err.Error(), refused) {
			t.Errorf("unpack a hostile archive to %s = %v", name, err)
		}
	}
}
