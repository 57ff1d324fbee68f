package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

var (
	// ErrCut says that a stream ended before its reply was complete.
	ErrCut = errors.New("the stream was cut")
	// ErrProtocol says that a server's answer is not what its API says.
	ErrProtocol = errors.New("not the API's answer")
	// ErrPart answers a part that an API has no form for.
	ErrPart = errors.New("no form for this kind of input")
)

const (
	maxErrorBody    = 64 << 10
	maxErrorMessage = 2 << 10
	maxRetryAfter   = 24 * time.Hour
)

// StatusError is an error that the server of a model gave, as a status or inside
// a stream.
type StatusError struct {
	Status  int    // of the answer; 200 for an error inside a stream
	Code    string // the API's own name for it
	Message string // bounded
	// RetryAfter is how long the server wants to be left alone; 0 means that
	// it did not say.
	RetryAfter time.Duration
}

// Error implements error.
func (e *StatusError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "status %d", e.Status)
	if e.Code != "" {
		b.WriteString(" " + e.Code)
	}
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	return b.String()
}

// Temporary reports whether asking again may help.
func (e *StatusError) Temporary() bool {
	switch e.Code {
	case "insufficient_quota", "billing_error", "invalid_request_error", "authentication_error", "permission_error":
		return false
	case "overloaded_error", "rate_limit_error", "api_error", "server_error", "rate_limit_exceeded", "timeout_error":
		return true
	}
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return e.Status >= 500 && e.Status != http.StatusNotImplemented
}

// fullSayings are how servers say that a conversation is too long.
var fullSayings = []string{
	"prompt is too long", "context length", "context_length", "context window", "maximum context",
	"exceeds the context", "too many tokens", "input is too long", "exceed context limit",
}

// ContextFull reports whether the conversation was too long for the model.
func (e *StatusError) ContextFull() bool {
	if e.Code == "context_length_exceeded" || e.Code == "request_too_large" || e.Status == http.StatusRequestEntityTooLarge {
		return true
	}
	if e.Status != http.StatusBadRequest && e.Status != http.StatusUnprocessableEntity && e.Status != http.StatusOK {
		return false
	}
	text := strings.ToLower(e.Message)
	for _, s := range fullSayings {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}

// Temporary reports whether asking again may help after err: the connection
// broke, the stream was cut, or the server said so.
func Temporary(err error) bool {
	if e, ok := errors.AsType[*StatusError](err); ok {
		return e.Temporary()
	}
	return !errors.Is(err, ErrProtocol)
}

// statusError reads the error that an answer holds.
func statusError(status int, header http.Header, body []byte) *StatusError {
	e := &StatusError{Status: status, RetryAfter: retryAfter(header)}
	e.Code, e.Message = describeError(body)
	if e.Message == "" {
		e.Message = clip(strings.TrimSpace(string(body)), maxErrorMessage)
	}
	return e
}

// describeError finds code and message in the shapes that servers use:
// {"error": {"type", "code", "message"}}, {"error": "…"}, {"code", "message"}.
func describeError(body []byte) (code, message string) {
	var outer struct {
		Error   json.RawMessage `json:"error"`
		Code    any             `json:"code"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(body, &outer) != nil {
		return "", ""
	}
	var inner struct {
		Type    string `json:"type"`
		Code    any    `json:"code"`
		Message string `json:"message"`
	}
	inner.Code, inner.Message = outer.Code, outer.Message
	if json.Unmarshal(outer.Error, &inner) != nil {
		_ = json.Unmarshal(outer.Error, &inner.Message) // some servers give only a sentence
	}
	code, _ = inner.Code.(string)
	if code == "" {
		code = inner.Type
	}
	return clip(code, 100), clip(inner.Message, maxErrorMessage)
}

// retryAfter reads how long the server wants to be left alone.
func retryAfter(h http.Header) time.Duration {
	bounded := func(d time.Duration) time.Duration { return min(max(d, 0), maxRetryAfter) }
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 && ms < float64(maxRetryAfter.Milliseconds()) {
		return time.Duration(ms * float64(time.Millisecond))
	}
	v := h.Get("Retry-After")
	if s, err := strconv.ParseFloat(v, 64); err == nil && s < maxRetryAfter.Seconds() {
		return bounded(time.Duration(s * float64(time.Second)))
	}
	if at, err := http.ParseTime(v); err == nil {
		return bounded(time.Until(at))
	}
	return 0
}

// maskedError hides the key in another error's text.
type maskedError struct {
	error
	text string
}

func (e *maskedError) Error() string { return e.text }
func (e *maskedError) Unwrap() error { return e.error }

// masked takes the key out of an error. Servers repeat what they were sent, and
// an address may hold what its operator put there.
func (e *Endpoint) masked(err error) error {
	if err == nil || len(e.Key) < 4 {
		return err
	}
	const mask = "[key]"
	if s, ok := errors.AsType[*StatusError](err); ok {
		s.Message, s.Code = strings.ReplaceAll(s.Message, e.Key, mask), strings.ReplaceAll(s.Code, e.Key, mask)
	}
	if text := err.Error(); strings.Contains(text, e.Key) {
		return &maskedError{err, strings.ReplaceAll(text, e.Key, mask)}
	}
	return err
}

// clip bounds text for people to n bytes, at a character, as valid UTF-8
// without control characters.
func clip(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s[:min(len(s), 4*n)], "\uFFFD"))
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
