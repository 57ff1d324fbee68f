package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/config"
	"github.com/sojourn-dev/sojourn/sandbox/docker"
	"github.com/sojourn-dev/sojourn/sandbox/gvisor"
	"github.com/sojourn-dev/sojourn/sandbox/namespace"
)

// TestSandboxesOfAnEarlierDriverAreRemoved leaves half-made sandboxes of several drivers.
func TestSandboxesOfAnEarlierDriverAreRemoved(t *testing.T) {
	data := t.TempDir()
	cell := func(driver string) string { return filepath.Join(data, "sandboxes", driver, "sandboxes", "s-1") }
	for _, driver := range []string{gvisor.Name, namespace.Name, docker.Name} {
		if err := os.MkdirAll(filepath.Join(cell(driver), "workspace"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if dynamic() {
		t.Skip("SKIPPED: this test is linked dynamically: build it with CGO_ENABLED=0")
	}
	var said bytes.Buffer
	o := driverOptions{engine: config.Docker{Host: "unix://" + filepath.Join(data, "no.sock")}}
	endOthers(t.Context(), data, namespace.Name, o, slog.New(slog.NewTextHandler(&said, nil)))
	for driver, want := range map[string]bool{
		gvisor.Name:    false,
		namespace.Name: true, // it is in use
		docker.Name:    true, // its engine could not be asked
	} {
		if _, err := os.Stat(cell(driver)); (err == nil) != want {
			t.Errorf("the sandbox of driver %s is there: %v, want %v", driver, err == nil, want)
		}
	}
	if got := said.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "could not be removed\" driver=docker") {
		t.Errorf("the log says %s", got)
	}
}

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
