package sqlite_test

import (
	"log/slog"
	"testing"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/store/sqlite"
	"github.com/sojourn-dev/sojourn/internal/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T, onEvents func(sojourn.SessionID, []sojourn.Event)) store.Store {
		return open(t, sqlite.Config{Dir: t.TempDir(), OnEvents: onEvents})
	})
}

// open opens a database that is closed when the test ends.
func open(t testing.TB, c sqlite.Config) *sqlite.DB {
	t.Helper()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	db, err := sqlite.Open(t.Context(), c)
	if err != nil {
		t.Fatalf("open %s: %v", c.Dir, err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close %s: %v", c.Dir, err)
		}
	})
	return db
}
