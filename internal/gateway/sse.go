package gateway

import "bytes"

// maxEvent is up to where the data of an event is read. The last event of a Responses
// stream repeats the whole answer, and the instructions with it.
const maxEvent = 16 << 20

// events takes a stream of server-sent events apart while it passes.
type events struct {
	// each gets every event: its name, "" without one, and its data, which is only
	// valid during the call. Data beyond maxEvent is not collected, and too long.
	each func(name string, data []byte, tooLong bool)

	line    []byte // the beginning of a line whose end has not come
	lineBig bool   // more of it has come than is kept
	afterCR bool   // a line has ended with CR: LF belongs to it
	name    string
	data    []byte
	some    bool // the event has data
	tooLong bool
}

// write reads on.
func (s *events) write(p []byte) {
	for len(p) > 0 {
		if s.afterCR {
			s.afterCR = false
			if p[0] == '\n' {
				p = p[1:]
				continue
			}
		}
		n := bytes.IndexAny(p, "\r\n")
		if n < 0 {
			s.keep(p)
			return
		}
		line := p[:n]
		if len(s.line) > 0 || s.lineBig {
			s.keep(line)
			line = s.line
		}
		s.afterCR = p[n] == '\r'
		p = p[n+1:]
		if len(line) == 0 && !s.lineBig {
			s.end()
		} else {
			s.field(line)
		}
		s.line, s.lineBig = s.line[:0], false
	}
}

func (s *events) keep(p []byte) {
	if len(s.line)+len(p) > maxEvent {
		s.lineBig, s.tooLong = true, true
		return
	}
	s.line = append(s.line, p...)
}

// field reads a line of an event.
func (s *events) field(line []byte) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "event":
		s.name = string(value[:min(len(value), 128)])
	case "data":
		if s.some = true; len(s.data)+len(value) > maxEvent {
			s.tooLong = true
			return
		}
		if len(s.data) > 0 {
			s.data = append(s.data, '\n')
		}
		s.data = append(s.data, value...)
	}
}

// end hands an event out. One without data is none.
func (s *events) end() {
	if s.some || s.tooLong {
		s.each(s.name, s.data, s.tooLong)
	}
	if cap(s.data) > 1<<20 { // rare, and not needed for the next
		s.data = nil
	}
	s.name, s.data, s.some, s.tooLong = "", s.data[:0], false, false
}

// finish ends a stream. A last event without the empty line behind it counts: it may
// hold the usage.
func (s *events) finish() {
	if len(s.line) > 0 && !s.lineBig {
		s.field(s.line)
	}
	s.end()
}

// firstEvent returns the first event of b with the empty line behind it; nil when its
// end has not come.
func firstEvent(b []byte) []byte {
	for at := 0; ; {
		n := bytes.IndexByte(b[at:], '\n')
		if n < 0 {
			return nil
		}
		at += n + 1
		rest := bytes.TrimPrefix(b[at:], []byte("\r"))
		if len(rest) > 0 && rest[0] == '\n' {
			return b[:len(b)-len(rest)+1]
		}
	}
}
