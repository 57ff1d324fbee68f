package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

const (
	maxRequestBytes = 64 << 20
	// readAhead is how much of a body is read before it is sent on. Most are not
	// longer: then they are checked whole, and can be sent again when a connection
	// turns out to be dead.
	readAhead = 1 << 20
	minRoom   = 16 << 10
)

var (
	errTooLarge = fmt.Errorf("the body is larger than %d MiB", maxRequestBytes>>20)
	errHeld     = errors.New("too much is waiting")
)

// patient reads a body as long as it moves: an agent that stops in the middle must not
// hold its place for ever.
type patient struct {
	body     io.Reader
	rc       *http.ResponseController
	patience time.Duration
}

func (p *patient) Read(b []byte) (int, error) {
	_ = p.rc.SetReadDeadline(time.Now().Add(p.patience)) // where the server has one
	n, err := p.body.Read(b)
	if err != nil {
		// Behind the body the server waits for the agent to go away: without an end.
		_ = p.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}

// envelope is a request's body that was read until its model is known.
type envelope struct {
	scan  scanner
	head  []byte
	whole bool // head is all of it
	src   io.Reader
	size  int64 // as announced; -1 when it was not
	read  atomic.Int64
	// wrong is why Read has failed, which the one who sends does not tell.
	wrong atomic.Pointer[error]
	model string
	// wanted says that a model must be named in the body. Otherwise nothing in it
	// is looked at.
	wanted bool
}

// openEnvelope reads the beginning of a body of the given size, -1 when that is not
// known. take is asked for the room to keep it; the
// caller gives that back.
func openEnvelope(body io.Reader, size int64, wanted bool, take func(int64) bool) (*envelope, error) {
	if size > maxRequestBytes {
		return nil, errTooLarge
	}
	e := &envelope{src: body, size: size, wanted: wanted}
	room := min(max(size+1, minRoom), readAhead)
	for {
		if len(e.head) == cap(e.head) {
			if !take(room) {
				return nil, errHeld
			}
			e.head = slices.Grow(e.head, int(room))
			room = min(int64(cap(e.head)), readAhead)
		}
		n, err := e.src.Read(e.head[len(e.head):cap(e.head)])
		if failed := e.take(e.head[len(e.head) : len(e.head)+n]); failed != nil {
			return nil, failed
		}
		e.head = e.head[:len(e.head)+n]
		known := !wanted
		if wanted {
			var failed error
			if e.model, known, failed = e.scan.model(); failed != nil {
				return nil, failed
			}
		}
		switch {
		case err == io.EOF:
			e.whole = true
			return e, e.complete()
		case err != nil:
			return nil, fmt.Errorf("read the request: %w", err)
		case known && len(e.head) >= readAhead:
			return e, nil
		}
	}
}

// take checks what has been read.
func (e *envelope) take(p []byte) error {
	if e.read.Add(int64(len(p))) > maxRequestBytes {
		return errTooLarge
	}
	if !e.wanted {
		return nil
	}
	return e.scan.write(p)
}

// complete reports what is missing at the body's end.
func (e *envelope) complete() error {
	if e.wanted && !e.scan.done() {
		return errIncomplete
	}
	return nil
}

// Read reads what follows head. It fails before the provider has all of a request that
// turns out to be two.
func (e *envelope) Read(p []byte) (int, error) {
	n, err := e.src.Read(p)
	failed := e.take(p[:n])
	if failed == nil && err == io.EOF {
		failed = e.complete()
	}
	if failed != nil {
		e.wrong.Store(&failed)
		return 0, failed
	}
	return n, err
}

// streams reports whether the answer is asked for as a stream, as far as it is known.
func (e *envelope) streams() bool { return string(e.scan.members.stream.raw) == "true" }

// usageSuffix is what asks for the usage of a streamed chat completion. It is a member
// behind the last.
const usageSuffix = `,"stream_options":{"include_usage":true}`

// uncounted reports whether the agent has not asked for the usage of a streamed chat
// completion, so that we may. All of the body must be known.
func (e *envelope) uncounted() bool {
	return e.whole && e.streams() && !e.scan.members.streamOptions.seen
}

// rewrite returns the body for the provider: that of the agent with another model's
// name, and with more at its end. size is -1 when it is not known.
func (e *envelope) rewrite(upstream, suffix string) (body io.Reader, size int64) {
	head := e.head
	if m := e.scan.members.model; e.wanted && e.model != upstream {
		name, err := json.Marshal(upstream)
		if err != nil {
			panic(err) // a string
		}
		head = slices.Concat(head[:m.start], name, head[m.end:])
	}
	if e.whole {
		if suffix != "" {
			brace := bytes.LastIndexByte(head, '}')
			head = slices.Concat(head[:brace], []byte(suffix), head[brace:])
		}
		return bytes.NewReader(head), int64(len(head))
	}
	size = -1
	if e.size >= 0 {
		size = e.size + int64(len(head)-len(e.head))
	}
	return io.MultiReader(bytes.NewReader(head), e), size
}

// dropped are the headers of an agent that are not passed on: those of one connection,
// those that carry keys or choose an account, and those that change what a request
// means.
var dropped = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Expect": true, "Content-Length": true, "Accept-Encoding": true,
	"Proxy-Authenticate": true, "Proxy-Authorization": true, "Authorization": true, "Cookie": true,
	"X-Api-Key": true, "X-Goog-Api-Key": true, "Api-Key": true, "Openai-Organization": true, "Openai-Project": true,
	"X-Goog-User-Project": true, "X-Goog-Iam-Authorization-Token": true,
	"X-Http-Method": true, "X-Http-Method-Override": true, "X-Method-Override": true,
	"X-Original-Url": true, "X-Rewrite-Url": true,
	"Forwarded": true, "Via": true, "X-Real-Ip": true, "X-Forwarded-For": true, "X-Forwarded-Host": true,
	"X-Forwarded-Proto": true, "X-Forwarded-Port": true, "X-Forwarded-Prefix": true,
}

// header returns what is sent to the provider: the agent's fields, its own key's and
// the configured ones in their place.
func (p *provider) header(in http.Header) http.Header {
	out := make(http.Header, len(in)+2)
	skip := listed(in)
	for name, values := range in {
		// Some servers do not tell the one from the other.
		plain := http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
		if !dropped[plain] && !skip[name] {
			out[name] = values
		}
	}
	// What is compressed cannot be counted.
	out.Set("Accept-Encoding", "identity")
	if _, ok := in["User-Agent"]; !ok {
		out["User-Agent"] = nil // and not ours either
	}
	if p.Key != "" {
		switch p.API {
		case Anthropic:
			out.Set("X-Api-Key", p.Key)
		case Gemini:
			out.Set("X-Goog-Api-Key", p.Key)
		default:
			out.Set("Authorization", "Bearer "+p.Key)
		}
	}
	for name, value := range p.Headers {
		out.Set(name, value)
	}
	return out
}

// listed returns the fields that Connection names as those of one connection.
func listed(h http.Header) map[string]bool {
	names := map[string]bool{}
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			names[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	return names
}
