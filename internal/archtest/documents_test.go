package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestLinksInDocumentsLead: a relative link leads to a file that is there.
func TestLinksInDocumentsLead(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)
	for _, path := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, path), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			to := filepath.Join(top, filepath.Dir(path), m[1])
			if _, err := os.Stat(to); os.IsNotExist(err) {
				t.Errorf("%s links to %s, which is not there", path, m[1])
			}
		}
	}
}

// TestArchitectureNamesEveryPackage: the map has a place for each.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	text := read(t, "ARCHITECTURE.md")
	for pkg := range moduleImports(t) {
		if pkg != "." && !strings.Contains(text, "`"+pkg+"`") {
			t.Errorf("ARCHITECTURE.md does not name `%s`", pkg)
		}
	}
}

// TestDocumentsNameTestsThatExist: a guarantee names the tests that hold it.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	defined := map[string]bool{}
	for _, f := range goFiles(t) {
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Za-z0-9_]+)\(`).FindAllStringSubmatch(f.text, -1) {
			defined[m[1]] = true
		}
	}
	named := regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9_]+)`")
	for _, path := range documents(t) {
		for _, m := range named.FindAllStringSubmatch(read(t, path), -1) {
			if !defined[m[1]] {
				t.Errorf("%s names %s, which is no test of this repository", path, m[1])
			}
		}
	}
}

// TestEveryGuaranteeHasARow: ARCHITECTURE.md lists G1 to G12, each once, with
// what holds it or the words "not yet".
func TestEveryGuaranteeHasARow(t *testing.T) {
	rows := regexp.MustCompile(`(?m)^\| (G\d+) \|.*$`).FindAllStringSubmatch(read(t, "ARCHITECTURE.md"), -1)
	var ids []string
	for _, row := range rows {
		ids = append(ids, row[1])
		if !strings.Contains(row[0], "`Test") && !strings.Contains(row[0], "`sandboxtest`") && !strings.Contains(row[0], "not yet") {
			t.Errorf("%s names neither a test nor says that it has none yet", row[1])
		}
	}
	want := []string{"G1", "G2", "G3", "G4", "G5", "G6", "G7", "G8", "G9", "G10", "G11", "G12"}
	if !slices.Equal(ids, want) {
		t.Errorf("the guarantees are %v, want %v", ids, want)
	}
}

// TestDecisionRecordsAreNumbered: docs/adr holds 0001, 0002, … without a gap,
// each with a status.
func TestDecisionRecordsAreNumbered(t *testing.T) {
	names, err := fs.Glob(os.DirFS(filepath.Join(top, "docs", "adr")), "[0-9]*.md")
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		t.Fatal("docs/adr is empty")
	}
	for i, name := range names {
		if got, want := name[:4], "000"+string(rune('1'+i)); i < 9 && got != want {
			t.Errorf("docs/adr/%s: want number %s", name, want)
		}
		if text := read(t, "docs/adr/"+name); !strings.Contains(text, "\nStatus: ") || !strings.Contains(text, "\n## Consequences\n") {
			t.Errorf("docs/adr/%s has no status or no consequences", name)
		}
	}
}

// TestMakefileHelpIsComplete: every target that a person types has its line.
func TestMakefileHelpIsComplete(t *testing.T) {
	text := read(t, "Makefile")
	for _, m := range regexp.MustCompile(`(?m)^\.PHONY: ([a-z-]+)$`).FindAllStringSubmatch(text, -1) {
		if !regexp.MustCompile(`(?m)^` + m[1] + `:.*## \S`).MatchString(text) {
			t.Errorf("make %s has no help", m[1])
		}
	}
}

func documents(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(textFiles(t), func(path string) bool { return !strings.HasSuffix(path, ".md") })
}
