package migration_test

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/store/migration"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestStepsAreImmutable fails when a step that is listed has changed. After a
// release, only add lines to the list.
func TestStepsAreImmutable(t *testing.T) {
	raw := migration.Files(migration.Fragments{Blob: "{{blob}}", Clustered: "{{clustered}}"})
	names, err := fs.Glob(raw, "*.sql")
	if err != nil || len(names) == 0 {
		t.Fatalf("%v, %v", names, err)
	}
	var got strings.Builder
	for i, name := range names {
		text := read(t, raw, name)
		fmt.Fprintf(&got, "%x  %s\n", sha256.Sum256([]byte(text)), name)
		if want := fmt.Sprintf("%04d_", i+1); !strings.HasPrefix(name, want) {
			t.Errorf("%s: want the number %s", name, want)
		}
	}
	const golden = "testdata/steps.sha256"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("steps have changed:\n%swant\n%s", got.String(), want)
	}
	if last := migration.Last(); last != int64(len(names)) {
		t.Errorf("the last step is %d, want %d", last, len(names))
	}
}

func TestEveryFragmentIsFilledIn(t *testing.T) {
	for name, f := range map[string]migration.Fragments{"SQLite": migration.SQLite, "Postgres": migration.Postgres} {
		files := migration.Files(f)
		names, _ := fs.Glob(files, "*.sql")
		for _, file := range names {
			_, body, _ := strings.Cut(read(t, files, file), "-- +goose Up")
			if strings.Contains(body, "{{") {
				t.Errorf("%s: %s has words in braces", name, file)
			}
		}
	}
}

func read(t *testing.T, files fs.FS, name string) string {
	t.Helper()
	b, err := fs.ReadFile(files, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
