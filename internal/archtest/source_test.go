package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// top is the root of the module, from this package.
const top = "../.."

const module = "github.com/sojourn-dev/sojourn"

// source is one parsed Go file.
type source struct {
	path string // from the root of the module
	pkg  string // its directory, "." for the root
	test bool
	text string
	file *ast.File
	fset *token.FileSet
}

// goFiles returns every Go file of the module, parsed once for all tests.
func goFiles(t *testing.T) []source {
	t.Helper()
	parsed.Do(func() { parsed.files = parseAll(t) })
	if len(parsed.files) < 50 {
		t.Fatalf("found only %d Go files below %s: this test looks in the wrong place", len(parsed.files), top)
	}
	return slices.Clone(parsed.files)
}

// parsed holds the files once they were parsed.
var parsed struct {
	sync.Once
	files []source
}

func parseAll(t *testing.T) []source {
	t.Helper()
	var files []source
	for _, path := range textFiles(t) {
		if !strings.HasSuffix(path, ".go") {
			continue
		}
		text := read(t, path)
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, source{
			path: path, pkg: filepath.ToSlash(filepath.Dir(path)), test: strings.HasSuffix(path, "_test.go"),
			text: text, file: file, fset: fset,
		})
	}
	return files
}

// imports returns the import paths of a file.
func (s source) imports(t *testing.T) []string {
	t.Helper()
	var paths []string
	for _, spec := range s.file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

// textFiles lists every file of the repository that people wrote, from the root
// of the module.
func textFiles(t *testing.T) []string {
	t.Helper()
	skipped := []string{".git", "bin", "dist"}
	var paths []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if os.IsNotExist(err) {
				return nil // a file that another test made and removed
			}
			return err
		}
		rel, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains(skipped, rel) || d.Name() == "rapid" {
				return fs.SkipDir
			}
			return nil
		}
		for _, ext := range []string{".test", ".prof", ".out", ".png", ".zst"} {
			if strings.HasSuffix(path, ext) {
				return nil
			}
		}
		if d.Type().IsRegular() && rel != ".git" { // which is a file in a further working tree
			paths = append(paths, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// read returns the text of a file that is named from the root of the module.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
