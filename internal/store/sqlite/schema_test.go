package sqlite_test

import (
	"database/sql"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/store/sqlite"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestSchemaIsGolden shows what the migrations add up to.
func TestSchemaIsGolden(t *testing.T) {
	dir := t.TempDir()
	if err := open(t, sqlite.Config{Dir: dir}).Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", filepath.Join(dir, "sojourn.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(t.Context(), "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY tbl_name, type DESC, name")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var got strings.Builder
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		got.WriteString(text + ";\n")
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/schema.sql"
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
		t.Errorf("the schema is not that of %s; run with -update and read the difference:\n%s", golden, got.String())
	}
}
