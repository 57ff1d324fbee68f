package api

import (
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/sojourn-dev/sojourn"
)

// ParseSeq reads an event number: decimal digits without sign, space or leading
// zero. Everything else is invalid_cursor.
func ParseSeq(text string) (int64, error) {
	bad := sojourn.Errorf(sojourn.CodeInvalidCursor, "A cursor is the number of an event that this session gave out, or 0.")
	if text == "" || len(text) > 18 || len(text) > 1 && text[0] == '0' {
		return 0, bad
	}
	var n int64
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, bad
		}
		n = n*10 + int64(c-'0')
	}
	return n, nil
}

// After returns the event number behind which a request wants to read. The
// Last-Event-ID header wins over the query parameter "after", which is then not
// looked at: a browser repeats the URL it began with, and only the header says
// how far it came. Without either it is 0, the beginning of the log. A value
// that is there and is no event number is invalid_cursor, also when it is empty
// or sent twice.
func After(r *http.Request) (int64, error) {
	values, ok := r.Header["Last-Event-Id"]
	if !ok {
		if values, ok = r.URL.Query()["after"]; !ok {
			return 0, nil
		}
	}
	if len(values) != 1 {
		return ParseSeq("")
	}
	return ParseSeq(values[0])
}

// WantsStream reports whether the request's Accept header names an event stream.
func WantsStream(r *http.Request) bool {
	for _, v := range r.Header["Accept"] {
		for _, kind := range strings.Split(v, ",") {
			kind, _, _ = strings.Cut(kind, ";")
			if strings.EqualFold(strings.TrimSpace(kind), "text/event-stream") {
				return true
			}
		}
	}
	return false
}

// maxIdempotencyKey is how long an idempotency key may be.
const maxIdempotencyKey = 255

// Idempotent is the header of the calls that make something.
type Idempotent struct {
	Key string `header:"Idempotency-Key" maxLength:"255" doc:"Makes a repetition of the same call harmless."`
}

// Of reads the header for the command that the values say everything about. An empty
// key promises nothing.
func (i Idempotent) Of(command ...any) (sojourn.Idempotency, error) {
	if i.Key == "" {
		return sojourn.Idempotency{}, nil
	}
	if len(i.Key) > maxIdempotencyKey || strings.ContainsFunc(i.Key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return sojourn.Idempotency{}, sojourn.Errorf(sojourn.CodeInvalid,
			"Idempotency-Key: 1 to %d visible ASCII characters.", maxIdempotencyKey)
	}
	text, err := json.Marshal(command)
	if err != nil {
		return sojourn.Idempotency{}, sojourn.Errorf(sojourn.CodeInvalid, "The request cannot be repeated: %v.", err)
	}
	return sojourn.Idempotency{Key: i.Key, Hash: sha256.Sum256(text)}, nil
}

// SessionPath is the path parameter of most calls of a contract with sessions.
type SessionPath struct {
	SessionID string `path:"sessionId"`
}
