package api

import (
	"cmp"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sojourn-dev/sojourn"
)

// failure is an error answer in the form that huma hands around.
type failure struct {
	problem Problem
	scheme  string
	body    any
}

func (f *failure) Error() string                     { return f.problem.Code + ": " + f.problem.Message }
func (f *failure) GetStatus() int                    { return f.problem.Status }
func (f *failure) GetHeaders() http.Header           { return f.problem.headers(f.scheme) }
func (f *failure) MarshalJSON() ([]byte, error)      { return json.Marshal(f.body) }
func (f *failure) Schema(huma.Registry) *huma.Schema { return &huma.Schema{} }

// hooks makes huma's errors ours. They are variables of its package, so they are
// set once; which contract answers is found through the request.
var hooks = sync.OnceFunc(func() {
	huma.ValidateStrictCasing, huma.DefaultArrayNullable = true, false
	huma.NewError = func(status int, message string, errs ...error) huma.StatusError {
		return &failure{problem: Problem{Status: status, Message: message}}
	}
	huma.NewErrorWithContext = func(ctx huma.Context, status int, message string, errs ...error) huma.StatusError {
		rq := requestOf(ctx.Context())
		return rq.failure(refused(status, message, errs))
	}
})

// failure puts err into the words of the request's contract.
func (rq *request) failure(err error) *failure {
	c := &rq.service.c.Contract
	p := c.problem(err, rq.id)
	f := &failure{problem: p, scheme: c.scheme(), body: c.Envelope(p)}
	if text, err := Encode(rq.http.Context(), f.body); err == nil && rq.snake {
		f.body = json.RawMessage(text)
	}
	return f
}

// refused reads what huma found wrong with a request.
func refused(status int, message string, errs []error) error {
	r := &refusal{err: &sojourn.Error{Code: sojourn.CodeInvalid}}
	switch status {
	case http.StatusUnprocessableEntity: // what the table says
	case http.StatusRequestEntityTooLarge:
		return sojourn.Errorf(sojourn.CodeTooLarge, "The request body is larger than %d bytes.", MaxBodyBytes)
	case http.StatusInternalServerError: // only a body that could not be read gets here
		r.status, message = http.StatusBadRequest, "the request body could not be read to its end"
	default:
		r.status = status
	}
	for _, err := range errs {
		if d, ok := err.(huma.ErrorDetailer); ok {
			r.fields = append(r.fields, fieldOf(d.ErrorDetail()))
		}
	}
	slices.SortFunc(r.fields, func(a, b Field) int {
		return cmp.Or(cmp.Compare(a.In, b.In), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Message, b.Message))
	})
	r.err.Message = sentence(message)
	if len(r.fields) > 0 {
		f := r.fields[0]
		path := strings.TrimSuffix(strings.TrimPrefix(f.In+"."+f.Field, "body."), ".")
		if path == "" && status == http.StatusUnprocessableEntity {
			path = f.In
		}
		r.err.Message = sentence(path, f.Message)
	}
	return r
}

// missing is how the validator names a required property: at its parent.
var missing = regexp.MustCompile(`^expected required property (.+) to be present$`)

// decoded is how [Decode] names a field.
var decoded = regexp.MustCompile(`^([^ :]+): (.+)$`)

// fieldOf splits a location such as "body.input[0].type".
func fieldOf(d *huma.ErrorDetail) Field {
	in, path, _ := strings.Cut(d.Location, ".")
	f := Field{In: in, Field: path, Message: plainNumbers(d.Message)}
	if m := decoded.FindStringSubmatch(d.Message); m != nil && d.Location == "body" {
		f.Field, f.Message = m[1], m[2]
	}
	if m := missing.FindStringSubmatch(d.Message); m != nil {
		f.Field, f.Message = strings.TrimPrefix(path+"."+m[1], "."), "is required"
	}
	return f
}

// sentence joins parts to a sentence: "input[0].type: expected string."
func sentence(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	s := strings.TrimSuffix(strings.Join(parts, ": "), ".")
	if len(parts) == 1 && s != "" {
		s = strings.ToUpper(s[:1]) + s[1:]
	}
	return s + "."
}
