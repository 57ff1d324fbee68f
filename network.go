package sojourn

import (
	"slices"
	"time"
)

// NetworkMode says how much of the network a session's sandboxes are let to.
type NetworkMode string

// The network modes. In every mode private, loopback, link-local and metadata
// addresses are refused unless the operator has allowed them.
const (
	NetworkNone  NetworkMode = "none"  // nothing
	NetworkAllow NetworkMode = "allow" // what the rules name
	NetworkOpen  NetworkMode = "open"  // every public address
)

// The bounds of one policy.
const (
	MaxNetworkRules       = 256
	MaxNetworkCredentials = 32
)

// NetworkPolicy is what a session's sandboxes may reach. The zero value is the
// installation's default.
type NetworkPolicy struct {
	Mode NetworkMode `json:"mode,omitempty"`
	// Allow are the rules of the mode allow, in the forms of [ParseNetworkRule].
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
	Port    int       `json:"port"` // 0 for a name that was only looked up
	Allowed bool      `json:"allowed"`
	Reason  string    `json:"reason"` // which rule, or why not
	Count   int64     `json:"count"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
}

// The reasons with which a policy itself refuses. What a proxy finds out later has
// reasons of its own.
const (
	NetworkReasonNone    = "mode_none"
	NetworkReasonNoRule  = "no_rule"
	NetworkReasonBadName = "bad_name" // neither a DNS name nor an address in its usual form
	NetworkReasonBadPort = "bad_port"
)

// Validate reports what is wrong with the policy. Its code is invalid.
func (p NetworkPolicy) Validate() error {
	switch p.Mode {
	case NetworkNone, NetworkAllow, NetworkOpen:
	case "":
		if len(p.Allow) > 0 || p.Raw {
			return Errorf(CodeInvalid, "network.mode: rules and raw need a mode.")
		}
	default:
		return Errorf(CodeInvalid, "network.mode: none, allow or open.")
	}
	if p.Raw && p.Mode != NetworkOpen {
		return Errorf(CodeInvalid, "network.raw: only with the mode open, because nobody can read names in raw packets.")
	}
	if len(p.Allow) > 0 && p.Mode != NetworkAllow {
		return Errorf(CodeInvalid, "network.allow: rules belong to the mode allow.")
	}
	if len(p.Allow) > MaxNetworkRules {
		return Errorf(CodeInvalid, "network.allow: at most %d rules.", MaxNetworkRules)
	}
	for i, text := range p.Allow {
		if _, err := ParseNetworkRule(text); err != nil {
			return Errorf(CodeInvalid, "network.allow[%d]: %s", i, err)
		}
	}
	return validateCredentials(p.Credentials)
}

func validateCredentials(names []string) error {
	if len(names) > MaxNetworkCredentials {
		return Errorf(CodeInvalid, "network.credentials: at most %d.", MaxNetworkCredentials)
	}
	seen := make(map[string]bool, len(names))
	for i, name := range names {
		if !ValidCredentialName(name) {
			return Errorf(CodeInvalid, "network.credentials[%d]: 1 to 64 letters, digits, hyphens and underscores.", i)
		}
		if seen[name] {
			return Errorf(CodeInvalid, "network.credentials[%d]: %s is named twice.", i, name)
		}
		seen[name] = true
	}
	return nil
}

// ValidCredentialName reports whether a credential of an installation can have the
// name: 1 to 64 letters, digits, hyphens and underscores.
func ValidCredentialName(name string) bool {
	if name == "" || len(name) > 64 {
		return false
	}
	for _, c := range []byte(name) {
		if !isNameByte(c) {
			return false
		}
	}
	return true
}

// Allows reports whether the policy lets a sandbox reach host at port, and why:
// the rule that says so, or the reason of the refusal. host is a DNS name in any
// case, with or without a final dot, or an IP address. It decides on names only:
// what a name resolves to is another question. The zero policy and one that is
// invalid allow nothing.
func (p NetworkPolicy) Allows(host string, port int) (allowed bool, reason string) {
	f, err := p.Compile()
	if err != nil {
		return false, NetworkReasonNone
	}
	return f.Allows(host, port)
}

// Compile prepares the policy for many questions. It fails when the policy is
// invalid.
func (p NetworkPolicy) Compile() (NetworkFilter, error) {
	if err := p.Validate(); err != nil {
		return NetworkFilter{}, err
	}
	f := NetworkFilter{mode: p.Mode}
	for _, text := range p.Allow {
		r, err := ParseNetworkRule(text)
		if err != nil {
			return NetworkFilter{}, err
		}
		f.rules = append(f.rules, r)
	}
	return f, nil
}

// NetworkFilter is a policy that was prepared for questions. The zero value allows
// nothing. It does not change, and may be used by many goroutines.
type NetworkFilter struct {
	mode  NetworkMode
	rules []NetworkRule
}

// Mode is the mode of the policy.
func (f NetworkFilter) Mode() NetworkMode { return f.mode }

// Allows is [NetworkPolicy.Allows].
func (f NetworkFilter) Allows(host string, port int) (allowed bool, reason string) {
	if f.mode != NetworkAllow && f.mode != NetworkOpen {
		return false, NetworkReasonNone
	}
	if port < 1 || port > maxPort {
		return false, NetworkReasonBadPort
	}
	h, ok := ParseNetworkHost(host)
	if !ok {
		return false, NetworkReasonBadName
	}
	if f.mode == NetworkOpen {
		return true, string(NetworkOpen)
	}
	if r, ok := f.rule(h, port); ok {
		return true, r.text
	}
	return false, NetworkReasonNoRule
}

// Rule returns the rule of the mode allow that lets a sandbox reach host at port.
func (f NetworkFilter) Rule(host string, port int) (NetworkRule, bool) {
	h, ok := ParseNetworkHost(host)
	if !ok {
		return NetworkRule{}, false
	}
	return f.rule(h, port)
}

func (f NetworkFilter) rule(h NetworkHost, port int) (NetworkRule, bool) {
	for _, r := range f.rules {
		if r.matchesHost(h) && r.matchesPort(port) {
			return r, true
		}
	}
	return NetworkRule{}, false
}

// PortsOf returns the ports at which the policy lets a sandbox reach host, or the
// reason why there are none. all reports that every port is allowed.
func (f NetworkFilter) PortsOf(host string) (ports []int, all bool, reason string) {
	if f.mode != NetworkAllow && f.mode != NetworkOpen {
		return nil, false, NetworkReasonNone
	}
	h, ok := ParseNetworkHost(host)
	if !ok {
		return nil, false, NetworkReasonBadName
	}
	if f.mode == NetworkOpen {
		return nil, true, ""
	}
	for _, r := range f.rules {
		switch {
		case !r.matchesHost(h):
		case r.port != 0:
			ports = append(ports, r.port)
		default:
			ports = append(ports, 80, 443)
		}
	}
	if len(ports) == 0 {
		return nil, false, NetworkReasonNoRule
	}
	slices.Sort(ports)
	return slices.Compact(ports), false, ""
}
