package modeltest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Record is one request that the server got.
type Record struct {
	At      time.Time       `json:"at"`
	Method  string          `json:"method"`
	Path    string          `json:"path"`
	Query   string          `json:"query,omitempty"`
	Header  http.Header     `json:"header"`
	Model   string          `json:"model,omitempty"`
	Stream  bool            `json:"stream,omitempty"`
	History []Turn          `json:"history,omitempty"`
	Tools   []string        `json:"tools,omitempty"`
	Body    json.RawMessage `json:"body,omitempty"` // byte by byte; nil when it is no JSON
}

// Server is an http.Handler. The zero value works.
type Server struct {
	// Models is what lists of models answer; nil is "mock-model".
	Models []string
	// Key must come with each request, unless it is "".
	Key string
	// Log gets every record as a line of JSON; nil is nowhere.
	Log io.Writer

	mu      sync.Mutex
	records []Record
	seq     int
}

// Start serves s on a loopback address until the test ends, and returns its URL
// without a final slash. It is a base URL for Anthropic and Gemini; that for OpenAI has
// /v1 behind it.
func (s *Server) Start(tb testing.TB) string {
	tb.Helper()
	h := httptest.NewServer(s)
	tb.Cleanup(func() {
		h.CloseClientConnections() // streams may hang on purpose
		h.Close()
	})
	return h.URL
}

// Records returns the requests so far.
func (s *Server) Records() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.records)
}

// Reset forgets them.
func (s *Server) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = nil
}

// maxBody is what a request may have.
const maxBody = 80 << 20

// ServeHTTP answers by the end of the path, so that any base URL will do. At
// /_mock/requests it shows what came, and forgets it with DELETE.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	path, post := r.URL.Path, r.Method == http.MethodPost
	x := &exchange{s: s, w: w, r: r, body: body}
	switch {
	case path == "/_mock/requests" && r.Method == http.MethodDelete:
		s.Reset()
	case path == "/_mock/requests":
		writeJSON(w, http.StatusOK, s.Records())
	case path == "/_mock/health":
		fmt.Fprintln(w, "ok")
	case !s.knows(r):
		x.record("", false, nil, nil)
		writeJSON(w, http.StatusUnauthorized, object{"type": "error", "error": object{"type": "authentication_error", "message": "mock: wrong key " + keyOf(r)}})
	case post && strings.HasSuffix(path, "/messages/count_tokens"):
		x.record("", false, nil, nil)
		writeJSON(w, http.StatusOK, object{"input_tokens": len(body) / 4})
	case post && strings.HasSuffix(path, "/messages"):
		x.messages()
	case post && strings.HasSuffix(path, "/chat/completions"):
		x.completions()
	case post && strings.HasSuffix(path, "/responses"):
		x.responses()
	case post && strings.HasSuffix(path, ":countTokens"):
		x.record("", false, nil, nil)
		writeJSON(w, http.StatusOK, object{"totalTokens": len(body) / 4})
	case post && (strings.HasSuffix(path, ":generateContent") || strings.HasSuffix(path, ":streamGenerateContent")):
		x.content()
	case r.Method == http.MethodGet && strings.HasSuffix(path, "/models"):
		x.record("", false, nil, nil)
		s.list(w)
	default:
		x.record("", false, nil, nil)
		writeJSON(w, http.StatusNotFound, object{"error": object{"type": "not_found_error", "message": "mock: nothing at " + r.Method + " " + path}})
	}
}

// keyOf returns the key that a request carries.
func keyOf(r *http.Request) string {
	for _, k := range []string{
		r.Header.Get("X-Api-Key"), r.Header.Get("X-Goog-Api-Key"),
		strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), r.URL.Query().Get("key"),
	} {
		if k != "" {
			return k
		}
	}
	return ""
}

func (s *Server) knows(r *http.Request) bool { return s.Key == "" || keyOf(r) == s.Key }

func (s *Server) list(w http.ResponseWriter) {
	models := s.Models
	if models == nil {
		models = []string{"mock-model"}
	}
	data := []object{}
	for _, m := range models {
		data = append(data, object{
			"id": m, "object": "model", "type": "model", "display_name": m, "created": 1, "owned_by": "mock",
			"created_at": "2026-01-01T00:00:00Z",
		})
	}
	writeJSON(w, http.StatusOK, object{"object": "list", "data": data, "has_more": false})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

// exchange is one request and its answer.
type exchange struct {
	s    *Server
	w    http.ResponseWriter
	r    *http.Request
	body []byte
}

func (x *exchange) id(prefix string) string {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	x.s.seq++
	return fmt.Sprintf("%s_mock%06d", prefix, x.s.seq)
}

func (x *exchange) record(model string, stream bool, history []Turn, tools []tool) {
	rec := Record{
		At: time.Now(), Method: x.r.Method, Path: x.r.URL.Path, Query: x.r.URL.RawQuery, Header: x.r.Header.Clone(),
		Model: model, Stream: stream, History: history,
	}
	for _, t := range tools {
		rec.Tools = append(rec.Tools, t.name)
	}
	if json.Valid(x.body) {
		rec.Body = bytes.Clone(x.body)
	}
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	x.s.records = append(x.s.records, rec)
	if x.s.Log != nil {
		line, err := json.Marshal(rec)
		if err == nil {
			_, err = fmt.Fprintf(x.s.Log, "%s\n", line)
		}
		if err != nil {
			panic(fmt.Sprintf("write the record of a request: %v", err))
		}
	}
}

// shape is how an API writes errors.
type shape func(status int, kind, message string) any

func anthropicShape(_ int, kind, message string) any {
	return object{"type": "error", "error": object{"type": kind, "message": message}}
}

func openaiShape(_ int, kind, message string) any {
	return object{"error": object{"type": kind, "code": kind, "param": nil, "message": message}}
}

func geminiShape(status int, _, message string) any {
	return object{"error": object{"code": status, "status": "UNAVAILABLE", "message": message}}
}

var kinds = map[int]string{
	400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 529: "overloaded_error",
}

// unreadable answers a request that cannot be read.
func (x *exchange) unreadable(as shape) {
	writeJSON(x.w, http.StatusBadRequest, as(http.StatusBadRequest, kinds[400], "mock: the request cannot be read"))
}

// begin waits as the reply says, and answers when that is an error. It reports false
// when there is nothing more to do.
func (x *exchange) begin(r reply, as shape) bool {
	if !x.wait(r.delay) {
		return false
	}
	if r.status == 0 {
		return true
	}
	kind, ok := kinds[r.status]
	if !ok {
		kind = "api_error"
	}
	if r.retryAfter != "" {
		x.w.Header().Set("Retry-After", r.retryAfter)
	}
	writeJSON(x.w, r.status, as(r.status, kind, fmt.Sprintf("mock: status %d as asked", r.status)))
	return false
}

// wait waits, and reports false when the client has gone.
func (x *exchange) wait(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-x.r.Context().Done():
		return false
	}
}

// whole answers with one body.
func (x *exchange) whole(r reply, as shape, v any) {
	switch {
	case r.fail != "":
		v = as(http.StatusInternalServerError, "api_error", r.fail)
	case r.cut:
		x.w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(x.w, "{") // it is cut behind that
		_ = http.NewResponseController(x.w).Flush()
		panic(http.ErrAbortHandler)
	}
	writeJSON(x.w, http.StatusOK, v)
}

// stream writes server-sent events.
type stream struct {
	*exchange
	reply
	as   shape
	sent int
	over bool
}

func (x *exchange) stream(r reply, as shape) *stream {
	x.w.Header().Set("Content-Type", "text/event-stream")
	x.w.Header().Set("Cache-Control", "no-cache")
	x.w.WriteHeader(http.StatusOK)
	return &stream{exchange: x, reply: r, as: as}
}

// faultAfter is how many events a stream has before its fault.
const faultAfter = 4

// event sends an event. name may be "".
func (s *stream) event(name string, v any) {
	if s.over {
		return
	}
	switch s.sent++; {
	case s.sent <= faultAfter:
	case s.cut:
		panic(http.ErrAbortHandler) // the connection ends without the last chunk
	case s.fail != "":
		s.over = true
		name, v = "error", s.as(http.StatusInternalServerError, "overloaded_error", s.fail)
	}
	if !s.wait(s.pace) {
		panic(http.ErrAbortHandler)
	}
	text, ok := v.(string)
	if !ok {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		text = string(b)
	}
	if name != "" {
		text = name + "\ndata: " + text
		fmt.Fprintf(s.w, "event: %s\n\n", text)
	} else {
		fmt.Fprintf(s.w, "data: %s\n\n", text)
	}
	_ = http.NewResponseController(s.w).Flush() // the client may be gone
}

// last sends the event that ends the stream.
func (s *stream) last(name string, v any) {
	if !s.short {
		s.event(name, v)
	}
}

// chunks cuts a text into about five pieces, a long one into more: no piece is longer
// than what models send in one.
func chunks(s string) (out []string) {
	runes := []rune(s)
	n := min(max(len(runes)/5, 8), 32)
	for len(runes) > n {
		out = append(out, string(runes[:n]))
		runes = runes[n:]
	}
	if len(runes) > 0 {
		out = append(out, string(runes))
	}
	return out
}
