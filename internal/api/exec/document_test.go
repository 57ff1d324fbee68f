package exec

import (
	"bytes"
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "rewrite golden files")

func TestDocumentIsWhatTheHandlersSay(t *testing.T) {
	_, got := build(&stub{}, doorman{}, Config{})
	golden(t, "openapi.yaml", got)
}

// golden compares got with a file, or writes it with -update.
func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs from what the code says; run the test with -update and read the difference\ngot:\n%s", path, got)
	}
}
