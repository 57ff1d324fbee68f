package keeper

import (
	"errors"
	"path"
	"slices"
	"strings"
)

// Place is a directory, or a file, of the sandbox that lies elsewhere on the host.
type Place struct {
	Inside string // absolute, as the protocol has it
	Host   string // absolute, as processes see it
}

// Places are all of them. No two have the same path inside.
type Places []Place

// Map turns a path of the sandbox into one of the host. What is in no place is the
// same on both sides.
func (ps Places) Map(p string) string {
	host, _ := ps.find(path.Clean("/" + p))
	return host
}

// find is Map, and reports whether the path is in a place. The innermost one counts.
func (ps Places) find(p string) (host string, found bool) {
	host, longest := p, -1
	for _, place := range ps {
		rest, ok := strings.CutPrefix(p+"/", place.Inside+"/")
		if ok && len(place.Inside) > longest {
			host, longest = strings.TrimSuffix(place.Host+"/"+rest, "/"), len(place.Inside)
		}
	}
	return host, longest >= 0
}

// inside is the inverse of Map: what a directory of the host is called in the protocol.
func (ps Places) inside(host string) string {
	inside, longest := host, -1
	for _, place := range ps {
		rest, ok := strings.CutPrefix(host+"/", place.Host+"/")
		if ok && len(place.Host) > longest {
			inside, longest = strings.TrimSuffix(place.Inside+"/"+rest, "/"), len(place.Host)
		}
	}
	return inside
}

// words translates arguments that are paths in a place. A path within a longer text
// is the program's own affair.
func (ps Places) words(argv []string) []string {
	out := slices.Clone(argv)
	for i, w := range out {
		if host, found := ps.find(w); found {
			out[i] = host
		}
	}
	return out
}

// assignments translates the values in an environment that are paths in a place, or
// lists of paths as PATH is one.
func (ps Places) assignments(env []string) []string {
	out := make([]string, len(env))
	for i, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		out[i] = name + "=" + strings.Join(ps.words(strings.Split(value, ":")), ":")
	}
	return out
}

// table is the places as the protocol tells them.
func (ps Places) table() map[string]string {
	if len(ps) == 0 {
		return nil
	}
	t := make(map[string]string, len(ps))
	for _, p := range ps {
		t[p.Inside] = p.Host
	}
	return t
}

// String is for package flag.
func (ps *Places) String() string { return "" }

// Set adds the place INSIDE=HOST; it is for package flag.
func (ps *Places) Set(s string) error {
	inside, host, _ := strings.Cut(s, "=")
	for _, p := range []string{inside, host} {
		if !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
			return errors.New("it is not INSIDE=HOST with absolute paths")
		}
	}
	*ps = append(*ps, Place{inside, host})
	return nil
}

// assignments are variables with their values, for package flag.
type assignments []string

func (as *assignments) String() string { return "" }

func (as *assignments) Set(s string) error {
	if name, _, ok := strings.Cut(s, "="); !ok || name == "" {
		return errors.New("it is not NAME=VALUE")
	}
	*as = append(*as, s)
	return nil
}

// defaults adds to an environment what it does not name.
func defaults(env, more []string) []string {
	for _, kv := range more {
		name, _, _ := strings.Cut(kv, "=")
		if !slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			env = append(env, kv)
		}
	}
	return env
}
