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
}

// Request reports whether m expects an answer.
func (m *Message) Request() bool { return m.Method != "" && m.ID != nil }

// wireMessage is a message as it is written. The version is sent for the sake
// of strict readers and not asked for: the public protocol leaves it out.
type wireMessage struct {
	Version string          `json:"jsonrpc,omitempty"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *Error          `json:"error,omitempty"`
}

// DecodeMessage takes one message apart. Whatever is not a message is an
// error that is ErrMalformed. When the id could be read although the rest is
// wrong, the message returned beside the error carries it.
func DecodeMessage(data []byte) (Message, error) {
	var w wireMessage
	if err := json.Unmarshal(data, &w); err != nil {
		return Message{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	m := Message{ID: w.ID, Method: w.Method, Params: w.Params, Result: w.Result, Error: w.Error}
	if bytes.Equal(m.ID, []byte("null")) {
		m.ID = nil
	}
	if m.ID != nil && !validID(m.ID) {
		return Message{}, fmt.Errorf("%w: the id is neither a number nor a string of up to %d bytes", ErrMalformed, maxIDBytes)
	}
	answer := m.Result != nil || m.Error != nil
	switch {
	case m.Method == "" && !answer:
		return Message{ID: m.ID}, fmt.Errorf("%w: neither a method nor an answer", ErrMalformed)
	case m.Method != "" && answer:
		return Message{ID: m.ID}, fmt.Errorf("%w: both a method and an answer", ErrMalformed)
	case m.Result != nil && m.Error != nil:
		return Message{ID: m.ID}, fmt.Errorf("%w: both a result and an error", ErrMalformed)
	}
	return m, nil
}

func validID(id json.RawMessage) bool {
	if len(id) == 0 || len(id) > maxIDBytes {
		return false
	}
	return id[0] == '"' || id[0] == '-' || ('0' <= id[0] && id[0] <= '9')
}

// EncodeMessage writes m as JSON.
func EncodeMessage(m Message) ([]byte, error) {
	data, err := json.Marshal(wireMessage{
		Version: "2.0", ID: m.ID, Method: m.Method, Params: m.Params, Result: m.Result, Error: m.Error,
	})
	if err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	return data, nil
}
