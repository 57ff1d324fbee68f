package keeper_test

import (
	"archive/tar"
	"bytes"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// shed is a keeper whose workspace lies elsewhere on the host, beside what nobody
// may reach from it.
type shed struct {
	t         *testing.T
	c         *link.Client
	workspace string
	outside   string
}

func newShed(t *testing.T) *shed {
	t.Helper()
	top := t.TempDir()
	s := &shed{t: t, workspace: filepath.Join(top, "work"), outside: filepath.Join(top, "rest")}
	for _, d := range []string{s.workspace, s.outside} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	_, dial := serve(t, keeper.Config{MapPath: func(p string) string {
		p = path.Clean("/" + p)
		if rest, ok := strings.CutPrefix(p+"/", "/workspace/"); ok {
			return filepath.Join(s.workspace, rest)
		}
		return filepath.Join(s.outside, p)
	}})
	s.c = dial()
	return s
}

// run runs a program for files on a path, below the workspace when it lies there.
func (s *shed) run(input []byte, program, name string, more ...string) (outcome, link.FileReply) {
	s.t.Helper()
	root := "/"
	if strings.HasPrefix(name+"/", "/workspace/") {
		root = "/workspace"
	}
	o := feed(s.t, s.c, input, append([]string{program, link.PathURI(root), link.PathURI(name)}, more...)...)
	line, _, _ := bytes.Cut(o.out["stderr"], []byte("\n"))
	r, err := link.ParseFileReply(line)
	if err != nil {
		s.t.Fatalf("%s %s said %q: %v", program, name, o.out["stderr"], err)
	}
	return o, r
}

func TestFilesAreWrittenReadAndListed(t *testing.T) {
	t.Parallel()
	s := newShed(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 300_000) // more than a spool holds
	for _, name := range []string{"/workspace/a/b\xff", "/etc/x"} {
		if _, r := s.run(big, link.ProgramWrite, name, "640", "4800000"); r.Fault != "" || r.File == nil || r.File.Size != 4_800_000 || r.File.Mode != 0o640 {
			t.Fatalf("write %q: %+v", name, r)
		}
		for _, part := range []struct {
			from, length string
			want         []byte
		}{{"0", "-1", big}, {"15", "3", []byte("f01")}, {"-2", "-1", []byte("ef")}, {"4799999", "100", []byte("f")}, {"9999999", "-1", nil}, {"0", "0", nil}} {
			o, r := s.run(nil, link.ProgramRead, name, part.from, part.length)
			if !bytes.Equal(o.out["stdout"], part.want) || r.Length != int64(len(part.want)) || r.File.Size != 4_800_000 {
				t.Errorf("read %q from %s: %d bytes, %+v", name, part.from, len(o.out["stdout"]), r)
			}
		}
	}
	o, r := s.run(nil, link.ProgramList, "/workspace", "true", "1", "")
	e, rest, ok, err := link.NextFileEntry(o.out["stdout"])
	if err != nil || !ok || len(rest) > 0 || e.Path != "a" || e.Type != "directory" || !r.More {
		t.Errorf("first page: %+v, %d bytes behind it, %v, %+v", e, len(rest), err, r)
	}
	o, r = s.run(nil, link.ProgramList, "/workspace", "true", "9", link.PathURI("/a"))
	if e, rest, ok, err = link.NextFileEntry(o.out["stdout"]); err != nil || !ok || len(rest) > 0 || e.Path != "a/b\xff" || e.Size != 4_800_000 || r.More {
		t.Errorf("second page: %+v, %d bytes behind it, %v, %+v", e, len(rest), err, r)
	}
}

func TestProgramsForFilesRefuse(t *testing.T) {
	t.Parallel()
	s := newShed(t)
	for name, target := range map[string]string{"out": s.outside, "new": s.outside + "/new", "etc": "/etc"} {
		if err := os.Symlink(target, filepath.Join(s.workspace, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		program, name string
		more          []string
		fault         string
	}{
		{link.ProgramRead, "/workspace/out/x", []string{"0", "-1"}, "escapes"},
		{link.ProgramRead, "/workspace/none", []string{"0", "-1"}, "not_found"},
		{link.ProgramRead, "/workspace", []string{"0", "x"}, "internal"},
		{link.ProgramRead, "/workspace", nil, "internal"},
		{link.ProgramWrite, "/workspace/new", []string{"-", "-"}, "escapes"},
		{link.ProgramWrite, "/workspace/out/x", []string{"-", "-"}, "escapes"},
		{link.ProgramWrite, "/workspace/short", []string{"-", "9"}, "cut"},
		{link.ProgramWrite, "/workspace", []string{"-", "-"}, "is_directory"},
		{link.ProgramList, "/workspace/etc", []string{"false", "5", ""}, "escapes"},
		{link.ProgramPack, "/workspace/out/", nil, "escapes"},
		{link.ProgramPack, "/workspace/none", nil, "not_found"},
		{link.ProgramUnpack, "/workspace/out", nil, "escapes"},
		{link.ProgramUnpack, "/workspace/out/deep", nil, "escapes"},
		{link.ProgramUnpack, "/workspace/dir", nil, "archive"},
	} {
		if o, r := s.run([]byte("input"), test.program, test.name, test.more...); r.Fault != test.fault || *o.ExitCode != 2 {
			t.Errorf("%s %s ended with %d and %+v, want %s", test.program, test.name, *o.ExitCode, r, test.fault)
		}
	}
	o := feed(t, s.c, nil, link.ProgramRead, link.PathURI("/workspace"), link.PathURI("/etc/x"), "0", "-1")
	if !strings.Contains(string(o.out["stderr"]), `"escapes"`) {
		t.Errorf("a path beside its root: %q", o.out["stderr"])
	}
	if left, err := os.ReadDir(s.outside); err != nil || len(left) > 0 {
		t.Errorf("outside there is %v, %v", left, err)
	}
}

func TestTreesArePackedAndUnpacked(t *testing.T) { // FI-04, FI-08, FI-10
	t.Parallel()
	s := newShed(t)
	in := filepath.Join(s.workspace, "in")
	for _, err := range []error{
		os.MkdirAll(in+"/dir-1/dir-2", 0o755), os.Mkdir(in+"/empty", 0o700), os.WriteFile(in+"/file-a", []byte("text"), 0o644),
		os.Link(in+"/file-a", in+"/dir-1/dir-2/file-b"), os.Symlink("nowhere", in+"/link"), os.WriteFile(in+"/zero", nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	packed, r := s.run(nil, link.ProgramPack, "/workspace/in")
	if *packed.ExitCode != 0 || r.Fault != "" {
		t.Fatalf("pack: %+v, %s", r, packed.out["stderr"])
	}
	for _, to := range []string{"/workspace/sub/dir", "/rest"} {
		if o, r := s.run(packed.out["stdout"], link.ProgramUnpack, to); *o.ExitCode != 0 || r.Length != 4 {
			t.Errorf("unpack to %s: %+v", to, r)
		}
	}
	dir := filepath.Join(s.workspace, "sub", "dir")
	a, err1 := os.Stat(dir + "/file-a")
	b, err2 := os.Stat(dir + "/dir-1/dir-2/file-b")
	to, err3 := os.Readlink(dir + "/link")
	empty, err4 := os.Stat(dir + "/empty")
	if err1 != nil || err2 != nil || !os.SameFile(a, b) || err3 != nil || to != "nowhere" || err4 != nil || empty.Mode().Perm() != 0o700 {
		t.Errorf("came back: %v %v %v %q %v %v", err1, err2, err3, to, err4, empty)
	}
	var evil bytes.Buffer
	w := tar.NewWriter(&evil)
	for _, h := range []tar.Header{
		{Name: "moo", Typeflag: tar.TypeSymlink, Linkname: s.outside}, {Name: "moo/x", Typeflag: tar.TypeReg},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if o, r := s.run(evil.Bytes(), link.ProgramUnpack, "/workspace/evil"); *o.ExitCode != 2 || r.Fault != link.FaultArchive || !strings.Contains(r.Detail, `"moo/x"`) {
		t.Errorf("an archive that writes through its own link: %+v", r)
	}
	if _, err := os.Lstat(s.outside + "/x"); err == nil {
		t.Error("it came through")
	}
}
