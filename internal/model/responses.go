package model

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
)

// responses speaks the Responses API, without its memory: the conversation is
// ours, and comes with each request.
type responses struct{}

const maxItems = 4096 // of a reply

func (responses) path() string { return "/responses" }

func (responses) authorize(h http.Header, key string) { bearer(h, key) }

func (responses) body(w *writer, e *Endpoint, r *Request) {
	w.raw(`{"model":`)
	w.str(e.Model)
	w.raw(`,"stream":true,"store":false,"include":["reasoning.encrypted_content"]`)
	if e.MaxOutputTokens > 0 {
		w.raw(`,"max_output_tokens":`, strconv.FormatInt(e.MaxOutputTokens, 10))
	}
	if r.System != "" {
		w.raw(`,"instructions":`)
		w.str(r.System)
	}
	if len(r.Tools) > 0 {
		w.raw(`,"tools":[`)
		for i, t := range r.Tools {
			if i > 0 {
				w.raw(`,`)
			}
			w.raw(`{"type":"function","name":`)
			w.str(t.Name)
			w.raw(`,"description":`)
			w.str(t.Description)
			w.raw(`,"parameters":`, string(t.Schema), `,"strict":false}`)
		}
		w.raw(`]`)
		if r.NoCalls {
			w.raw(`,"tool_choice":"none"`)
		}
	}
	w.raw(`,"input":`)
	w.list(r.Items)
	w.extra(e.Extra)
	w.raw(`}`)
}

func (responses) user(parts []Part) (json.RawMessage, error) {
	var w writer
	w.raw(`{"type":"message","role":"user","content":[`)
	for i, p := range parts {
		if i > 0 {
			w.raw(`,`)
		}
		switch p.Type {
		case "text":
			w.raw(`{"type":"input_text","text":`)
			w.str(p.Text)
			w.raw(`}`)
		case "image":
			w.raw(`{"type":"input_image","image_url":`)
			w.str("data:" + p.MimeType + ";base64," + p.Data)
			w.raw(`}`)
		default:
			return nil, fmt.Errorf("%w: %q", ErrPart, p.Type)
		}
	}
	w.raw(`]}`)
	return w.Bytes(), nil
}

func (responses) results(results []Result) []json.RawMessage {
	out := make([]json.RawMessage, len(results))
	for i, r := range results {
		var w writer
		w.raw(`{"type":"function_call_output","call_id":`)
		w.str(r.ID)
		w.raw(`,"output":`)
		w.str(r.Output)
		w.raw(`}`)
		out[i] = w.Bytes()
	}
	return out
}

func (responses) collector(*Endpoint) collector { return &response{} }

// response collects the reply of the Responses API.
type response struct {
	items []json.RawMessage
	end   *responseEnd
}

// responseEnd is the state of a response in its last event.
type responseEnd struct {
	Status string            `json:"status"`
	Output []json.RawMessage `json:"output"`
	Why    struct {
		Reason string `json:"reason"`
	} `json:"incomplete_details"`
	Error json.RawMessage `json:"error"`
	Usage struct {
		Input        int64 `json:"input_tokens"`
		InputDetails struct {
			Cached int64 `json:"cached_tokens"`
		} `json:"input_tokens_details"`
		Output        int64 `json:"output_tokens"`
		OutputDetails struct {
			Reasoning int64 `json:"reasoning_tokens"`
		} `json:"output_tokens_details"`
	} `json:"usage"`
}

func (m *response) event(data []byte, emit func(Delta) error) (bool, error) {
	var e struct {
		Type     string          `json:"type"`
		Delta    json.RawMessage `json:"delta"` // a string where it matters
		Item     json.RawMessage `json:"item"`
		Response json.RawMessage `json:"response"`
	}
	if string(data) == "[DONE]" {
		return true, nil
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return false, fmt.Errorf("%w: an event that is not JSON", ErrProtocol)
	}
	switch e.Type {
	case "response.output_text.delta", "response.refusal.delta":
		return false, m.say(e.Delta, false, emit)
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta":
		return false, m.say(e.Delta, true, emit)
	case "response.output_item.done":
		return false, m.add(e.Item)
	case "response.completed", "response.incomplete", "response.failed":
		m.end = new(responseEnd)
		if err := json.Unmarshal(e.Response, m.end); err != nil {
			return false, fmt.Errorf("%w: the end of a response", ErrProtocol)
		}
		if e.Type == "response.failed" {
			return false, statusError(http.StatusOK, nil, e.Response)
		}
		return true, nil
	case "error":
		return false, statusError(http.StatusOK, nil, data)
	}
	return false, nil
}

func (*response) say(raw json.RawMessage, thought bool, emit func(Delta) error) error {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return fmt.Errorf("%w: a piece of text that is not a string", ErrProtocol)
	}
	return emit(Delta{Thought: thought, Text: text})
}

func (m *response) add(item json.RawMessage) error {
	line, err := oneLine(item)
	if err != nil || !isObject(line) || len(m.items) >= maxItems {
		return fmt.Errorf("%w: output item %d", ErrProtocol, len(m.items))
	}
	m.items = append(m.items, line)
	return nil
}

func (m *response) reply() (Reply, error) {
	if m.end == nil {
		return Reply{}, ErrCut
	}
	if len(m.items) == 0 { // some servers give the items at the end only
		for _, item := range m.end.Output {
			if err := m.add(item); err != nil {
				return Reply{}, err
			}
		}
	}
	u := m.end.Usage
	r := Reply{Items: m.items, Stop: StopEnd, Usage: Usage{
		Input: u.Input, Cached: u.InputDetails.Cached, Output: u.Output, Reasoning: u.OutputDetails.Reasoning,
	}}
	for _, item := range m.items {
		var c struct {
			Type      string `json:"type"`
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
			CallID    string `json:"call_id"`
		}
		if json.Unmarshal(item, &c) == nil && c.Type == "function_call" {
			r.Calls = append(r.Calls, newCall(c.CallID, c.Name, c.Arguments))
		}
	}
	switch {
	case m.end.Status == "incomplete" && m.end.Why.Reason == "content_filter":
		r.Stop = StopRefusal
	case m.end.Status == "incomplete":
		r.Stop = StopLength
	case len(r.Calls) > 0:
		r.Stop = StopCalls
	}
	return r, nil
}

// newCall reads arguments that came as text. Models leave them out when a tool
// needs none.
func newCall(id, name, arguments string) Call {
	c := Call{ID: id, Name: name}
	switch {
	case arguments == "":
		c.Input = json.RawMessage("{}")
	case isObject([]byte(arguments)):
		c.Input = json.RawMessage(arguments)
	default:
		c.Malformed = true
	}
	return c
}
