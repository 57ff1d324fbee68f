package terminal

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestForeignTextIsInert(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"plain text, ünïcödé, 日本語, 👩‍💻", "plain text, ünïcödé, 日本語, 👩‍💻"},
		{"two\nlines\tand a tab", "two\nlines\tand a tab"},
		{"dos\r\nlines", "dos\nlines"},
		{"over\rwrite", "over␍write"},
		{"\x1b[31mred\x1b[0m", "␛[31mred␛[0m"},
		{"\x1b]0;title\a", "␛]0;title␇"},
		{"\x1b]8;;http://x\x1b\\link", "␛]8;;http://x␛\\link"},
		{"c1 \u009b31m", "c1 \\u009b31m"},
		{"bidi \u202egnp.exe", "bidi \\u202egnp.exe"},
		{"tag \U000e0041", "tag \\U000e0041"},
		{"mark \ufeff, separator \u2028.", "mark \\ufeff, separator \\u2028."},
		{"del \x7f nul \x00 bell \a back \b", "del ␡ nul ␀ bell ␇ back ␈"},
		{"bad \xff\xfe utf-8 \x9b", "bad \\xff\\xfe utf-8 \\x9b"},
	} {
		if got := Shown(tt.in); got != tt.want {
			t.Errorf("Shown(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

func TestLineIsOneBoundedLine(t *testing.T) {
	for _, tt := range []struct {
		in   string
		most int
		want string
	}{
		{"a\n b\t\tc\r\nd", 0, "a b c d"},
		{"  around  ", 0, "around"},
		{"abcdef", 4, "abc…"},
		{"日本語テスト", 3, "日本…"},
		{"\x1b[2J", 0, "␛[2J"},
	} {
		if got := Line(tt.in, tt.most); got != tt.want {
			t.Errorf("Line(%q, %d) = %q, want %q", tt.in, tt.most, got, tt.want)
		}
	}
}

func TestVisibleJSONIsTheSameJSON(t *testing.T) {
	in := "a\u009bb\u202ec\x7fd\U000e0041e日本👩‍💻\x1b"
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	got := VisibleJSON(text)
	if s := string(got); strings.ContainsAny(s, "\u009b\u202e\x7f\x1b\U000e0041") {
		t.Errorf("VisibleJSON leaves something hidden in %q", s)
	}
	if !strings.Contains(string(got), "日本") {
		t.Errorf("VisibleJSON escapes what is harmless: %s", got)
	}
	var back string
	if err := json.Unmarshal(got, &back); err != nil || back != in {
		t.Errorf("it reads back as %q, %v; want %q", back, err, in)
	}
}

func TestStreamKeepsItsPlaceOnTheLine(t *testing.T) {
	var b strings.Builder
	s := Stream{W: &b}
	for _, piece := range []string{"one", "", " two\r", "\nthree\r", "four", "\x1b", "[31m"} {
		s.Write(piece)
	}
	s.Fresh()
	s.Fresh()
	s.Write("five\n")
	s.Fresh()
	const want = "one two\nthree␍four␛[31m\nfive\n"
	if b.String() != want {
		t.Errorf("got  %q\nwant %q", b.String(), want)
	}
}

func FuzzForeignText(f *testing.F) {
	f.Add("\x1b[31m\u202e\xff\r\n")
	f.Fuzz(func(t *testing.T, s string) {
		for name, out := range map[string]string{"shown": Shown(s), "line": Line(s, 50)} {
			if !utf8.ValidString(out) {
				t.Errorf("%s(%q) is not UTF-8: %q", name, s, out)
			}
			for _, r := range out {
				if hidden(r) && (name != "shown" || r != '\n' && r != '\t') {
					t.Errorf("%s(%q) holds %q", name, s, r)
				}
			}
		}
		if n := utf8.RuneCountInString(Line(s, 50)); n > 50 {
			t.Errorf("Line(%q, 50) has %d characters", s, n)
		}
	})
}
