package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
)

// scanner reads a JSON object as its bytes pass, and finds the few members of its top
// level that the gateway must know. Everything else it only checks, strictly: what one
// parser takes and another does not is how a request would say two things.
type scanner struct {
	state scanState
	depth []byte // the brackets that are open
	want  string // what is left of a literal
	hex   int    // digits that are left of \uXXXX
	inKey bool   // the string is a key of the top level
	at    int64  // bytes read

	key     []byte // of the top level, as it is written
	capture *member
	members members
}

// member is a value of the top level as it is written.
type member struct {
	seen       bool
	start, end int64 // where the value stands
	raw        []byte
	tooLong    bool
}

// members are what is looked for.
type members struct{ model, stream, streamOptions member }

// The bounds of what is kept.
const (
	maxKey   = 256
	maxValue = 2 << 10
	maxDepth = 10_000 // as encoding/json has it
)

type scanState int

const (
	beforeObject scanState = iota
	firstKey
	nextKey
	afterKey
	beforeValue
	firstElement
	afterValue
	inString
	inEscape
	inHex
	inLiteral
	afterMinus
	afterZero
	inInteger
	afterDot
	inFraction
	afterE
	afterESign
	inExponent
	afterObject
)

var (
	errNotJSON    = errors.New("the body is not a JSON object")
	errTwice      = errors.New("the body names its model twice, or in a way that not everybody reads alike")
	errKeys       = errors.New("the names of the body's members must be short and plain ASCII")
	errTooNested  = errors.New("the body is nested too deeply")
	errNoModel    = errors.New("the body names no model")
	errBadModel   = errors.New("the model must be a string")
	errIncomplete = errors.New("the body ends in the middle")
)

// done reports whether the object is complete.
func (s *scanner) done() bool { return s.state == afterObject }

// write reads on. After an error the scanner is of no use.
func (s *scanner) write(p []byte) error {
	for i := 0; i < len(p); {
		if s.state == inString && !s.inKey && s.capture == nil {
			// Nearly all of a body is text in strings.
			n := plainText(p[i:])
			i, s.at = i+n, s.at+int64(n)
			if i == len(p) {
				break
			}
		}
		c, wanted := p[i], s.capture
		if err := s.step(c); err != nil {
			return err
		}
		if wanted != nil {
			s.keep(c)
		}
		i++
		s.at++
	}
	return nil
}

// plainText returns how many bytes of p are neither quote, backslash nor control
// character.
func plainText(p []byte) int {
	for i, c := range p {
		if c == '"' || c == '\\' || c < ' ' {
			return i
		}
	}
	return len(p)
}

// keep adds a byte to the value that is wanted, and ends it where it ends.
func (s *scanner) keep(c byte) {
	m := s.capture
	over := len(s.depth) == 0 || len(s.depth) == 1 && (s.state == afterValue || s.state == nextKey)
	// What ends a number or a literal belongs to what follows it.
	if over && (c == ',' || c == '}' && len(s.depth) == 0 || isSpace(c)) {
		m.end = s.at
		s.capture = nil
		return
	}
	if len(m.raw) == 0 && isSpace(c) {
		return
	}
	if len(m.raw) == 0 {
		m.start = s.at
	}
	if len(m.raw) < maxValue {
		m.raw = append(m.raw, c)
	} else {
		m.tooLong = true
	}
	if over && (c == '"' || c == '}' || c == ']') {
		m.end = s.at + 1
		s.capture = nil
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// step reads one byte.
func (s *scanner) step(c byte) error {
	switch s.state {
	case inString, inEscape, inHex:
		return s.stepString(c)
	case inLiteral:
		if c != s.want[0] {
			return errNotJSON
		}
		if s.want = s.want[1:]; s.want == "" {
			s.state = afterValue
		}
		return nil
	case afterMinus, afterZero, inInteger, afterDot, inFraction, afterE, afterESign, inExponent:
		if s.stepNumber(c) {
			return nil
		}
		if s.state != afterValue {
			return errNotJSON
		}
	}
	if isSpace(c) {
		return nil
	}
	switch s.state {
	case beforeObject:
		if c != '{' {
			return errNotJSON
		}
		return s.open(c)
	case firstKey, nextKey:
		if c == '}' && s.state == firstKey {
			s.shut()
			return nil
		}
		if c != '"' {
			return errNotJSON
		}
		s.state, s.inKey, s.key = inString, len(s.depth) == 1, s.key[:0]
		s.depth[len(s.depth)-1] = 'k' // the string is a key
		return nil
	case afterKey:
		if c != ':' {
			return errNotJSON
		}
		s.state = beforeValue
		if len(s.depth) == 1 {
			return s.member()
		}
		return nil
	case beforeValue, firstElement:
		return s.stepValue(c)
	case afterValue:
		return s.stepBetween(c)
	}
	return errNotJSON // behind the object
}

// stepString reads a byte of a string.
func (s *scanner) stepString(c byte) error {
	if s.inKey && !(s.state == inString && c == '"') {
		if len(s.key) == maxKey {
			return errKeys
		}
		s.key = append(s.key, c)
	}
	switch s.state {
	case inEscape:
		switch c {
		case 'u':
			s.state, s.hex = inHex, 4
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			s.state = inString
		default:
			return errNotJSON
		}
	case inHex:
		if !('0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f') {
			return errNotJSON
		}
		if s.hex--; s.hex == 0 {
			s.state = inString
		}
	default:
		switch {
		case c == '\\':
			s.state = inEscape
		case c < ' ':
			return errNotJSON
		case c == '"':
			s.inKey = false
			s.state = afterValue
			if top := len(s.depth) - 1; s.depth[top] == 'k' {
				s.depth[top], s.state = '{', afterKey
			}
		}
	}
	return nil
}

// stepNumber reads a byte of a number. It reports false, in the state after a value,
// when the number is over and the byte is not of it; or in a state of the number when
// the byte is wrong.
func (s *scanner) stepNumber(c byte) bool {
	digit := '0' <= c && c <= '9'
	switch s.state {
	case afterMinus:
		switch {
		case c == '0':
			s.state = afterZero
			return true
		case digit:
			s.state = inInteger
			return true
		}
		return false
	case afterDot, afterE, afterESign:
		switch {
		case digit && s.state == afterDot:
			s.state = inFraction
			return true
		case digit:
			s.state = inExponent
			return true
		case (c == '+' || c == '-') && s.state == afterE:
			s.state = afterESign
			return true
		}
		return false
	}
	switch {
	case digit && s.state != afterZero:
		return true
	case c == '.' && (s.state == afterZero || s.state == inInteger):
		s.state = afterDot
		return true
	case (c == 'e' || c == 'E') && s.state != inExponent:
		s.state = afterE
		return true
	}
	s.state = afterValue
	return false
}

// stepValue reads the first byte of a value.
func (s *scanner) stepValue(c byte) error {
	literals := map[byte]string{'t': "rue", 'f': "alse", 'n': "ull"}
	switch {
	case c == ']' && s.state == firstElement:
		s.shut()
	case c == '{' || c == '[':
		return s.open(c)
	case c == '"':
		s.state = inString
	case c == '-':
		s.state = afterMinus
	case c == '0':
		s.state = afterZero
	case '1' <= c && c <= '9':
		s.state = inInteger
	case literals[c] != "":
		s.state, s.want = inLiteral, literals[c]
	default:
		return errNotJSON
	}
	return nil
}

// stepBetween reads what follows a value.
func (s *scanner) stepBetween(c byte) error {
	switch top := s.depth[len(s.depth)-1]; {
	case c == ',' && top == '{':
		s.state = nextKey
	case c == ',' && top == '[':
		s.state = beforeValue
	case c == '}' && top == '{' || c == ']' && top == '[':
		s.shut()
	default:
		return errNotJSON
	}
	return nil
}

func (s *scanner) open(c byte) error {
	if len(s.depth) == maxDepth {
		return errTooNested
	}
	s.depth = append(s.depth, c)
	s.state = firstKey
	if c == '[' {
		s.state = firstElement
	}
	return nil
}

func (s *scanner) shut() {
	s.depth = s.depth[:len(s.depth)-1]
	s.state = afterValue
	if len(s.depth) == 0 {
		s.state = afterObject
	}
}

// member looks at the key of the top level that has just been read. Some parsers take
// the last of equal names and some do not look at their case, so there must be one.
func (s *scanner) member() error {
	var name string
	if err := json.Unmarshal(bytes.Join([][]byte{{'"'}, s.key, {'"'}}, nil), &name); err != nil {
		return errNotJSON
	}
	if strings.IndexFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 {
		return errKeys
	}
	for _, m := range []struct {
		name  string
		value *member
	}{{"model", &s.members.model}, {"stream", &s.members.stream}, {"stream_options", &s.members.streamOptions}} {
		switch {
		case !strings.EqualFold(m.name, name):
		case m.value.seen || m.name != name:
			return errTwice
		default:
			m.value.seen = true
			s.capture = m.value
		}
	}
	return nil
}

// model returns the name of the model, once its value has been read.
func (s *scanner) model() (name string, known bool, err error) {
	m := &s.members.model
	switch {
	case !m.seen && s.done():
		return "", false, errNoModel
	case m.end == 0:
		return "", false, nil
	case m.tooLong || json.Unmarshal(m.raw, &name) != nil || m.raw[0] != '"':
		return "", false, errBadModel
	}
	return name, true, nil
}
