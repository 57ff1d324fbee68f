package gateway

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// Binding is what one sandbox may do, and who is told of it.
type Binding struct {
	Session sojourn.SessionID
	Project sojourn.ProjectID
	Epoch   int64
	// Token is the key that programs in the sandbox have. Nothing is answered
	// without it; an empty one opens nothing.
	Token string
	// Models are names or patterns of what may be called; empty is all that is
	// configured.
	Models []string
	// Admit is asked before each call. The sentence of its error is shown to the
	// agent; its code makes the status. nil admits all.
	Admit func(ctx context.Context) error
	// Report is told of each call once, and of refusals at most once a second; of what
	// cost nothing, refusals and failures, only of some when there are very many. Its
	// context does not end with the request. nil means that nobody asks.
	Report func(ctx context.Context, c Call) error
	// MaxCalls bounds the requests at a time; 0 means 32.
	MaxCalls int
}

const (
	defaultCalls = 32
	reportTime   = 30 * time.Second // for one report
)

// door is the handler of one sandbox.
type door struct {
	*Gateway
	Binding
	log   *slog.Logger
	token [sha256.Size]byte
	slots chan struct{}

	kept    atomic.Int64 // bytes that its requests hold
	mu      sync.Mutex
	refused time.Time // when a refusal was last reported
	free    int       // how many calls that cost nothing may still be reported
	earned  time.Time // until when free was counted up
}

// Calls that cost nothing can be made as fast as they are answered, and what is
// reported is kept for good.
const (
	freeReports = 200
	freeEvery   = 10 * time.Second // one more
)

// Handler returns what answers the requests of one sandbox. All below /model belongs
// to it.
func (g *Gateway) Handler(b Binding) http.Handler {
	if b.MaxCalls <= 0 {
		b.MaxCalls = defaultCalls
	}
	return &door{
		Gateway: g, Binding: b, token: sha256.Sum256([]byte(b.Token)), slots: make(chan struct{}, b.MaxCalls),
		log: g.log.With("session", b.Session, "lease_epoch", b.Epoch), free: freeReports, earned: g.cfg.Now(),
	}
}

// ServeHTTP answers a request.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e, ok := endpointOf(r.Method, r.URL.EscapedPath())
	switch {
	case !d.knows(r):
		refuse(w, e.api, refusal{status: http.StatusUnauthorized, message: "The key is not that of this sandbox. Models are called with the key in the agent's environment."})
	case !ok:
		refuse(w, e.api, refusal{status: http.StatusNotFound, message: "There is nothing at " + shortened(r.Method+" "+r.URL.Path, 200) + ". This is the model gateway of the sandbox."})
	case e.op == listModels:
		d.list(w, e.api)
	default:
		select {
		case d.slots <- struct{}{}:
			defer func() { <-d.slots }()
			d.serve(w, r, e)
		default:
			refuse(w, e.api, refusal{status: http.StatusTooManyRequests, retryAfter: time.Second, message: "This sandbox has too many model calls open."})
		}
	}
}

// knows reports whether the request carries the token, wherever the API puts it.
func (d *door) knows(r *http.Request) bool {
	keys := slices.Concat(r.Header["X-Api-Key"], r.Header["X-Goog-Api-Key"])
	for _, v := range r.Header["Authorization"] {
		if scheme, key, ok := strings.Cut(v, " "); ok && strings.EqualFold(scheme, "bearer") {
			keys = append(keys, strings.TrimSpace(key))
		}
	}
	keys = append(keys, r.URL.Query()["key"]...)
	known := 0
	for _, k := range keys[:min(len(keys), 8)] {
		sum := sha256.Sum256([]byte(k))
		known |= subtle.ConstantTimeCompare(sum[:], d.token[:])
	}
	return known == 1 && d.Token != ""
}

// mayCall reports whether the session may call the model of that name.
func (d *door) mayCall(name string) bool {
	return len(d.Binding.Models) == 0 || slices.ContainsFunc(d.Binding.Models, func(m string) bool { return m == name || matches(m, name) })
}

// offers lists what the session may call of an API.
func (d *door) offers(api API) (names []string) {
	for _, o := range d.Gateway.Models() {
		if o.API == api && d.mayCall(o.Name) {
			names = append(names, o.Name)
		}
	}
	return names
}

// list answers with the models of the session.
func (d *door) list(w http.ResponseWriter, api API) {
	type entry struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
	}
	list := []entry{}
	for _, name := range d.offers(api) {
		list = append(list, entry{ID: name, Object: "model", OwnedBy: "sojourn"})
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

// find returns the route of a model that the session may call.
func (d *door) find(api API, name string) (route, *refusal) {
	rt, ok := d.route(api, name)
	switch {
	case !ok:
		return rt, &refusal{status: http.StatusNotFound, message: "There is no model " + quoted(name) + ". " + d.choice(api)}
	case !d.mayCall(name):
		return rt, &refusal{status: http.StatusForbidden, message: "This session may not call the model " + quoted(name) + ". " + d.choice(api)}
	}
	return rt, nil
}

// choice says what there is in place of a model that cannot be called.
func (d *door) choice(api API) string {
	names := d.offers(api)
	if len(names) == 0 {
		return "No model of this API is listed for the session."
	}
	if len(names) > 20 {
		names = append(names[:20:20], "…")
	}
	return "It may call " + strings.Join(names, ", ") + "."
}

// report tells of a call, however the request has ended.
func (d *door) report(ctx context.Context, c Call) {
	if d.Report == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTime)
	defer cancel()
	if err := d.Report(ctx, c); err != nil {
		d.log.Error("report a model call", "model", c.Model, "provider", c.Provider, "cost", c.CostMicroCents, "error", err)
	}
}

// reportRefusal tells of a call that was refused, unless it has just told of another:
// an agent in a loop must not fill the log.
func (d *door) reportRefusal(ctx context.Context, c Call) {
	d.mu.Lock()
	again := c.Started.Sub(d.refused) < time.Second && !d.refused.IsZero()
	if !again {
		d.refused = c.Started
	}
	d.mu.Unlock()
	if !again {
		d.reportFree(ctx, c)
	}
}

// reportFree tells of a call that cost nothing, unless there were too many.
func (d *door) reportFree(ctx context.Context, c Call) {
	d.mu.Lock()
	if more := int(c.Started.Sub(d.earned) / freeEvery); more > 0 {
		d.free = min(d.free+more, freeReports)
		d.earned = c.Started
	}
	tell := d.free > 0
	if tell {
		d.free--
	}
	d.mu.Unlock()
	if tell {
		d.report(ctx, c)
	}
}

// take reserves room for a part of a request. One sandbox has a quarter of what there
// is, so that the others can go on.
func (d *door) take(n int64) bool {
	kept, held := d.kept.Add(n), d.held.Add(n)
	if kept > d.cfg.MaxHeldBytes/4 || held > d.cfg.MaxHeldBytes {
		d.giveBack(n)
		return false
	}
	return true
}

func (d *door) giveBack(n int64) {
	d.kept.Add(-n)
	d.held.Add(-n)
}
