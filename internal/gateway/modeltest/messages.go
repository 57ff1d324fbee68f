package modeltest

import (
	"encoding/json"
	"strings"
)

// messages answers Anthropic Messages.
func (x *exchange) messages() {
	var req struct {
		Model    string   `json:"model"`
		Stream   bool     `json:"stream"`
		Messages []object `json:"messages"`
		Tools    []object `json:"tools"`
	}
	if json.Unmarshal(x.body, &req) != nil {
		x.unreadable(anthropicShape)
		return
	}
	var history []Turn
	for _, m := range req.Messages {
		history = append(history, messageTurn(m))
	}
	var tools []tool
	for _, t := range req.Tools {
		tools = append(tools, tool{name: asText(t["name"]), schema: asObject(t["input_schema"])})
	}
	x.record(req.Model, req.Stream, history, tools)
	r := plan(history, tools)
	if !x.begin(r, anthropicShape) {
		return
	}
	u := r.tokens(x.body)
	usage := object{
		"input_tokens": u.input - u.cached, "output_tokens": u.output,
		"cache_creation_input_tokens": 0, "cache_read_input_tokens": u.cached,
	}
	content, stop := x.blocks(r)
	message := object{
		"id": x.id("msg"), "type": "message", "role": "assistant", "model": req.Model, "content": content,
		"stop_reason": stop, "stop_sequence": nil, "usage": usage,
	}
	if !req.Stream {
		x.whole(r, anthropicShape, message)
		return
	}
	s := x.stream(r, anthropicShape)
	message["content"], message["stop_reason"] = []object{}, nil
	first := object{}
	for k, v := range usage {
		first[k] = v
	}
	first["output_tokens"] = 1 // as the real one starts
	message["usage"] = first
	s.event("message_start", object{"type": "message_start", "message": message})
	for i, block := range content {
		start, deltas := blockStream(block, r)
		s.event("content_block_start", object{"type": "content_block_start", "index": i, "content_block": start})
		for _, d := range deltas {
			s.event("content_block_delta", object{"type": "content_block_delta", "index": i, "delta": d})
		}
		s.event("content_block_stop", object{"type": "content_block_stop", "index": i})
	}
	if s.short {
		return
	}
	s.event("message_delta", object{
		"type": "message_delta", "delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": object{"output_tokens": u.output},
	})
	s.event("message_stop", object{"type": "message_stop"})
}

func messageTurn(m object) Turn {
	t := Turn{Role: asText(m["role"]), Text: asText(m["content"])}
	for _, p := range objects(m["content"]) {
		switch asText(p["type"]) {
		case "text":
			// Reminders that an agent adds beside the person's text.
			if text := asText(p["text"]); !strings.HasPrefix(strings.TrimSpace(text), "<system-reminder>") {
				t.parts = append(t.parts, text)
			}
		case "tool_use":
			t.Calls = append(t.Calls, asText(p["name"]))
		case "tool_result":
			t.Results = append(t.Results, result(p["content"]))
		}
	}
	if len(t.parts) > 0 {
		t.Text = strings.Join(t.parts, "\n")
	}
	return t
}

// blocks returns the content of a reply, and why it stops.
func (x *exchange) blocks(r reply) (content []object, stop string) {
	stop = "end_turn"
	if r.think != "" {
		content = append(content, object{"type": "thinking", "thinking": r.think, "signature": "bW9jaw=="})
	}
	if r.text != "" || r.call == nil && r.think == "" {
		content = append(content, object{"type": "text", "text": r.text})
	}
	if c := r.call; c != nil {
		stop = "tool_use"
		args := c.args
		if args == nil {
			args = object{}
		}
		content = append(content, object{"type": "tool_use", "id": x.id("toolu"), "name": c.name, "input": args})
	}
	return content, stop
}

// blockStream returns a block as it starts, and what is added to it.
func blockStream(block object, r reply) (start object, deltas []object) {
	start = object{"type": block["type"]}
	switch block["type"] {
	case "thinking":
		start["thinking"], start["signature"] = "", ""
		for _, t := range chunks(r.think) {
			deltas = append(deltas, object{"type": "thinking_delta", "thinking": t})
		}
		deltas = append(deltas, object{"type": "signature_delta", "signature": block["signature"]})
	case "text":
		start["text"] = ""
		for _, t := range chunks(r.text) {
			deltas = append(deltas, object{"type": "text_delta", "text": t})
		}
	case "tool_use":
		start["id"], start["name"], start["input"] = block["id"], block["name"], object{}
		for _, t := range chunks(r.call.json()) {
			deltas = append(deltas, object{"type": "input_json_delta", "partial_json": t})
		}
	}
	return start, deltas
}
