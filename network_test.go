package sojourn

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestNetworkRulesMatchWhatTheySay(t *testing.T) {
	for _, c := range []struct {
		rule string
		yes  []string // host port
		no   []string
	}{
		{
			"example.com",
			[]string{"example.com 80", "example.com 443", "EXAMPLE.com. 443"},
			[]string{"example.com 22", "www.example.com 443", "evilexample.com 443", "example.com.evil.test 443", "example.co 443"},
		},
		{"Example.COM.:8443", []string{"example.com 8443"}, []string{"example.com 443", "example.com 80"}},
		{
			"*.a.test",
			[]string{"b.a.test 443", "c.b.a.test 80", "B.A.Test. 443"},
			[]string{"a.test 443", "evila.test 443", ".a.test 443", "b.a.test 22", "b.a.test.x 443"},
		},
		{"*.a.test:22", []string{"b.a.test 22"}, []string{"b.a.test 443"}},
		{"xn--bcher-kva.example", []string{"XN--BCHER-KVA.example 443"}, []string{"bücher.example 443"}},
		{"192.0.2.7", []string{"192.0.2.7 443", "::ffff:192.0.2.7 443", "[::ffff:c000:207] 80"}, []string{"192.0.2.8 443", "192.0.2.7 22", "3221225991 443"}},
		{"[2001:db8::1]:22", []string{"2001:db8::1 22", "[2001:db8:0:0::1] 22"}, []string{"2001:db8::1 443", "2001:db8::2 22", "2001:db8::1%eth0 22"}},
		{"2001:db8::1", []string{"2001:db8::1 443"}, []string{"2001:db8::2 443"}},
		{"192.0.2.0/24", []string{"192.0.2.0 80", "192.0.2.255 443"}, []string{"192.0.3.0 80", "a.test 443", "2001:db8::1 443"}},
		{"192.0.2.0/24:22", []string{"192.0.2.9 22"}, []string{"192.0.2.9 80"}},
		{"[2001:db8::/32]:22", []string{"2001:db8:ffff::1 22"}, []string{"2001:db9::1 22"}},
		{"2001:db8::/32", []string{"2001:db8:ffff::1 443"}, []string{"2001:db9::1 443"}},
	} {
		p := NetworkPolicy{Mode: NetworkAllow, Allow: []string{c.rule}}
		if err := p.Validate(); err != nil {
			t.Errorf("Validate of %q = %v", c.rule, err)
			continue
		}
		for _, at := range c.yes {
			if ok, why := p.Allows(hostPort(t, at)); !ok || why != c.rule {
				t.Errorf("%q allows %s = %v, %q", c.rule, at, ok, why)
			}
		}
		for _, at := range c.no {
			if ok, why := p.Allows(hostPort(t, at)); ok || why == "" {
				t.Errorf("%q allows %s = %v, %q", c.rule, at, ok, why)
			}
		}
	}
}

func hostPort(t *testing.T, at string) (string, int) {
	t.Helper()
	var host string
	var port int
	if _, err := fmt.Sscanf(at, "%s %d", &host, &port); err != nil {
		t.Fatal(err)
	}
	return host, port
}

func TestNetworkPolicyRefusesWhatItCannotMean(t *testing.T) {
	allow := func(rules ...string) NetworkPolicy { return NetworkPolicy{Mode: NetworkAllow, Allow: rules} }
	for _, c := range []struct {
		name string
		p    NetworkPolicy
		want string // in the message
	}{
		{"mode", NetworkPolicy{Mode: "some"}, "none, allow or open"},
		{"rules without a mode", NetworkPolicy{Allow: []string{"a.test"}}, "need a mode"},
		{"rules beside none", NetworkPolicy{Mode: NetworkNone, Allow: []string{"a.test"}}, "belong to the mode allow"},
		{"raw without open", NetworkPolicy{Mode: NetworkAllow, Raw: true}, "only with the mode open"},
		{"too many", allow(slices.Repeat([]string{"a.test"}, MaxNetworkRules+1)...), "at most"},
		{"empty", allow(""), "neither"},
		{"scheme", allow("https://a.test"), "no scheme"},
		{"path", allow("a.test/x"), "no path"},
		{"space", allow("a.test b.test"), "no spaces"},
		{"control", allow("a.test\n"), "no spaces"},
		{"beyond ASCII", allow("bücher.example"), "xn--"},
		{"star alone", allow("*"), "mode open"},
		{"star alone with port", allow("*:443"), "mode open"},
		{"star in the middle", allow("a.*.test"), "first label"},
		{"star as a part", allow("a*.test"), "first label"},
		{"two stars", allow("*.*.test"), "first label"},
		{"star over an address", allow("*.192.0.2.1"), "neither"},
		{"port 0", allow("a.test:0"), "from 1 to"},
		{"port too large", allow("a.test:65536"), "from 1 to"},
		{"port with sign", allow("a.test:+80"), "from 1 to"},
		{"no port", allow("a.test:"), "from 1 to"},
		{"user", allow("u@a.test"), "neither"},
		{"empty label", allow("a..test"), "neither"},
		{"hyphen", allow("-a.test"), "neither"},
		{"long label", allow(strings.Repeat("a", 64) + ".test"), "neither"},
		{"long", allow(strings.Repeat("a.", 140) + "test"), "at most"},
		{"short address", allow("127.1"), "neither"},
		{"number", allow("2130706433"), "neither"},
		{"hexadecimal", allow("0x7f000001"), "neither"},
		{"octal", allow("0177.0.0.1"), "neither"},
		{"zone", allow("fe80::1%eth0"), "neither"},
		{"brackets", allow("[a.test]:80"), "brackets"},
		{"text after brackets", allow("[::1]80"), "colon"},
		{"range off its start", allow("192.0.2.7/24"), "begins at 192.0.2.0/24"},
		{"mapped range", allow("::ffff:192.0.2.0/120"), "IPv4 range"},
		{"credential", NetworkPolicy{Mode: NetworkOpen, Credentials: []string{"a b"}}, "letters, digits"},
		{"credential twice", NetworkPolicy{Mode: NetworkOpen, Credentials: []string{"a", "a"}}, "twice"},
		{"too many credentials", NetworkPolicy{Credentials: slices.Repeat([]string{"a"}, MaxNetworkCredentials+1)}, "at most"},
	} {
		err := c.p.Validate()
		if CodeOf(err) != CodeInvalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Validate = %v, want %q", c.name, err, c.want)
		}
		if ok, why := c.p.Allows("a.test", 443); ok {
			t.Errorf("%s: allows a.test: %s", c.name, why)
		}
	}
}

func TestNetworkModesDecideAtAll(t *testing.T) {
	for _, c := range []struct {
		p    NetworkPolicy
		host string
		port int
		ok   bool
		why  string
	}{
		{NetworkPolicy{}, "a.test", 443, false, NetworkReasonNone},
		{NetworkPolicy{Mode: NetworkNone}, "a.test", 443, false, NetworkReasonNone},
		{NetworkPolicy{Mode: NetworkAllow}, "a.test", 443, false, NetworkReasonNoRule},
		{NetworkPolicy{Mode: NetworkOpen}, "a.test", 22, true, "open"},
		{NetworkPolicy{Mode: NetworkOpen, Raw: true}, "192.0.2.1", 22, true, "open"},
		{NetworkPolicy{Mode: NetworkOpen}, "127.1", 22, false, NetworkReasonBadName},
		{NetworkPolicy{Mode: NetworkOpen}, "a.test", 0, false, NetworkReasonBadPort},
		{NetworkPolicy{Mode: NetworkOpen}, "a.test", 65536, false, NetworkReasonBadPort},
		{NetworkPolicy{Mode: NetworkOpen}, "a\nb.test", 80, false, NetworkReasonBadName},
	} {
		if ok, why := c.p.Allows(c.host, c.port); ok != c.ok || why != c.why {
			t.Errorf("%v allows %q %d = %v, %q, want %v, %q", c.p, c.host, c.port, ok, why, c.ok, c.why)
		}
	}
}

func TestNetworkFilterKnowsThePortsOfAName(t *testing.T) {
	f, err := NetworkPolicy{Mode: NetworkAllow, Allow: []string{"a.test:22", "*.b.test", "a.test", "a.test:443", "c.test:9418"}}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]int{
		"a.test": {22, 80, 443}, "X.b.test.": {80, 443}, "c.test": {9418}, "b.test": nil, "e.test": nil, "1.2.3": nil,
	} {
		ports, all, why := f.PortsOf(name)
		if !slices.Equal(ports, want) || all || (why == "") != (want != nil) {
			t.Errorf("PortsOf(%s) = %v, %v, %q, want %v", name, ports, all, why, want)
		}
	}
	if ports, all, why := (NetworkFilter{}).PortsOf("a.test"); ports != nil || all || why != NetworkReasonNone {
		t.Errorf("the zero filter: PortsOf = %v, %v, %s", ports, all, why)
	}
	f, err = NetworkPolicy{Mode: NetworkOpen}.Compile()
	if _, all, _ := f.PortsOf("a.test"); err != nil || !all {
		t.Errorf("the mode open: PortsOf = %v, %v", all, err)
	}
}

// FuzzNetworkRule: whatever parses matches its own host, and nothing that is not a
// plain name or address ever matches.
func FuzzNetworkRule(f *testing.F) {
	for _, s := range []string{"a.test", "*.a.test:22", "[2001:db8::1]:22", "192.0.2.0/24:22", "127.1", "0x7f.1", "xn--a.test", "*", "[::ffff:1.2.3.4]"} {
		f.Add(s, "b.a.test")
	}
	f.Fuzz(func(t *testing.T, rule, host string) {
		r, err := ParseNetworkRule(rule)
		if err != nil {
			return
		}
		port := r.Port()
		if port == 0 {
			port = 443
		}
		self := r.Domain()
		if r.below {
			self = "x." + self
		}
		if r.Prefix().IsValid() {
			self = r.Prefix().Addr().String()
		}
		if len(self) <= maxName && !r.Matches(strings.ToUpper(self), port) {
			t.Errorf("%q does not match %q", rule, self)
		}
		h, ok := ParseNetworkHost(host)
		if !ok && r.Matches(host, port) {
			t.Errorf("%q matches %q, which is no host", rule, host)
		}
		if again, twice := ParseNetworkHost(h.String()); ok && (!twice || again != h) {
			t.Errorf("%q is %q, which is read as %q", host, h, again)
		}
		if p := (NetworkPolicy{Mode: NetworkAllow, Allow: []string{rule}}); p.Validate() != nil {
			t.Errorf("%q parses and is invalid", rule)
		}
	})
}

func BenchmarkNetworkFilter(b *testing.B) {
	var rules []string
	for i := range MaxNetworkRules {
		rules = append(rules, fmt.Sprintf("*.host%d.example.com", i))
	}
	f, err := NetworkPolicy{Mode: NetworkAllow, Allow: rules}.Compile()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if ok, _ := f.Allows("a.other.example.com", 443); ok {
			b.Fatal("allowed")
		}
	}
}
