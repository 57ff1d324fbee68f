package keeper_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
)

func TestFailedStartsSayWhy(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := file("plain", "echo no", 0o644)
	orphan := file("orphan", "#!/no/such/interpreter\n", 0o755)
	notELF := file("data", "\x00\x01\x02", 0o755)
	marker := filepath.Join(dir, "ran")

	_, dial := serve(t, keeper.Config{})
	c := dial()
	for _, tt := range []struct {
		name string
		argv []string
		cwd  string
		code int // 0: none
		kind string
		text string
	}{
		{"missing", []string{"no-such-xyz"}, "/", 127, link.FailureProgram, "ENOENT"},
		{"missing path", []string{"/no/such/xyz"}, "/", 127, link.FailureProgram, "ENOENT"},
		{"empty name", []string{""}, "/", 127, link.FailureProgram, "ENOENT"},
		{"no x bit", []string{plain}, "/", 126, link.FailureProgram, "EACCES"},
		{"no interpreter", []string{orphan}, "/", 127, link.FailureProgram, "interpreter"},
		{"not a program", []string{notELF}, "/", 126, link.FailureProgram, "ENOEXEC"},
		{"directory", []string{dir}, "/", 126, link.FailureProgram, "EISDIR"},
		{"below a file", []string{plain + "/x"}, "/", 127, link.FailureProgram, "ENOTDIR"},
		{"long name", []string{"/" + strings.Repeat("x", 300)}, "/", 127, link.FailureProgram, "ENAMETOOLONG"},
		{"no directory", []string{"touch", marker}, "/no/such/dir", 0, link.FailureCwd, "ENOENT"},
		{"file as directory", []string{"touch", marker}, plain, 0, link.FailureCwd, "ENOTDIR"},
		{"neither", []string{"no-such-xyz"}, "/no/such/dir", 0, link.FailureCwd, "ENOENT"},
	} {
		o := run(t, c, link.StartParams{ProcessID: tt.name, Argv: tt.argv, Cwd: tt.cwd})
		code := 0
		if o.ExitCode != nil {
			code = *o.ExitCode
		}
		if !o.Exited || code != tt.code || o.FailureKind != tt.kind || !strings.Contains(o.Failure, tt.text) {
			t.Errorf("%s: code %d kind %q failure %q; want %d %q …%s…", tt.name, code, o.FailureKind, o.Failure, tt.code, tt.kind, tt.text)
		}
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("something ran in a directory that is not there")
	}
	wantCode(t, run(t, c, link.StartParams{ProcessID: "shell", Argv: []string{"sh", "-c", "no-such-xyz"}}), 127)
	wantCode(t, run(t, c, link.StartParams{ProcessID: "usable", Argv: []string{"true"}}), 0)
}

func TestArgumentsArriveByteForByte(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	o := run(t, dial(), link.StartParams{
		ProcessID: "p", Argv: []string{"printf", "%s|", "a b", "", `'"$HOME` + "`id`", "*", "-n", "é\n2"},
	})
	wantCode(t, o, 0)
	if got, want := string(o.out["stdout"]), "a b||'\"$HOME`id`|*|-n|é\n2|"; got != want {
		t.Fatalf("stdout = %q, want %q", got, want)
	}
}

func TestEnvironmentIsExact(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	o := run(t, dial(), link.StartParams{ProcessID: "p", Argv: []string{"env", "-0"}, Env: map[string]string{
		"A": "l1\nl2", "B": "x=y=z", "C": "", "D": `it's "q" $HOME`, "E": "é😀", "F": " lead ",
	}})
	wantCode(t, o, 0)
	want := "A=l1\nl2\x00B=x=y=z\x00C=\x00D=it's \"q\" $HOME\x00E=é😀\x00F= lead \x00"
	if got := string(o.out["stdout"]); got != want {
		t.Fatalf("env = %q, want %q", got, want)
	}
}

func TestStdinIsEmptyUnlessAskedFor(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	wantCode(t, run(t, c, link.StartParams{ProcessID: "cat", Argv: []string{"cat"}}), 0)
	o := run(t, c, link.StartParams{ProcessID: "read", Argv: []string{"sh", "-c", "read x; echo got:$x"}})
	if got := string(o.out["stdout"]); got != "got:\n" {
		t.Fatalf("stdout = %q", got)
	}
	if err := c.Write(t.Context(), "cat", "w", []byte("x")); err == nil {
		t.Fatal("a process without stdin took input")
	}
}

// TestGiganticLineArrivesWhole is the 20 MB line without a newline.
func TestGiganticLineArrivesWhole(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	o := run(t, dial(), link.StartParams{
		ProcessID: "p", Argv: []string{"sh", "-c", `head -c 20000000 /dev/zero | tr "\0" x; printf END`}, Retain: link.RetainAck,
	})
	wantCode(t, o, 0)
	if got := o.out["stdout"]; len(got) != 20000003 || string(got[len(got)-3:]) != "END" {
		t.Fatalf("%d bytes, ending in %q", len(got), got[len(got)-3:])
	}
}

func TestFailingShellEndsOnlyItself(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	wantCode(t, run(t, c, link.StartParams{ProcessID: "a", Argv: []string{"sh", "-c", "set -e; false; echo no"}}), 1)
	wantCode(t, run(t, c, link.StartParams{ProcessID: "b", Argv: []string{"true"}}), 0)
}
