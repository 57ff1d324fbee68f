package migration_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite" // the driver

	"github.com/sojourn-dev/sojourn/internal/store/migration"
)

// database is a database at some step, with foreign keys in force as ours has them.
type database struct {
	*sql.DB
	t *testing.T
}

func openAt(t *testing.T, step int64) database {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "test.db")+"?_pragma=foreign_keys(1)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	p, err := goose.NewProvider(migration.DialectSQLite, db, migration.Files(migration.SQLite),
		goose.WithTableName("schema_steps"), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(t.Context(), step); err != nil {
		t.Fatal(err)
	}
	return database{db, t}
}

// insert writes a row: what is not given is empty or 0.
func (db database) insert(table string, given map[string]any) error {
	db.t.Helper()
	var names, marks []string
	var values []any
	for _, c := range db.rows("SELECT name, type FROM pragma_table_info('" + table + "')") {
		name := fmt.Sprint(c["name"])
		value, ok := given[name]
		switch {
		case ok:
		case c["type"] == "BIGINT":
			value = 0
		default:
			value = ""
		}
		names, marks, values = append(names, name), append(marks, "?"), append(values, value)
	}
	_, err := db.Exec("INSERT INTO "+table+" ("+strings.Join(names, ", ")+") VALUES ("+strings.Join(marks, ", ")+")", values...)
	return err
}

func (db database) rows(query string) (all []map[string]any) {
	db.t.Helper()
	rows, err := db.Query(query)
	if err != nil {
		db.t.Fatal(err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		db.t.Fatal(err)
	}
	for rows.Next() {
		values, row := make([]any, len(names)), map[string]any{}
		into := make([]any, len(names))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			db.t.Fatal(err)
		}
		for i, name := range names {
			row[name] = values[i]
		}
		all = append(all, row)
	}
	if err := rows.Err(); err != nil {
		db.t.Fatal(err)
	}
	return all
}

// TestStepFourKeepsSessionsAndQuestions takes a database with rows from the step
// before bare sessions to the last one.
func TestStepFourKeepsSessionsAndQuestions(t *testing.T) {
	db := openAt(t, 3)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"s1", "s2"} {
		must(db.insert("sessions", map[string]any{"id": id, "project": "p", "state": "open", "title": "Title " + id, "last_seq": 7}))
		must(db.insert("turns", map[string]any{"id": "t-" + id, "session": id, "number": 1}))
		must(db.insert("runs", map[string]any{"id": "r-" + id, "session": id, "turn": "t-" + id, "state": "active"}))
		must(db.insert("interactions", map[string]any{
			"id": "open-" + id, "session": id, "run": "r-" + id, "kind": "permission", "state": "open", "ref": "1", "request": `{"a":"é"}`, "opened_at": 5,
		}))
		must(db.insert("interactions", map[string]any{
			"id": "over-" + id, "session": id, "run": "r-" + id, "state": "answered", "ref": "1", "answer": `{"optionId":"yes"}`, "ended_at": 6, "reason": "why",
		}))
	}
	const interactions, sessions = "SELECT * FROM interactions ORDER BY id", "SELECT * FROM sessions ORDER BY id"
	asked, kept := db.rows(interactions), db.rows(sessions)
	if _, err := migration.Up(t.Context(), db.DB, migration.DialectSQLite, migration.SQLite); err != nil {
		t.Fatal(err)
	}
	for _, row := range asked {
		row["exec"], row["expires_at"] = "", int64(0)
	}
	if got := db.rows(interactions); !reflect.DeepEqual(got, asked) || len(got) != 4 {
		t.Errorf("the questions are\n%v\nwant\n%v", got, asked)
	}
	for i, row := range db.rows(sessions) {
		for name, want := range kept[i] {
			if row[name] != want {
				t.Errorf("session %v: %s is %v, want %v", row["id"], name, row[name], want)
			}
		}
		if row["client"] != "" || row["bare"] != "" || row["rotating"] != int64(0) {
			t.Errorf("session %v is bare: %v", row["id"], row)
		}
	}
	if broken := db.rows("PRAGMA foreign_key_check"); len(broken) != 0 {
		t.Errorf("references are broken: %v", broken)
	}
	ask := func(id, run, ref string) error {
		return db.insert("interactions", map[string]any{"id": id, "session": "s1", "run": run, "state": "open", "ref": ref})
	}
	if err := ask("again", "r-s1", "1"); err == nil {
		t.Error("a run may ask an open question twice")
	}
	must(ask("of an exec", "", "exec-1"))
	must(ask("of another", "", "exec-2"))
	if err := db.insert("interactions", map[string]any{"id": "nobody's", "session": "s3"}); err == nil {
		t.Error("a question may belong to no session")
	}
}
