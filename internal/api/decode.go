package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// The bounds of a request body.
const (
	MaxBodyBytes = 16 << 20
	MaxBodyDepth = 64
)

// Decode reads exactly one JSON value from data into v. Text that is not UTF-8,
// values nested deeper than [MaxBodyDepth] and anything behind the value are
// refused with an error that says where. Which fields a value may have is for
// the schema to say.
func Decode(data []byte, v any) error {
	if !utf8.Valid(data) {
		return fmt.Errorf("not valid UTF-8 at byte %d", invalidAt(data))
	}
	if at, deep := deeperThan(data, MaxBodyDepth); deep {
		return fmt.Errorf("nested deeper than %d levels at byte %d", MaxBodyDepth, at)
	}
	err := json.Unmarshal(data, v)
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("not valid JSON at byte %d: %s", s.Offset, s.Error())
	}
	return err
}

// invalidAt returns the offset of the first byte that is not UTF-8.
func invalidAt(data []byte) int {
	at := 0
	for at < len(data) {
		r, n := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && n <= 1 {
			break
		}
		at += n
	}
	return at
}

// deeperThan reports whether arrays and objects nest deeper than limit, and
// where. It needs no valid JSON: brackets in strings do not count.
func deeperThan(data []byte, limit int) (at int, deep bool) {
	depth, inString := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > limit {
				return i, true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return 0, false
}
