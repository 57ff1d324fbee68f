package sojourn

import "time"

// NetworkMode says how much of the network a session's sandboxes are let to.
type NetworkMode string

// The network modes. In every mode private, loopback, link-local and metadata
// addresses are refused unless the operator has allowed them.
const (
	NetworkNone  NetworkMode = "none"  // nothing
	NetworkAllow NetworkMode = "allow" // what the rules name
	NetworkOpen  NetworkMode = "open"  // every public address
)

// MaxNetworkRules bounds the rules of one policy.
const MaxNetworkRules = 256

// NetworkPolicy is what a session's sandboxes may reach. The zero value is the
// installation's default.
type NetworkPolicy struct {
	Mode NetworkMode `json:"mode,omitempty"`
	// Allow are the rules of the mode allow: HOST, HOST:PORT or *.DOMAIN[:PORT].
	// HOST is a DNS name or an IP address; *.DOMAIN is every name below DOMAIN and
	// not DOMAIN itself. Without a port it is 80 and 443.
	Allow []string `json:"allow,omitempty"`
	// Credentials name those of the installation that the broker may use for the
	// session.
	Credentials []string `json:"credentials,omitempty"`
	// Raw asks for an interface of its own beside the proxy, for what speaks
	// neither HTTP nor TLS. It needs the mode open and an installation that can.
	Raw bool `json:"raw,omitempty"`
}

// IsZero reports whether the policy says nothing.
func (p NetworkPolicy) IsZero() bool {
	return p.Mode == "" && len(p.Allow) == 0 && len(p.Credentials) == 0 && !p.Raw
}

// NetworkDecision is one or several equal decisions of the proxy.
type NetworkDecision struct {
	Host    string    `json:"host"`
	Port    int       `json:"port"`
	Allowed bool      `json:"allowed"`
	Reason  string    `json:"reason"` // which rule, or why not
	Count   int64     `json:"count"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
}

// Validate reports what is wrong with the policy. Its code is invalid.
func (p NetworkPolicy) Validate() error {
	return nil
}

// Allows reports whether the policy lets a sandbox reach host at port, and why:
// the rule that says so, or the reason of the refusal. host is a DNS name in any
// case, with or without a final dot, or an IP address. It decides on names only:
// what a name resolves to is another question.
func (p NetworkPolicy) Allows(host string, port int) (allowed bool, reason string) {
	return false, "not implemented"
}
