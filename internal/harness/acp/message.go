package acp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// The codes of JSON-RPC errors that we give or read.
const (
	codeNoMethod      = -32601
	codeInvalidParams = -32602
)

// kind is what a line of the agent's output turned out to be.
type kind int

const (
	blank        kind = iota // nothing on it
	noise                    // not a message of the protocol
	notification             // method, no id
	request                  // method and id
	response                 // id, and a result or an error
)

// message is one JSON-RPC message. The raw parts are valid JSON and valid
// UTF-8, as the agent wrote them.
type message struct {
	id     json.RawMessage
	method string
	params json.RawMessage
	result json.RawMessage
	err    *rpcError
}

// rpcError is the error of a response.
type rpcError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// parse tells what a line is. Only a complete JSON-RPC 2.0 message counts: a log
// line in JSON that happens to have an id or a method is noise. Names are
// matched exactly, unlike encoding/json does into structs.
func parse(line []byte) (message, kind) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return message{}, blank
	}
	if line[0] != '{' {
		return message{}, noise
	}
	if !utf8.Valid(line) {
		line = bytes.ToValidUTF8(line, []byte("\uFFFD"))
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(line, &fields) != nil || !is(fields["jsonrpc"], "2.0") {
		return message{}, noise
	}
	m := message{id: present(fields["id"]), params: fields["params"]}
	if raw, ok := fields["method"]; ok {
		if json.Unmarshal(raw, &m.method) != nil || m.method == "" {
			return message{}, noise
		}
		return m, classify(fields, &m)
	}
	return m, readResponse(fields, &m)
}

// classify tells a request from a notification.
func classify(fields map[string]json.RawMessage, m *message) kind {
	_, result := fields["result"]
	_, failure := fields["error"]
	switch {
	case result || failure:
		return noise
	case m.id == nil:
		return notification
	case validID(m.id):
		return request
	default:
		return noise
	}
}

// readResponse reads a response. Some agents send the half that they do not mean
// as null.
func readResponse(fields map[string]json.RawMessage, m *message) kind {
	result, has := fields["result"]
	failure := present(fields["error"])
	switch {
	case m.id == nil || !validID(m.id):
		return noise
	case failure != nil && present(result) == nil:
		m.err = new(rpcError)
		if json.Unmarshal(failure, m.err) != nil {
			m.err = &rpcError{Message: string(failure)}
		}
		return response
	case failure == nil && has:
		m.result = result
		return response
	default:
		return noise
	}
}

// present drops a JSON null.
func present(raw json.RawMessage) json.RawMessage {
	if raw == nil || string(raw) == "null" {
		return nil
	}
	return raw
}

// validID reports whether raw may be a JSON-RPC id of a sane size.
func validID(raw json.RawMessage) bool {
	const most = 4 << 10
	return len(raw) <= most && (raw[0] == '"' || raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9')
}

// is reports whether raw is the JSON string want, however it is escaped.
func is(raw json.RawMessage, want string) bool {
	if len(raw) < 2 || raw[0] != '"' {
		return false
	}
	var s string
	return json.Unmarshal(raw, &s) == nil && s == want
}

// encode makes the line of a message. It cannot fail for what this package
// sends: strings, numbers and raw JSON that was parsed before.
func encode(m map[string]any) []byte {
	m["jsonrpc"] = "2.0"
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		panic(fmt.Sprintf("acp: encode a message: %v", err))
	}
	return buf.Bytes()
}

func encodeRequest(id, method string, params any) []byte {
	return encode(map[string]any{"id": id, "method": method, "params": params})
}

func encodeNotification(method string, params any) []byte {
	return encode(map[string]any{"method": method, "params": params})
}

func encodeResult(id json.RawMessage, result any) []byte {
	return encode(map[string]any{"id": id, "result": result})
}

func encodeError(id json.RawMessage, code int, text string) []byte {
	return encode(map[string]any{"id": id, "error": rpcError{Code: code, Message: text}})
}

// The parts of ACP that this package looks at.
type (
	initialized struct {
		ProtocolVersion   int `json:"protocolVersion"`
		AgentCapabilities struct {
			LoadSession        bool `json:"loadSession"`
			PromptCapabilities struct {
				Image           bool `json:"image"`
				EmbeddedContext bool `json:"embeddedContext"`
			} `json:"promptCapabilities"`
			McpCapabilities struct {
				HTTP bool `json:"http"`
				SSE  bool `json:"sse"`
			} `json:"mcpCapabilities"`
			SessionCapabilities struct {
				Resume json.RawMessage `json:"resume"`
			} `json:"sessionCapabilities"`
		} `json:"agentCapabilities"`
		AgentInfo struct {
			Name    string `json:"name"`
			Title   string `json:"title"`
			Version string `json:"version"`
		} `json:"agentInfo"`
	}
	updateParams struct {
		SessionID string          `json:"sessionId"`
		Update    json.RawMessage `json:"update"`
	}
	permissionParams struct {
		Options []struct {
			OptionID string `json:"optionId"`
			Name     string `json:"name"`
			Kind     string `json:"kind"`
		} `json:"options"`
	}
	cancelledRequest struct {
		RequestID json.RawMessage `json:"requestId"`
	}
)

// history reports whether an update is of a kind that conversations are made of,
// rather than news of the agent itself.
func (p updateParams) history() bool {
	var u struct {
		Kind string `json:"sessionUpdate"`
	}
	if json.Unmarshal(p.Update, &u) != nil {
		return false
	}
	switch u.Kind {
	case "user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan":
		return true
	}
	return false
}

// errNoID refuses a conversation that was opened without a name, or with one
// that cannot be kept.
var errNoID = errors.New("no usable sessionId")

// sessionID reads the id of a new conversation.
func sessionID(result json.RawMessage) (string, error) {
	var r struct {
		SessionID string `json:"sessionId"`
	}
	const most = 1 << 10
	if err := json.Unmarshal(result, &r); err != nil {
		return "", err
	}
	if r.SessionID == "" || len(r.SessionID) > most || !utf8.ValidString(r.SessionID) {
		return "", errNoID
	}
	return r.SessionID, nil
}

// clip bounds text for people to n bytes, at a character, and makes it valid
// UTF-8 without control characters that could disturb a terminal or a log.
func clip(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// text is the error in the agent's own words, bounded. Many agents put the
// cause into the data.
func (e *rpcError) text() string {
	t := e.Message
	if present(e.Data) != nil {
		t += " " + string(e.Data)
	}
	return fmt.Sprintf("%s (%d)", clip(t, 4<<10), e.Code)
}
