package modeltest

import (
	"encoding/json"
	"strings"
)

// content answers Gemini's generateContent.
func (x *exchange) content() {
	var req struct {
		Contents []object `json:"contents"`
		Tools    []object `json:"tools"`
		Config   object   `json:"generationConfig"`
	}
	if json.Unmarshal(x.body, &req) != nil {
		x.unreadable(geminiShape)
		return
	}
	var history []Turn
	for _, c := range req.Contents {
		history = append(history, contentTurn(c))
	}
	var tools []tool
	for _, t := range req.Tools {
		for _, f := range objects(t["functionDeclarations"]) {
			declared := tool{name: asText(f["name"]), schema: asObject(f["parametersJsonSchema"])}
			if declared.schema == nil {
				declared.schema = asObject(f["parameters"])
			}
			tools = append(tools, declared)
		}
	}
	path := x.r.URL.Path
	model, verb, _ := strings.Cut(path[strings.LastIndex(path, "/")+1:], ":")
	streams := verb == "streamGenerateContent"
	x.record(model, streams, history, tools)
	r := plan(history, tools)
	if schema := asObject(req.Config["responseJsonSchema"]); schema != nil {
		// A side question that wants JSON, such as a check for loops: any value that fits.
		r = reply{text: call{args: fill(&tool{schema: schema}, object{})}.json()}
	}
	if !x.begin(r, geminiShape) {
		return
	}
	u := r.tokens(x.body)
	usage := object{
		"promptTokenCount": u.input, "candidatesTokenCount": u.output - u.reasoning, "totalTokenCount": u.input + u.output,
		"cachedContentTokenCount": u.cached, "thoughtsTokenCount": u.reasoning,
	}
	piece := func(parts []object, last bool) object {
		candidate := object{"index": 0, "content": object{"role": "model", "parts": parts}}
		v := object{"candidates": []object{candidate}, "modelVersion": model, "responseId": "mock"}
		if last {
			candidate["finishReason"], v["usageMetadata"] = "STOP", usage
		}
		return v
	}
	parts := contentParts(r)
	switch {
	case !streams:
		x.whole(r, geminiShape, piece(parts, true))
		return
	case x.r.URL.Query().Get("alt") != "sse":
		var list []object
		for i, p := range parts {
			list = append(list, piece([]object{p}, i == len(parts)-1))
		}
		x.whole(r, geminiShape, list)
		return
	}
	s := x.stream(r, geminiShape)
	for i, p := range parts {
		if last := i == len(parts)-1; last {
			s.last("", piece([]object{p}, true))
		} else {
			s.event("", piece([]object{p}, false))
		}
	}
}

func contentTurn(c object) Turn {
	t := Turn{Role: asText(c["role"]), Text: joined(c["parts"]), parts: texts(c["parts"])}
	if t.Role == "model" {
		t.Role = "assistant"
	}
	for _, p := range objects(c["parts"]) {
		if f := asObject(p["functionCall"]); f != nil {
			t.Calls = append(t.Calls, asText(f["name"]))
		}
		if f := asObject(p["functionResponse"]); f != nil {
			t.Role = "tool"
			t.Results = append(t.Results, result(f["response"]))
		}
	}
	return t
}

func contentParts(r reply) (parts []object) {
	for _, t := range chunks(r.think) {
		parts = append(parts, object{"text": t, "thought": true})
	}
	for _, t := range chunks(r.text) {
		parts = append(parts, object{"text": t})
	}
	if c := r.call; c != nil {
		parts = append(parts, object{"functionCall": object{"name": c.name, "args": c.args}, "thoughtSignature": "bW9jaw=="})
	}
	if len(parts) == 0 {
		return []object{{"text": ""}}
	}
	return parts
}
