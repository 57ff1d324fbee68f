package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// anthropic speaks the Messages API.
type anthropic struct{}

const (
	anthropicVersion   = "2023-06-01"
	anthropicMaxTokens = 8192
	cacheHere          = `,"cache_control":{"type":"ephemeral"}`
	maxBlocks          = 4096 // of a reply
)

func (anthropic) path() string { return "/v1/messages" }

func (anthropic) authorize(h http.Header, key string) {
	if key != "" {
		h.Set("X-Api-Key", key)
	}
	if h.Get("Anthropic-Version") == "" {
		h.Set("Anthropic-Version", anthropicVersion)
	}
}

func (anthropic) body(w *writer, e *Endpoint, r *Request) {
	most := e.MaxOutputTokens
	if most == 0 {
		most = anthropicMaxTokens
	}
	w.raw(`{"model":`)
	w.str(e.Model)
	w.raw(`,"max_tokens":`, strconv.FormatInt(most, 10), `,"stream":true`)
	if r.System != "" {
		w.raw(`,"system":[{"type":"text","text":`)
		w.str(r.System)
		w.raw(cacheHere, `}]`)
	}
	if len(r.Tools) > 0 {
		w.raw(`,"tools":[`)
		for i, t := range r.Tools {
			if i > 0 {
				w.raw(`,`)
			}
			w.raw(`{"name":`)
			w.str(t.Name)
			w.raw(`,"description":`)
			w.str(t.Description)
			w.raw(`,"input_schema":`, string(t.Schema), `}`)
		}
		w.raw(`]`)
		if r.NoCalls {
			w.raw(`,"tool_choice":{"type":"none"}`)
		}
	}
	w.raw(`,"messages":`)
	items := r.Items
	if n := len(items); n > 0 {
		items = append(items[:n-1:n-1], markCache(items[n-1]))
	}
	w.list(items)
	w.extra(e.Extra)
	w.raw(`}`)
}

// markCache asks the API to keep what it has read up to and including a message
// of ours, which end alike. The mark is not part of the item: it is only ever on
// the last one.
func markCache(item json.RawMessage) json.RawMessage {
	const end = `}]}`
	if !bytes.HasPrefix(item, []byte(`{"role":"user","content":[`)) || !bytes.HasSuffix(item, []byte(end)) {
		return item
	}
	out := append(json.RawMessage(nil), item[:len(item)-len(end)]...)
	return append(append(out, cacheHere...), end...)
}

func (anthropic) user(parts []Part) (json.RawMessage, error) {
	var w writer
	w.raw(`{"role":"user","content":[`)
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
			w.raw(`{"type":"image","source":{"type":"base64","media_type":`)
			w.str(p.MimeType)
			w.raw(`,"data":`)
			w.str(p.Data)
			w.raw(`}}`)
		default:
			return nil, fmt.Errorf("%w: %q", ErrPart, p.Type)
		}
	}
	w.raw(`]}`)
	return w.Bytes(), nil
}

func (anthropic) results(results []Result) []json.RawMessage {
	var w writer
	w.raw(`{"role":"user","content":[`)
	for i, r := range results {
		if i > 0 {
			w.raw(`,`)
		}
		w.raw(`{"type":"tool_result","tool_use_id":`)
		w.str(r.ID)
		w.raw(`,"content":`)
		w.str(r.Output)
		if r.Failed {
			w.raw(`,"is_error":true`)
		}
		w.raw(`}`)
	}
	w.raw(`]}`)
	return []json.RawMessage{w.Bytes()}
}

func (anthropic) collector(*Endpoint) collector { return &message{} }

// message collects the reply of the Messages API.
type message struct {
	blocks []*block
	usage  Usage
	stop   string
	whole  bool
}

// block is one element of a message's content.
type block struct {
	object
	grows     growing
	input     strings.Builder
	citations []json.RawMessage
}

type anthropicUsage struct {
	Input      *int64 `json:"input_tokens"`
	CacheRead  *int64 `json:"cache_read_input_tokens"`
	CacheWrite *int64 `json:"cache_creation_input_tokens"`
	Output     *int64 `json:"output_tokens"`
}

// anthropicEvent is what this package looks at in any event.
type anthropicEvent struct {
	Type    string `json:"type"`
	Index   int    `json:"index"`
	Message struct {
		Usage anthropicUsage `json:"usage"`
	} `json:"message"`
	Block json.RawMessage `json:"content_block"`
	Delta struct {
		Type      string          `json:"type"`
		Text      string          `json:"text"`
		Thinking  string          `json:"thinking"`
		Signature string          `json:"signature"`
		JSON      string          `json:"partial_json"`
		Citation  json.RawMessage `json:"citation"`
		Stop      string          `json:"stop_reason"`
	} `json:"delta"`
	Usage anthropicUsage `json:"usage"`
}

func (m *message) event(data []byte, emit func(Delta) error) (bool, error) {
	var e anthropicEvent
	if err := json.Unmarshal(data, &e); err != nil {
		return false, fmt.Errorf("%w: an event that is not JSON", ErrProtocol)
	}
	switch e.Type {
	case "message_start":
		m.count(e.Message.Usage)
	case "content_block_start":
		o, err := parseObject(e.Block)
		if err != nil || e.Index != len(m.blocks) || e.Index >= maxBlocks {
			return false, fmt.Errorf("%w: content block %d", ErrProtocol, e.Index)
		}
		m.blocks = append(m.blocks, &block{object: o, grows: growing{}})
	case "content_block_delta":
		return false, m.delta(e, emit)
	case "message_delta":
		m.stop = e.Delta.Stop
		m.count(e.Usage)
	case "message_stop":
		m.whole = true
		return true, nil
	case "error":
		return false, statusError(http.StatusOK, nil, data)
	}
	return false, nil
}

// count takes the numbers that an event has: later ones are of the whole reply.
func (m *message) count(u anthropicUsage) {
	for from, to := range map[*int64]*int64{
		u.CacheRead: &m.usage.Cached, u.CacheWrite: &m.usage.CacheWrite, u.Output: &m.usage.Output, u.Input: &m.usage.Input,
	} {
		if from != nil {
			*to = max(*from, 0)
		}
	}
}

func (m *message) delta(e anthropicEvent, emit func(Delta) error) error {
	if e.Index < 0 || e.Index >= len(m.blocks) {
		return fmt.Errorf("%w: a piece of block %d, which has not begun", ErrProtocol, e.Index)
	}
	b := m.blocks[e.Index]
	switch e.Delta.Type {
	case "text_delta":
		b.grows.add("text", e.Delta.Text)
		return emit(Delta{Text: e.Delta.Text})
	case "thinking_delta":
		b.grows.add("thinking", e.Delta.Thinking)
		return emit(Delta{Thought: true, Text: e.Delta.Thinking})
	case "signature_delta":
		b.grows.add("signature", e.Delta.Signature)
	case "input_json_delta":
		b.input.WriteString(e.Delta.JSON)
	case "citations_delta":
		b.citations = append(b.citations, e.Delta.Citation)
	}
	return nil
}

func (m *message) reply() (Reply, error) {
	if !m.whole && m.stop == "" {
		return Reply{}, ErrCut
	}
	usage := m.usage
	usage.Input += usage.Cached + usage.CacheWrite // the API counts what is neither
	r := Reply{Usage: usage, Stop: anthropicStop(m.stop)}
	var w writer
	w.raw(`{"role":"assistant","content":[`)
	written := 0
	for _, b := range m.blocks {
		call := b.finish()
		if call != nil {
			r.Calls = append(r.Calls, *call)
		}
		if b.object.text("type") == "text" && b.object.text("text") == "" {
			continue // the API refuses an empty text that it has written itself
		}
		raw, err := b.encode()
		if err != nil {
			return Reply{}, fmt.Errorf("%w: a content block", ErrProtocol)
		}
		if written++; written > 1 {
			w.raw(`,`)
		}
		w.Write(raw)
	}
	w.raw(`]}`)
	if written > 0 {
		r.Items = []json.RawMessage{w.Bytes()}
	}
	return r, nil
}

// finish puts what came in pieces into the block, and returns the call that it
// is, if it is one of ours.
func (b *block) finish() *Call {
	b.grows.finish(&b.object)
	if len(b.citations) > 0 {
		var w writer
		w.list(b.citations)
		b.set("citations", w.Bytes())
	}
	malformed := false
	if in := b.input.String(); in != "" {
		if malformed = !isObject([]byte(in)); malformed {
			in = "{}" // the reply broke off in it; the API takes objects only
		}
		b.set("input", json.RawMessage(in))
	}
	if b.text("type") != "tool_use" {
		return nil
	}
	c := &Call{ID: b.text("id"), Name: b.text("name"), Input: b.fields["input"], Malformed: malformed}
	if malformed {
		c.Input = nil
	}
	return c
}

func anthropicStop(s string) Stop {
	switch s {
	case "tool_use":
		return StopCalls
	case "max_tokens":
		return StopLength
	case "model_context_window_exceeded":
		return StopContext
	case "refusal":
		return StopRefusal
	case "pause_turn":
		return StopPause
	}
	return StopEnd
}
