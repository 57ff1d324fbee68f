package loop_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/model"
)

// mock is a model's server that speaks all three APIs and has no memory: the
// last prompt that begins with "@" is its script. A line is "say TEXT", "think
// TEXT" or "call NAME INPUT"; "--" ends a reply. Which reply is due follows from
// the conversation, as with a real model, so a request that is repeated gets the
// same answer.
type mock struct {
	*httptest.Server
	mu     sync.Mutex
	bodies [][]byte
	// fault may answer the n-th request, from 1, in place of the mock.
	fault func(n int, w http.ResponseWriter, r *http.Request) bool
	// limit is the longest body that is not too long; 0 means any.
	limit int
}

func newMock(t testing.TB) *mock {
	m := &mock{}
	m.Server = httptest.NewServer(m)
	t.Cleanup(m.Close)
	return m
}

// requests are the bodies so far.
func (m *mock) requests() [][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([][]byte(nil), m.bodies...)
}

func (m *mock) last() []byte {
	all := m.requests()
	return all[len(all)-1]
}

func (m *mock) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	m.mu.Lock()
	m.bodies = append(m.bodies, body)
	n, fault := len(m.bodies), m.fault
	m.mu.Unlock()
	if fault != nil && fault(n, w, r) {
		return
	}
	if m.limit > 0 && len(body) > m.limit {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"code":"context_length_exceeded","message":"too long"}}`)
		return
	}
	var q struct {
		Messages []map[string]any `json:"messages"`
		Input    []map[string]any `json:"input"`
	}
	if json.Unmarshal(body, &q) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	items := append(q.Messages, q.Input...)
	if err := valid(items); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprintf(w, `{"error":{"code":"invalid_request_error","message":%q}}`, err)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	p := script(items)
	p.id, p.in = len(items), len(body)/4
	for _, e := range p.events(r.URL.Path) {
		_, _ = fmt.Fprintf(w, "data: %s\n\n", e)
	}
}

// texts are all texts of an item's content.
func texts(item map[string]any) string {
	if s, ok := item["content"].(string); ok {
		return s
	}
	var out []string
	list, _ := item["content"].([]any)
	for _, p := range list {
		if m, ok := p.(map[string]any); ok {
			if s, ok := m["text"].(string); ok {
				out = append(out, s)
			}
		}
	}
	return strings.Join(out, "\n")
}

// valid refuses what the real servers refuse: a call without its result, a
// result without its call.
func valid(items []map[string]any) error {
	open := map[string]bool{}
	for _, it := range items {
		list, _ := it["content"].([]any)
		more, _ := it["tool_calls"].([]any)
		for _, p := range append(append([]any{it}, list...), more...) {
			m, _ := p.(map[string]any)
			id := func(k string) string { s, _ := m[k].(string); return s }
			switch {
			case m["type"] == "tool_use", m["type"] == "function" && m["function"] != nil:
				open[id("id")] = true
			case m["type"] == "function_call":
				open[id("call_id")] = true
			case m["type"] == "tool_result", m["type"] == "function_call_output", m["role"] == "tool":
				k := id("tool_use_id") + id("call_id") + id("tool_call_id")
				if !open[k] {
					return fmt.Errorf("a result without a call: %s", k)
				}
				delete(open, k)
			}
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("calls without results: %v", open)
	}
	return nil
}

// isReply reports whether an item is of a model's reply.
func isReply(it map[string]any) bool {
	return it["role"] == "assistant" || it["type"] == "function_call" || it["type"] == "reasoning"
}

// plan is one reply of the mock.
type plan struct {
	think, say string
	calls      []scripted
	id, in     int
}

type scripted struct{ name, input string }

func script(items []map[string]any) plan {
	prompt, replies := "", 0
	for i, it := range items {
		text := texts(it)
		switch {
		case it["role"] == "user" && strings.HasPrefix(text, "@"):
			prompt, replies = text, 0
		case it["role"] == "user" && strings.Contains(text, "will be cut here"):
			return plan{say: fmt.Sprintf("SUMMARY of %d items", i)}
		case it["role"] == "user" && strings.Contains(text, "word for word:\n\n@"):
			_, prompt, _ = strings.Cut(text, "word for word:\n\n")
			replies = 0
		case isReply(it) && (i == 0 || !isReply(items[i-1])):
			replies++
		}
	}
	steps := strings.Split(strings.TrimPrefix(prompt, "@"), "\n--\n")
	var p plan
	if replies >= len(steps) {
		p.say = fmt.Sprintf("nothing more after %d", replies)
		return p
	}
	for line := range strings.SplitSeq(steps[replies], "\n") {
		verb, rest, _ := strings.Cut(line, " ")
		switch verb {
		case "say":
			p.say += rest
		case "think":
			p.think += rest
		case "call":
			name, input, _ := strings.Cut(rest, " ")
			p.calls = append(p.calls, scripted{name, input})
		}
	}
	return p
}

func quoted(s string) string { b, _ := json.Marshal(s); return string(b) }

func (p plan) callID(i int) string { return fmt.Sprintf("call_%d_%d", p.id, i) }

// events are the reply as the API of that path streams it.
func (p plan) events(path string) []string {
	switch {
	case strings.HasSuffix(path, "/messages"):
		return p.anthropic()
	case strings.HasSuffix(path, "/responses"):
		return p.responses()
	}
	return p.chat()
}

func (p plan) anthropic() []string {
	out := []string{fmt.Sprintf(`{"type":"message_start","message":{"usage":{"input_tokens":%d,"output_tokens":1}}}`, p.in)}
	n := 0
	block := func(start, delta string) {
		out = append(out, fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":%s}`, n, start),
			fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":%s}`, n, delta), fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, n))
		n++
	}
	if p.think != "" {
		block(`{"type":"thinking","thinking":"","signature":"c2ln"}`, `{"type":"thinking_delta","thinking":`+quoted(p.think)+`}`)
	}
	if p.say != "" {
		block(`{"type":"text","text":""}`, `{"type":"text_delta","text":`+quoted(p.say)+`}`)
	}
	stop := "end_turn"
	for i, c := range p.calls {
		stop = "tool_use"
		block(fmt.Sprintf(`{"type":"tool_use","id":%q,"name":%q,"input":{}}`, p.callID(i), c.name), `{"type":"input_json_delta","partial_json":`+quoted(c.input)+`}`)
	}
	return append(out, fmt.Sprintf(`{"type":"message_delta","delta":{"stop_reason":%q},"usage":{"output_tokens":7}}`, stop), `{"type":"message_stop"}`)
}

func (p plan) responses() []string {
	var out []string
	if p.think != "" {
		out = append(out, `{"type":"response.reasoning_summary_text.delta","delta":`+quoted(p.think)+`}`,
			`{"type":"response.output_item.done","item":{"id":"rs","type":"reasoning","encrypted_content":"ZW5j","summary":[{"type":"summary_text","text":`+quoted(p.think)+`}]}}`)
	}
	if p.say != "" {
		out = append(out, `{"type":"response.output_text.delta","delta":`+quoted(p.say)+`}`,
			`{"type":"response.output_item.done","item":{"id":"msg","type":"message","role":"assistant","content":[{"type":"output_text","text":`+quoted(p.say)+`}]}}`)
	}
	for i, c := range p.calls {
		out = append(out, fmt.Sprintf(`{"type":"response.output_item.done","item":{"type":"function_call","call_id":%q,"name":%q,"arguments":%s}}`, p.callID(i), c.name, quoted(c.input)))
	}
	return append(out, fmt.Sprintf(`{"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":%d,"output_tokens":7}}}`, p.in))
}

func (p plan) chat() []string {
	var out []string
	delta := func(d string) { out = append(out, `{"choices":[{"index":0,"delta":`+d+`}]}`) }
	if p.think != "" {
		delta(`{"reasoning_content":` + quoted(p.think) + `}`)
	}
	if p.say != "" {
		delta(`{"content":` + quoted(p.say) + `}`)
	}
	finish := "stop"
	for i, c := range p.calls {
		finish = "tool_calls"
		delta(fmt.Sprintf(`{"tool_calls":[{"index":%d,"id":%q,"type":"function","function":{"name":%q,"arguments":%s}}]}`, i, p.callID(i), c.name, quoted(c.input)))
	}
	return append(out, fmt.Sprintf(`{"choices":[{"index":0,"delta":{},"finish_reason":%q}]}`, finish),
		fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":7}}`, p.in), "[DONE]")
}

// results are the outputs of calls in a request, in order.
func results(body []byte) []string {
	var q struct {
		Messages []map[string]any `json:"messages"`
		Input    []map[string]any `json:"input"`
	}
	_ = json.Unmarshal(body, &q)
	var out []string
	str := func(v any) {
		s, _ := v.(string)
		out = append(out, s)
	}
	for _, it := range append(q.Messages, q.Input...) {
		list, _ := it["content"].([]any)
		for _, p := range list {
			if m, ok := p.(map[string]any); ok && m["type"] == "tool_result" {
				str(m["content"])
			}
		}
		if it["role"] == "tool" {
			str(it["content"])
		}
		if it["type"] == "function_call_output" {
			str(it["output"])
		}
	}
	return out
}

var apis = []model.API{model.Anthropic, model.Responses, model.Chat}

func (m *mock) endpoint(api model.API) model.Endpoint {
	return model.Endpoint{API: api, BaseURL: m.URL, Model: "mock", Key: "sk-very-secret", ContextTokens: 1 << 20}
}

// holds reports whether some request holds a text.
func (m *mock) holds(text string) bool {
	for _, b := range m.requests() {
		if bytes.Contains(b, []byte(text)) {
			return true
		}
	}
	return false
}
