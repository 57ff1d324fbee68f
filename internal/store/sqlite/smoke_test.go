package sqlite

import (
	"fmt"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	db, err := Open(t.Context(), Config{Dir: dir, OnEvents: func(s sojourn.SessionID, e []sojourn.Event) { fmt.Println(s, len(e)) }})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(t.Context(), func(tx *store.Tx) error {
		d, err := sojourn.Create(tx.Now(), sojourn.NewSession{ID: "s1", Project: "default", Contract: "cloud", Metadata: map[string]string{"a": "b"}})
		if err != nil {
			return err
		}
		if err := d.Submit("t1", "r1", []sojourn.Part{{Type: "text", Text: "hi"}}); err != nil {
			return err
		}
		return tx.Apply(d.Change())
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), Config{Dir: dir})
	fmt.Println(err)
	db.View(t.Context(), func(tx *store.Tx) error {
		f, err := tx.Facts("s1")
		fmt.Printf("%+v %v\n", f, err)
		ev, err := tx.Events("s1", 0, 0)
		fmt.Printf("%+v %v\n", ev, err)
		n, ok, err := tx.NextWork("run")
		fmt.Println(n, ok, err)
		fs, err := tx.Sessions(store.SessionQuery{Project: "default"})
		fmt.Println(len(fs), err)
		fs, err = tx.Sessions(store.SessionQuery{})
		fmt.Println(len(fs), err)
		return nil
	})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	b := time.Now()
	db, err = Open(t.Context(), Config{Dir: dir})
	fmt.Println(time.Since(b), err)
	db.Close()
}
