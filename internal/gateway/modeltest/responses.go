package modeltest

import (
	"encoding/json"
	"maps"
	"strings"
	"time"
)

// responses answers OpenAI Responses.
func (x *exchange) responses() {
	var req struct {
		Model  string   `json:"model"`
		Stream bool     `json:"stream"`
		Input  any      `json:"input"`
		Tools  []object `json:"tools"`
	}
	if json.Unmarshal(x.body, &req) != nil {
		x.unreadable(openaiShape)
		return
	}
	history, tools := inputTurns(req.Input), openaiTools(req.Tools)
	x.record(req.Model, req.Stream, history, tools)
	r := plan(history, tools)
	if !x.begin(r, openaiShape) {
		return
	}
	u := r.tokens(x.body)
	items := x.items(r)
	answer := object{
		"id": x.id("resp"), "object": "response", "created_at": time.Now().Unix(), "status": "completed", "model": req.Model,
		"output": items, "parallel_tool_calls": false, "tools": []object{}, "tool_choice": "auto", "error": nil, "incomplete_details": nil,
		"usage": object{
			"input_tokens": u.input, "output_tokens": u.output, "total_tokens": u.input + u.output,
			"input_tokens_details": object{"cached_tokens": u.cached}, "output_tokens_details": object{"reasoning_tokens": u.reasoning},
		},
	}
	if !req.Stream {
		x.whole(r, openaiShape, answer)
		return
	}
	s := &responseStream{stream: x.stream(r, openaiShape)}
	begun := maps.Clone(answer)
	begun["status"], begun["output"], begun["usage"] = "in_progress", []object{}, nil
	s.send("response.created", object{"response": begun})
	s.send("response.in_progress", object{"response": begun})
	for i, item := range items {
		s.item(i, item)
	}
	if !s.short {
		s.send("response.completed", object{"response": answer})
	}
}

// inputTurns reads the input of a request: a string, or a list of items.
func inputTurns(input any) (history []Turn) {
	if text, ok := input.(string); ok {
		return []Turn{{Role: "user", Text: text}}
	}
	for _, m := range objects(input) {
		switch kind := asText(m["type"]); {
		case kind == "message" || kind == "":
			history = append(history, Turn{Role: asText(m["role"]), Text: joined(m["content"]), parts: texts(m["content"])})
		case strings.HasSuffix(kind, "_call_output"):
			history = append(history, Turn{Role: "tool", Results: []string{result(m["output"])}})
		case strings.HasSuffix(kind, "_call"):
			name := asText(m["name"])
			if name == "" {
				name = strings.TrimSuffix(kind, "_call")
			}
			history = append(history, Turn{Role: "assistant", Calls: []string{name}})
		}
	}
	return history
}

// items returns a reply as the items of an answer.
func (x *exchange) items(r reply) (items []object) {
	if r.think != "" {
		items = append(items, object{
			"id": x.id("rs"), "type": "reasoning", "encrypted_content": "bW9jaw==",
			"summary": []object{{"type": "summary_text", "text": r.think}},
		})
	}
	if r.text != "" || r.call == nil && r.think == "" {
		items = append(items, object{
			"id": x.id("msg"), "type": "message", "role": "assistant", "status": "completed",
			"content": []object{{"type": "output_text", "text": r.text, "annotations": []object{}}},
		})
	}
	if r.call != nil {
		items = append(items, x.callItem(r.call))
	}
	return items
}

func (x *exchange) callItem(c *call) object {
	item := object{"call_id": x.id("call"), "status": "completed"}
	switch {
	case c.freeform:
		item["id"], item["type"], item["name"], item["input"] = x.id("ctc"), "custom_tool_call", c.name, c.input
	case c.name == "local_shell":
		item["id"], item["type"] = x.id("lsh"), "local_shell_call"
		item["action"] = object{"type": "exec", "command": c.args["command"], "env": object{}}
	default:
		item["id"], item["type"], item["name"], item["arguments"] = x.id("fc"), "function_call", c.name, c.json()
		if c.space != "" {
			item["namespace"] = c.space
		}
	}
	return item
}

// responseStream numbers its events.
type responseStream struct {
	*stream
	number int
}

func (s *responseStream) send(kind string, v object) {
	v["type"], v["sequence_number"] = kind, s.number
	s.number++
	s.event(kind, v)
}

// item sends one item of the answer: added, its parts, done.
func (s *responseStream) item(i int, item object) {
	begun := maps.Clone(item)
	at := func(more object) object {
		more["item_id"], more["output_index"] = item["id"], i
		return more
	}
	add := func() { s.send("response.output_item.added", object{"output_index": i, "item": begun}) }
	switch item["type"] {
	case "message":
		begun["status"], begun["content"] = "in_progress", []object{}
		add()
		s.send("response.content_part.added", at(object{"content_index": 0, "part": object{"type": "output_text", "text": "", "annotations": []object{}}}))
		for _, t := range chunks(s.text) {
			s.send("response.output_text.delta", at(object{"content_index": 0, "delta": t}))
		}
		s.send("response.output_text.done", at(object{"content_index": 0, "text": s.text}))
		s.send("response.content_part.done", at(object{"content_index": 0, "part": item["content"].([]object)[0]}))
	case "reasoning":
		begun["summary"] = []object{}
		add()
		s.send("response.reasoning_summary_part.added", at(object{"summary_index": 0, "part": object{"type": "summary_text", "text": ""}}))
		for _, t := range chunks(s.think) {
			s.send("response.reasoning_summary_text.delta", at(object{"summary_index": 0, "delta": t}))
		}
		s.send("response.reasoning_summary_text.done", at(object{"summary_index": 0, "text": s.think}))
		s.send("response.reasoning_summary_part.done", at(object{"summary_index": 0, "part": object{"type": "summary_text", "text": s.think}}))
	case "function_call":
		begun["status"], begun["arguments"] = "in_progress", ""
		add()
		for _, t := range chunks(asText(item["arguments"])) {
			s.send("response.function_call_arguments.delta", at(object{"delta": t}))
		}
		s.send("response.function_call_arguments.done", at(object{"arguments": item["arguments"]}))
	default:
		add()
	}
	s.send("response.output_item.done", object{"output_index": i, "item": item})
}
