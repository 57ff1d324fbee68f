package gateway

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sojourn-dev/sojourn"
)

// refusal is an answer that is ours. The message is for the person who reads the
// agent's output.
type refusal struct {
	status     int
	message    string
	retryAfter time.Duration
}

// words are how the APIs name a status.
type words struct{ anthropic, openaiType, openaiCode, gemini string }

var statusWords = map[int]words{
	http.StatusBadRequest:            {"invalid_request_error", "invalid_request_error", "invalid_request", "INVALID_ARGUMENT"},
	http.StatusUnauthorized:          {"authentication_error", "invalid_request_error", "invalid_api_key", "UNAUTHENTICATED"},
	http.StatusPaymentRequired:       {"billing_error", "insufficient_quota", "insufficient_quota", "RESOURCE_EXHAUSTED"},
	http.StatusForbidden:             {"permission_error", "invalid_request_error", "permission_denied", "PERMISSION_DENIED"},
	http.StatusNotFound:              {"not_found_error", "invalid_request_error", "not_found", "NOT_FOUND"},
	http.StatusRequestEntityTooLarge: {"request_too_large", "invalid_request_error", "request_too_large", "INVALID_ARGUMENT"},
	http.StatusUnsupportedMediaType:  {"invalid_request_error", "invalid_request_error", "unsupported_encoding", "INVALID_ARGUMENT"},
	http.StatusTooManyRequests:       {"rate_limit_error", "requests", "rate_limit_exceeded", "RESOURCE_EXHAUSTED"},
	http.StatusInternalServerError:   {"api_error", "server_error", "server_error", "INTERNAL"},
	http.StatusBadGateway:            {"api_error", "server_error", "bad_gateway", "UNAVAILABLE"},
	http.StatusServiceUnavailable:    {"overloaded_error", "server_error", "server_overloaded", "UNAVAILABLE"},
	http.StatusGatewayTimeout:        {"timeout_error", "server_error", "timeout", "DEADLINE_EXCEEDED"},
}

// refuse answers in the form in which the API does.
func refuse(w http.ResponseWriter, api API, r refusal) {
	if r.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((r.retryAfter+time.Second-1)/time.Second), 10))
	}
	writeJSON(w, r.status, errorBody(api, r.status, "sojourn: "+r.message))
}

// errorBody is an error as the API writes it.
func errorBody(api API, status int, message string) map[string]any {
	name, ok := statusWords[status]
	if !ok {
		name = statusWords[http.StatusInternalServerError]
	}
	switch api {
	case Anthropic:
		return map[string]any{"type": "error", "error": map[string]any{"type": name.anthropic, "message": message}}
	case Gemini:
		return map[string]any{"error": map[string]any{"code": status, "message": message, "status": name.gemini}}
	}
	return map[string]any{"error": map[string]any{"message": message, "type": name.openaiType, "param": nil, "code": name.openaiCode}}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps, strings and numbers
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write(text) // the agent may be gone
}

// statusOf are the statuses of refused admissions. Agents repeat what is answered with
// 429 or 5xx, so only what will pass is.
var statusOf = map[sojourn.Code]int{
	sojourn.CodeBudgetExceeded: http.StatusPaymentRequired,
	sojourn.CodeRateLimited:    http.StatusTooManyRequests,
	sojourn.CodeUnavailable:    http.StatusServiceUnavailable,
	sojourn.CodeOutOfSpace:     http.StatusServiceUnavailable,
	sojourn.CodeInternal:       http.StatusInternalServerError,
}

// notAdmitted turns the error of an admission into a refusal.
func notAdmitted(err error) refusal {
	code := sojourn.CodeOf(err)
	r := refusal{status: http.StatusForbidden, message: "The call could not be admitted."}
	if s, ok := statusOf[code]; ok {
		r.status = s
	}
	if e, ok := errors.AsType[*sojourn.Error](err); ok && code != sojourn.CodeInternal {
		r.message, r.retryAfter = e.Message, e.RetryAfter
	}
	return r
}

// shortened returns at most n bytes of s as valid text without control characters.
func shortened(s string, n int) string {
	cut := len(s) > n
	if cut {
		s = s[:n]
		for len(s) > 0 && !utf8.RuneStart(s[len(s)-1]) {
			s = s[:len(s)-1]
		}
		if r, size := utf8.DecodeLastRuneInString(s); r == utf8.RuneError && size == 1 {
			s = s[:len(s)-1]
		}
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "�"))
	if cut {
		s += "…"
	}
	return s
}

func quoted(name string) string { return strconv.Quote(shortened(name, 80)) }
