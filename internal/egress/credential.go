package egress

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"strings"

	"github.com/sojourn-dev/sojourn"
)

// placeholderPrefix begins what a sandbox holds in the place of a secret.
const placeholderPrefix = "sojourn-credential-"

// authorization is the field that is made for secrets.
const authorization = "Authorization"

// Credential is a secret that the broker puts into requests to its hosts. A sandbox
// holds the placeholder "sojourn-credential-NAME", which is replaced in the fields
// Authorization, also inside the base64 of Basic, and Header. With Header or User, a
// request that has no such field gets one.
type Credential struct {
	Name string
	// Hosts are the rules of [sojourn.ParseNetworkRule] for the names that get the
	// secret. The policy must allow them, too.
	Hosts []string
	// Header is a field to set when the request has none, with Prefix before Value:
	// "Authorization" and "Bearer ", for instance.
	Header, Prefix string
	// User makes that field "Authorization: Basic" with Value as the password.
	User  string
	Value string // the secret
	// Env is the variable in which programs in the sandbox find the placeholder.
	Env string
	// PlainHTTP sends the secret over plain HTTP, too.
	PlainHTTP bool
}

// String is the name: the secret is not shown.
func (c Credential) String() string { return c.Name }

// GoString is the name.
func (c Credential) GoString() string { return fmt.Sprintf("egress.Credential(%q)", c.Name) }

// LogValue is the name.
func (c Credential) LogValue() slog.Value { return slog.StringValue(c.Name) }

// credential is a Credential that was checked.
type credential struct {
	Credential
	rules       []sojourn.NetworkRule
	placeholder string
	fields      []string // in which the placeholder is replaced
}

// checkCredentials prepares credentials. Its errors hold no secret.
func checkCredentials(list []Credential) (map[string]*credential, error) {
	known := make(map[string]*credential, len(list))
	for i, c := range list {
		refuse := func(format string, args ...any) error {
			return fmt.Errorf("credential %d (%s): %s", i, shown(c.Name), fmt.Sprintf(format, args...))
		}
		switch {
		case !sojourn.ValidCredentialName(c.Name):
			return nil, refuse("a name has 1 to 64 letters, digits, hyphens and underscores")
		case known[c.Name] != nil:
			return nil, refuse("the name is there twice")
		case len(c.Hosts) == 0:
			return nil, refuse("it is for no host")
		case c.Value == "" || !fieldText(c.Value):
			return nil, refuse("the value is empty or cannot stand in a header field")
		case !fieldText(c.Prefix) || !fieldText(c.User) || strings.Contains(c.User, ":"):
			return nil, refuse("prefix and user must fit in a header field")
		case c.User != "" && c.Header != "":
			return nil, refuse("it has either a header or a user")
		case c.Header != "" && !fieldName(c.Header):
			return nil, refuse("%q is no name of a header field", c.Header)
		case c.Env != "" && !variableName(c.Env):
			return nil, refuse("%q is no name of a variable", c.Env)
		}
		k := &credential{Credential: c, placeholder: placeholderPrefix + c.Name}
		if c.User != "" {
			k.Header = authorization
		}
		k.Header = textproto.CanonicalMIMEHeaderKey(k.Header)
		if k.fields = []string{authorization}; k.Header != "" && k.Header != authorization {
			k.fields = append(k.fields, k.Header)
		}
		for _, h := range c.Hosts {
			rule, err := sojourn.ParseNetworkRule(h)
			switch {
			case err != nil:
				return nil, refuse("host: %v", err)
			case rule.Domain() == "":
				return nil, refuse("host: %q is an address, and secrets are for names", h)
			}
			k.rules = append(k.rules, rule)
		}
		known[c.Name] = k
	}
	return known, nil
}

func (c *credential) matches(host string, port int) bool {
	for _, r := range c.rules {
		if r.Matches(host, port) {
			return true
		}
	}
	return false
}

var (
	errBadBasic = errors.New("the Authorization field cannot be read")
	errTrace    = errors.New("TRACE would send the secret back")
)

// apply puts the secret into a request that goes to one of its hosts. A nil credential
// does nothing.
//
// Servers say much of what they were sent again, in fields of the answer and in their
// complaints: an origin, a media type, the number of a request. So the secret goes only
// where they expect one.
func (c *credential) apply(r *http.Request, scheme string) error {
	if c == nil || scheme != "https" && !c.PlainHTTP {
		return nil
	}
	if r.Method == http.MethodTrace {
		return errTrace
	}
	h := r.Header
	for _, name := range c.fields {
		for i, v := range h[name] {
			replaced, err := c.replace(v)
			if err != nil {
				return err
			}
			h[name][i] = replaced
		}
	}
	if c.Header == "" || len(h[c.Header]) > 0 {
		return nil
	}
	value := c.Prefix + c.Value
	if c.User != "" {
		value = "Basic " + base64.StdEncoding.EncodeToString([]byte(c.User+":"+c.Value))
	}
	h[c.Header] = []string{value}
	return nil
}

// replace returns the value of a header field with the secret in the place of the
// placeholder.
func (c *credential) replace(v string) (string, error) {
	const basic = "basic "
	if len(v) > len(basic) && strings.EqualFold(v[:len(basic)], basic) {
		pair, err := base64.StdEncoding.DecodeString(strings.TrimSpace(v[len(basic):]))
		if err != nil {
			return "", errBadBasic
		}
		if !strings.Contains(string(pair), c.placeholder) {
			return v, nil
		}
		return v[:len(basic)] + base64.StdEncoding.EncodeToString([]byte(c.fill(string(pair)))), nil
	}
	return c.fill(v), nil
}

// fill replaces the placeholder where it stands by itself: the placeholder of "a" is
// none where that of "a-b" stands.
func (c *credential) fill(s string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, c.placeholder)
		if !found {
			if b.Len() == 0 {
				return s
			}
			return b.String() + s
		}
		b.WriteString(before)
		if after != "" && sojourn.ValidCredentialName(after[:1]) {
			b.WriteString(c.placeholder)
		} else {
			b.WriteString(c.Value)
		}
		s = after
	}
}

// fieldText reports whether s can stand in the value of a header field.
func fieldText(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
}

func fieldName(s string) bool {
	for _, c := range []byte(s) {
		if !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) && !('a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9') {
			return false
		}
	}
	return s != ""
}

func variableName(s string) bool {
	for i, c := range []byte(s) {
		if c != '_' && !('a' <= c|0x20 && c|0x20 <= 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
