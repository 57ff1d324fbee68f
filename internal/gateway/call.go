package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// The bounds of what is kept of errors.
const (
	maxErrorBody = 1 << 20
	maxErrorText = 500
)

// errPatience is why a call ends on which nothing moves.
var errPatience = errors.New("nothing has moved for too long")

// call is one request on its way.
type call struct {
	*door
	endpoint
	w  http.ResponseWriter
	r  *http.Request
	rc *http.ResponseController

	env      *envelope
	room     int64 // that env has taken
	rt       route
	fact     Call
	tally    tally
	asked    atomic.Bool // the provider has the whole request
	moved    func()      // something has moved
	reported bool
}

// serve answers a request that carries the token.
func (d *door) serve(w http.ResponseWriter, r *http.Request, e endpoint) {
	c := &call{door: d, endpoint: e, w: w, r: r, rc: http.NewResponseController(w)}
	c.fact = Call{API: string(e.api), Started: d.cfg.Now().UTC(), Model: shortened(e.model, maxModelName)}
	defer func() { d.giveBack(c.room) }()
	if no := c.prepare(); no != nil {
		c.refuse(*no)
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	patience := time.AfterFunc(d.cfg.Patience, func() { cancel(errPatience) })
	defer patience.Stop()
	c.moved = func() { patience.Reset(d.cfg.Patience) }

	resp, err := d.client.Do(c.request(ctx))
	if err != nil {
		c.unanswered(ctx, err)
		return
	}
	defer resp.Body.Close()
	c.moved()
	c.fact.Status = resp.StatusCode
	c.fact.RequestID = c.rt.mask.text(shortened(cmp.Or(resp.Header.Get("Request-Id"), resp.Header.Get("X-Request-Id")), 128))
	if resp.StatusCode/100 == 2 {
		c.stream(ctx, resp)
	} else {
		c.passError(resp)
	}
}

// prepare reads what must be known of the request before it is sent.
func (c *call) prepare() *refusal {
	if enc := c.r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return &refusal{status: http.StatusUnsupportedMediaType, message: "Request bodies are taken as they are, not compressed."}
	}
	if c.r.ContentLength < 0 || c.r.ContentLength > readAhead {
		// The answer may begin before the request has ended.
		_ = c.rc.EnableFullDuplex() // other servers can, or need not be told
	}
	body := &patient{body: c.r.Body, rc: c.rc, patience: c.cfg.Patience}
	env, err := openEnvelope(body, c.r.ContentLength, c.model == "", func(n int64) bool {
		ok := c.take(n)
		if ok {
			c.room += n
		}
		return ok
	})
	if err != nil {
		return badBody(err)
	}
	c.env = env
	c.fact.Model = shortened(cmp.Or(c.model, env.model), maxModelName)
	rt, no := c.find(c.api, cmp.Or(c.model, env.model))
	if no != nil {
		return no
	}
	c.rt, c.fact.Provider, c.fact.Unpriced = rt, rt.Name, rt.price == nil
	if c.Admit != nil {
		if err := c.Admit(c.r.Context()); err != nil {
			if sojourn.CodeOf(err) == sojourn.CodeInternal && c.r.Context().Err() == nil {
				c.log.Error("admit a model call", "error", err)
			}
			return new(notAdmitted(err))
		}
	}
	return nil
}

// badBody is the refusal of a body that cannot be sent on.
func badBody(err error) *refusal {
	switch {
	case errors.Is(err, errTooLarge):
		return &refusal{status: http.StatusRequestEntityTooLarge, message: "A request may have 64 MiB."}
	case errors.Is(err, errHeld):
		return &refusal{status: http.StatusServiceUnavailable, retryAfter: time.Second, message: "Too many large requests are on their way."}
	}
	for _, known := range []error{errNotJSON, errTwice, errKeys, errTooNested, errNoModel, errBadModel, errIncomplete} {
		if errors.Is(err, known) {
			return &refusal{status: http.StatusBadRequest, message: "The request cannot be passed on: " + known.Error() + "."}
		}
	}
	return &refusal{status: http.StatusBadRequest, message: "The request could not be read to its end."}
}

// refuse answers a call that was not sent.
func (c *call) refuse(no refusal) {
	c.fact.Failure, c.fact.Error = sojourn.ModelRefused, no.message
	c.fact.Status = 0
	if c.env != nil {
		c.fact.RequestBytes = c.env.read.Load()
	}
	c.fact.Duration = c.cfg.Now().Sub(c.fact.Started)
	if c.op == generate && c.r.Context().Err() == nil {
		c.reportRefusal(c.r.Context(), c.fact)
	}
	refuse(c.w, c.api, no)
}

// request returns what is sent to the provider.
func (c *call) request(ctx context.Context) *http.Request {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(info httptrace.WroteRequestInfo) {
		if info.Err == nil {
			c.asked.Store(true)
			c.moved()
		}
	}})
	suffix := ""
	if c.strips() {
		suffix = usageSuffix
	}
	u := c.address(c.rt, c.r.URL.RawQuery)
	out := (&http.Request{
		Method: c.r.Method, URL: u, Host: u.Host, Header: c.rt.header(c.r.Header),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	body, size := c.env.rewrite(c.rt.upstream, suffix)
	out.Body, out.ContentLength = io.NopCloser(body), size
	if c.env.whole {
		out.GetBody = func() (io.ReadCloser, error) {
			again, _ := c.env.rewrite(c.rt.upstream, suffix)
			return io.NopCloser(again), nil
		}
	}
	return out
}

// strips reports whether the usage is asked for in the agent's place, and taken out of
// the answer.
func (c *call) strips() bool {
	return c.cfg.CountChatUsage && c.dialect == completions && c.env.uncounted()
}

// unanswered ends a call to which the provider gave no answer.
func (c *call) unanswered(ctx context.Context, err error) {
	wrong := c.env.wrong.Load()
	switch {
	case c.r.Context().Err() != nil:
		c.end(sojourn.ModelCancelled, "the agent went away")
		panic(http.ErrAbortHandler) // or what is left of it would take nothing for an answer
	case wrong != nil:
		c.refuse(*badBody(*wrong))
		return
	case errors.Is(context.Cause(ctx), errPatience):
		c.end(sojourn.ModelTimeout, "the provider did not answer in time")
		refuse(c.w, c.api, refusal{status: http.StatusGatewayTimeout, message: "The model's provider did not answer in time."})
	default:
		c.end(sojourn.ModelUnreachable, "the provider could not be reached")
		refuse(c.w, c.api, refusal{status: http.StatusBadGateway, message: "The model's provider could not be reached."})
	}
	c.log.Warn("model call without an answer", "provider", c.rt.Name, "model", c.fact.Model, "error", c.rt.mask.text(err.Error()))
}

// passError passes an answer on that says no. What is wrong with our key is not for
// agents: providers show parts of it.
func (c *call) passError(resp *http.Response) {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // a part is better than nothing
	c.fact.ResponseBytes = int64(len(body))
	if len(body) > 0 {
		c.fact.TTFT = c.cfg.Now().Sub(c.fact.Started)
	}
	c.rt.mask.hide(body)
	c.log.Warn("model call refused by its provider", "provider", c.rt.Name, "model", c.fact.Model,
		"status", resp.StatusCode, "request_id", c.fact.RequestID)
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		c.end(sojourn.ModelStatus, "the provider does not accept the installation's key")
		refuse(c.w, c.api, refusal{status: resp.StatusCode, message: "The model's provider does not accept the installation's key. Its operator has to look at it."})
	case resp.StatusCode/100 != 4 && resp.StatusCode/100 != 5:
		c.end(sojourn.ModelStatus, "the provider points to somewhere else, which is not followed")
		refuse(c.w, c.api, refusal{status: http.StatusBadGateway, message: "The model's provider points to somewhere else, which is not followed."})
	default:
		c.end(sojourn.ModelStatus, errorText(body, resp.StatusCode))
		c.copyHeader(resp.Header)
		c.w.WriteHeader(resp.StatusCode)
		_, _ = c.w.Write(body) // the agent may be gone
	}
}

// errorText returns what an error says, in whichever of the usual forms.
func errorText(body []byte, status int) string {
	var e struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
	}
	var list []json.RawMessage
	if json.Unmarshal(body, &list) == nil && len(list) > 0 {
		body = list[0] // as Gemini answers without alt=sse
	}
	text := ""
	if json.Unmarshal(body, &e) == nil {
		var f failure
		switch {
		case len(e.Error) > 0 && json.Unmarshal(e.Error, &f) == nil:
			text = cmp.Or(f.Message, f.Type, f.Status)
		case len(e.Error) > 0:
			_ = json.Unmarshal(e.Error, &text) // or it has no text
		}
		if text = cmp.Or(text, e.Message); text == "" {
			_ = json.Unmarshal(e.Detail, &text)
		}
	}
	return shortened(cmp.Or(text, http.StatusText(status), "the provider has refused"), maxErrorText)
}

// kept are headers of one connection, cookies, and what tells of the account.
var keptBack = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true, "Transfer-Encoding": true,
	"Upgrade": true, "Proxy-Authenticate": true, "Www-Authenticate": true, "Content-Length": true,
	"Set-Cookie": true, "Set-Cookie2": true, "Alt-Svc": true, "Location": true, "Content-Location": true, "Refresh": true,
	"Openai-Organization": true, "Openai-Project": true, "Anthropic-Organization-Id": true,
}

// copyHeader passes the fields of an answer on.
func (c *call) copyHeader(in http.Header) {
	skip := listed(in)
	for name, values := range in {
		if keptBack[name] || skip[name] {
			continue
		}
		for _, v := range values {
			c.w.Header().Add(name, c.rt.mask.text(v))
		}
	}
}

// end completes the facts of a call and reports them, once.
func (c *call) end(f sojourn.ModelFailure, why string) {
	if c.reported {
		return
	}
	c.reported = true
	c.fact.Failure, c.fact.Error = f, ""
	if f != "" {
		c.fact.Error = c.rt.mask.text(shortened(why, maxErrorText))
	}
	c.fact.RequestBytes = c.env.read.Load()
	// Providers charge for what they have begun to answer, not for what they refuse.
	used := c.asked.Load() && f != sojourn.ModelStatus && f != sojourn.ModelUnreachable
	c.tally.fill(&c.fact, used)
	if c.rt.price != nil {
		c.fact.CostMicroCents = c.rt.price.Cost(c.fact)
	}
	c.fact.Duration = c.cfg.Now().Sub(c.fact.Started)
	switch {
	case c.op != generate:
	case f != "" && c.fact.InputTokens == 0 && c.fact.OutputTokens == 0:
		c.reportFree(c.r.Context(), c.fact)
	default:
		c.report(c.r.Context(), c.fact)
	}
}
