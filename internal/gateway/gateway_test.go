package gateway_test

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/gateway"
)

// TestBodiesPassByteByByte: both ways, but for the model's name in the request.
func TestBodiesPassByteByByte(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		r := newRig(t, nil, nil)
		path, body := d.with("best", "think hm \\u00e9", "say Gr\u00fc\u00dfe \\u2028 \\\"quoted\\\" and long enough for some pieces", "tool t {}", "say x")
		resp, got := r.do(r.ask(path, body))
		if resp.StatusCode != http.StatusOK || got != r.upstream.last() || got == "" {
			t.Errorf("status %d, the agent has\n%s\nthe provider sent\n%s", resp.StatusCode, got, r.upstream.last())
		}
		rec := r.mock.Records()[0]
		_, want := d.with("vendor-model-2026.1", "think hm \\u00e9", "say Gr\u00fc\u00dfe \\u2028 \\\"quoted\\\" and long enough for some pieces", "tool t {}", "say x")
		if string(rec.Body) != want || rec.Model != "vendor-model-2026.1" {
			t.Errorf("the provider got for %s\n%s\nwant\n%s", rec.Model, rec.Body, want)
		}
		if want := int64(len(body)); r.only().RequestBytes != want || r.only().ResponseBytes != int64(len(got)) {
			t.Errorf("%+v: want %d bytes and %d back", r.only(), want, len(got))
		}
	})
}

func TestUsageIsExact(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		r := newRig(t, nil, nil)
		reasoning := int64(4)
		if strings.HasPrefix(d.name, "messages") {
			reasoning = 0 // is not told apart there
		}
		r.do(r.ask(d.with("best", "usage 1000 20 300 4", "say some words, and then some more of them")))
		c := r.only()
		if c.InputTokens != 1000 || c.CachedTokens != 300 || c.OutputTokens != 20 || c.ReasoningTokens != reasoning || c.Estimated {
			t.Errorf("%+v: want 1000 in, 300 of them cached, and 20 out", c)
		}
		if want := gateway.Price(prices).Cost(c); c.CostMicroCents != want || want != 700*1_000_000+300*1000+20 || c.Unpriced {
			t.Errorf("cost %d, unpriced %v, want %d", c.CostMicroCents, c.Unpriced, want)
		}
		if c.Failure != "" || c.Error != "" || c.Status != 200 || c.Model != "best" || c.TTFT <= 0 || c.Duration < c.TTFT || c.Started.IsZero() {
			t.Errorf("%+v: want a whole answer", c)
		}
		if want := "the-" + c.API; c.Provider != want {
			t.Errorf("provider %s, want %s", c.Provider, want)
		}
	})
}

func TestUnknownPriceIsSaid(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, nil)
	r.do(r.ask(dialects[0].with("other", "usage 7 8", "say hi")))
	if c := r.only(); !c.Unpriced || c.CostMicroCents != 0 || c.InputTokens != 7 {
		t.Errorf("%+v: want no cost, and that it is unpriced", c)
	}
}

// TestKeysAreExchanged: the token stays here and the key goes there, wherever the API
// has it, and nothing else of the agent's chooses an account.
func TestKeysAreExchanged(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		r := newRig(t, nil, func(c *gateway.Config, _ *gateway.Binding) {
			for i := range c.Providers {
				c.Providers[i].Headers = map[string]string{"X-Team": "ours"}
			}
		})
		req := r.ask(d.with("best", "say hi"))
		q := req.URL.Query()
		q.Set("key", token)
		q.Set("access_token", "stolen")
		req.URL.RawQuery = q.Encode()
		for name, v := range map[string]string{
			"Cookie": "a=b", "OpenAI-Organization": "other", "openai_project": "other", "X-HTTP-Method-Override": "GET", "X-Team": "theirs",
			"Connection": "X-Hop", "X-Hop": "1", "X-Forwarded-For": "10.0.0.1", "Anthropic-Beta": "feature", "Session_id": "kept",
		} {
			req.Header[name] = []string{v}
		}
		r.do(req)
		rec := r.mock.Records()[0]
		all := strings.Join(slices.Sorted(maps.Keys(rec.Header)), " ")
		for _, name := range []string{"Cookie", "Openai-Organization", "Openai_project", "X-Http-Method-Override", "X-Hop", "X-Forwarded-For"} {
			if rec.Header[name] != nil {
				t.Errorf("%s was passed on, among %s", name, all)
			}
		}
		if rec.Header.Get("X-Team") != "ours" || rec.Header.Get("Anthropic-Beta") != "feature" || rec.Header.Get("Session_id") != "kept" {
			t.Errorf("headers %v: want the configured in place of the agent's, and the others", rec.Header)
		}
		if strings.Contains(rec.Query, token) || strings.Contains(rec.Query, "stolen") {
			t.Errorf("query %q", rec.Query)
		}
		keys := 0
		for _, v := range rec.Header {
			if strings.Contains(v[0], token) {
				t.Errorf("the token was passed on: %v", rec.Header)
			}
			if strings.Contains(v[0], realKey) {
				keys++
			}
		}
		if keys != 1 {
			t.Errorf("%d headers hold the key, want 1", keys)
		}
	})
}

func TestWrongTokenIsRefusedInTheAPIsForm(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		r := newRig(t, nil, nil)
		for _, key := range []string{"", "wrong", token + "x", realKey} {
			req := r.ask(d.with("best", "say hi"))
			for _, name := range []string{"Authorization", "X-Api-Key", "X-Goog-Api-Key"} {
				if req.Header.Get(name) != "" {
					req.Header.Set(name, strings.Replace(req.Header.Get(name), token, key, 1))
				}
			}
			resp, body := r.do(req)
			want := map[string]string{"messages": `"authentication_error"`, "responses": `"invalid_api_key"`, "completions": `"invalid_api_key"`, "content": `"UNAUTHENTICATED"`}
			if kind, _, _ := strings.Cut(d.name, " "); resp.StatusCode != 401 || !strings.Contains(body, want[kind]) {
				t.Errorf("key %q: %d %s, want 401 with %s", key, resp.StatusCode, body, want[kind])
			}
		}
		if len(r.mock.Records()) != 0 || len(r.reported()) != 0 {
			t.Error("a request without the token came through")
		}
	})
}

func TestNoTokenOpensNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, func(_ *gateway.Config, b *gateway.Binding) { b.Token = "" })
	req := r.ask(dialects[0].with("best", "say hi"))
	req.Header.Set("X-Api-Key", "")
	if resp, _ := r.do(req); resp.StatusCode != 401 {
		t.Errorf("an empty key of an empty token: %d, want 401", resp.StatusCode)
	}
}

func TestOnlyTheSessionsModels(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		r := newRig(t, nil, func(_ *gateway.Config, b *gateway.Binding) { b.Models = []string{"oth*"} })
		for model, want := range map[string]int{"best": 403, "other": 200, "absent": 404, "vendor-model-2026.1": 404} {
			resp, body := r.do(r.ask(d.with(model, "say hi")))
			if resp.StatusCode != want || want != 200 && !strings.Contains(body, "may call other.") {
				t.Errorf("%s: %d %s, want %d and what may be called", model, resp.StatusCode, body, want)
			}
		}
		if n := len(r.mock.Records()); n != 1 {
			t.Errorf("%d requests came to the provider, want 1", n)
		}
	})
}

func TestPatternsOfModels(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, func(c *gateway.Config, _ *gateway.Binding) {
		c.Providers[0].Models = []gateway.Model{{Name: "claude-*"}, {Name: "exact", Upstream: "a/b"}, {Name: "*", Upstream: "fallback"}}
	})
	for model, want := range map[string]string{"claude-x": "claude-x", "exact": "a/b", "gpt/5": "fallback"} {
		r.mock.Reset()
		r.do(r.ask(dialects[0].with(model, "say hi")))
		if got := r.mock.Records()[0].Model; got != want {
			t.Errorf("%s goes to %s, want %s", model, got, want)
		}
	}
	if resp, _ := r.do(r.ask(dialects[0].with("no name", "say hi"))); resp.StatusCode != 404 {
		t.Errorf("a name with a space: %d, want 404", resp.StatusCode)
	}
}

func TestNothingElseIsThere(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, nil)
	for _, c := range []struct{ method, path, form string }{
		{"GET", "/model/anthropic/v1/messages", `"not_found_error"`},
		{"POST", "/model/anthropic/v1/models", `"not_found_error"`},
		{"POST", "/model/anthropic/v1/messages/../../../openai/v1/responses", `"not_found_error"`},
		{"POST", "/model/openai/v1/files", `"not_found"`},
		{"DELETE", "/model/openai/v1/responses", `"not_found"`},
		{"POST", "/model/openai/v1/responses/resp_1/cancel", `"not_found"`},
		{"POST", "/model/gemini/v1beta/models/best:embedContent", `"NOT_FOUND"`},
		{"POST", "/model/gemini/v1beta/models/..%2f..%2fbest:generateContent", `"NOT_FOUND"`},
		{"POST", "/model/gemini/v1beta/models/:generateContent", `"NOT_FOUND"`},
		{"POST", "/_mock/requests", `"not_found"`},
	} {
		req := r.ask(c.path, `{"model":"best","messages":[],"input":"x"}`)
		req.Method = c.method
		req.Header.Set("Authorization", "Bearer "+token)
		if resp, body := r.do(req); resp.StatusCode != 404 || !strings.Contains(body, c.form) {
			t.Errorf("%s %s: %d %s, want 404 with %s", c.method, c.path, resp.StatusCode, body, c.form)
		}
	}
	if n := len(r.mock.Records()); n != 0 {
		t.Errorf("%d requests came to the provider", n)
	}
}

func TestModelsAreListed(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, func(_ *gateway.Config, b *gateway.Binding) { b.Models = []string{"best"} })
	req := r.ask("/model/openai/v1/models", "")
	req.Method = http.MethodGet
	resp, body := r.do(req)
	const want = `{"data":[{"id":"best","object":"model","created":0,"owned_by":"sojourn"}],"object":"list"}`
	if resp.StatusCode != 200 || body != want {
		t.Errorf("%d %s, want %s", resp.StatusCode, body, want)
	}
	offers := r.gateway.Models()
	if len(offers) != 6 || offers[0] != (gateway.Offer{API: gateway.Anthropic, Name: "best"}) {
		t.Errorf("offers %v: want two of each API, the default first", offers)
	}
}

// TestTokensAreCountedForFree: it is passed on, and is no call.
func TestTokensAreCountedForFree(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, nil)
	for path, body := range map[string]string{
		"/model/anthropic/v1/messages/count_tokens":    `{"model":"best","messages":[]}`,
		"/model/gemini/v1beta/models/best:countTokens": `{"contents":[]}`,
	} {
		resp, got := r.do(r.ask(path, body))
		if resp.StatusCode != 200 || got != r.upstream.last() || !strings.Contains(got, "okens") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, got)
		}
	}
	if calls := r.reported(); len(calls) != 0 {
		t.Errorf("reported %+v", calls)
	}
}

func TestConfigurationIsChecked(t *testing.T) {
	t.Parallel()
	good := gateway.Provider{Name: "p", API: gateway.OpenAI, BaseURL: "https://models.test/v1", Key: realKey, Models: []gateway.Model{{Name: "m"}}}
	for want, change := range map[string]func(*gateway.Provider){
		"":                          func(*gateway.Provider) {},
		"has a name of its own":     func(p *gateway.Provider) { p.Name = "" },
		"anthropic, openai or":      func(p *gateway.Provider) { p.API = "grpc" },
		"without user":              func(p *gateway.Provider) { p.BaseURL = "https://u:secret@models.test" },
		"https://HOST/PATH":         func(p *gateway.Provider) { p.BaseURL = "ftp://models.test" },
		"cannot be read":            func(p *gateway.Provider) { p.BaseURL = "https://%zz" },
		"ends before /v1":           func(p *gateway.Provider) { p.API, p.BaseURL = gateway.Anthropic, "https://models.test/v1/" },
		"cannot stand in a header":  func(p *gateway.Provider) { p.Key = "a\nb" },
		"no models":                 func(p *gateway.Provider) { p.Models = nil },
		"neither a name":            func(p *gateway.Provider) { p.Models = []gateway.Model{{Name: "[a"}} },
		"names are 1 to":            func(p *gateway.Provider) { p.Models = []gateway.Model{{Name: "a", Upstream: "a b"}} },
		"is already that of":        func(p *gateway.Provider) { p.Models = append(p.Models, gateway.Model{Name: "m"}) },
		"a price is negative":       func(p *gateway.Provider) { p.Models = []gateway.Model{{Name: "m", Price: &gateway.Price{Output: -1}}} },
		`header "X-A " cannot be s`: func(p *gateway.Provider) { p.Headers = map[string]string{"X-A ": "b"} },
	} {
		p := good
		change(&p)
		_, err := gateway.New(gateway.Config{Providers: []gateway.Provider{p}})
		switch {
		case want == "" && err != nil:
			t.Errorf("a good provider is refused: %v", err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%v, want %q", err, want)
		case err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), realKey)):
			t.Errorf("the error holds a secret: %v", err)
		}
	}
}
