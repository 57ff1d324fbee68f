package model

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// API is one of the three.
type API string

// The APIs.
const (
	Anthropic API = "anthropic"        // POST BaseURL/v1/messages
	Responses API = "openai-responses" // POST BaseURL/responses
	Chat      API = "openai-chat"      // POST BaseURL/chat/completions
)

// dialects says how each API is spoken.
var dialects = map[API]dialect{Anthropic: anthropic{}, Responses: responses{}, Chat: chat{}}

// dialect is what the APIs do differently.
type dialect interface {
	path() string
	authorize(h http.Header, key string) // "" sends no key
	body(w *writer, e *Endpoint, r *Request)
	collector(e *Endpoint) collector
	user(parts []Part) (json.RawMessage, error)
	results(results []Result) []json.RawMessage
}

// collector makes a reply of the events of a stream.
type collector interface {
	// event takes the data of one event and reports whether it was the last.
	event(data []byte, emit func(Delta) error) (last bool, err error)
	// reply is called after the stream has ended; ErrCut when it ended early.
	reply() (Reply, error)
}

// Valid reports whether a is one of the APIs.
func (a API) Valid() bool { return dialects[a] != nil }

// User is the item for what a person says. ErrPart for a part that the API has
// no form for.
func (a API) User(parts ...Part) (json.RawMessage, error) { return dialects[a].user(parts) }

// Results are the items that answer the calls of one reply, in their order.
func (a API) Results(results ...Result) []json.RawMessage { return dialects[a].results(results) }

// Endpoint is a model behind an API. It is a value: its fields are read only.
type Endpoint struct {
	API API
	// BaseURL is where the API begins: "https://api.anthropic.com" for
	// Anthropic, "https://api.openai.com/v1" for the other two.
	BaseURL string
	Model   string
	Key     string            // a secret; "" sends none
	Headers map[string]string // added to each request
	// Extra are further fields of each request's body, by name, such as
	// "reasoning" or "temperature". They go after ours and must not repeat one.
	Extra map[string]json.RawMessage
	// ContextTokens is how much the model can read and write in one request; 0
	// means unknown.
	ContextTokens int64
	// MaxOutputTokens bounds a reply; 0 means 8192 for Anthropic, which wants a
	// number, and the server's own bound elsewhere.
	MaxOutputTokens int64
	// OmitReasoning leaves the reasoning out of the items of chat completions:
	// some servers refuse it, others cannot do without.
	OmitReasoning bool
	// Silence is how long a stream may say nothing before it counts as cut; 0
	// means 5 min.
	Silence time.Duration
	// Client makes the requests; nil means one with no proxy but the
	// environment's. Redirects are never followed: they would take the key along.
	Client *http.Client
}

// Request is one question to a model.
type Request struct {
	System string            // instructions; "" sends none
	Items  []json.RawMessage // the conversation so far
	Tools  []Tool
	// NoCalls forbids calls though tools are listed, as they must be when the
	// conversation has calls in it.
	NoCalls bool
}

// Tool is something that the model may call.
type Tool struct {
	Name        string // letters, digits, "_" and "-"; at most 64
	Description string
	Schema      json.RawMessage // of the input, a JSON Schema object
}

// Part is a piece of what a person says.
type Part struct {
	Type     string // "text" or "image"
	Text     string
	MimeType string // of an image
	Data     string // of an image, base64
}

// Call is a tool call of the model.
type Call struct {
	ID    string
	Name  string
	Input json.RawMessage // a JSON object, unless Malformed
	// Malformed says that the input is not a JSON object; Input is then nil.
	Malformed bool
}

// Result answers a call.
type Result struct {
	ID     string // of the call
	Output string
	Failed bool
}

// Stop is why a reply ended.
type Stop string

// The reasons.
const (
	StopEnd     Stop = "end"     // the model has said what it wanted
	StopCalls   Stop = "calls"   // it waits for results
	StopLength  Stop = "length"  // the reply was too long
	StopContext Stop = "context" // the conversation is too long
	StopRefusal Stop = "refusal"
	StopPause   Stop = "pause" // it wants to be asked again, with the reply so far
)

// Reply is what a model said to one request.
type Reply struct {
	Items []json.RawMessage // to be appended to the conversation
	Calls []Call
	Stop  Stop
	Usage Usage
}

// Usage is what a request cost, in tokens.
type Usage struct {
	Input      int64 `json:"input"` // all that was read: cached, written to the cache, neither
	Cached     int64 `json:"cached,omitempty"`
	CacheWrite int64 `json:"cacheWrite,omitempty"`
	Output     int64 `json:"output"`              // all that was written, reasoning too
	Reasoning  int64 `json:"reasoning,omitempty"` // of the output
}

// Delta is a piece of a reply as it comes.
type Delta struct {
	Thought bool // of the model's reasoning, not of its answer
	Text    string
}

// Ask asks for one reply and calls emit with each piece of its text as it comes.
// The error is a [*StatusError], [ErrCut], [ErrProtocol], that of emit, the
// cause of ctx, or of the connection.
func (e Endpoint) Ask(ctx context.Context, r Request, emit func(Delta) error) (Reply, error) {
	d := dialects[e.API]
	if d == nil {
		return Reply{}, fmt.Errorf("ask a model: no API %q", e.API)
	}
	var w writer
	d.body(&w, &e, &r)
	c := d.collector(&e)
	if err := e.stream(ctx, d, w.Bytes(), func(data []byte) (bool, error) { return c.event(data, emit) }); err != nil {
		return Reply{}, e.masked(err)
	}
	reply, err := c.reply()
	return reply, e.masked(err)
}
