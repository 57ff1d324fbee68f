package egress

import (
	"cmp"
	"context"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// Resolver turns names into addresses, as net.Resolver does.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Config is what the gates of a server have in common. The zero value works: the
// system's resolver, no exceptions, no credentials.
type Config struct {
	Resolver Resolver // nil is net.DefaultResolver
	// Dial connects to an address that was checked; nil is a plain net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// AllowPrivate are the operator's exceptions from the addresses that are always
	// refused. A policy must still allow the host.
	AllowPrivate []Exception
	// Own says where the server itself listens. No exception reaches it. nil means
	// nowhere.
	Own func() []netip.AddrPort
	// Credentials are what the broker may use. A policy names those of a session.
	Credentials []Credential
	// RootCAs are what the broker trusts upstream; nil is the system's.
	RootCAs *x509.CertPool
	// MaxConns bounds the connections of one sandbox; 0 means 512.
	MaxConns int
	// IdleTimeout ends tunnels on which nothing moves; 0 means half an hour.
	IdleTimeout time.Duration
	Log         *slog.Logger     // nil is nowhere
	Now         func() time.Time // of decisions; nil is time.Now
}

// Exception lets sandboxes reach addresses that are refused otherwise.
type Exception struct {
	Prefix netip.Prefix
	Port   int // 0 is every port
}

// ParseException reads ADDRESS, ADDRESS:PORT, CIDR or CIDR:PORT, where IPv6 stands in
// brackets before a port.
func ParseException(text string) (Exception, error) {
	r, err := sojourn.ParseNetworkRule(text)
	if err != nil {
		return Exception{}, err
	}
	if !r.Prefix().IsValid() {
		return Exception{}, sojourn.Errorf(sojourn.CodeInvalid, "%q: an exception is for addresses, not for names", text)
	}
	return Exception{Prefix: r.Prefix(), Port: r.Port()}, nil
}

// Egress makes gates.
type Egress struct {
	cfg   Config
	log   *slog.Logger
	known map[string]*credential // by name

	mu        sync.Mutex
	hostAddrs map[netip.Addr]bool // of this host's interfaces
	hostRead  time.Time           // when they were read
}

// New checks the configuration. It starts nothing.
func New(cfg Config) (*Egress, error) {
	cfg.MaxConns = cmp.Or(cfg.MaxConns, defaultConns)
	cfg.IdleTimeout = cmp.Or(cfg.IdleTimeout, defaultIdle)
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{}).DialContext
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	known, err := checkCredentials(cfg.Credentials)
	if err != nil {
		return nil, err
	}
	return &Egress{cfg: cfg, log: cfg.Log, known: known}, nil
}

// Dial connects to an address, HOST:PORT, that somebody who is not trusted has named,
// with the checks of an open policy: for what the server itself fetches for them. It is
// for http.Transport.DialContext.
func (e *Egress) Dial(ctx context.Context, _, address string) (net.Conn, error) {
	host, port, ok := splitHost(address, 0)
	if h, isHost := sojourn.ParseNetworkHost(host); ok && isHost && port >= 1 && port <= 65535 {
		return e.dial(ctx, h.String(), port)
	}
	return nil, &refusal{reason: sojourn.NetworkReasonBadName}
}

// Check refuses a policy that no gate can carry out, because it is invalid or names
// credentials that there are not. The code is invalid.
func (e *Egress) Check(p sojourn.NetworkPolicy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	for i, name := range p.Credentials {
		if e.known[name] == nil {
			return sojourn.Errorf(sojourn.CodeInvalid, "network.credentials[%d]: there is none with the name %s.", i, name)
		}
	}
	return nil
}

const (
	defaultConns = 512
	defaultIdle  = 30 * time.Minute
)

// Spec says whose gate it is, and where.
type Spec struct {
	Session string
	Epoch   int64
	Dir     string // the sandbox's socket directory on the host
	Policy  sojourn.NetworkPolicy
	// Local answers requests that are for no other host, by path; nil answers 404.
	Local http.Handler
	// Report gets what was decided since it was last called, from one goroutine, at
	// most once a second, less often where there is always something to report, and
	// when the gate closes. nil means that nobody asks.
	Report func([]sojourn.NetworkDecision)
}
