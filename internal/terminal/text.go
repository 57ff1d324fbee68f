package terminal

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// hidden reports whether r acts on a terminal or on the order of the text
// instead of showing itself. The joiners that emoji and scripts need are kept.
func hidden(r rune) bool {
	const zwnj, zwj, softHyphen = '\u200c', '\u200d', '\u00ad'
	switch r {
	case zwnj, zwj, softHyphen:
		return false
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// picture is the visible form of a hidden rune: ␛ for escape, \u202e for what
// has no sign of its own.
func picture(r rune) string {
	switch {
	case r < 0x20:
		return string('\u2400' + r)
	case r == 0x7f:
		return "\u2421"
	case r > 0xffff:
		return fmt.Sprintf("\\U%08x", r)
	default:
		return fmt.Sprintf("\\u%04x", r)
	}
}

// Shown makes foreign text safe for a terminal. Line breaks and tabs stay; a
// byte that is not UTF-8 is shown as \xNN.
func Shown(s string) string { return Visible(s, "\n\t") }

// Line makes foreign text safe and puts it on one line of at most most
// characters; 0 means any number.
func Line(s string, most int) string {
	s = strings.Join(strings.Fields(Visible(s, "\n\t ")), " ")
	if most > 0 && utf8.RuneCountInString(s) > most {
		s = string([]rune(s)[:most-1]) + "…"
	}
	return s
}

// Visible replaces every hidden rune that is not in keep.
func Visible(s, keep string) string {
	clean := func(r rune) bool { return !hidden(r) || strings.ContainsRune(keep, r) }
	if utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !clean(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, "\\x%02x", s[0])
		case clean(r):
			b.WriteString(s[:n])
		case strings.HasPrefix(s, "\r\n") && strings.Contains(keep, "\n"):
			// The line break that follows says it all.
		default:
			b.WriteString(picture(r))
		}
		s = s[n:]
	}
	return b.String()
}

// VisibleJSON writes the hidden runes of a JSON text as \u escapes, which is the
// same JSON: they can only stand in its strings. The encoder has already done
// that to most control characters, and the server may not have.
func VisibleJSON(text []byte) []byte {
	if strings.IndexFunc(string(text), escapedInJSON) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case !escapedInJSON(r):
			b.WriteRune(r)
		case r > 0xffff:
			hi, lo := surrogates(r)
			fmt.Fprintf(&b, "\\u%04x\\u%04x", hi, lo)
		default:
			fmt.Fprintf(&b, "\\u%04x", r)
		}
	}
	return []byte(b.String())
}

func escapedInJSON(r rune) bool { return r >= 0x7f && hidden(r) }

func surrogates(r rune) (hi, lo rune) {
	r -= 0x10000
	return 0xd800 + r>>10, 0xdc00 + r&0x3ff
}

// Stream writes foreign text that comes in pieces, and remembers where on the
// line it left off, so that a line of our own begins on a fresh one.
type Stream struct {
	W       io.Writer
	midLine bool // the last piece did not end its line
	cr      bool // the last piece ended in a carriage return that is not shown yet
}

// Write shows one piece.
func (s *Stream) Write(piece string) {
	if piece == "" {
		return
	}
	if s.cr {
		piece, s.cr = "\r"+piece, false
	}
	if strings.HasSuffix(piece, "\r") { // wait and see whether a line feed follows
		piece, s.cr = strings.TrimSuffix(piece, "\r"), true
	}
	out := Shown(piece)
	if out == "" {
		return
	}
	fmt.Fprint(s.W, out)
	s.midLine = !strings.HasSuffix(out, "\n")
}

// Fresh ends the line that is open.
func (s *Stream) Fresh() {
	s.cr = false
	if s.midLine {
		fmt.Fprintln(s.W)
		s.midLine = false
	}
}
