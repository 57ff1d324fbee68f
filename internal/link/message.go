package link

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// maxIDBytes bounds the id that a server has to echo.
const maxIDBytes = 128

// Message is one JSON-RPC message: a request (Method and ID), a notification
// (Method alone) or an answer (ID with Result or Error).
type Message struct {
	ID     json.RawMessage // a number or a string as it was sent; nil in a notification
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *Error
	// Payload is what follows the JSON; nil when nothing does.
	Payload []byte

	frame []byte // what all of it was read from
}

// Request reports whether m expects an answer.
func (m *Message) Request() bool { return m.Method != "" && m.ID != nil }

// DecodeMessage takes one message apart. Whatever is not a message is an
// error that is ErrMalformed. When the id could be read although the rest is
// wrong, the message returned beside the error carries it. Params and Result
// are slices of data; that they are valid JSON is for their reader to find out.
func DecodeMessage(data []byte) (Message, error) {
	body, payload, err := splitPayload(data)
	if err != nil {
		return Message{}, err
	}
	m := Message{Payload: payload, frame: data}
	var failure []byte
	s := scanner{data: body}
	ok := s.object(func(key string) bool {
		var v []byte
		var ok bool
		switch key {
		case "method":
			v, ok = s.value()
			return ok && json.Unmarshal(v, &m.Method) == nil
		case "id":
			m.ID, ok = s.value()
		case "params":
			m.Params, ok = s.value()
		case "result":
			m.Result, ok = s.value()
		case "error":
			failure, ok = s.value()
		default:
			_, ok = s.value()
		}
		return ok
	})
	if !ok || !s.end() {
		return Message{}, fmt.Errorf("%w: not an object", ErrMalformed)
	}
	if bytes.Equal(m.ID, []byte("null")) {
		m.ID = nil
	}
	if m.ID != nil && !validID(m.ID) {
		return Message{}, fmt.Errorf("%w: the id is neither a number nor a string of up to %d bytes", ErrMalformed, maxIDBytes)
	}
	if m.Payload != nil {
		m.ID = bytes.Clone(m.ID) // it answers for a payload that may be released by then
	}
	if failure != nil && !bytes.Equal(failure, []byte("null")) {
		if err := json.Unmarshal(failure, &m.Error); err != nil {
			return Message{ID: m.ID}, fmt.Errorf("%w: error: %w", ErrMalformed, err)
		}
	}
	if what := m.fault(); what != "" {
		return Message{ID: m.ID}, fmt.Errorf("%w: %s", ErrMalformed, what)
	}
	return m, nil
}

// fault says what is wrong with the parts of m together.
func (m *Message) fault() string {
	answer := m.Result != nil || m.Error != nil
	switch {
	case m.Method == "" && !answer:
		return "neither a method nor an answer"
	case m.Method != "" && answer:
		return "both a method and an answer"
	case m.Result != nil && m.Error != nil:
		return "both a result and an error"
	}
	return ""
}

func validID(id json.RawMessage) bool {
	if len(id) == 0 || len(id) > maxIDBytes || !json.Valid(id) {
		return false
	}
	return id[0] == '"' || id[0] == '-' || ('0' <= id[0] && id[0] <= '9')
}

// EncodeMessage writes m as JSON. Its ID, Params and Result are taken to be
// JSON already. A payload follows it. The version is sent for the sake of strict readers and not
// asked for, since the public protocol leaves it out.
func EncodeMessage(m Message) ([]byte, error) {
	if m.Payload != nil {
		return encodeWith(m)
	}
	return appendMessage(make([]byte, 0, m.room()), m)
}

// room is about how many bytes the JSON of m takes.
func (m *Message) room() int {
	const names = 128 // everything but the parts
	return names + len(m.ID) + len(m.Method) + len(m.Params) + len(m.Result)
}

func appendMessage(b []byte, m Message) ([]byte, error) {
	b = append(b, `{"jsonrpc":"2.0"`...)
	b = appendPart(b, "id", m.ID)
	if m.Method != "" {
		method, err := json.Marshal(m.Method)
		if err != nil {
			return nil, fmt.Errorf("encode message: %w", err)
		}
		b = appendPart(b, "method", method)
	}
	b = appendPart(b, "params", m.Params)
	b = appendPart(b, "result", m.Result)
	if m.Error != nil {
		failure, err := json.Marshal(m.Error)
		if err != nil {
			return nil, fmt.Errorf("encode message: %w", err)
		}
		b = appendPart(b, "error", failure)
	}
	return append(b, '}'), nil
}

func appendPart(b []byte, name string, value []byte) []byte {
	if value == nil {
		return b
	}
	b = append(b, `,"`...)
	b = append(b, name...)
	b = append(b, `":`...)
	return append(b, value...)
}
