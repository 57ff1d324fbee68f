package main

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

func TestSpan(t *testing.T) {
	for _, tt := range []struct {
		in   time.Duration
		want string
	}{
		{0, "0ms"},
		{950 * time.Millisecond, "950ms"},
		{3240 * time.Millisecond, "3.2s"},
		{9999 * time.Millisecond, "9.9s"},
		{42 * time.Second, "42s"},
		{25 * time.Minute, "25m"},
		{25*time.Minute + 3*time.Second, "25m3s"},
		{24*time.Hour - time.Second, "23h59m"},
		{49 * time.Hour, "2d1h"},
	} {
		if got := span(tt.in); got != tt.want {
			t.Errorf("span(%v) = %q, want %q", tt.in, got, tt.want)
		}
	}
	if got := relative(-90 * time.Second); got != "1m30s ago" {
		t.Errorf("relative(-90s) = %q", got)
	}
	if got := relative(500 * time.Millisecond); got != "now" {
		t.Errorf("relative(500ms) = %q", got)
	}
}

func TestSize(t *testing.T) {
	for in, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 999_949: "999.9 kB", 999_950: "1.0 MB", 12_300_000: "12.3 MB", 1 << 62: "4.6 EB",
	} {
		if got := size(in); got != want {
			t.Errorf("size(%d) = %q, want %q", in, got, want)
		}
	}
}

func TestTableIsAligned(t *testing.T) {
	var b strings.Builder
	newPrinter(&b, false).table([]string{"ID", "STATE", "TITLE"}, [][]string{{"a", "attached", "日本語"}, {"längere", "", ""}})
	const want = "ID       STATE     TITLE\na        attached  日本語\nlängere\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestFieldsWithoutAValueAreLeftOut(t *testing.T) {
	var b strings.Builder
	newPrinter(&b, false).fields([]field{{"session", "x"}, {"title", ""}, {"at", "now"}})
	if got, want := b.String(), "session  x\nat       now\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestColourIsForTerminals(t *testing.T) {
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatalf("open a terminal: %v", err)
	}
	defer master.Close()
	defer tty.Close()
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	if p := newPrinter(tty, false); !p.paint || p.styled(red, "x") != "\x1b[31mx\x1b[0m" {
		t.Error("a terminal gets no colour")
	}
	if newPrinter(tty, true).paint {
		t.Error("JSON on a terminal gets colour")
	}
	if p := newPrinter(io.Discard, false); p.paint || p.styled(red, "x") != "x" {
		t.Error("what is no terminal gets colour")
	}
	t.Setenv("TERM", "dumb")
	if newPrinter(tty, false).paint {
		t.Error("a dumb terminal gets colour")
	}
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	if newPrinter(tty, false).paint {
		t.Error("NO_COLOR is not respected")
	}
}

// A full disk behind "> file" must not look like a whole result.
func TestOutputThatIsCutIsAFailure(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	var errs lockedBuffer
	code := runCommand(t.Context(), stdio{out: full, err: &errs}, []string{"version"})
	if got := errs.String(); code != exitFailure || !strings.Contains(got, "no space left") {
		t.Errorf("it ended with %d: %q", code, got)
	}
}
