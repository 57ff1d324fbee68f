package api

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sojourn-dev/sojourn"
)

// Contract is how one HTTP API answers.
type Contract struct {
	Name string // a word for logs
	// Replies has a row for every code in [sojourn.Codes].
	Replies map[sojourn.Code]Reply
	// Envelope makes the body of an error.
	Envelope func(Problem) any
	// ErrorBody is a value of the type that Envelope makes, for the schema.
	ErrorBody any
	// Scheme is the word before the key in the Authorization header that the
	// contract speaks of; "" is Bearer. KeyHeader is another header that may hold
	// the bare key; "" is none.
	Scheme, KeyHeader string
	// Snake says that names in bodies and queries may be written in snake_case too,
	// and are answered so to "Accept-Case: snake".
	Snake bool
	// Documented is what the document says of schemas, by name, that requests are not
	// validated with: of a choice that does not match, a validator can only say that,
	// where a value itself can say what and where.
	Documented map[string]*huma.Schema
	// Words puts an error of the domain into the contract's vocabulary; nil leaves it.
	// It changes nothing that e refers to.
	Words func(e sojourn.Error) sojourn.Error
	// RateHeaders says that answers tell what is left of the caller's rate.
	RateHeaders bool
}

// scheme is the word before the key.
func (c *Contract) scheme() string { return cmp.Or(c.Scheme, "Bearer") }

// Reply is how a contract answers one code.
type Reply struct {
	Status int
	Code   string // on the wire
	// RetryAfter is sent as the Retry-After header when the error itself names
	// no time; zero sends none.
	RetryAfter time.Duration
}

// Problem is an error in the words of a contract.
type Problem struct {
	Status     int
	Code       string
	Message    string
	RequestID  string
	Details    map[string]string
	Fields     []Field // what was wrong with which part of the request
	RetryAfter time.Duration
}

// Field is one part of a request that was refused.
type Field struct {
	In      string `json:"in" enum:"body,query,path,header" doc:"The part of the request."`
	Field   string `json:"field" doc:"The path of the field, such as input[0].type; empty for the whole part."`
	Message string `json:"message" doc:"What is wrong, for people."`
}

// refusal is an error of these mechanics that the domain knows nothing about: a
// code, with a status of its own.
type refusal struct {
	err    *sojourn.Error
	status int // 0 leaves it to the contract's table
	fields []Field
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// problem puts err into the words of the contract. An error without a code is
// internal, and its text stays here.
func (c *Contract) problem(err error, requestID string) Problem {
	e, ok := errors.AsType[*sojourn.Error](err)
	if !ok || e.Code == sojourn.CodeInternal {
		e = sojourn.Errorf(sojourn.CodeInternal, "The server failed. Its log has the cause under this request id.")
	}
	if c.Words != nil {
		e = new(c.Words(*e))
	}
	reply, ok := c.Replies[e.Code]
	if !ok {
		reply = c.Replies[sojourn.CodeInternal]
	}
	p := Problem{
		Status: reply.Status, Code: reply.Code, Message: e.Message, RequestID: requestID,
		Details: maps.Clone(e.Details), RetryAfter: e.RetryAfter,
	}
	if p.RetryAfter <= 0 {
		p.RetryAfter = reply.RetryAfter
	}
	if r, ok := errors.AsType[*refusal](err); ok {
		p.Fields = r.fields
		if r.status != 0 {
			p.Status = r.status
		}
	}
	return p
}

// Seconds returns the retry hint in whole seconds, rounded up; 0 for none.
func (p Problem) Seconds() int {
	return int((max(0, p.RetryAfter) + time.Second - 1) / time.Second)
}

// headers returns what goes beside the body; scheme is how a key is to be sent.
func (p Problem) headers(scheme string) http.Header {
	h := http.Header{}
	if s := p.Seconds(); s > 0 {
		h.Set("Retry-After", strconv.Itoa(s))
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", scheme+` realm="sojourn"`)
	}
	return h
}

// ErrorBody is the envelope of the contracts that are in our hands.
type ErrorBody struct {
	Error ErrorObject `json:"error"`
}

// ErrorObject is an error on the wire.
type ErrorObject struct {
	Code              string         `json:"code" doc:"Stable; branch on it."`
	Message           string         `json:"message" doc:"A sentence for people; it may change."`
	RequestID         string         `json:"requestId" doc:"The x-request-id of the answer."`
	Details           map[string]any `json:"details,omitempty" doc:"Named facts: scope (that the key lacks), reason (a stable word), fields (what was wrong with which part of the request)."`
	RetryAfterSeconds int            `json:"retryAfterSeconds,omitempty" doc:"Only with status 429."`
}

// Envelope makes an [ErrorBody]. The retry hint is in the body of a 429 only:
// for all other answers the header alone has it.
func Envelope(p Problem) any {
	e := ErrorObject{Code: p.Code, Message: p.Message, RequestID: p.RequestID}
	if len(p.Details) > 0 || len(p.Fields) > 0 {
		e.Details = map[string]any{}
		for k, v := range p.Details {
			e.Details[k] = v
		}
		if len(p.Fields) > 0 {
			e.Details["fields"] = p.Fields
		}
	}
	if p.Status == http.StatusTooManyRequests {
		e.RetryAfterSeconds = p.Seconds()
	}
	return ErrorBody{Error: e}
}

// Missing lists the codes that the contract has no reply for, for its test.
func (c *Contract) Missing() []sojourn.Code {
	return slices.DeleteFunc(slices.Clone(sojourn.Codes), func(code sojourn.Code) bool {
		r, ok := c.Replies[code]
		return ok && r.Status >= 400 && r.Code != ""
	})
}
