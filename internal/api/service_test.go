package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// door is an authenticator that knows the keys that a test gives it.
type door struct {
	mu   sync.Mutex
	keys map[string]sojourn.Principal // by header
	ends map[sojourn.KeyID]context.CancelFunc
	life map[sojourn.KeyID]context.Context
	gone map[sojourn.KeyID]bool // revoked elsewhere
}

func newDoor() *door {
	return &door{
		keys: map[string]sojourn.Principal{
			"Bearer admin":  {Key: "admin", Project: "p", Kind: sojourn.KeyAdmin},
			"Bearer reader": {Key: "reader", Project: "p", Kind: sojourn.KeyApp, Scopes: []sojourn.Scope{"read"}},
			"Bearer runner": {Key: "runner", Project: "p", Kind: sojourn.KeyRunner},
		},
		ends: map[sojourn.KeyID]context.CancelFunc{}, life: map[sojourn.KeyID]context.Context{}, gone: map[sojourn.KeyID]bool{},
	}
}

func (d *door) Authenticate(_ context.Context, header string) (sojourn.Principal, error) {
	if who, ok := d.keys[header]; ok {
		return who, nil
	}
	return sojourn.Principal{}, sojourn.Errorf(sojourn.CodeUnauthenticated, "Send a valid key.")
}

func (d *door) Watch(id sojourn.KeyID) context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.life[id] == nil {
		d.life[id], d.ends[id] = context.WithCancel(context.Background())
	}
	return d.life[id]
}

func (d *door) revoke(id sojourn.KeyID) {
	d.Watch(id)
	d.ends[id]()
}

func (d *door) revokeElsewhere(id sojourn.KeyID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gone[id] = true
}

func (d *door) Valid(_ context.Context, id sojourn.KeyID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone[id] {
		return sojourn.Errorf(sojourn.CodeUnauthenticated, "Send a valid key.")
	}
	return nil
}

// testContract answers every code with its own name.
func testContract() Contract {
	replies := map[sojourn.Code]Reply{}
	for _, c := range sojourn.Codes {
		replies[c] = Reply{Status: http.StatusConflict, Code: string(c)}
	}
	for code, status := range map[sojourn.Code]int{
		sojourn.CodeInvalid: 422, sojourn.CodeInvalidCursor: 400, sojourn.CodeTooLarge: 413,
		sojourn.CodeUnauthenticated: 401, sojourn.CodeForbidden: 403, sojourn.CodeNotFound: 404,
		sojourn.CodeMethodNotAllowed: 405, sojourn.CodeRateLimited: 429, sojourn.CodeInternal: 500,
		sojourn.CodeWorkspaceStarting: 503,
	} {
		replies[code] = Reply{Status: status, Code: string(code)}
	}
	return Contract{Name: "test", Replies: replies, Envelope: Envelope, ErrorBody: ErrorBody{}}
}

type thing struct {
	Name  string            `json:"name"`
	Count int               `json:"count,omitempty" minimum:"0"`
	Tags  map[string]string `json:"tags,omitempty"`
	Input *Input            `json:"input,omitempty"`
}

type thingInput struct {
	ID    string `path:"id"`
	Limit int    `query:"limit" minimum:"1" maximum:"9" default:"5"`
	Body  thing
}

type thingOutput struct{ Body thing }

type readInput struct {
	ID string `path:"id"`
}

// serve runs a service with a few operations.
func serve(t *testing.T, c Config, more ...func(*Service)) (*httptest.Server, *syncBuffer) {
	t.Helper()
	log := &syncBuffer{}
	if c.Auth == nil {
		c.Auth = newDoor()
	}
	c.Contract, c.Log, c.Title, c.Version = testContract(), slog.New(slog.NewTextHandler(log, nil)), "test", "1"
	s := NewService(c)
	Register(s, Operation{ID: "make", Method: "POST", Path: "/things/{id}", Scope: "write"},
		func(_ context.Context, in *thingInput) (*thingOutput, error) { return &thingOutput{Body: in.Body}, nil })
	Register(s, Operation{ID: "read", Method: "GET", Path: "/things/{id}", Scope: "read"},
		func(_ context.Context, in *readInput) (*thingOutput, error) {
			switch in.ID {
			case "panic":
				panic("secret in a panic")
			case "internal":
				return nil, io.ErrClosedPipe
			case "starting":
				return nil, &sojourn.Error{Code: sojourn.CodeWorkspaceStarting, Message: "It starts.", RetryAfter: 1500 * time.Millisecond}
			}
			return &thingOutput{Body: thing{Name: in.ID}}, nil
		})
	Register(s, Operation{ID: "admin", Method: "PUT", Path: "/things/{id}/admin"},
		func(context.Context, *readInput) (*thingOutput, error) { return &thingOutput{}, nil })
	for _, f := range more {
		f(s)
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return server, log
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// answer is what a call came back with.
type answer struct {
	status int
	header http.Header
	body   string
	err    ErrorObject
}

func call(t *testing.T, server *httptest.Server, method, path, body string, headers ...string) answer {
	t.Helper()
	r, err := http.NewRequest(method, server.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer admin")
	for i := 0; i < len(headers); i += 2 {
		if r.Header.Del(headers[i]); headers[i+1] != "" {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{status: res.StatusCode, header: res.Header, body: string(text)}
	var e ErrorBody
	if json.Unmarshal(text, &e) == nil {
		a.err = e.Error
	}
	return a
}

func TestEveryAnswerCarriesTheMechanicsHeaders(t *testing.T) {
	server, _ := serve(t, Config{})
	for _, path := range []string{"/things/a", "/nothing", "/things/panic"} {
		a := call(t, server, "GET", path, "")
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Content-Type": "application/json",
			"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'", "Referrer-Policy": "no-referrer",
		} {
			if got := a.header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
		if a.header.Get("X-Request-Id") == "" {
			t.Errorf("%s has no request id", path)
		}
		if a.status >= 400 && a.err.RequestID != a.header.Get("X-Request-Id") {
			t.Errorf("%s: the body says request %q, the header %q", path, a.err.RequestID, a.header.Get("X-Request-Id"))
		}
	}
}

func TestRequestIDIsEchoedWhenItIsFit(t *testing.T) {
	server, _ := serve(t, Config{})
	for given, echoed := range map[string]bool{
		"abc-1.2_3:4": true, strings.Repeat("a", 128): true,
		strings.Repeat("a", 129): false, "a b": false, "a<b>": false, "ä": false,
	} {
		got := call(t, server, "GET", "/things/a", "", "X-Request-Id", given).header.Get("X-Request-Id")
		if (got == given) != echoed || got == "" {
			t.Errorf("request id %.40q came back as %q, want echoed: %v", given, got, echoed)
		}
	}
}

func TestUnknownPathsAndMethodsAreInTheEnvelope(t *testing.T) {
	server, _ := serve(t, Config{})
	for _, c := range []struct {
		method, path string
		status       int
		code, allow  string
	}{
		{"GET", "/nothing", 404, "not_found", ""},
		{"GET", "/", 404, "not_found", ""},
		{"DELETE", "/things/a", 405, "method_not_allowed", "GET, HEAD, POST"},
		{"POST", "/things/a/admin", 405, "method_not_allowed", "PUT"},
		{"BREW", "/things/a", 405, "method_not_allowed", "GET, HEAD, POST"},
		{"GET", "/things/", 404, "not_found", ""},
	} {
		a := call(t, server, c.method, c.path, "")
		if a.status != c.status || a.err.Code != c.code || a.header.Get("Allow") != c.allow {
			t.Errorf("%s %s: %d %q Allow %q, want %d %q %q", c.method, c.path, a.status, a.err.Code, a.header.Get("Allow"), c.status, c.code, c.allow)
		}
	}
}

func TestHeadHasNoBody(t *testing.T) {
	server, _ := serve(t, Config{})
	a := call(t, server, "HEAD", "/things/a", "")
	if a.status != 200 || a.body != "" {
		t.Errorf("HEAD: %d %q, want 200 and nothing", a.status, a.body)
	}
}

func TestWhoMayCall(t *testing.T) {
	server, _ := serve(t, Config{})
	for _, c := range []struct {
		key, method, path string
		status            int
		scope             any
	}{
		{"", "GET", "/things/a", 401, nil},
		{"Bearer nobody", "GET", "/things/a", 401, nil},
		{"Bearer reader", "GET", "/things/a", 200, nil},
		{"Bearer reader", "POST", "/things/a", 403, "write"},
		{"Bearer reader", "PUT", "/things/a/admin", 403, nil},
		{"Bearer runner", "GET", "/things/a", 403, "read"},
		{"Bearer admin", "PUT", "/things/a/admin", 200, nil},
	} {
		a := call(t, server, c.method, c.path, "", "Authorization", c.key)
		if a.status != c.status || a.err.Details["scope"] != c.scope {
			t.Errorf("%s %s with %q: %d %s, want %d and the scope %v", c.method, c.path, c.key, a.status, a.body, c.status, c.scope)
		}
		if got := a.header.Get("WWW-Authenticate"); (got != "") != (c.status == 401) {
			t.Errorf("%s %s with %q: WWW-Authenticate %q", c.method, c.path, c.key, got)
		}
	}
}

func TestABadKeyIsRefusedBeforeTheBodyIsRead(t *testing.T) {
	server, _ := serve(t, Config{})
	a := call(t, server, "POST", "/things/a", "{not json", "Authorization", "Bearer reader")
	if a.status != 403 {
		t.Errorf("%d %s, want 403", a.status, a.body)
	}
}

func TestBodiesAreReadStrictly(t *testing.T) {
	server, _ := serve(t, Config{})
	deep := strings.Repeat(`{"a":`, 70) + "1" + strings.Repeat("}", 70)
	for _, c := range []struct {
		body, kind string
		status     int
		message    string
	}{
		{`{"name":"a"}`, "", 200, ""},
		{`{"name":"a"}`, "application/json", 200, ""},
		{`{"name":"a"}`, "Application/JSON; charset=UTF-8", 200, ""},
		{`{"name":"a"}`, "text/plain", 415, "The Content-Type of the request must be application/json in UTF-8."},
		{`{"name":"a"}`, "application/json; charset=latin1", 415, "The Content-Type of the request must be application/json in UTF-8."},
		{`name=a`, "application/x-www-form-urlencoded", 415, "The Content-Type of the request must be application/json in UTF-8."},
		{``, "", 400, "Request body is required."},
		{`{}`, "", 422, "name: is required."},
		{`[]`, "", 422, "body: expected object."},
		{`null`, "", 422, "body: expected object."},
		{`{"name":7}`, "", 422, "name: expected string."},
		{`{"name":null}`, "", 422, "name: expected string."},
		{`{"name":"a","count":1.5}`, "", 422, "count: expected integer."},
		{`{"name":"a","count":-1}`, "", 422, "count: expected number >= 0."},
		{`{"name":"a","tags":{"x":1}}`, "", 422, "tags.x: expected string."},
		{`{"name":"a","more":1}`, "", 422, "more: unexpected property."},
		{`{"Name":"a","name":"b"}`, "", 422, "Name: unexpected property."},
		{`{"name":"a"} x`, "", 400, "Not valid JSON at byte 14: invalid character 'x' after top-level value."},
		{`{"name":"a"`, "", 400, "Not valid JSON at byte 11: unexpected end of JSON input."},
		{`{"name":"` + "\xff" + `"}`, "", 400, "Not valid UTF-8 at byte 9."},
		{"\ufeff{}", "", 400, "Not valid JSON at byte 1: invalid character 'ï' looking for beginning of value."},
		{deep, "", 400, "Nested deeper than 64 levels at byte 320."},
		{`{"name":"a","input":"text"}`, "", 200, ""},
		{`{"name":"a","input":[{"type":"text","text":"x"}]}`, "", 200, ""},
		{`{"name":"a","input":{}}`, "", 422, "input: expected a string or an array of parts."},
		{`{"name":"a","input":[{"type":"text"},{"kind":"x"}]}`, "", 422, "input[1].kind: unexpected property."},
		{`{"name":"a","input":[1]}`, "", 422, "input[0]: expected object."},
		{`{"name":"a","input":[{"type":"file","data":"not base64!"}]}`, "", 422, "input[0].data: expected string to be base64 encoded."},
	} {
		a := call(t, server, "POST", "/things/a", c.body, "Content-Type", c.kind)
		if a.status != c.status || a.err.Message != c.message {
			t.Errorf("%.60s as %q: %d %q, want %d %q", c.body, c.kind, a.status, a.err.Message, c.status, c.message)
		}
	}
}

func TestABodyHasABound(t *testing.T) {
	server, _ := serve(t, Config{})
	fill := func(n int) string { return `{"name":"` + strings.Repeat("a", n-len(`{"name":""}`)) + `"}` }
	if a := call(t, server, "POST", "/things/a", fill(MaxBodyBytes)); a.status != 200 {
		t.Errorf("a body of %d bytes: %d %.200s, want 200", MaxBodyBytes, a.status, a.body)
	}
	if a := call(t, server, "POST", "/things/a", fill(MaxBodyBytes+1)); a.status != 413 || a.err.Code != "too_large" {
		t.Errorf("a body of %d bytes: %d %.200s, want 413", MaxBodyBytes+1, a.status, a.body)
	}
}

func TestABodyWhereNoneIsDueIsRefused(t *testing.T) {
	server, _ := serve(t, Config{})
	for body, status := range map[string]int{"": 200, "{}": 200, " {}\n": 200, `{"a":1}`: 422, "x": 422} {
		if a := call(t, server, "PUT", "/things/a/admin", body); a.status != status {
			t.Errorf("body %q: %d %s, want %d", body, a.status, a.body, status)
		}
	}
}

func TestQueriesAreReadStrictly(t *testing.T) {
	server, _ := serve(t, Config{})
	for query, message := range map[string]string{
		"limit=9": "", "": "", "limit=10": "query.limit: expected number <= 9.", "limit=x": "query.limit: invalid integer.",
		"lmit=1": "query.lmit: unknown query parameter.", "limit=1&limit=2": "query.limit: is there 2 times.",
	} {
		a := call(t, server, "POST", "/things/a?"+query, `{"name":"a"}`)
		if a.err.Message != message || (a.status == 422) != (message != "") {
			t.Errorf("?%s: %d %q, want %q", query, a.status, a.err.Message, message)
		}
	}
}

func TestFailuresKeepTheirTextInTheLog(t *testing.T) {
	server, log := serve(t, Config{})
	for _, path := range []string{"/things/panic", "/things/internal"} {
		a := call(t, server, "GET", path+"", "", "X-Request-Id", "id-of"+strings.ReplaceAll(path, "/", "-"))
		if a.status != 500 || a.err.Code != "internal" || strings.Contains(a.body, "secret") || strings.Contains(a.body, "closed pipe") {
			t.Errorf("%s: %d %s, want 500 without the cause", path, a.status, a.body)
		}
	}
	server.Close() // waits until all is logged
	for _, cause := range []string{"secret in a panic", "closed pipe", "request=id-of-things-panic", "request=id-of-things-internal"} {
		if !strings.Contains(log.String(), cause) {
			t.Errorf("the log lacks %q:\n%s", cause, log)
		}
	}
}

func TestLogShowsNoQueryAndNoKey(t *testing.T) {
	server, log := serve(t, Config{})
	call(t, server, "POST", "/things/a?limit=3", `{"name":"body-text"}`)
	call(t, server, "GET", "/things/a?token=query-secret", "", "Authorization", "Bearer header-secret")
	server.Close() // waits until all is logged
	for _, bad := range []string{"limit=3", "query-secret", "header-secret", "body-text", "Bearer"} {
		if strings.Contains(log.String(), bad) {
			t.Errorf("the log shows %q:\n%s", bad, log)
		}
	}
	for _, want := range []string{"method=POST", "path=/things/a", "status=200", "key=admin", "status=401"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
}

func TestRetryHintIsAHeaderAndInTheBodyOfA429Only(t *testing.T) {
	server, _ := serve(t, Config{Settings: Settings{Rate: Rate{PerSecond: 0.5, Burst: 2}}})
	a := call(t, server, "GET", "/things/starting", "")
	if a.status != 503 || a.header.Get("Retry-After") != "2" || strings.Contains(a.body, "retryAfterSeconds") {
		t.Errorf("%d, Retry-After %q, %s; want 503, 2, and nothing in the body", a.status, a.header.Get("Retry-After"), a.body)
	}
	call(t, server, "GET", "/things/a", "")
	a = call(t, server, "GET", "/things/a", "")
	if a.status != 429 || a.err.Code != "rate_limited" || a.header.Get("Retry-After") != "2" || a.err.RetryAfterSeconds != 2 {
		t.Errorf("%d, Retry-After %q, %s; want 429 with 2 in both", a.status, a.header.Get("Retry-After"), a.body)
	}
	if a = call(t, server, "GET", "/things/a", "", "Authorization", "Bearer reader"); a.status != 200 {
		t.Errorf("another key: %d, want 200", a.status)
	}
}

func TestBucketRefills(t *testing.T) {
	l, now := newLimiter(Rate{PerSecond: 2, Burst: 3}), time.Unix(1000, 0)
	taken := func(at time.Time) (n int) {
		for {
			if _, err := l.take("k", at); err != nil {
				break
			}
			n++
		}
		return n
	}
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{0, 3}, {499 * time.Millisecond, 0}, {500 * time.Millisecond, 1}, {time.Second, 1}, {time.Hour, 3}, {time.Minute, 0}} {
		if got := taken(now.Add(c.after)); got != c.want {
			t.Errorf("after %v there were %d calls, want %d", c.after, got, c.want)
		}
	}
	if _, err := newLimiter(Rate{PerSecond: -1}).take("k", now); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}

func TestContractWithoutAReplyForACodeIsFound(t *testing.T) {
	c := testContract()
	if got := c.Missing(); len(got) != 0 {
		t.Errorf("missing: %v", got)
	}
	delete(c.Replies, sojourn.CodeRunActive)
	if got := c.Missing(); len(got) != 1 || got[0] != sojourn.CodeRunActive {
		t.Errorf("missing: %v, want run_active", got)
	}
	if p := c.problem(sojourn.Errorf(sojourn.CodeRunActive, "x"), "r"); p.Status != 500 {
		t.Errorf("a code without a reply: %d, want 500", p.Status)
	}
}
