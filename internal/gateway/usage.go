package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math"
)

// tally is what an answer has told of itself so far.
type tally struct {
	input, cached, written, output, reasoning int64

	saidInput  bool   // the provider has counted the prompt
	saidOutput bool   // and, at the end, what it has generated
	textBytes  int64  // of what was generated
	finished   bool   // what was generated is complete, though more may come
	ended      bool   // the answer's last event has come
	failed     string // an error that came in a stream; "" for none
}

// count is a number of tokens in an answer. Providers send null, fractions and nonsense;
// none of it makes an answer unreadable.
type count int64

func (c *count) UnmarshalJSON(text []byte) error {
	var f float64
	if json.Unmarshal(text, &f) == nil && f > 0 {
		*c = count(math.Ceil(min(f, 1<<40)))
	}
	return nil
}

// failure is an error object, in any API.
type failure struct {
	Type    string          `json:"type"`
	Code    json.RawMessage `json:"code"`
	Status  string          `json:"status"`
	Message string          `json:"message"`
}

func (f *failure) text() string {
	switch {
	case f == nil:
		return ""
	case f.Message != "":
		return f.Message
	case f.Type != "":
		return f.Type
	case f.Status != "":
		return f.Status
	}
	return "the provider reported an error without a text"
}

// meter reads the events of one dialect.
type meter interface {
	// event reads an event of a stream.
	event(t *tally, name string, data []byte)
	// whole reads an answer that is no stream.
	whole(t *tally, body []byte)
}

var meters = map[dialect]meter{messages: messagesMeter{}, responses: responsesMeter{}, completions: completionsMeter{}, content: contentMeter{}}

// messagesMeter reads Anthropic Messages. Its input_tokens are those that have nothing
// to do with the cache.
type messagesMeter struct{}

type messagesUsage struct {
	Input   *count `json:"input_tokens"`
	Written *count `json:"cache_creation_input_tokens"`
	Cached  *count `json:"cache_read_input_tokens"`
	Output  *count `json:"output_tokens"`
}

func (u *messagesUsage) add(t *tally, final bool) {
	if u == nil {
		return
	}
	other := t.input - t.cached - t.written
	for _, part := range []struct {
		said *count
		to   *int64
	}{{u.Input, &other}, {u.Cached, &t.cached}, {u.Written, &t.written}} {
		if part.said != nil {
			*part.to = int64(*part.said)
			t.saidInput = t.saidInput || *part.said > 0
		}
	}
	t.input = other + t.cached + t.written
	if u.Output != nil {
		t.output = int64(*u.Output)
		t.saidOutput = t.saidOutput || final
	}
}

func (messagesMeter) event(t *tally, name string, data []byte) {
	var e struct {
		Type    string `json:"type"`
		Message struct {
			Usage *messagesUsage `json:"usage"`
		} `json:"message"`
		Usage *messagesUsage `json:"usage"`
		Delta struct {
			Text     string `json:"text"`
			Thinking string `json:"thinking"`
			Input    string `json:"partial_json"`
		} `json:"delta"`
		Error *failure `json:"error"`
	}
	if json.Unmarshal(data, &e) != nil {
		return
	}
	switch e.Type {
	case "message_start":
		e.Message.Usage.add(t, false)
	case "content_block_delta":
		t.textBytes += int64(len(e.Delta.Text) + len(e.Delta.Thinking) + len(e.Delta.Input))
	case "message_delta":
		e.Usage.add(t, true)
	case "message_stop":
		t.ended = true
	case "error":
		t.failed = cmp.Or(e.Error.text(), "the provider reported an error")
	}
}

func (messagesMeter) whole(t *tally, body []byte) {
	var a struct {
		Usage *messagesUsage `json:"usage"`
		Error *failure       `json:"error"`
	}
	if json.Unmarshal(body, &a) != nil {
		return
	}
	a.Usage.add(t, true)
	t.ended, t.failed = true, a.Error.text()
}

// responsesMeter reads OpenAI Responses.
type responsesMeter struct{}

type response struct {
	Status string `json:"status"`
	Usage  *struct {
		Input   count `json:"input_tokens"`
		Details struct {
			Cached count `json:"cached_tokens"`
		} `json:"input_tokens_details"`
		Output        count `json:"output_tokens"`
		OutputDetails struct {
			Reasoning count `json:"reasoning_tokens"`
		} `json:"output_tokens_details"`
	} `json:"usage"`
	Error *failure `json:"error"`
}

func (r *response) add(t *tally) {
	if u := r.Usage; u != nil {
		t.saidInput, t.saidOutput = true, true
		t.input, t.cached = int64(u.Input), int64(u.Details.Cached)
		t.output, t.reasoning = int64(u.Output), int64(u.OutputDetails.Reasoning)
	}
	t.ended = true
	if r.Status == "failed" || r.Error != nil {
		t.failed = cmp.Or(r.Error.text(), "the answer has failed")
	}
}

func (responsesMeter) event(t *tally, name string, data []byte) {
	if name == "" {
		var e struct {
			Type string `json:"type"`
		}
		_ = json.Unmarshal(data, &e) // without a type it is nothing to us
		name = e.Type
	}
	switch name {
	case "response.completed", "response.incomplete", "response.failed":
		var e struct {
			Response response `json:"response"`
		}
		if json.Unmarshal(data, &e) == nil {
			if name == "response.failed" {
				e.Response.Status = "failed"
			}
			e.Response.add(t)
		}
	case "error":
		var e struct {
			failure
			Error *failure `json:"error"`
		}
		if json.Unmarshal(data, &e) == nil {
			t.failed = cmp.Or(e.Error.text(), e.failure.text())
		}
	case "response.output_text.delta", "response.reasoning_summary_text.delta", "response.reasoning_text.delta",
		"response.function_call_arguments.delta", "response.custom_tool_call_input.delta", "response.refusal.delta":
		var e struct {
			Delta string `json:"delta"`
		}
		if json.Unmarshal(data, &e) == nil {
			t.textBytes += int64(len(e.Delta))
		}
	}
}

func (responsesMeter) whole(t *tally, body []byte) {
	var r response
	if json.Unmarshal(body, &r) == nil {
		r.add(t)
	}
}

// completionsMeter reads OpenAI chat completions, also of those who are compatible.
type completionsMeter struct{}

type completion struct {
	Choices []struct {
		Delta struct {
			Content   string `json:"content"`
			Reasoning string `json:"reasoning_content"`
			ToolCalls []struct {
				Function struct {
					Arguments string `json:"arguments"`
				} `json:"function"`
			} `json:"tool_calls"`
		} `json:"delta"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt  count `json:"prompt_tokens"`
		Details struct {
			Cached count `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
		Completion        count `json:"completion_tokens"`
		CompletionDetails struct {
			Reasoning count `json:"reasoning_tokens"`
		} `json:"completion_tokens_details"`
	} `json:"usage"`
	Error *failure `json:"error"`
}

func (c *completion) add(t *tally) {
	if u := c.Usage; u != nil {
		t.saidInput, t.saidOutput = true, true
		t.input, t.cached = int64(u.Prompt), int64(u.Details.Cached)
		t.output, t.reasoning = int64(u.Completion), int64(u.CompletionDetails.Reasoning)
	}
	if c.Error != nil {
		t.failed = c.Error.text()
	}
	for _, choice := range c.Choices {
		t.textBytes += int64(len(choice.Delta.Content) + len(choice.Delta.Reasoning))
		for _, call := range choice.Delta.ToolCalls {
			t.textBytes += int64(len(call.Function.Arguments))
		}
		t.finished = t.finished || choice.FinishReason != nil && *choice.FinishReason != ""
	}
}

func (completionsMeter) event(t *tally, _ string, data []byte) {
	if bytes.Equal(bytes.TrimSpace(data), []byte("[DONE]")) {
		t.ended = true
		return
	}
	var c completion
	if json.Unmarshal(data, &c) == nil {
		c.add(t)
	}
}

func (completionsMeter) whole(t *tally, body []byte) {
	var c completion
	if json.Unmarshal(body, &c) == nil {
		c.add(t)
		t.ended = true
	}
}

// onlyUsage reports whether an event of a streamed chat completion is the one that
// tells its usage and nothing else.
func onlyUsage(data []byte) bool {
	var c completion
	return json.Unmarshal(data, &c) == nil && c.Usage != nil && len(c.Choices) == 0 && c.Error == nil
}

// contentMeter reads Gemini's generateContent. Every piece of a stream repeats the
// usage so far.
type contentMeter struct{}

type generated struct {
	Candidates []struct {
		Content struct {
			Parts []struct {
				Text string          `json:"text"`
				Call json.RawMessage `json:"functionCall"`
			} `json:"parts"`
		} `json:"content"`
		FinishReason string `json:"finishReason"`
	} `json:"candidates"`
	Feedback struct {
		BlockReason string `json:"blockReason"`
	} `json:"promptFeedback"`
	Usage *struct {
		Prompt     count `json:"promptTokenCount"`
		Cached     count `json:"cachedContentTokenCount"`
		ToolPrompt count `json:"toolUsePromptTokenCount"`
		Candidates count `json:"candidatesTokenCount"`
		Thoughts   count `json:"thoughtsTokenCount"`
	} `json:"usageMetadata"`
	Error *failure `json:"error"`
}

func (g *generated) add(t *tally) {
	for _, c := range g.Candidates {
		for _, p := range c.Content.Parts {
			t.textBytes += int64(len(p.Text) + len(p.Call))
		}
		if c.FinishReason != "" {
			t.ended = true
		}
	}
	if g.Feedback.BlockReason != "" {
		t.ended = true
	}
	if u := g.Usage; u != nil {
		t.saidInput, t.saidOutput = true, t.ended
		t.input, t.cached = int64(u.Prompt+u.ToolPrompt), int64(u.Cached)
		t.output, t.reasoning = int64(u.Candidates+u.Thoughts), int64(u.Thoughts)
	}
	if g.Error != nil {
		t.failed = g.Error.text()
	}
}

func (contentMeter) event(t *tally, _ string, data []byte) {
	var g generated
	if json.Unmarshal(data, &g) == nil {
		g.add(t)
	}
}

// whole also reads the array that streamGenerateContent answers without alt=sse.
func (contentMeter) whole(t *tally, body []byte) {
	var list []generated
	var one generated
	switch {
	case json.Unmarshal(body, &one) == nil:
		list = []generated{one}
	case json.Unmarshal(body, &list) != nil:
		return
	}
	for i := range list {
		list[i].add(t)
	}
	t.ended = true
}

// bytesPerToken is what sizes are divided by where a provider has not counted.
const bytesPerToken = 4

// fill puts what was used into the call. asked says that the provider has the request,
// so that a prompt it has not counted was used all the same.
func (t *tally) fill(c *Call, asked bool) {
	c.InputTokens, c.CachedTokens, c.CacheWriteTokens = t.input, min(t.cached, t.input), t.written
	c.OutputTokens, c.ReasoningTokens = t.output, t.reasoning
	if !t.saidInput && asked {
		c.InputTokens, c.Estimated = (c.RequestBytes+bytesPerToken-1)/bytesPerToken, true
	}
	if estimate := (t.textBytes + bytesPerToken - 1) / bytesPerToken; !t.saidOutput && asked {
		c.OutputTokens, c.Estimated = max(c.OutputTokens, estimate), true
	}
}
