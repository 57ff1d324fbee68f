package link

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"
)

// PathURI is the form in which paths travel: a file URI, whose percent
// encoding carries every byte. The public protocol accepts nothing else.
func PathURI(p string) string {
	return (&url.URL{Scheme: "file", Path: p}).String()
}

// ParsePath reads a path as it travels: a file URI, or an absolute path as
// older clients send it. The result is absolute and clean.
func ParsePath(s string) (string, error) {
	p := s
	if strings.HasPrefix(s, "file:") {
		u, err := url.Parse(s)
		if err != nil {
			return "", fmt.Errorf("parse path: %w", err)
		}
		if u.Host != "" && u.Host != "localhost" {
			return "", fmt.Errorf("parse path: host %q is not here", u.Host)
		}
		if u.RawQuery != "" || u.Fragment != "" {
			return "", errors.New("parse path: a file URI with a query or a fragment")
		}
		p = u.Path
	}
	if strings.ContainsRune(p, 0) {
		return "", errors.New("parse path: NUL byte")
	}
	if !path.IsAbs(p) {
		return "", fmt.Errorf("parse path: %q is not absolute", p)
	}
	return path.Clean(p), nil
}
