package link

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strconv"
)

// Most bytes on a link are output in base64, inside a string, inside an
// object. Package json looks at each of them several times; scanner looks
// once, and at the inside of strings not at all. It splits JSON without
// checking all of it: what it hands out is checked by whoever decodes it.
type scanner struct {
	data []byte
	i    int
}

// space skips white space and returns the byte after it, or 0 at the end.
func (s *scanner) space() byte {
	for s.i < len(s.data) {
		switch c := s.data[s.i]; c {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return c
		}
	}
	return 0
}

// take skips white space and then c, and reports whether it was there.
func (s *scanner) take(c byte) bool {
	if s.space() != c {
		return false
	}
	s.i++
	return true
}

// text reads a string and returns what stands between the quotes.
func (s *scanner) text() ([]byte, bool) {
	if !s.take('"') {
		return nil, false
	}
	from := s.i
	for {
		n := bytes.IndexByte(s.data[s.i:], '"')
		if n < 0 {
			return nil, false
		}
		s.i += n + 1
		escapes := 0
		for j := s.i - 2; j >= from && s.data[j] == '\\'; j-- {
			escapes++
		}
		if escapes%2 == 0 {
			return s.data[from : s.i-1], true
		}
	}
}

// value skips a value of any kind and returns it.
func (s *scanner) value() ([]byte, bool) {
	c := s.space()
	from := s.i
	switch c {
	case '"':
		if _, ok := s.text(); !ok {
			return nil, false
		}
	case '{', '[':
		if !s.nested() {
			return nil, false
		}
	default:
		for s.i < len(s.data) && !bytes.ContainsRune([]byte(" \t\r\n,:{}[]\""), rune(s.data[s.i])) {
			s.i++
		}
	}
	return s.data[from:s.i], s.i > from
}

// nested skips an object or an array, whatever is in it.
func (s *scanner) nested() bool {
	depth := 0
	for s.i < len(s.data) {
		switch s.data[s.i] {
		case '"':
			if _, ok := s.text(); !ok {
				return false
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		s.i++
		if depth == 0 {
			return true
		}
	}
	return false
}

// object reads an object and calls field for each key, which must use up the
// value. Keys are compared as they are written; none of ours needs escapes.
func (s *scanner) object(field func(key string) bool) bool {
	if !s.take('{') {
		return false
	}
	if s.take('}') {
		return true
	}
	for {
		key, ok := s.text()
		if !ok || !s.take(':') || !field(string(key)) {
			return false
		}
		if s.take('}') {
			return true
		}
		if !s.take(',') {
			return false
		}
	}
}

// array reads an array and calls item at each element, which it must use up.
func (s *scanner) array(item func() bool) bool {
	if !s.take('[') {
		return false
	}
	if s.take(']') {
		return true
	}
	for {
		if !item() {
			return false
		}
		if s.take(']') {
			return true
		}
		if !s.take(',') {
			return false
		}
	}
}

// end reports whether nothing but white space is left.
func (s *scanner) end() bool { return s.space() == 0 && s.i == len(s.data) }

// integer reads a whole number.
func (s *scanner) integer(into *int64) bool {
	v, ok := s.value()
	if !ok {
		return false
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	*into = n
	return err == nil
}

// chunk reads one OutputChunk.
func (s *scanner) chunk(into *OutputChunk) bool {
	return s.object(func(key string) bool {
		switch key {
		case "seq":
			return s.integer(&into.Seq)
		case "offset":
			return s.integer(&into.Offset)
		case "stream":
			v, ok := s.text()
			into.Stream = streamName(v)
			return ok && !bytes.ContainsRune(v, '\\')
		case "size":
			var n int64
			ok := s.integer(&n)
			into.Size = int(n)
			return ok && n == int64(into.Size)
		case "chunk":
			return s.bytes(&into.Chunk)
		}
		_, ok := s.value()
		return ok
	})
}

// streamName is string(v), without memory for the names there are.
func streamName(v []byte) string {
	for _, name := range []string{Stdout, Stderr, PTY} {
		if string(v) == name {
			return name
		}
	}
	return string(v)
}

// bytes reads a string of base64.
func (s *scanner) bytes(into *[]byte) bool {
	v, ok := s.text()
	if !ok {
		return false
	}
	if len(v) == 0 {
		*into = []byte{}
		return true
	}
	*into = make([]byte, base64.StdEncoding.DecodedLen(len(v)))
	n, err := base64.StdEncoding.Strict().Decode(*into, v)
	*into = (*into)[:n]
	return err == nil
}

// cutField reads one field of an object with read and returns the object with
// something small in its place, for package json to go on with. It reports
// whether the field was there, once, and could be read.
func cutField(object []byte, field, instead string, read func(s *scanner) bool) (rest []byte, ok bool) {
	s := scanner{data: object}
	from, found := 0, 0
	ok = s.object(func(key string) bool {
		if key != field {
			_, ok := s.value()
			return ok
		}
		found++
		rest = append(append(rest, object[from:s.i]...), instead...)
		ok := read(&s)
		from = s.i
		return ok
	})
	return append(rest, object[from:]...), ok && s.end() && found == 1
}

// decodeData decodes an object whose field holds much base64.
func decodeData(data []byte, field string, into *[]byte, rest any) error {
	var body []byte
	short, ok := cutField(data, field, `""`, func(s *scanner) bool { return s.bytes(&body) })
	if !ok {
		return json.Unmarshal(data, rest)
	}
	err := json.Unmarshal(short, rest)
	*into = body
	return err
}

// Decode reads p from JSON.
func (p *ProcessWriteParams) Decode(data []byte) error { return decodeData(data, "chunk", &p.Chunk, p) }

// Decode reads p from JSON.
func (p *WriteFileParams) Decode(data []byte) error {
	return decodeData(data, "dataBase64", &p.Data, p)
}

// Decode reads r from JSON.
func (r *ReadFileResult) Decode(data []byte) error {
	return decodeData(data, "dataBase64", &r.Data, r)
}

// Decode reads r from JSON.
func (r *ProcessReadResult) Decode(data []byte) error {
	chunks := []OutputChunk{}
	rest, ok := cutField(data, "chunks", "[]", func(s *scanner) bool {
		return s.array(func() bool {
			chunks = append(chunks, OutputChunk{})
			return s.chunk(&chunks[len(chunks)-1])
		})
	})
	if !ok {
		return json.Unmarshal(data, r)
	}
	err := json.Unmarshal(rest, r)
	r.Chunks = chunks
	return err
}

// Decoder is what holds so much output or input that it has a way of its own
// to be read from JSON.
type Decoder interface {
	Decode(data []byte) error
}

// Field returns the value of one field of a JSON object, unread; nil when
// there is none. The first counts.
func Field(object []byte, field string) []byte {
	var value []byte
	s := scanner{data: object}
	s.object(func(key string) bool {
		v, ok := s.value()
		if ok && key == field && value == nil {
			value = v
		}
		return ok
	})
	return value
}
