package gateway_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/gateway"
	"github.com/sojourn-dev/sojourn/internal/gateway/modeltest"
)

const (
	realKey = "sk-real-0123456789abcdef"
	token   = "token-of-this-sandbox"
)

// rig is a provider behind a gateway behind a server, as an agent meets it.
type rig struct {
	t        testing.TB
	mock     *modeltest.Server
	upstream *tee
	gateway  *gateway.Gateway
	url      string
	logged   *lockedBuffer

	mu    sync.Mutex
	calls []gateway.Call
}

// prices are such that each kind of token shows in the cost.
var prices = gateway.Price{Input: 1_000_000_000_000, Cached: 1_000_000_000, CacheWrite: 1_000_000_000, Output: 1_000_000}

// newRig makes a rig. handler takes the place of the model server when it is not nil,
// and change changes what the gateway and the binding are made from.
func newRig(t testing.TB, handler http.Handler, change func(*gateway.Config, *gateway.Binding)) *rig {
	t.Helper()
	r := &rig{t: t, mock: &modeltest.Server{Key: realKey}, logged: &lockedBuffer{}}
	r.upstream = &tee{Handler: handler}
	if handler == nil {
		r.upstream.Handler = r.mock
	}
	up := httptest.NewServer(r.upstream)
	t.Cleanup(func() { up.CloseClientConnections(); up.Close() })
	provider := func(api gateway.API, base string) gateway.Provider {
		return gateway.Provider{
			Name: "the-" + string(api), API: api, BaseURL: up.URL + base, Key: realKey,
			Models: []gateway.Model{
				{Name: "best", Upstream: "vendor-model-2026.1", Price: &prices},
				{Name: "other"},
			},
		}
	}
	cfg := gateway.Config{
		Providers: []gateway.Provider{provider(gateway.Anthropic, ""), provider(gateway.OpenAI, "/v1"), provider(gateway.Gemini, "/")},
		Log:       slog.New(slog.NewTextHandler(r.logged, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	b := gateway.Binding{Session: "s", Epoch: 3, Token: token, Report: r.report}
	if change != nil {
		change(&cfg, &b)
	}
	var err error
	if r.gateway, err = gateway.New(cfg); err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(r.gateway.Handler(b))
	t.Cleanup(func() { front.CloseClientConnections(); front.Close() })
	r.url = front.URL
	t.Cleanup(func() {
		if strings.Contains(r.logged.String(), realKey) {
			t.Errorf("the log holds the key: %s", r.logged.String())
		}
	})
	return r
}

func (r *rig) report(ctx context.Context, c gateway.Call) error {
	if err := ctx.Err(); err != nil {
		r.t.Errorf("the context of a report has ended: %v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, c)
	return nil
}

// reported returns the calls so far.
func (r *rig) reported() []gateway.Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]gateway.Call(nil), r.calls...)
}

// only returns the call when there was one.
func (r *rig) only() gateway.Call {
	r.t.Helper()
	calls := r.reported()
	if len(calls) != 1 {
		r.t.Fatalf("%d calls were reported, want 1: %+v", len(calls), calls)
	}
	return calls[0]
}

// ask returns a request as an agent makes it.
func (r *rig) ask(path, body string) *http.Request {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	switch {
	case strings.HasPrefix(path, "/model/anthropic"):
		req.Header.Set("X-Api-Key", token)
	case strings.HasPrefix(path, "/model/gemini"):
		req.Header.Set("X-Goog-Api-Key", token)
	default:
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return req
}

// do sends a request and reads all of the answer.
func (r *rig) do(req *http.Request) (*http.Response, string) {
	r.t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatalf("read the answer: %v", err)
	}
	r.clean(resp, string(body))
	return resp, string(body)
}

// clean checks that an answer holds no key.
func (r *rig) clean(resp *http.Response, body string) {
	r.t.Helper()
	if all := fmt.Sprint(resp.Header) + body; strings.Contains(all, realKey) {
		r.t.Errorf("the answer holds the key: %s", all)
	}
	for _, c := range r.reported() {
		if strings.Contains(fmt.Sprintf("%+v", c), realKey) {
			r.t.Errorf("the report holds the key: %+v", c)
		}
	}
}

// tee remembers what a handler has answered last.
type tee struct {
	http.Handler
	mu   sync.Mutex
	sent bytes.Buffer
}

func (t *tee) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t.mu.Lock()
	t.sent.Reset()
	t.mu.Unlock()
	t.Handler.ServeHTTP(&teeWriter{w, t}, r)
}

func (t *tee) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sent.String()
}

type teeWriter struct {
	http.ResponseWriter
	t *tee
}

func (w *teeWriter) Write(p []byte) (int, error) {
	w.t.mu.Lock()
	w.t.sent.Write(p)
	w.t.mu.Unlock()
	return w.ResponseWriter.Write(p)
}

func (w *teeWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// dialect is one of the ways to ask.
type dialect struct {
	name, path string
	stream     bool
	// body is asked with; MODEL and PROMPT stand for themselves.
	body  string
	model bool // the model is in the path
}

var dialects = []dialect{
	{
		"messages whole", "/model/anthropic/v1/messages", false,
		`{ "model" : "MODEL",  "max_tokens": 5, "messages":[{"role":"user","content":"PROMPT"}]}`, false,
	},
	{
		"messages streamed", "/model/anthropic/v1/messages?beta=true", true,
		`{"max_tokens":5,"stream":true,"messages":[{"role":"user","content":"PROMPT"}],"metadata":{"model":"not this"},"model":"MODEL"}`, false,
	},
	{
		"responses whole", "/model/openai/v1/responses", false,
		`{"input":"PROMPT","model":"MODEL","x":1e3}`, false,
	},
	{
		"responses streamed", "/model/openai/v1/responses", true,
		"{\n\t\"model\":\"MODEL\",\r\n \"stream\":true,\"input\":[{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"PROMPT\"}]}] }\n", false,
	},
	{
		"completions whole", "/model/openai/v1/chat/completions", false,
		`{"model":"MODEL","messages":[{"role":"user","content":"PROMPT"}],"temperature":0.10}`, false,
	},
	{
		"completions streamed", "/model/openai/v1/chat/completions", true,
		`{"model":"MODEL","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"PROMPT"}]}`, false,
	},
	{
		"content whole", "/model/gemini/v1beta/models/MODEL:generateContent", false,
		`{"contents":[{"role":"user","parts":[{"text":"PROMPT"}]}]}`, true,
	},
	{
		"content streamed", "/model/gemini/v1beta/models/MODEL:streamGenerateContent?alt=sse", true,
		`{"contents":[{"role":"user","parts":[{"text":"PROMPT"}]}]}`, true,
	},
	{
		"content in an array", "/model/gemini/v1beta/models/MODEL:streamGenerateContent", false,
		`{"contents":[{"role":"user","parts":[{"text":"PROMPT"}]}]}`, true,
	},
}

// with returns path and body for a model and a script.
func (d dialect) with(model string, script ...string) (path, body string) {
	for i, line := range script {
		script[i] = "@mock " + line
	}
	fill := strings.NewReplacer("MODEL", model, "PROMPT", strings.Join(script, `\n`))
	return fill.Replace(d.path), fill.Replace(d.body)
}

// each runs a claim for every dialect.
func each(t *testing.T, claim func(t *testing.T, d dialect)) {
	t.Helper()
	t.Parallel()
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			claim(t, d)
		})
	}
}
