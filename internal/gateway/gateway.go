package gateway

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"net/url"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// API is a protocol that agents and providers speak.
type API string

// The APIs.
const (
	Anthropic API = "anthropic" // Messages
	OpenAI    API = "openai"    // Responses and chat completions
	Gemini    API = "gemini"    // generateContent
)

// Call is what is known about one call.
type Call = sojourn.ModelCall

// Price is what a million tokens cost.
type Price = sojourn.ModelPrice

// Provider is an account at a model API.
type Provider struct {
	Name string
	API  API
	// BaseURL is what a client of the API would be given: it ends before /v1 for
	// Anthropic, in /v1 or its like for OpenAI, and before /v1beta for Gemini. It is
	// configuration and may be a private address.
	BaseURL string
	Key     string // "" sends none
	// Headers are sent in place of what the agent sends in them.
	Headers map[string]string
	Models  []Model
}

// Model is a name by which agents call a model. It may hold the wildcards of
// [path.Match]; exact names come first, then patterns in their order.
type Model struct {
	Name string
	// Upstream is the provider's name for it; "" is the same.
	Upstream string
	Price    *Price // nil is unknown: calls cost nothing and say so
}

// Config is what a gateway is made from.
type Config struct {
	// Providers are asked in this order. A name has one provider for each API.
	Providers []Provider
	// Client makes the requests; nil is one with the system's settings. Its
	// redirect policy and cookies are not used.
	Client *http.Client
	// CountChatUsage asks providers for the usage of streamed chat completions when
	// the agent does not, and keeps the part of the answer that tells it to itself.
	// The provider's requests are then longer than the agent's. Without it, such
	// calls are estimated.
	CountChatUsage bool
	// Patience is how long nothing may come from a provider, or be taken by an
	// agent; 0 means 10 minutes.
	Patience time.Duration
	// MaxHeldBytes bounds what is kept of all requests that have not named their
	// model yet; 0 means 256 MiB.
	MaxHeldBytes int64
	Log          *slog.Logger     // nil is nowhere
	Now          func() time.Time // nil is time.Now
}

const (
	defaultPatience = 10 * time.Minute
	defaultHeld     = 256 << 20
)

// Gateway knows the providers.
type Gateway struct {
	cfg       Config
	log       *slog.Logger
	client    *http.Client
	providers []*provider
	held      atomic.Int64 // bytes of requests whose model is not known yet
}

// provider is a Provider that was checked.
type provider struct {
	Provider
	base *url.URL
	mask mask
}

// New checks the configuration. It calls nobody.
func New(cfg Config) (*Gateway, error) {
	cfg.Patience = cmp.Or(cfg.Patience, defaultPatience)
	cfg.MaxHeldBytes = cmp.Or(cfg.MaxHeldBytes, defaultHeld)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	g := &Gateway{cfg: cfg, log: cfg.Log, client: client(cfg.Client)}
	names, models := map[string]bool{}, map[[2]string]string{}
	for _, p := range cfg.Providers {
		if p.Name == "" || names[p.Name] {
			return nil, fmt.Errorf("provider %q: every provider has a name of its own", p.Name)
		}
		names[p.Name] = true
		base, err := checkProvider(p)
		if err != nil {
			return nil, fmt.Errorf("provider %s: %w", p.Name, err)
		}
		for _, m := range p.Models {
			at := [2]string{string(p.API), m.Name}
			if other := models[at]; other != "" {
				return nil, fmt.Errorf("provider %s: model %s is already that of %s", p.Name, m.Name, other)
			}
			models[at] = p.Name
		}
		g.providers = append(g.providers, &provider{Provider: p, base: base, mask: newMask(p)})
	}
	return g, nil
}

// client returns a copy of c that passes answers on as they are.
func client(c *http.Client) *http.Client {
	if c == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.DisableCompression = true
		t.MaxIdleConnsPerHost = 64
		c = &http.Client{Transport: t}
	}
	own := *c
	own.Jar = nil
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &own
}

// checkProvider returns the base URL of p.
func checkProvider(p Provider) (*url.URL, error) {
	u, err := url.Parse(p.BaseURL)
	switch {
	case p.API != Anthropic && p.API != OpenAI && p.API != Gemini:
		return nil, fmt.Errorf("api %q: anthropic, openai or gemini", p.API)
	case err != nil: // its text has the URL in it, which may hold a password
		return nil, fmt.Errorf("the base URL cannot be read")
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("the base URL is https://HOST/PATH, without user, query and fragment")
	case !fieldText(p.Key):
		return nil, fmt.Errorf("the key cannot stand in a header field")
	case len(p.Models) == 0:
		return nil, fmt.Errorf("it has no models")
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), ""
	if p.API == Anthropic && strings.HasSuffix(u.Path, "/v1") {
		return nil, fmt.Errorf("the base URL of an Anthropic API ends before /v1")
	}
	for name, value := range p.Headers {
		if textproto.TrimString(name) != name || name == "" || !fieldText(value) {
			return nil, fmt.Errorf("header %q cannot be sent", name)
		}
	}
	for _, m := range p.Models {
		if err := checkModel(m); err != nil {
			return nil, err
		}
	}
	return u, nil
}

func checkModel(m Model) error {
	if _, err := path.Match(m.Name, ""); err != nil || m.Name == "" {
		return fmt.Errorf("model %q is neither a name nor a pattern", m.Name)
	}
	if !isPattern(m.Name) && !validModel(m.Name) || m.Upstream != "" && !validModel(m.Upstream) {
		return fmt.Errorf("model %q: names are 1 to %d letters, digits and -._:/@+", m.Name, maxModelName)
	}
	if p := m.Price; p != nil && min(p.Input, p.Cached, p.CacheWrite, p.Output) < 0 {
		return fmt.Errorf("model %q: a price is negative", m.Name)
	}
	return nil
}

// fieldText reports whether s can stand in the value of a header field.
func fieldText(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
}

func isPattern(name string) bool { return strings.ContainsAny(name, `*?[\`) }

const maxModelName = 256

// validModel reports whether a name can be a model's. It fits into JSON and into
// paths as it is.
func validModel(name string) bool {
	for _, c := range []byte(name) {
		if !('a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("-._:/@+", c) >= 0) {
			return false
		}
	}
	return name != "" && len(name) <= maxModelName && !strings.Contains(name, "..")
}

// Offer is a model by name, as agents may call it.
type Offer struct {
	API  API
	Name string
}

// Models lists the exact names, in the order of the configuration: the first of an
// API is the one for agents that have not chosen.
func (g *Gateway) Models() (offers []Offer) {
	for _, p := range g.providers {
		for _, m := range p.Models {
			if !isPattern(m.Name) {
				offers = append(offers, Offer{p.API, m.Name})
			}
		}
	}
	return offers
}

// Offers reports whether agents may call a model of that name over an API.
func (g *Gateway) Offers(api API, name string) bool {
	_, ok := g.route(api, name)
	return ok
}

// route is where a model is.
type route struct {
	*provider
	upstream string // the provider's name for it
	price    *Price
}

// route returns where the model of that name is.
func (g *Gateway) route(api API, name string) (route, bool) {
	if !validModel(name) {
		return route{}, false
	}
	for _, exact := range []bool{true, false} {
		for _, p := range g.providers {
			if p.API != api {
				continue
			}
			for _, m := range p.Models {
				if exact && m.Name == name || !exact && isPattern(m.Name) && matches(m.Name, name) {
					return route{p, cmp.Or(m.Upstream, name), m.Price}, true
				}
			}
		}
	}
	return route{}, false
}

// matches reports whether a pattern matches a name, with a lone * for any.
func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return pattern == "*" || err == nil && ok
}
