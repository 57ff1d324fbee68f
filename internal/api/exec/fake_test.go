package exec

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/output"
)

// stub is an engine with one session; a call that a test does not set up panics.
type stub struct {
	Engine
	handler http.Handler // of this engine; nil before the first call
	facts   sojourn.Facts
	exec    sojourn.Exec
	err     error
	carried sojourn.Carryover
	output  func() (*output.Reader, error)
	execs   []sojourn.Exec

	created  engine.Create
	asked    engine.ExecRequest
	patch    sojourn.CarryoverPatch
	tool     sojourn.Tool
	query    engine.BareQuery
	limits   sojourn.Limits
	answered sojourn.Answer
	written  []byte
	closed   bool
}

func (s *stub) Now() time.Time { return time.Date(2026, 8, 11, 9, 39, 0, 0, time.UTC) }

func (s *stub) Session(context.Context, engine.Ref) (sojourn.Facts, error) { return s.facts, s.err }

func (s *stub) Carryover(context.Context, engine.Ref) (sojourn.Carryover, error) {
	return s.carried, s.err
}

func (s *stub) CreateSession(_ context.Context, c engine.Create) (engine.Created, error) {
	s.created = c
	return engine.Created{Facts: s.facts}, s.err
}

func (s *stub) BareSessions(_ context.Context, q engine.BareQuery) (engine.BarePage, error) {
	s.query = q
	return engine.BarePage{Sessions: []sojourn.Facts{s.facts}, Total: 3}, s.err
}

func (s *stub) SetBudget(_ context.Context, _ engine.Ref, change func(sojourn.Limits) sojourn.Limits) (sojourn.Facts, error) {
	s.limits = change(s.facts.Session.Budget.Limits)
	return s.facts, s.err
}

func (s *stub) UpdateCarryover(_ context.Context, _ engine.Ref, p sojourn.CarryoverPatch) (sojourn.Facts, sojourn.Carryover, error) {
	s.patch = p
	return s.facts, s.carried, s.err
}

func (s *stub) RegisterTool(_ context.Context, _ engine.Ref, t sojourn.Tool) (sojourn.Tool, error) {
	s.tool = t
	return t, s.err
}

func (s *stub) Answer(_ context.Context, _ engine.Ref, id sojourn.InteractionID, a sojourn.Answer) (sojourn.Interaction, error) {
	s.answered = a
	return sojourn.Interaction{ID: id, State: sojourn.InteractionAnswered, Answer: &a}, s.err
}

func (s *stub) StartExec(_ context.Context, _ engine.Ref, r engine.ExecRequest) (sojourn.Facts, sojourn.Exec, error) {
	s.asked = r
	return s.facts, s.exec, s.err
}

func (s *stub) WaitExec(context.Context, engine.Ref, sojourn.ExecID) (sojourn.Facts, sojourn.Exec, error) {
	return s.facts, s.exec, s.err
}

func (s *stub) WaitExecOver(context.Context, engine.Ref, sojourn.ExecID) (sojourn.Facts, sojourn.Exec, error) {
	return s.facts, s.exec, s.err
}

func (s *stub) ExecByID(context.Context, engine.Ref, sojourn.ExecID) (sojourn.Exec, error) {
	return s.exec, s.err
}

func (s *stub) Execs(context.Context, engine.Ref, int64, int) ([]sojourn.Exec, error) {
	return s.execs, s.err
}

func (s *stub) ExecOutput(context.Context, engine.Ref, sojourn.ExecID) (*output.Reader, error) {
	if s.output == nil {
		return output.None(), nil
	}
	return s.output()
}

func (s *stub) WriteExec(_ context.Context, _ engine.Ref, _ sojourn.ExecID, _ string, at int64, data []byte, eof bool) error {
	s.written, s.closed = append(s.written[:at], data...), eof
	return s.err
}

// doorman knows two keys: "admin" and "reader", which may only read.
type doorman struct{}

func (doorman) Authenticate(_ context.Context, header string) (sojourn.Principal, error) {
	scheme, key, _ := strings.Cut(header, " ")
	switch {
	case scheme != "ApiKey" && scheme != "Bearer":
	case key == "admin":
		return sojourn.Principal{Key: "a", Project: "p", Kind: sojourn.KeyAdmin}, nil
	case key == "reader":
		return sojourn.Principal{Key: "r", Project: "p", Kind: sojourn.KeyApp, Scopes: []sojourn.Scope{ScopeRead}}, nil
	}
	return sojourn.Principal{}, sojourn.Errorf(sojourn.CodeUnauthenticated, "Send a valid key.")
}

func (doorman) Watch(sojourn.KeyID) context.Context        { return context.Background() }
func (doorman) Valid(context.Context, sojourn.KeyID) error { return nil }

// call is a request to a handler of its own.
type call struct {
	method, path, body string
	header             http.Header // with "Authorization: ApiKey admin" when it has none
}

func (c call) to(e *stub) *httptest.ResponseRecorder {
	r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
	for name, values := range c.header {
		r.Header[name] = values
	}
	if c.header["Authorization"] == nil && c.header["X-Api-Key"] == nil {
		r.Header.Set("Authorization", "ApiKey admin")
	}
	if c.body != "" && r.Header.Get("Content-Type") == "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if e.handler == nil {
		e.handler = New(e, doorman{}, Config{})
	}
	res := httptest.NewRecorder()
	e.handler.ServeHTTP(res, r)
	return res
}

// refusal reads an error, and fails the test for any other answer.
func refusal(t *testing.T, res *httptest.ResponseRecorder, status int) ErrorBody {
	t.Helper()
	var body ErrorBody
	if err := json.Unmarshal(res.Body.Bytes(), &body); err != nil || res.Code != status {
		t.Fatalf("got %d %s, want an error with status %d", res.Code, res.Body, status)
	}
	return body
}

// reading decodes a good answer.
func reading[T any](t *testing.T, res *httptest.ResponseRecorder, status int) (v T) {
	t.Helper()
	if err := json.Unmarshal(res.Body.Bytes(), &v); err != nil || res.Code != status {
		t.Fatalf("got %d %s (%v), want status %d", res.Code, res.Body, err, status)
	}
	return v
}
