package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"reflect"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/sojourn-dev/sojourn"
)

// request is what the service knows about one request.
type request struct {
	service *Service
	id      string
	http    *http.Request
	writer  http.ResponseWriter
	caller  sojourn.Principal // zero until admitted
	snake   bool              // names are answered in snake_case
}

type requestKey struct{}

func requestOf(ctx context.Context) *request { return ctx.Value(requestKey{}).(*request) }

// Caller returns who makes the request that ctx belongs to.
func Caller(ctx context.Context) sojourn.Principal { return requestOf(ctx).caller }

// HTTP returns the request that ctx belongs to, for what an operation's input
// does not hold.
func HTTP(ctx context.Context) *http.Request { return requestOf(ctx).http }

// Snake reports whether the request that ctx belongs to is answered in snake_case.
func Snake(ctx context.Context) bool { return requestOf(ctx).snake }

// ServeHTTP serves the registered operations.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	rq := &request{service: s, id: requestID(r.Header.Get("X-Request-Id"))}
	rq.snake = s.c.Contract.Snake && strings.EqualFold(r.Header.Get("Accept-Case"), "snake")
	r = r.WithContext(context.WithValue(r.Context(), requestKey{}, rq))
	rq.http = r
	rec := &recorder{ResponseWriter: w}
	rq.writer = rec
	h := rec.Header()
	h.Set("X-Request-Id", rq.id)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	defer s.finish(rec, rq, began)
	if handler, pattern := s.mux.Handler(r); pattern == "" {
		s.unrouted(rec, r, handler)
		return
	}
	s.mux.ServeHTTP(rec, r)
}

// finish ends a request: a panic becomes an error, and the access log a line.
func (s *Service) finish(rec *recorder, rq *request, began time.Time) {
	p := recover()
	if p != nil && p != http.ErrAbortHandler {
		s.c.Log.Error("a handler panicked", "contract", s.c.Contract.Name, "request", rq.id,
			"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		if rec.status == 0 {
			s.fail(rec, rq.http, sojourn.Errorf(sojourn.CodeInternal, ""))
			p = nil
		}
	}
	s.c.Log.LogAttrs(rq.http.Context(), slog.LevelInfo, "request",
		slog.String("contract", s.c.Contract.Name), slog.String("request", rq.id),
		slog.String("method", rq.http.Method), slog.String("path", rq.http.URL.Path),
		slog.Int("status", rec.status), slog.Int64("bytes", rec.bytes),
		slog.Duration("took", time.Since(began)), slog.String("key", string(rq.caller.Key)),
		slog.String("remote", rq.http.RemoteAddr))
	if p != nil { // the answer has begun: it must not look complete
		panic(http.ErrAbortHandler)
	}
}

// requestID returns what the caller calls the request, if that is fit for logs
// and headers, else a new id.
func requestID(given string) string {
	if len(given) == 0 || len(given) > 128 || strings.ContainsFunc(given, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.:", r)
	}) {
		return uuid.NewString()
	}
	return given
}

// unrouted answers a request that no operation takes. handler is what the mux
// would do: it knows whether the path exists with other methods.
func (s *Service) unrouted(w http.ResponseWriter, r *http.Request, handler http.Handler) {
	probe := &probe{header: http.Header{}}
	handler.ServeHTTP(probe, r)
	if allow := probe.header.Get("Allow"); probe.status == http.StatusMethodNotAllowed && allow != "" {
		w.Header().Set("Allow", allow)
		s.fail(w, r, sojourn.Errorf(sojourn.CodeMethodNotAllowed, "There is no %s here. Allowed: %s.", r.Method, allow))
		return
	}
	s.fail(w, r, sojourn.Errorf(sojourn.CodeNotFound, "There is nothing at this path."))
}

// admit decides whether the caller may make this call, before its body is read.
func (s *Service) admit(w http.ResponseWriter, r *http.Request, op Operation, takesBody bool) error {
	who, err := s.authenticate(r)
	if err != nil {
		return err
	}
	requestOf(r.Context()).caller = who
	if s.c.Server != "" {
		w.Header().Set("Sojourn-Version", s.c.Server)
	}
	left, err := s.limit.take(who.Key, time.Now())
	if s.c.Contract.RateHeaders {
		left.write(w.Header())
	}
	if err != nil {
		return err
	}
	if err := permitted(who, op.Scope); err != nil {
		return err
	}
	if op.Upload != "" {
		return checkUpload(r, op.Upload)
	}
	return checkBody(w, r, takesBody)
}

// authenticate says who is calling. A key in the Authorization header wins over one
// in a header of its own, which is then not looked at.
func (s *Service) authenticate(r *http.Request) (sojourn.Principal, error) {
	c := &s.c.Contract
	var header string
	if values := r.Header["Authorization"]; len(values) == 1 {
		header = values[0]
	} else if values == nil && c.KeyHeader != "" && len(r.Header.Values(c.KeyHeader)) == 1 {
		header = c.scheme() + " " + r.Header.Get(c.KeyHeader)
	}
	who, err := s.c.Auth.Authenticate(r.Context(), header)
	if sojourn.CodeOf(err) == sojourn.CodeUnauthenticated && c.Scheme != "" {
		err = sojourn.Errorf(sojourn.CodeUnauthenticated,
			"Send a valid key in the Authorization header: the word %s, a space, and the key.", c.Scheme)
	}
	return who, err
}

func permitted(who sojourn.Principal, scope sojourn.Scope) error {
	switch {
	case who.May(scope):
		return nil
	case scope == "":
		return sojourn.Errorf(sojourn.CodeForbidden, "This call needs a key of kind admin.")
	}
	return &sojourn.Error{
		Code: sojourn.CodeForbidden, Details: map[string]string{"scope": string(scope)},
		Message: fmt.Sprintf("This call needs a key with the scope %s.", scope),
	}
}

// Require returns forbidden unless the caller may do what scope allows. It is for
// a call whose body asks for more than the scope of its operation covers.
func Require(ctx context.Context, scope sojourn.Scope) error { return permitted(Caller(ctx), scope) }

// maxNoBody bounds how much is read to see that there is no body.
const maxNoBody = 64

// checkBody refuses a body in another form than JSON, and any body but an empty
// object where none is due.
func checkBody(w http.ResponseWriter, r *http.Request, takesBody bool) error {
	if !takesBody {
		data, err := io.ReadAll(io.LimitReader(r.Body, maxNoBody))
		if text := bytes.TrimSpace(data); err == nil && (len(text) == 0 || string(text) == "{}") {
			return nil
		}
		return sojourn.Errorf(sojourn.CodeInvalid, "This call takes no body.")
	}
	kind := r.Header.Get("Content-Type")
	if kind == "" {
		return nil // huma takes it for JSON
	}
	media, params, err := mime.ParseMediaType(kind)
	if charset := params["charset"]; err != nil || media != "application/json" || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return &refusal{status: http.StatusUnsupportedMediaType, err: sojourn.Errorf(sojourn.CodeInvalid,
			"The Content-Type of the request must be application/json in UTF-8.")}
	}
	r.Header.Set("Content-Type", media)
	return nil
}

// singleParameters returns the query parameters of an operation's input that have one
// value. The cursor of a log is not among them: [After] looks at all of it.
func singleParameters(in reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(in) {
		name, _, _ := strings.Cut(f.Tag.Get("query"), ",")
		if name != "" && name != "after" && f.Type.Kind() != reflect.Slice {
			names = append(names, name)
		}
	}
	return names
}

// checkOnce refuses a query that has one of the names more than once: it would be
// half read.
func checkOnce(r *http.Request, names []string) error {
	if r.URL.RawQuery == "" {
		return nil
	}
	query := r.URL.Query()
	for _, name := range names {
		if len(query[name]) > 1 {
			return &refusal{
				err:    sojourn.Errorf(sojourn.CodeInvalid, "query.%s: is there %d times.", name, len(query[name])),
				fields: []Field{{In: "query", Field: name, Message: fmt.Sprintf("is there %d times", len(query[name]))}},
			}
		}
	}
	return nil
}

// reported makes the answer for a handler's error and logs it when it is ours.
func (s *Service) reported(ctx context.Context, err error) *failure {
	rq := requestOf(ctx)
	if sojourn.CodeOf(err) == sojourn.CodeInternal && ctx.Err() == nil {
		s.c.Log.Error("a request failed", "contract", s.c.Contract.Name, "request", rq.id, "error", err.Error())
	}
	return rq.failure(err)
}

// fail answers with an error outside of an operation.
func (s *Service) fail(w http.ResponseWriter, r *http.Request, err error) {
	f := s.reported(r.Context(), err)
	for name, values := range f.GetHeaders() {
		w.Header()[name] = values
	}
	text, err := json.Marshal(f)
	if err != nil { // an envelope is plain data
		panic(fmt.Errorf("encode an error of contract %s: %w", s.c.Contract.Name, err))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.GetStatus())
	w.Write(append(text, '\n')) // an error here is the caller's, who is gone
}

// recorder notes what was answered.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// ReadFrom lets the server send a file without its bytes passing through here.
func (w *recorder) ReadFrom(r io.Reader) (int64, error) {
	to, ok := w.ResponseWriter.(io.ReaderFrom)
	if !ok {
		return io.Copy(struct{ io.Writer }{w}, r) // which counts them
	}
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := to.ReadFrom(r)
	w.bytes += n
	return n, err
}

// Unwrap is how [http.ResponseController] finds the connection.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// probe swallows an answer but its status and headers.
type probe struct {
	header http.Header
	status int
}

func (p *probe) Header() http.Header         { return p.header }
func (p *probe) Write(b []byte) (int, error) { return len(b), nil }
func (p *probe) WriteHeader(status int)      { p.status = status }
