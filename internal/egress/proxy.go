package egress

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/sojourn-dev/sojourn"
)

// target is where a request goes.
type target struct {
	scheme string // http or https
	flow   *flow
}

type targetKey struct{}

// serveOuter answers what comes over the socket.
func (g *Gate) serveOuter(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodConnect:
		g.connect(w, r)
	case r.URL.Host != "" || r.URL.Scheme != "":
		g.forward(w, r)
	case strings.HasPrefix(r.URL.Path, insidePath):
		g.answerInside(w, r)
	case g.spec.Local != nil:
		g.spec.Local.ServeHTTP(w, r)
	default:
		http.Error(w, "sojourn: this is a proxy; there is nothing at this path.", http.StatusNotFound)
	}
}

// forward passes a request in absolute form on. The Host field of such a request is
// ignored, as the protocol demands: what is judged is what is sent.
func (g *Gate) forward(w http.ResponseWriter, r *http.Request) {
	host, port, ok := splitHost(r.URL.Host, 80)
	if !ok || r.URL.Scheme != "http" || r.URL.User != nil {
		r := &refusal{reason: reasonBadRequest}
		g.ledger.add(host, port, false, r.reason)
		g.refuse(w, host, port, r)
		return
	}
	ctx, f, refused := g.enter(r.Context(), host, port, true)
	if refused != nil {
		g.refuse(w, host, port, refused)
		return
	}
	defer g.leave(f)
	g.pass(w, r.WithContext(ctx), target{"http", f})
}

// serveInner answers HTTP in a tunnel. Each request is judged by itself, and must name
// the host of the tunnel.
func (g *Gate) serveInner(w http.ResponseWriter, r *http.Request) {
	t, ok := r.Context().Value(tunnelKey{}).(target)
	if !ok {
		panic("a request in a tunnel that is none")
	}
	outer := t.flow
	standard := 80
	if t.scheme == "https" {
		standard = 443
	}
	host, port, ok := splitHost(r.Host, standard)
	h, isHost := sojourn.ParseNetworkHost(host)
	why := ""
	switch {
	case r.Method == http.MethodConnect || !ok || !isHost:
		why = reasonBadRequest
	case h.String() != outer.host || port != outer.port:
		why = reasonHostMismatch
	}
	if why != "" {
		w.Header().Set("Connection", "close")
		g.ledger.add(host, port, false, why)
		g.refuse(w, outer.host, outer.port, &refusal{reason: why})
		return
	}
	ctx, f, refused := g.enter(r.Context(), outer.host, outer.port, true)
	if refused != nil {
		g.refuse(w, outer.host, outer.port, refused)
		return
	}
	defer g.leave(f)
	g.pass(w, r.WithContext(ctx), target{t.scheme, f})
}

// pass sends a request to its target and its answer back.
func (g *Gate) pass(w http.ResponseWriter, r *http.Request, t target) {
	if err := t.flow.secret.apply(r, t.scheme); err != nil {
		why := &refusal{reason: reasonBadRequest, cause: err}
		g.note(t.flow, why)
		g.refuse(w, t.flow.host, t.flow.port, why)
		return
	}
	g.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), targetKey{}, t)))
}

// rewrite gives a request that is sent on its address, and nothing else.
func rewrite(pr *httputil.ProxyRequest) {
	t := pr.In.Context().Value(targetKey{}).(target)
	out := pr.Out.URL
	*out = url.URL{
		Scheme: t.scheme, Host: t.authority(),
		Path: pr.In.URL.Path, RawPath: pr.In.URL.RawPath, RawQuery: pr.In.URL.RawQuery, ForceQuery: pr.In.URL.ForceQuery,
	}
	pr.Out.Host = t.authority()
}

// authority is the host, with the port unless it goes without saying.
func (t target) authority() string {
	standard := t.flow.port == 80
	if t.scheme == "https" {
		standard = t.flow.port == 443
	}
	switch {
	case !standard:
		return net.JoinHostPort(t.flow.host, strconv.Itoa(t.flow.port))
	case strings.Contains(t.flow.host, ":"):
		return "[" + t.flow.host + "]"
	}
	return t.flow.host
}

// answered counts a request that got an answer.
func (g *Gate) answered(resp *http.Response) error {
	g.note(resp.Request.Context().Value(targetKey{}).(target).flow, nil)
	return nil
}

// failed counts and answers one that did not.
func (g *Gate) failed(w http.ResponseWriter, r *http.Request, err error) {
	f := r.Context().Value(targetKey{}).(target).flow
	why := refusalOf(r.Context(), err)
	if why.reason != reasonPolicyChanged { // which was counted when it happened
		g.note(f, why)
	}
	g.refuse(w, f.host, f.port, why)
}

// splitHost takes the authority of a request apart.
func splitHost(authority string, standard int) (host string, port int, ok bool) {
	host, digits, err := net.SplitHostPort(authority)
	if err != nil {
		if strings.HasPrefix(authority, "[") != strings.HasSuffix(authority, "]") {
			return authority, 0, false
		}
		return strings.TrimSuffix(strings.TrimPrefix(authority, "["), "]"), standard, authority != ""
	}
	port, err = strconv.Atoi(digits)
	if err != nil || strconv.Itoa(port) != digits {
		return host, 0, false
	}
	return host, port, host != ""
}

// chunkBytes is how much is read and written at once.
const chunkBytes = 128 << 10

var chunks = sync.Pool{New: func() any { return new([chunkBytes]byte) }}

// buffers lends chunks to the reverse proxy.
type buffers struct{}

func (buffers) Get() []byte  { return chunks.Get().(*[chunkBytes]byte)[:] }
func (buffers) Put(b []byte) { chunks.Put((*[chunkBytes]byte)(b)) }
