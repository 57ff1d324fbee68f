package sojourn

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

const (
	maxPort     = 65_535
	maxName     = 253 // bytes of a DNS name, without the final dot
	maxLabel    = 63
	maxRuleText = maxName + len("[]:65535")
)

// NetworkRule is one rule of a [NetworkPolicy].
type NetworkRule struct {
	text   string
	host   NetworkHost  // of a rule for one name or address, or the domain above
	below  bool         // everything below host, and not host itself
	prefix netip.Prefix // of a rule for addresses
	port   int          // 0 stands for 80 and 443
}

// ParseNetworkRule reads a rule: HOST, HOST:PORT, *.DOMAIN, *.DOMAIN:PORT, ADDRESS,
// ADDRESS:PORT, CIDR or CIDR:PORT, where an IPv6 address or CIDR before a port stands
// in brackets. *.DOMAIN is every name below DOMAIN and not DOMAIN itself. Without a
// port the rule is for 80 and 443. Names are compared without regard to case and to a
// final dot; a name beyond ASCII is written in its xn-- form.
//
// A rule for addresses matches what asks for an address. A name that resolves to one
// of them needs a rule of its own.
//
// Errors are sentences for the caller.
func ParseNetworkRule(text string) (NetworkRule, error) {
	if len(text) > maxRuleText {
		return NetworkRule{}, fmt.Errorf("a rule has at most %d bytes", maxRuleText)
	}
	for _, c := range []byte(text) {
		switch {
		case c >= 0x80:
			return NetworkRule{}, errors.New("only ASCII: write an international name in its xn-- form")
		case c <= ' ' || c == 0x7f:
			return NetworkRule{}, errors.New("no spaces or control characters in a rule")
		}
	}
	if strings.Contains(text, "://") {
		return NetworkRule{}, fmt.Errorf("%q: a rule has no scheme; write HOST or HOST:PORT", text)
	}
	r := NetworkRule{text: text}
	host, port, err := splitRule(text)
	if err != nil {
		return NetworkRule{}, err
	}
	r.port = port
	if strings.Contains(host, "/") {
		if r.prefix, err = parsePrefix(host); err != nil {
			return NetworkRule{}, err
		}
		return r, nil
	}
	if host == "*" {
		return NetworkRule{}, errors.New(`"*" would be every name: use the mode open`)
	}
	if domain, ok := strings.CutPrefix(host, "*."); ok {
		r.below, host = true, domain
	}
	h, ok := ParseNetworkHost(host)
	switch {
	case strings.Contains(host, "*"):
		return NetworkRule{}, fmt.Errorf("%q: a star stands only for the whole first label, as in *.example.com", text)
	case !ok, r.below && h.name == "":
		return NetworkRule{}, fmt.Errorf("%q: neither a DNS name nor an IP address", text)
	case h.name == "":
		r.prefix = netip.PrefixFrom(h.addr, h.addr.BitLen())
	}
	r.host = h
	return r, nil
}

// splitRule takes the port off a rule; 0 is none.
func splitRule(text string) (host string, port int, err error) {
	host = text
	digits, hasPort := "", false
	switch {
	case strings.HasPrefix(text, "["):
		inner, rest, found := strings.Cut(text[1:], "]")
		if !found || !strings.Contains(inner, ":") {
			return "", 0, fmt.Errorf("%q: brackets are for IPv6 addresses", text)
		}
		host = inner
		digits, hasPort = strings.CutPrefix(rest, ":")
		if rest != "" && !hasPort {
			return "", 0, fmt.Errorf("%q: a port follows a colon", text)
		}
	case strings.Count(text, ":") == 1:
		host, digits, hasPort = strings.Cut(text, ":")
	}
	if !hasPort {
		return host, 0, nil
	}
	port, err = strconv.Atoi(digits)
	if err != nil || port < 1 || port > maxPort || strconv.Itoa(port) != digits {
		return "", 0, fmt.Errorf("%q: a port is a number from 1 to %d", text, maxPort)
	}
	return host, port, nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%q: a rule has no path, and this is no address range", text)
	case p.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("%q: write the IPv4 range", text)
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("%q: the range begins at %s", text, p.Masked())
	}
	return p, nil
}

// String is the rule as it was written.
func (r NetworkRule) String() string { return r.text }

// Matches reports whether the rule is for host at port. host has the forms of
// [NetworkPolicy.Allows].
func (r NetworkRule) Matches(host string, port int) bool {
	h, ok := ParseNetworkHost(host)
	return ok && r.matchesHost(h) && r.matchesPort(port)
}

// Domain is the name that the rule is for, or below which its names are, in lower
// case. It is "" in a rule for addresses.
func (r NetworkRule) Domain() string { return r.host.name }

// Port is the port that the rule names, or 0.
func (r NetworkRule) Port() int { return r.port }

// Prefix is the range of a rule for addresses, and invalid in one for names.
func (r NetworkRule) Prefix() netip.Prefix { return r.prefix }

func (r NetworkRule) matchesHost(h NetworkHost) bool {
	switch {
	case h.name == "":
		return r.prefix.IsValid() && r.prefix.Contains(h.addr)
	case r.below:
		above, ok := strings.CutSuffix(h.name, r.host.name)
		return ok && len(above) > 1 && strings.HasSuffix(above, ".")
	}
	return r.host.name == h.name
}

func (r NetworkRule) matchesPort(port int) bool {
	return r.port == port || r.port == 0 && (port == 80 || port == 443)
}

// NetworkHost is a host that somebody asked for: a name or an address, in the one
// form in which they are compared.
type NetworkHost struct {
	name string // lower case, without the final dot; "" for an address
	addr netip.Addr
}

// ParseNetworkHost reads a DNS name, or an IP address with or without brackets, and
// reports whether it is one. An IPv4 address in IPv6 form becomes an IPv4 address. The
// other spellings of addresses that some programs understand (127.1, 0x7f000001,
// 2130706433), and zones, are none.
func ParseNetworkHost(text string) (NetworkHost, bool) {
	if inner, ok := strings.CutPrefix(text, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); !ok || !strings.Contains(inner, ":") {
			return NetworkHost{}, false
		}
		text = inner
	}
	if a, err := netip.ParseAddr(text); err == nil {
		return NetworkHost{addr: a.Unmap()}, a.Zone() == ""
	}
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	if name == "" || len(name) > maxName {
		return NetworkHost{}, false
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		if !validLabel(label) {
			return NetworkHost{}, false
		}
		last = label
	}
	if isNumber(last) {
		return NetworkHost{}, false // programs would take it for an address
	}
	return NetworkHost{name: name}, true
}

// String is the name in lower case without a final dot, or the address.
func (h NetworkHost) String() string {
	if h.name != "" {
		return h.name
	}
	return h.addr.String()
}

// Addr is the address, and invalid for a name.
func (h NetworkHost) Addr() netip.Addr { return h.addr }

// validLabel reports whether label, in lower case, can stand in a DNS name. Underscores
// are no host names by the book, and in use.
func validLabel(label string) bool {
	if label == "" || len(label) > maxLabel || label[0] == '-' || label[len(label)-1] == '-' {
		return false
	}
	for _, c := range []byte(label) {
		if !isNameByte(c) {
			return false
		}
	}
	return true
}

func isNameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// isNumber reports whether programs read a last label as a number, decimal or
// hexadecimal.
func isNumber(label string) bool {
	digits := "0123456789"
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		label, digits = hex, "0123456789abcdef"
	}
	return strings.Trim(label, digits) == ""
}
