package sojourn

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// update rewrites the golden files: read their diff before you commit it.
var update = flag.Bool("update", false, "rewrite the golden files")

// noon is the moment that the tests count from.
var noon = time.Date(2026, 8, 11, 12, 0, 0, 0, time.UTC)

// checkGolden compares got with testdata/name, line by line.
func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got == string(text) {
		return
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(text), "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		var g, w string
		if i < len(gotLines) {
			g = gotLines[i]
		}
		if i < len(wantLines) {
			w = wantLines[i]
		}
		if g != w {
			t.Errorf("%s:%d:\n got %s\nwant %s", path, i+1, g, w)
		}
	}
	t.Log("if the change is meant: go test . -update")
}
