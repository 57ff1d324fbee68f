package main

import (
	"io"
	"sync"
	"unicode/utf8"

	"github.com/sojourn-dev/sojourn/client"
)

// jsonLines writes output as JSON, a line for each piece.
type jsonLines struct {
	p       *printer
	mu      sync.Mutex
	streams []*jsonStream
}

// outputLine is a piece of output: as text, or in base64 when it is none.
type outputLine struct {
	Type string  `json:"type"` // stdout or stderr
	Data *string `json:"data,omitempty"`
	Raw  []byte  `json:"dataBase64,omitempty"`
}

// stream returns where one stream is written to.
func (j *jsonLines) stream(name string) io.Writer {
	s := &jsonStream{j: j, name: name}
	j.streams = append(j.streams, s)
	return s
}

// flush writes what was held back.
func (j *jsonLines) flush() error {
	for _, s := range j.streams {
		if err := s.put(s.held); err != nil {
			return err
		}
		s.held = nil
	}
	return nil
}

// end writes the last line.
func (j *jsonLines) end(x client.Execution) error {
	if err := j.flush(); err != nil {
		return err
	}
	return j.p.valueLine(struct {
		Type      string           `json:"type"`
		Execution client.Execution `json:"execution"`
	}{"execution", x})
}

// jsonStream is one stream of a [jsonLines]. A character that a read has cut is
// held back until the rest of it is there.
type jsonStream struct {
	j    *jsonLines
	name string
	held []byte
}

// Write writes a line.
func (s *jsonStream) Write(p []byte) (int, error) {
	data := append(s.held, p...)
	cut := len(data) - unfinished(data)
	s.held = append([]byte(nil), data[cut:]...)
	if err := s.put(data[:cut]); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (s *jsonStream) put(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	s.j.mu.Lock()
	defer s.j.mu.Unlock()
	line := outputLine{Type: s.name}
	if utf8.Valid(data) {
		line.Data = new(string(data))
	} else {
		line.Raw = data
	}
	return s.j.p.valueLine(line)
}

// unfinished returns how many bytes at the end of data may be the beginning of a
// character.
func unfinished(data []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(data); n++ {
		if tail := data[len(data)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
