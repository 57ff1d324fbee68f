package sandboxtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// wallsFiles has the keeper's programs for files work where nothing can be taken for
// granted: with the system calls, the /proc and the mounts of this driver.
func wallsFiles(t *testing.T, c *cell) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("host secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.sh("mkdir -p files/d && cd files && printf text > d/f && ln -s d/f rel && ln -s / top && ln -s ../.. up && ln -s " + secret + " out && ln -s /proc/self/root proc && ln -s gone/new later")
	work := func(name string) []string {
		return []string{link.PathURI(sandbox.WorkspacePath), link.PathURI(sandbox.WorkspacePath + "/" + name)}
	}
	for _, test := range []struct {
		program string
		paths   []string
		more    []string
		code    int
		says    string
	}{
		{link.ProgramRead, work("files/d/f"), []string{"1", "2"}, 0, "ex"},
		{link.ProgramRead, work("files/rel"), []string{"0", "-1"}, 0, "text"},
		{link.ProgramWrite, work("files/made/new"), []string{"640", "-"}, 0, `"size":0`},
		{link.ProgramWrite, work("files/later"), []string{"-", "0"}, 0, `"size":0`},
		{link.ProgramList, work("files"), []string{"true", "100", ""}, 0, "d/f"},
		{link.ProgramPack, work("files/d"), nil, 0, "text"},
		{link.ProgramUnpack, work("files/empty"), nil, 2, "archive"},
		{link.ProgramWrite, []string{link.PathURI("/"), link.PathURI("/tmp/files/x")}, []string{"-", "-"}, 0, `"size":0`},
		{link.ProgramRead, []string{link.PathURI("/"), link.PathURI("/tmp/files/x")}, []string{"0", "-1"}, 0, `"type":"file"`},
		{link.ProgramRead, work("files/out"), []string{"0", "-1"}, 2, "escapes"},
		{link.ProgramRead, work("files/top/etc/passwd"), []string{"0", "-1"}, 2, "escapes"},
		{link.ProgramRead, work("files/up/etc/passwd"), []string{"0", "-1"}, 2, "escapes"},
		{link.ProgramRead, work("files/proc/etc/passwd"), []string{"0", "-1"}, 2, "escapes"},
		{link.ProgramWrite, work("files/top/tmp/x"), []string{"-", "-"}, 2, "escapes"},
		{link.ProgramUnpack, work("files/top"), nil, 2, "escapes"},
		{link.ProgramRead, []string{link.PathURI("/"), link.PathURI("/proc/self/environ")}, []string{"0", "-1"}, 2, "fault"},
		{link.ProgramRead, []string{link.PathURI("/"), link.PathURI(secret)}, []string{"0", "-1"}, 2, "fault"},
	} {
		argv := append(append([]string{test.program}, test.paths...), test.more...)
		out, code := c.run(argv...)
		if code != test.code || !strings.Contains(out, test.says) || strings.Contains(out, "host secret") {
			t.Errorf("%q ended with %d and %q, want %d and %q", argv, code, out, test.code, test.says)
		}
	}
	if _, err := os.Stat(filepath.Join(c.Dirs().Workspace, "files/gone/new")); err != nil {
		t.Error(err)
	}
}
