package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestOldExecutablesAreForgotten(t *testing.T) {
	data := t.TempDir()
	for i, name := range []string{"oldest", "older", "old"} {
		dir := filepath.Join(data, "bin", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Duration(i-10) * time.Hour)
		if err := os.Chtimes(dir, at, at); err != nil {
			t.Fatal(err)
		}
	}
	first, err := keepExecutable(data)
	if err != nil {
		t.Fatal(err)
	}
	torn := filepath.Join(filepath.Dir(first), "sojourn-123")
	if err := os.WriteFile(torn, []byte("half a copy"), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := keepExecutable(data)
	if err != nil || again != first {
		t.Errorf("kept %q and then %q, %v", first, again, err)
	}
	entries, err := os.ReadDir(filepath.Join(data, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if len(names) != 2 {
		t.Errorf("bin holds %v, want the current and the last one", names)
	}
	if _, err := os.Stat(filepath.Join(data, "bin", "old")); err != nil {
		t.Errorf("the last one is gone: %v", err)
	}
	if _, err := os.Stat(torn); err == nil {
		t.Error("half a copy is still there")
	}
}
