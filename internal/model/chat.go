package model

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// chat speaks chat completions, as OpenAI defined them and many servers after
// it, each with fields of its own.
type chat struct{}

const maxChatCalls = 1024 // of a reply

func (chat) path() string { return "/chat/completions" }

func (chat) authorize(h http.Header, key string) { bearer(h, key) }

// bearer sends a key as OpenAI wants it.
func bearer(h http.Header, key string) {
	if key != "" {
		h.Set("Authorization", "Bearer "+key)
	}
}

func (chat) body(w *writer, e *Endpoint, r *Request) {
	w.raw(`{"model":`)
	w.str(e.Model)
	w.raw(`,"stream":true,"stream_options":{"include_usage":true}`)
	if e.MaxOutputTokens > 0 {
		w.raw(`,"max_tokens":`, strconv.FormatInt(e.MaxOutputTokens, 10))
	}
	if len(r.Tools) > 0 {
		w.raw(`,"tools":[`)
		for i, t := range r.Tools {
			if i > 0 {
				w.raw(`,`)
			}
			w.raw(`{"type":"function","function":{"name":`)
			w.str(t.Name)
			w.raw(`,"description":`)
			w.str(t.Description)
			w.raw(`,"parameters":`, string(t.Schema), `}}`)
		}
		w.raw(`]`)
		if r.NoCalls {
			w.raw(`,"tool_choice":"none"`)
		}
	}
	items := r.Items
	if r.System != "" {
		var s writer
		s.raw(`{"role":"system","content":`)
		s.str(r.System)
		s.raw(`}`)
		items = append([]json.RawMessage{s.Bytes()}, items...)
	}
	w.raw(`,"messages":`)
	w.list(items)
	w.extra(e.Extra)
	w.raw(`}`)
}

func (chat) user(parts []Part) (json.RawMessage, error) {
	var w writer
	w.raw(`{"role":"user","content":`)
	if len(parts) == 1 && parts[0].Type == "text" { // what every server understands
		w.str(parts[0].Text)
		w.raw(`}`)
		return w.Bytes(), nil
	}
	w.raw(`[`)
	for i, p := range parts {
		if i > 0 {
			w.raw(`,`)
		}
		switch p.Type {
		case "text":
			w.raw(`{"type":"text","text":`)
			w.str(p.Text)
			w.raw(`}`)
		case "image":
			w.raw(`{"type":"image_url","image_url":{"url":`)
			w.str("data:" + p.MimeType + ";base64," + p.Data)
			w.raw(`}}`)
		default:
			return nil, fmt.Errorf("%w: %q", ErrPart, p.Type)
		}
	}
	w.raw(`]}`)
	return w.Bytes(), nil
}

func (chat) results(results []Result) []json.RawMessage {
	out := make([]json.RawMessage, len(results))
	for i, r := range results {
		var w writer
		w.raw(`{"role":"tool","tool_call_id":`)
		w.str(r.ID)
		w.raw(`,"content":`)
		w.str(r.Output)
		w.raw(`}`)
		out[i] = w.Bytes()
	}
	return out
}

func (chat) collector(e *Endpoint) collector {
	return &completion{omit: e.OmitReasoning, grows: growing{}, object: object{fields: map[string]json.RawMessage{}}}
}

// completion collects the reply of chat completions: the fields of the message
// grow from chunk to chunk, whatever they are called.
type completion struct {
	object
	omit   bool
	grows  growing
	lists  map[string][]json.RawMessage
	calls  []*chatCall
	finish string
	usage  Usage
}

// chatCall is an element of tool_calls.
type chatCall struct {
	object
	function object
	name     strings.Builder
	args     strings.Builder
}

// chatChunk is what this package looks at in a chunk.
type chatChunk struct {
	Choices []struct {
		Index  int             `json:"index"`
		Delta  json.RawMessage `json:"delta"`
		Finish string          `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Input        int64 `json:"prompt_tokens"`
		InputDetails struct {
			Cached int64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
		Output        int64 `json:"completion_tokens"`
		OutputDetails struct {
			Reasoning int64 `json:"reasoning_tokens"`
		} `json:"completion_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

func (m *completion) event(data []byte, emit func(Delta) error) (bool, error) {
	if string(data) == "[DONE]" {
		return true, nil
	}
	var c chatChunk
	if err := json.Unmarshal(data, &c); err != nil {
		return false, fmt.Errorf("%w: a chunk that is not JSON", ErrProtocol)
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return false, statusError(http.StatusOK, nil, data)
	}
	if u := c.Usage; u != nil {
		m.usage = Usage{Input: u.Input, Cached: u.InputDetails.Cached, Output: u.Output, Reasoning: u.OutputDetails.Reasoning}
	}
	for _, choice := range c.Choices {
		if choice.Index != 0 {
			continue // nobody asked for another
		}
		if choice.Finish != "" {
			m.finish = choice.Finish
		}
		if len(choice.Delta) > 0 && string(choice.Delta) != "null" {
			if err := m.merge(choice.Delta, emit); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

// thoughts are the fields in which servers give reasoning as text.
var thoughts = []string{"reasoning_content", "reasoning"}

// merge adds a delta to the message.
func (m *completion) merge(delta json.RawMessage, emit func(Delta) error) error {
	o, err := parseObject(delta)
	if err != nil {
		return fmt.Errorf("%w: a delta that is no object", ErrProtocol)
	}
	thought := false
	for _, key := range o.keys {
		v := o.fields[key]
		switch {
		case string(v) == "null" || key == "role":
			continue
		case key == "tool_calls":
			if err := m.mergeCalls(v); err != nil {
				return err
			}
			continue
		case v[0] == '"':
			text := o.text(key)
			if text != "" {
				m.grow(key, text)
			}
			if isThought := slices.Contains(thoughts, key); text != "" && (key == "content" || isThought && !thought) {
				thought = thought || isThought // some servers give it under both names
				if err := emit(Delta{Thought: isThought, Text: text}); err != nil {
					return err
				}
			}
		case v[0] == '[':
			var more []json.RawMessage
			_ = json.Unmarshal(v, &more) // it is valid, as part of what was parsed
			if m.lists == nil {
				m.lists = map[string][]json.RawMessage{}
			}
			m.lists[key] = append(m.lists[key], more...)
			m.note(key)
		default:
			m.set(key, v)
		}
	}
	return nil
}

func (m *completion) grow(key, text string) {
	m.note(key)
	m.grows.add(key, text)
}

// note gives a field its place, by when it first came.
func (m *completion) note(key string) {
	if _, ok := m.fields[key]; !ok {
		m.set(key, json.RawMessage(`""`))
	}
}

// mergeCalls adds pieces of calls. A piece says which call it belongs to; the
// first one of each has its name.
func (m *completion) mergeCalls(raw json.RawMessage) error {
	var pieces []json.RawMessage
	if json.Unmarshal(raw, &pieces) != nil {
		return fmt.Errorf("%w: tool_calls that is no list", ErrProtocol)
	}
	for _, p := range pieces {
		o, err := parseObject(p)
		if err != nil {
			return fmt.Errorf("%w: a piece of a call", ErrProtocol)
		}
		c, err := m.callOf(&o)
		if err != nil {
			return err
		}
		f, err := parseObject(o.fields["function"])
		for _, k := range o.keys {
			if k != "index" && k != "function" && string(o.fields[k]) != "null" && c.text(k) == "" {
				c.set(k, o.fields[k])
			}
		}
		if err != nil {
			continue // a piece may have no function
		}
		c.name.WriteString(f.text("name"))
		c.args.WriteString(f.text("arguments"))
		for _, k := range f.keys {
			if k != "name" && k != "arguments" {
				c.function.set(k, f.fields[k])
			}
		}
	}
	return nil
}

// callOf finds the call of a piece: by its index, or, with servers that give
// none, a new one for each id.
func (m *completion) callOf(o *object) (*chatCall, error) {
	at := len(m.calls) - 1
	if raw, ok := o.fields["index"]; ok && string(raw) != "null" {
		if json.Unmarshal(raw, &at) != nil || at < 0 || at > len(m.calls) {
			return nil, fmt.Errorf("%w: a piece of call %.20s", ErrProtocol, raw)
		}
	} else if id := o.text("id"); at < 0 || id != "" && id != m.calls[at].text("id") {
		at = len(m.calls)
	}
	if at == len(m.calls) {
		if at >= maxChatCalls {
			return nil, fmt.Errorf("%w: more than %d calls", ErrProtocol, maxChatCalls)
		}
		m.calls = append(m.calls, &chatCall{
			object: object{fields: map[string]json.RawMessage{}}, function: object{fields: map[string]json.RawMessage{}},
		})
	}
	return m.calls[at], nil
}

func (m *completion) reply() (Reply, error) {
	if m.finish == "" {
		return Reply{}, ErrCut
	}
	r := Reply{Usage: m.usage, Stop: chatStop(m.finish)}
	m.grows.finish(&m.object)
	for k, l := range m.lists {
		var w writer
		w.list(l)
		m.set(k, w.Bytes())
	}
	var calls []json.RawMessage
	for i, c := range m.calls {
		if c.text("id") == "" {
			c.set("id", quote("call_"+strconv.Itoa(i+1)))
		}
		r.Calls = append(r.Calls, newCall(c.text("id"), c.name.String(), c.args.String()))
		raw, err := c.encode()
		if err != nil {
			return Reply{}, fmt.Errorf("%w: call %d", ErrProtocol, i)
		}
		calls = append(calls, raw)
	}
	if len(calls) > 0 {
		r.Stop = StopCalls // some servers say "stop"
	}
	item, err := m.item(calls)
	if err != nil {
		return Reply{}, fmt.Errorf("%w: the message", ErrProtocol)
	}
	r.Items = []json.RawMessage{item}
	return r, nil
}

// item is the message in the order in which people read it.
func (m *completion) item(calls []json.RawMessage) (json.RawMessage, error) {
	out := object{fields: map[string]json.RawMessage{}}
	out.set("role", json.RawMessage(`"assistant"`))
	switch content, ok := m.fields["content"]; {
	case ok:
		out.set("content", content)
	case len(calls) > 0:
		out.set("content", json.RawMessage("null"))
	default:
		out.set("content", json.RawMessage(`""`))
	}
	for _, k := range m.keys {
		if k != "content" && !(m.omit && strings.HasPrefix(k, "reasoning")) {
			out.set(k, m.fields[k])
		}
	}
	if len(calls) > 0 {
		var w writer
		w.list(calls)
		out.set("tool_calls", w.Bytes())
	}
	return out.encode()
}

func (c *chatCall) encode() (json.RawMessage, error) {
	f := object{fields: map[string]json.RawMessage{}}
	f.set("name", quote(c.name.String()))
	args := c.args.String()
	if args == "" {
		args = "{}"
	}
	f.set("arguments", quote(args))
	for _, k := range c.function.keys {
		f.set(k, c.function.fields[k])
	}
	raw, err := f.encode()
	if err != nil {
		return nil, err
	}
	if c.text("type") == "" {
		c.set("type", json.RawMessage(`"function"`))
	}
	c.set("function", raw)
	return c.object.encode()
}

func chatStop(s string) Stop {
	switch s {
	case "tool_calls", "function_call":
		return StopCalls
	case "length":
		return StopLength
	case "content_filter":
		return StopRefusal
	}
	return StopEnd
}
