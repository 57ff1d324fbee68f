package modeltest

import (
	"encoding/json"
	"time"
)

// openaiTools reads the tools of an OpenAI request, also those in namespaces.
func openaiTools(list []object) (tools []tool) {
	for _, o := range list {
		kind := asText(o["type"])
		if kind == "namespace" {
			for _, inner := range openaiTools(objects(o["tools"])) {
				inner.space = asText(o["name"])
				tools = append(tools, inner)
			}
			continue
		}
		f := o
		if inner := asObject(o["function"]); inner != nil {
			f = inner
		}
		t := tool{name: asText(f["name"]), schema: asObject(f["parameters"]), freeform: kind == "custom"}
		if inner := asObject(o["custom"]); inner != nil {
			t.name = asText(inner["name"])
		}
		if kind == "local_shell" {
			t.name = kind
		}
		if t.name != "" {
			tools = append(tools, t)
		}
	}
	return tools
}

// completions answers OpenAI chat completions.
func (x *exchange) completions() {
	var req struct {
		Model         string   `json:"model"`
		Stream        bool     `json:"stream"`
		StreamOptions object   `json:"stream_options"`
		Messages      []object `json:"messages"`
		Tools         []object `json:"tools"`
	}
	if json.Unmarshal(x.body, &req) != nil {
		x.unreadable(openaiShape)
		return
	}
	var history []Turn
	for _, m := range req.Messages {
		t := Turn{Role: asText(m["role"]), Text: joined(m["content"]), parts: texts(m["content"])}
		if t.Role == "tool" {
			t.Results, t.Text = []string{t.Text}, ""
		}
		for _, c := range objects(m["tool_calls"]) {
			t.Calls = append(t.Calls, asText(asObject(c["function"])["name"]))
		}
		history = append(history, t)
	}
	tools := openaiTools(req.Tools)
	x.record(req.Model, req.Stream, history, tools)
	r := plan(history, tools)
	if !x.begin(r, openaiShape) {
		return
	}
	u := r.tokens(x.body)
	usage := object{
		"prompt_tokens": u.input, "completion_tokens": u.output, "total_tokens": u.input + u.output,
		"prompt_tokens_details": object{"cached_tokens": u.cached}, "completion_tokens_details": object{"reasoning_tokens": u.reasoning},
	}
	base := func(kind string, choices []object) object {
		return object{"object": kind, "created": time.Now().Unix(), "model": req.Model, "choices": choices}
	}
	message, finish := x.message(r)
	id := x.id("chatcmpl")
	if !req.Stream {
		v := base("chat.completion", []object{{"index": 0, "message": message, "finish_reason": finish}})
		v["id"], v["usage"] = id, usage
		x.whole(r, openaiShape, v)
		return
	}
	s := x.stream(r, openaiShape)
	send := func(choices []object, usage any) {
		v := base("chat.completion.chunk", choices)
		if v["id"] = id; usage != nil {
			v["usage"] = usage
		}
		s.event("", v)
	}
	delta := func(d object, finish any) { send([]object{{"index": 0, "delta": d, "finish_reason": finish}}, nil) }
	for _, d := range messageDeltas(r, message) {
		delta(d, nil)
	}
	if s.short {
		return
	}
	delta(object{}, finish)
	if req.StreamOptions["include_usage"] == true {
		send([]object{}, usage)
	}
	s.event("", "[DONE]")
}

// message returns a reply as chat completions have it, and why it stops.
func (x *exchange) message(r reply) (m object, finish string) {
	m = object{"role": "assistant", "content": r.text}
	if r.think != "" {
		m["reasoning_content"] = r.think
	}
	if r.call == nil {
		return m, "stop"
	}
	m["tool_calls"] = []object{{
		"id": x.id("call"), "type": "function", "function": object{"name": r.call.name, "arguments": r.call.json()},
	}}
	return m, "tool_calls"
}

// messageDeltas cuts a message into what is added to it.
func messageDeltas(r reply, m object) (deltas []object) {
	deltas = append(deltas, object{"role": "assistant", "content": ""})
	for _, t := range chunks(r.think) {
		deltas = append(deltas, object{"reasoning_content": t})
	}
	for _, t := range chunks(r.text) {
		deltas = append(deltas, object{"content": t})
	}
	if r.call == nil {
		return deltas
	}
	id := m["tool_calls"].([]object)[0]["id"]
	deltas = append(deltas, object{"tool_calls": []object{{
		"index": 0, "id": id, "type": "function", "function": object{"name": r.call.name, "arguments": ""},
	}}})
	for _, t := range chunks(r.call.json()) {
		deltas = append(deltas, object{"tool_calls": []object{{"index": 0, "function": object{"arguments": t}}}})
	}
	return deltas
}
