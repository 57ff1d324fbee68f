package model_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/model"
)

// server answers requests with prepared streams, and remembers what it was sent.
type server struct {
	*httptest.Server
	mu     sync.Mutex
	bodies [][]byte
	heads  []http.Header
	paths  []string
}

func (s *server) seen() ([][]byte, []http.Header, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bodies, s.heads, s.paths
}

// serve answers the requests in turn, the last answer again and again.
func serve(t testing.TB, answers ...http.HandlerFunc) *server {
	s := &server{}
	n := 0
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.bodies, s.heads, s.paths = append(s.bodies, body), append(s.heads, r.Header), append(s.paths, r.URL.Path)
		answer := answers[min(n, len(answers)-1)]
		n++
		s.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// streams answers with events, each the data of one.
func streams(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, e := range events {
			fmt.Fprintf(w, "event: x\ndata: %s\n\n", e)
		}
	}
}

// The same reply, as each API gives it: a thought, a text, two calls at once,
// with fields that nobody here knows.
var replies = map[model.API][]string{
	model.Anthropic: {
		`{"type":"message_start","message":{"id":"msg_1","content":[],"usage":{"input_tokens":10,"cache_read_input_tokens":100,"cache_creation_input_tokens":7,"output_tokens":1}}}`,
		`{"type":"ping"}`,
		`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":"","odd":1.50}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm <m>"}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln"}}`,
		`{"type":"content_block_stop","index":0}`,
		`{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}`,
		`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"one & "}}`,
		`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"two"}}`,
		`{"type":"content_block_stop","index":1}`,
		`{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"c1","name":"shell","input":{}}}`,
		`{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"command\":"}}`,
		`{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"\"ls <a>\"}"}}`,
		`{"type":"content_block_stop","index":2}`,
		`{"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"c2","name":"list","input":{}}}`,
		`{"type":"content_block_stop","index":3}`,
		`{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":42}}`,
		`{"type":"message_stop"}`,
	},
	model.Responses: {
		`{"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}`,
		`{"type":"response.reasoning_summary_text.delta","delta":"hm <m>"}`,
		`{"type":"response.output_item.done","item":{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"hm <m>"}],"encrypted_content":"ZW5j","odd":1.50}}`,
		`{"type":"response.output_text.delta","delta":"one & "}`,
		`{"type":"response.output_text.delta","delta":"two"}`,
		`{"type":"response.output_item.done","item":{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"output_text","text":"one & two"}]}}`,
		`{"type":"response.output_item.done","item":{"id":"fc_1","type":"function_call","call_id":"c1","name":"shell","arguments":"{\"command\":\"ls <a>\"}"}}`,
		`{"type":"response.output_item.done","item":{"id":"fc_2","type":"function_call","call_id":"c2","name":"list","arguments":""}}`,
		`{"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":117,"input_tokens_details":{"cached_tokens":100},"output_tokens":42,"output_tokens_details":{"reasoning_tokens":5}}}}`,
	},
	model.Chat: {
		`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`,
		`{"choices":[{"index":0,"delta":{"reasoning_content":"hm <m>","reasoning":"hm <m>","odd":1.50}}]}`,
		`{"choices":[{"index":0,"delta":{"content":"one & "}}]}`,
		`{"choices":[{"index":0,"delta":{"content":"two"}}]}`,
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","extra_content":{"sig":"c2ln"},"function":{"name":"shell","arguments":""}}]}}]}`,
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"c2","type":"function","function":{"name":"list","arguments":""}}]}}]}`,
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"command\":\"ls <a>\"}"}}]}}]}`,
		`{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`,
		`{"choices":[],"usage":{"prompt_tokens":117,"prompt_tokens_details":{"cached_tokens":100},"completion_tokens":42,"completion_tokens_details":{"reasoning_tokens":5}}}`,
		`[DONE]`,
	},
}

// items are what the replies have to be in the conversation.
var items = map[model.API][]string{
	model.Anthropic: {`{"role":"assistant","content":[{"type":"thinking","thinking":"hm <m>","signature":"c2ln","odd":1.50},` +
		`{"type":"text","text":"one & two"},{"type":"tool_use","id":"c1","name":"shell","input":{"command":"ls <a>"}},` +
		`{"type":"tool_use","id":"c2","name":"list","input":{}}]}`},
	model.Responses: {
		`{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"hm <m>"}],"encrypted_content":"ZW5j","odd":1.50}`,
		`{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"output_text","text":"one & two"}]}`,
		`{"id":"fc_1","type":"function_call","call_id":"c1","name":"shell","arguments":"{\"command\":\"ls <a>\"}"}`,
		`{"id":"fc_2","type":"function_call","call_id":"c2","name":"list","arguments":""}`,
	},
	model.Chat: {`{"role":"assistant","content":"one & two","reasoning_content":"hm <m>","reasoning":"hm <m>","odd":1.50,` +
		`"tool_calls":[{"id":"c1","type":"function","extra_content":{"sig":"c2ln"},"function":{"name":"shell","arguments":"{\"command\":\"ls <a>\"}"}},` +
		`{"id":"c2","type":"function","function":{"name":"list","arguments":"{}"}}]}`},
}

var paths = map[model.API]string{
	model.Anthropic: "/v1/messages", model.Responses: "/responses", model.Chat: "/chat/completions",
}

var shell = model.Tool{Name: "shell", Description: "runs <it>", Schema: json.RawMessage(`{"type":"object"}`)}

func eachAPI(t *testing.T, f func(*testing.T, model.API)) {
	for api := range replies {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			f(t, api)
		})
	}
}

func silent(model.Delta) error { return nil }

func user(t testing.TB, api model.API, text string) json.RawMessage {
	t.Helper()
	item, err := api.User(model.Part{Type: "text", Text: text})
	if err != nil {
		t.Fatal(err)
	}
	return item
}

func TestReplyIsReadWhole(t *testing.T) {
	t.Parallel()
	eachAPI(t, func(t *testing.T, api model.API) {
		s := serve(t, streams(replies[api]...))
		e := model.Endpoint{API: api, BaseURL: s.URL, Model: "m", Key: "sk-secret"}
		var text, thought strings.Builder
		r, err := e.Ask(t.Context(), model.Request{Items: []json.RawMessage{user(t, api, "hello")}}, func(d model.Delta) error {
			if d.Thought {
				thought.WriteString(d.Text)
			} else {
				text.WriteString(d.Text)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if text.String() != "one & two" || thought.String() != "hm <m>" {
			t.Errorf("said %q, thought %q", text.String(), thought.String())
		}
		if got, want := fmt.Sprintf("%s", r.Items), fmt.Sprintf("%s", items[api]); got != want {
			t.Errorf("items\n got %s\nwant %s", got, want)
		}
		if len(r.Calls) != 2 || r.Calls[0].ID != "c1" || r.Calls[0].Name != "shell" || string(r.Calls[0].Input) != `{"command":"ls <a>"}` ||
			r.Calls[1].ID != "c2" || string(r.Calls[1].Input) != "{}" || r.Calls[0].Malformed || r.Calls[1].Malformed {
			t.Errorf("calls %+v", r.Calls)
		}
		if r.Stop != model.StopCalls {
			t.Errorf("stop %q, want %q", r.Stop, model.StopCalls)
		}
		if u := r.Usage; u.Input != 117 || u.Cached != 100 || u.Output != 42 {
			t.Errorf("usage %+v, want 117 in, 100 of them cached, 42 out", u)
		}
		_, heads, sent := s.seen()
		if sent[0] != paths[api] {
			t.Errorf("asked at %s, want %s", sent[0], paths[api])
		}
		if api == model.Anthropic && (heads[0].Get("X-Api-Key") != "sk-secret" || heads[0].Get("Anthropic-Version") == "") ||
			api != model.Anthropic && heads[0].Get("Authorization") != "Bearer sk-secret" {
			t.Errorf("headers %v lack the key", heads[0])
		}
	})
}

func TestItemsAreSentAsTheyCame(t *testing.T) {
	t.Parallel()
	eachAPI(t, func(t *testing.T, api model.API) {
		s := serve(t, streams(replies[api]...))
		e := model.Endpoint{API: api, BaseURL: s.URL, Model: "m", Extra: map[string]json.RawMessage{"temperature": json.RawMessage("0.50")}}
		conversation := []json.RawMessage{user(t, api, "hello <you>")}
		r, err := e.Ask(t.Context(), model.Request{Items: conversation}, silent)
		if err != nil {
			t.Fatal(err)
		}
		conversation = append(conversation, r.Items...)
		conversation = append(conversation, api.Results(model.Result{ID: "c1", Output: "a & b"}, model.Result{ID: "c2", Output: "no", Failed: true})...)
		q := model.Request{System: "be <good>", Items: conversation, Tools: []model.Tool{shell}}
		for range 2 {
			if _, err := e.Ask(t.Context(), q, silent); err != nil {
				t.Fatal(err)
			}
		}
		bodies, _, _ := s.seen()
		if !bytes.Equal(bodies[1], bodies[2]) {
			t.Error("the same request has two bodies")
		}
		if !json.Valid(bodies[1]) {
			t.Fatalf("the body is not JSON: %s", bodies[1])
		}
		at := 0
		for _, part := range append(append([]string{"hello <you>"}, items[api]...), "a & b") {
			i := bytes.Index(bodies[1][at:], []byte(part))
			if i < 0 {
				t.Fatalf("the body lacks, or has elsewhere, %s:\n%s", part, bodies[1])
			}
			at += i + len(part)
		}
		for _, part := range []string{"be <good>", "runs <it>", `"temperature":0.50`} {
			if !bytes.Contains(bodies[1], []byte(part)) {
				t.Errorf("the body lacks %s: %s", part, bodies[1])
			}
		}
	})
}

func TestCutStreamIsNoReply(t *testing.T) {
	t.Parallel()
	eachAPI(t, func(t *testing.T, api model.API) {
		whole := replies[api]
		end := map[model.API]int{model.Anthropic: 2, model.Responses: 1, model.Chat: 3}[api] // what completes the reply
		for n := range len(whole) - end + 1 {
			s := serve(t, streams(whole[:n]...))
			e := model.Endpoint{API: api, BaseURL: s.URL, Model: "m"}
			if r, err := e.Ask(t.Context(), model.Request{}, silent); !errors.Is(err, model.ErrCut) {
				t.Errorf("cut after %d of %d events: %+v, %v, want %v", n, len(whole), r, err, model.ErrCut)
			}
		}
		// The connection breaks in the middle of an event.
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			streams(whole[:3]...)(w, r)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		})
		_, err := model.Endpoint{API: api, BaseURL: s.URL}.Ask(t.Context(), model.Request{}, silent)
		if !errors.Is(err, model.ErrCut) || !model.Temporary(err) {
			t.Errorf("broken connection: %v, want %v and temporary", err, model.ErrCut)
		}
	})
}

func TestErrorStatusIsTyped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status     int
		head, body string
		want       model.StatusError
		temporary  bool
		full       bool
	}{
		{
			429, "7", `{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}`,
			model.StatusError{Status: 429, Code: "rate_limit_error", Message: "slow down", RetryAfter: 7 * time.Second},
			true, false,
		},
		{
			401, "", `{"error":{"message":"wrong key sk-secret!","code":"invalid_api_key"}}`,
			model.StatusError{Status: 401, Code: "invalid_api_key", Message: "wrong key [key]!"},
			false, false,
		},
		{
			429, "", `{"error":{"message":"pay","code":"insufficient_quota"}}`,
			model.StatusError{Status: 429, Code: "insufficient_quota", Message: "pay"},
			false, false,
		},
		{
			400, "", `{"error":{"message":"This model's maximum context length is 8 tokens","code":"context_length_exceeded"}}`,
			model.StatusError{Status: 400, Code: "context_length_exceeded", Message: "This model's maximum context length is 8 tokens"},
			false, true,
		},
		{
			400, "", `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 > 8"}}`,
			model.StatusError{Status: 400, Code: "invalid_request_error", Message: "prompt is too long: 9 > 8"},
			false, true,
		},
		{503, "", "<html>out of order</html>", model.StatusError{Status: 503, Message: "<html>out of order</html>"}, true, false},
		{404, "", `{"error":"no such model"}`, model.StatusError{Status: 404, Message: "no such model"}, false, false},
		{307, "", "", model.StatusError{Status: 307}, false, false},
	} {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			if c.head != "" {
				w.Header().Set("Retry-After", c.head)
			}
			if c.status == 307 {
				w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
			}
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})
		_, err := model.Endpoint{API: model.Chat, BaseURL: s.URL, Key: "sk-secret"}.Ask(t.Context(), model.Request{}, silent)
		e, ok := errors.AsType[*model.StatusError](err)
		if !ok || *e != c.want {
			t.Errorf("%d %s: %#v (%v), want %#v", c.status, c.body, e, err, c.want)
			continue
		}
		if model.Temporary(err) != c.temporary || e.ContextFull() != c.full {
			t.Errorf("%v: temporary %v, context full %v", e, model.Temporary(err), e.ContextFull())
		}
	}
}

func TestErrorInsideAStream(t *testing.T) {
	t.Parallel()
	for api, event := range map[model.API]string{
		model.Anthropic: `{"type":"error","error":{"type":"overloaded_error","message":"busy"}}`,
		model.Responses: `{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"busy"}}}`,
		model.Chat:      `{"error":{"code":"server_error","message":"busy"}}`,
	} {
		s := serve(t, streams(replies[api][0], event))
		_, err := model.Endpoint{API: api, BaseURL: s.URL}.Ask(t.Context(), model.Request{}, silent)
		e, ok := errors.AsType[*model.StatusError](err)
		if !ok || e.Message != "busy" || !e.Temporary() {
			t.Errorf("%s: %v, want a temporary error that says busy", api, err)
		}
	}
}

func TestMalformedInputIsACallNevertheless(t *testing.T) {
	t.Parallel()
	for api, events := range map[model.API][]string{
		model.Anthropic: {
			`{"type":"message_start","message":{}}`,
			`{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"c1","name":"shell","input":{}}}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"comm"}}`,
			`{"type":"message_delta","delta":{"stop_reason":"max_tokens"}}`, `{"type":"message_stop"}`,
		},
		model.Responses: {
			`{"type":"response.output_item.done","item":{"type":"function_call","call_id":"c1","name":"shell","arguments":"{\"comm"}}`,
			`{"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}}`,
		},
		model.Chat: {`{"choices":[{"delta":{"tool_calls":[{"id":"c1","function":{"name":"shell","arguments":"{\"comm"}}]},"finish_reason":"length"}]}`},
	} {
		s := serve(t, streams(events...))
		r, err := model.Endpoint{API: api, BaseURL: s.URL}.Ask(t.Context(), model.Request{}, silent)
		if err != nil || len(r.Calls) != 1 || !r.Calls[0].Malformed || r.Calls[0].ID != "c1" || !json.Valid(r.Items[0]) {
			t.Errorf("%s: %+v, %v, want one malformed call and an item that can be sent", api, r, err)
		}
	}
}

func TestWhatIsNotTheAPIsIsRefused(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"not a stream":    func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") },
		"not JSON":        streams("{"),
		"block from afar": streams(`{"type":"content_block_start","index":999999,"content_block":{"type":"text"}}`),
		"no such block":   streams(`{"type":"content_block_delta","index":-1,"delta":{"type":"text_delta","text":"x"}}`),
		"endless line": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: "+strings.Repeat("x", 33<<20))
		},
	} {
		s := serve(t, answer)
		_, err := model.Endpoint{API: model.Anthropic, BaseURL: s.URL}.Ask(t.Context(), model.Request{}, silent)
		if !errors.Is(err, model.ErrProtocol) || model.Temporary(err) {
			t.Errorf("%s: %v, want %v, for good", name, err, model.ErrProtocol)
		}
	}
}

func TestSilentAndCancelledStreamsEnd(t *testing.T) {
	t.Parallel()
	hangs := func(w http.ResponseWriter, r *http.Request) {
		streams(replies[model.Chat][:2]...)(w, r)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	s := serve(t, hangs)
	e := model.Endpoint{API: model.Chat, BaseURL: s.URL, Silence: 500 * time.Millisecond}
	if _, err := e.Ask(t.Context(), model.Request{}, silent); !errors.Is(err, model.ErrCut) {
		t.Errorf("silent stream: %v, want %v", err, model.ErrCut)
	}
	e.Silence = 0
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := e.Ask(ctx, model.Request{}, func(model.Delta) error { cancel(why); return nil })
	if !errors.Is(err, why) {
		t.Errorf("cancelled in the stream: %v, want its cause", err)
	}
	if _, err := e.Ask(t.Context(), model.Request{}, func(model.Delta) error { return why }); !errors.Is(err, why) {
		t.Errorf("refused by the reader: %v, want its error", err)
	}
}

func TestImagesAndOtherParts(t *testing.T) {
	t.Parallel()
	eachAPI(t, func(t *testing.T, api model.API) {
		item, err := api.User(model.Part{Type: "text", Text: "see"}, model.Part{Type: "image", MimeType: "image/png", Data: "aGk="})
		if err != nil || !json.Valid(item) || !bytes.Contains(item, []byte("aGk=")) || !bytes.Contains(item, []byte("image/png")) {
			t.Errorf("image: %s, %v", item, err)
		}
		if _, err := api.User(model.Part{Type: "file"}); !errors.Is(err, model.ErrPart) {
			t.Errorf("file: %v, want %v", err, model.ErrPart)
		}
	})
}

// FuzzStream gives every API whatever a server may send: it must end, and what
// it takes for a reply must be sendable.
func FuzzStream(f *testing.F) {
	for api, events := range replies {
		f.Add(string(api), strings.Join(events, "\n"))
	}
	f.Add(string(model.Chat), `{"choices":[{"delta":{"tool_calls":[{"index":0,"function":null,"id":7}],"content":[1]},"finish_reason":"x"}]}`)
	f.Fuzz(func(t *testing.T, name, events string) {
		api := model.API(name)
		if !api.Valid() {
			return
		}
		e := model.Endpoint{API: api, BaseURL: "http://model", Client: &http.Client{Transport: answering(streams(strings.Split(events, "\n")...))}}
		r, err := e.Ask(t.Context(), model.Request{}, silent)
		if err != nil {
			return
		}
		for _, item := range r.Items {
			if !json.Valid(item) || bytes.ContainsAny(item, "\n") || item[0] != '{' {
				t.Errorf("item %q is not an object on one line", item)
			}
		}
		for _, c := range r.Calls {
			if !c.Malformed && !json.Valid(c.Input) {
				t.Errorf("call with input %q", c.Input)
			}
		}
	})
}

// answering is a connection to a handler, without a network.
type answering http.HandlerFunc

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	a(w, r)
	return w.Result(), nil
}
