package keeper

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/sojourn-dev/sojourn/internal/link"
)

// coreNames are inherited under the policy "core".
var coreNames = []string{"HOME", "LOGNAME", "PATH", "SHELL", "USER", "USERNAME", "TMPDIR", "TEMP", "TMP"}

// secretNames are left out unless the policy ignores the default excludes.
var secretNames = []string{"*KEY*", "*SECRET*", "*TOKEN*"}

// inherit applies a policy to the server's environment (as "name=value") and
// lays env over the outcome.
func inherit(p *link.EnvPolicy, own []string, env map[string]string) (map[string]string, error) {
	if p == nil {
		return env, nil
	}
	out := make(map[string]string)
	for _, kv := range own {
		name, value, _ := strings.Cut(kv, "=")
		switch p.Inherit {
		case "all":
			out[name] = value
		case "core":
			if slices.Contains(coreNames, strings.ToUpper(name)) {
				out[name] = value
			}
		case "none":
		default:
			return nil, invalid("envPolicy.inherit %q is not known", p.Inherit)
		}
	}
	if !p.IgnoreDefaultExcludes {
		maps.DeleteFunc(out, func(name, _ string) bool { return matches(secretNames, name) })
	}
	maps.DeleteFunc(out, func(name, _ string) bool { return matches(p.Exclude, name) })
	maps.Copy(out, p.Set)
	if len(p.IncludeOnly) > 0 {
		maps.DeleteFunc(out, func(name, _ string) bool { return !matches(p.IncludeOnly, name) })
	}
	maps.Copy(out, env)
	return out, nil
}

// matches reports whether name fits one of the patterns. A pattern that is
// malformed fits nothing.
func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(strings.ToUpper(p), strings.ToUpper(name))
		return ok && err == nil
	})
}
