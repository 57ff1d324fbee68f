package main

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var updateGolden = flag.Bool("update", false, "rewrite the golden files")

func TestHelp(t *testing.T) {
	// What help says must not depend on who asks.
	for _, name := range []string{"SOJOURN_URL", "SOJOURN_KEY", "SOJOURN_LISTEN", "SOJOURN_DRIVER", "SOJOURN_CONFIG", "SOJOURN_LOG_LEVEL", "NO_COLOR"} {
		t.Setenv(name, "")
	}
	t.Setenv("SOJOURN_DATA", "/var/lib/sojourn")
	lines := [][]string{{"help"}}
	for _, c := range commands() {
		if c.name != "version" {
			lines = append(lines, []string{c.name, "-h"})
		}
	}
	for _, group := range []struct {
		command string
		verbs   []verb
	}{{"session", sessionVerbs}, {"interaction", interactionVerbs}, {"keys", keysVerbs}, {"runtimes", runtimesVerbs}, {"exec", execVerbs}} {
		for _, v := range group.verbs {
			lines = append(lines, []string{group.command, v.name, "--help"})
		}
	}
	var b strings.Builder
	for _, args := range lines {
		got := runLine(t.Context(), "", args...)
		if got.code != 0 {
			t.Errorf("%q: code %d, errors %q", args, got.code, got.err)
		}
		b.WriteString("$ sojourn " + strings.Join(args, " ") + "\n" + got.out + got.err + "\n")
	}
	const golden = "testdata/help.golden"
	if *updateGolden {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("help has changed; look at it and run: go test ./cmd/sojourn -run TestHelp -update\n%s", b.String())
	}
}

func TestHelpFitsATerminal(t *testing.T) {
	text, err := os.ReadFile("testdata/help.golden")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(text)) {
		if n := len([]rune(strings.TrimSuffix(l, "\n"))); n > 120 && !strings.Contains(l, "(default") {
			t.Errorf("a line of %d characters: %s", n, l)
		}
	}
}
