package sqlite

import (
	"fmt"
	"testing"
)

// TestConnectionsAreDurableAndStrict reads back what no other test can see: a
// killed process loses nothing even without FULL, a machine without power does.
func TestConnectionsAreDurableAndStrict(t *testing.T) {
	db, err := Open(t.Context(), Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for i, c := range db.conns {
		want := map[string]string{
			"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "10000", "query_only": "1",
		}
		if c == db.writer.conn {
			want["query_only"] = "0"
		}
		for pragma, want := range want {
			var got string
			if err := c.c.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
				t.Errorf("connection %d: %s is %q (%v), want %q", i, pragma, got, err, want)
			}
		}
	}
	if got, want := fmt.Sprint(len(db.conns)), fmt.Sprint(db.cfg.Readers+1); got != want {
		t.Errorf("%s connections, want %s", got, want)
	}
}
