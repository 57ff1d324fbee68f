package archtest

import (
	"go/ast"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxLines is where a file has a second noun in it.
const maxLines = 500

func TestFilesAreShort(t *testing.T) {
	for _, f := range goFiles(t) {
		if n := strings.Count(f.text, "\n"); n > maxLines {
			t.Errorf("%s has %d lines: look for the second noun", f.path, n)
		}
	}
}

// TestEveryPackageHasOneComment: it starts with the package's name, and stands
// in one place.
func TestEveryPackageHasOneComment(t *testing.T) {
	comments := map[string][]string{}
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		name := f.file.Name.Name
		if comments[f.pkg] == nil {
			comments[f.pkg] = []string{}
		}
		if f.file.Doc == nil {
			continue
		}
		comments[f.pkg] = append(comments[f.pkg], f.path)
		want := "Package " + name + " "
		if name == "main" {
			want = "Command " + f.pkg[strings.LastIndex(f.pkg, "/")+1:] + " "
		}
		if !strings.HasPrefix(f.file.Doc.Text(), want) {
			t.Errorf("%s: the package comment does not start with %q", f.path, want)
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(comments)) {
		if n := len(comments[pkg]); n != 1 {
			t.Errorf("%s has %d package comments %v, want one, in doc.go", pkg, n, comments[pkg])
		}
	}
}

// TestPackagesAreNouns: a name that says nothing attracts everything.
func TestPackagesAreNouns(t *testing.T) {
	empty := []string{"util", "utils", "common", "helper", "helpers", "types", "models", "base", "manager", "misc", "shared"}
	for _, f := range goFiles(t) {
		if slices.Contains(empty, strings.TrimSuffix(f.file.Name.Name, "_test")) {
			t.Errorf("%s: package %s says nothing about what is in it", f.path, f.file.Name.Name)
		}
	}
}

// leftovers are what must not stay, each with the reason. They are written so
// that this file does not match itself.
var leftovers = []struct{ pattern, why string }{
	{`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`, "done means done; what is left is an issue"},
	{`(?i)not (yet )?impl` + `emented|unimpl` + `emented`, "done means done; what is left is an issue"},
	{`/(work|tmp/plan)/` + `(main|shared|PLAN)|/ro` + `ot/(go|\.cache)`, "a path of one machine"},
	{`(?i)proxy\.go` + `lang|sum\.go` + `lang|registry\.np` + `mjs|py` + `pi\.org|deb\.deb` + `ian\.org`, "where packages come from is the machine's business"},
	{`(?i)sub-?ag` + `ent|helper ses` + `sion|build ses` + `sion|AI-gene` + `rated|language mo` + `del wrote`, "the project speaks of itself alone"},
}

func TestNothingIsLeftOver(t *testing.T) {
	for _, l := range leftovers {
		pattern := regexp.MustCompile(l.pattern)
		for _, path := range textFiles(t) {
			if strings.HasSuffix(path, "go.sum") {
				continue
			}
			for i, line := range strings.Split(read(t, path), "\n") {
				if found := pattern.FindString(line); found != "" {
					t.Errorf("%s:%d: %q: %s", path, i+1, found, l.why)
				}
			}
		}
	}
}

// TestSkippedTestsSayWhy: a skip without a reason is a test that is not there.
func TestSkippedTestsSayWhy(t *testing.T) {
	for _, f := range goFiles(t) {
		ast.Inspect(f.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && (sel.Sel.Name == "SkipNow" || sel.Sel.Name == "Skip" && len(call.Args) == 0) {
				if on, ok := sel.X.(*ast.Ident); ok && len(on.Name) <= 2 {
					t.Errorf("%s: a test is skipped without a reason", f.fset.Position(call.Pos()))
				}
			}
			return true
		})
	}
}
