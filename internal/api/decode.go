package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// The bounds of a request body.
const (
	MaxBodyBytes = 16 << 20
	MaxBodyDepth = 64
)

// Decode reads exactly one JSON value from data into v. Text that is not UTF-8,
// halves of characters (a surrogate without its partner), values nested deeper than
// [MaxBodyDepth], names that an object has twice and anything behind the value are
// refused with an error that says where. A whole number may have any form. Which
// fields a value may have is for the schema to say: it looks at the last of two
// equal names, where the decoder would take something of both.
func Decode(data []byte, v any) error {
	if !utf8.Valid(data) {
		return fmt.Errorf("not valid UTF-8 at byte %d", invalidAt(data))
	}
	if at, deep := deeperThan(data, MaxBodyDepth); deep {
		return fmt.Errorf("nested deeper than %d levels at byte %d", MaxBodyDepth, at)
	}
	err := unmarshal(data, v)
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("not valid JSON at byte %d: %s", s.Offset, s.Error())
	}
	if u, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return mistyped(u)
	}
	if err != nil {
		return err
	}
	if at, lone := loneSurrogate(data); lone {
		return fmt.Errorf("half of a character at byte %d: the surrogate %s has no partner", at, data[at:at+len(`\ud800`)])
	}
	if name, at, twice := repeated(data); twice {
		return fmt.Errorf("the name %q is there twice, again at byte %d", name, at)
	}
	return nil
}

// repeated returns the first name that an object of data has twice, and where.
// data is valid JSON.
func repeated(data []byte) (name string, at int, twice bool) {
	var names []map[string]bool // of the open objects; nil for an array
	inName := false             // whether a string here would be a name
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{':
			names, inName = append(names, map[string]bool{}), true
		case '[':
			names, inName = append(names, nil), false
		case '}', ']':
			names, inName = names[:len(names)-1], false
		case ',':
			inName = names[len(names)-1] != nil
		case '"':
			from := i
			for i++; data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
			if !inName {
				continue
			}
			inName = false
			var key string
			_ = json.Unmarshal(data[from:i+1], &key) // valid JSON has valid strings
			open := names[len(names)-1]
			if open[key] {
				return key, from, true
			}
			open[key] = true
		}
	}
	return "", 0, false
}

// loneSurrogate returns where data, which is valid JSON, escapes a surrogate that is
// not one half of a pair. A decoder would put another character in its place.
func loneSurrogate(data []byte) (at int, lone bool) {
	const width = len(`\ud800`)
	unit := func(at int) rune { // that is escaped at an offset; 0 for none
		if at+width > len(data) || data[at] != '\\' || data[at+1] != 'u' {
			return 0
		}
		r, _ := strconv.ParseUint(string(data[at+2:at+width]), 16, 16) // valid JSON has valid escapes
		return rune(r)
	}
	for at < len(data) {
		next := bytes.IndexByte(data[at:], '\\') // they are in strings only
		if next < 0 {
			return 0, false
		}
		at += next
		switch r := unit(at); {
		case !utf16.IsSurrogate(r):
			at += len(`\n`) // the digits of another unit have no backslash
		case utf16.DecodeRune(r, unit(at+width)) == utf8.RuneError:
			return at, true
		default:
			at += 2 * width
		}
	}
	return 0, false
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
