package gateway

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
)

// minSecret is the length from which a configured value is taken for a secret. What is
// shorter would mask half of any text.
const minSecret = 6

// mask hides the secrets of a provider, in whatever it says.
type mask [][]byte

// newMask hides the key, and what is sent in headers that are for keys.
func newMask(p Provider) (m mask) {
	secrets := []string{p.Key}
	for name, v := range p.Headers {
		if !forKeys.MatchString(name) {
			continue // a version, say, which answers may well speak of
		}
		secrets = append(secrets, v)
		if _, key, ok := strings.Cut(v, " "); ok {
			secrets = append(secrets, key)
		}
	}
	for _, s := range secrets {
		if len(s) >= minSecret {
			m = append(m, []byte(s))
		}
	}
	// The longest first: one may be part of another.
	slices.SortFunc(m, func(a, b []byte) int { return len(b) - len(a) })
	return m
}

// forKeys matches the names of headers whose values are secret.
var forKeys = regexp.MustCompile(`(?i)key|auth|token|secret|cookie|password`)

// hide replaces what is secret in b by as many asterisks, in place. It reports whether
// there was any.
func (m mask) hide(b []byte) (found bool) {
	for _, secret := range m {
		for at := 0; ; {
			i := bytes.Index(b[at:], secret)
			if i < 0 {
				break
			}
			found = true
			at += i
			for j := range secret {
				b[at+j] = '*'
			}
		}
	}
	return found
}

// text returns s without secrets.
func (m mask) text(s string) string {
	b := []byte(s)
	if m.hide(b) {
		return string(b)
	}
	return s
}

// held returns how many bytes at the end of b may be the beginning of a secret.
func (m mask) held(b []byte) (n int) {
	for _, secret := range m {
		tail := b[max(0, len(b)-len(secret)+1):]
		for len(tail) > n {
			i := bytes.IndexByte(tail, secret[0])
			if i < 0 {
				break
			}
			tail = tail[i:]
			if len(tail) > n && bytes.HasPrefix(secret, tail) {
				n = len(tail)
			}
			tail = tail[1:]
		}
	}
	return n
}

// masker hides secrets in a stream, also those that are cut by its pieces. It keeps
// back only what may be the beginning of one, and changes no length.
type masker struct {
	mask
	kept []byte
}

// pass returns what can be passed on once p has come. It may use the memory of p.
func (m *masker) pass(p []byte) []byte {
	if len(m.mask) == 0 {
		return p
	}
	if len(m.kept) > 0 {
		p = append(m.kept, p...)
		m.kept = nil
	}
	m.hide(p)
	if n := m.held(p); n > 0 {
		m.kept = bytes.Clone(p[len(p)-n:])
		p = p[:len(p)-n]
	}
	return p
}

// rest returns what was kept back; nothing comes any more.
func (m *masker) rest() []byte {
	rest := m.kept
	m.kept = nil
	return rest
}
