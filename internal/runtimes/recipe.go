package runtimes

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// recipe is how a runtime is put together from npm. ARCH in names and paths stands for
// npm's word for the machine.
type recipe struct {
	// packages are installed together; the version of the first can be chosen.
	packages []pkg
	// bin is what is called by name, and where it lies below node_modules.
	bin map[string]string
}

// pkg is a package at the version whose behaviour was measured.
type pkg struct {
	name, version string
	// integrity is the hash of the package by architecture, or under "" for all; a
	// machine that is in neither cannot run it.
	integrity map[string]string
}

// node brings Node with an agent that is a program for it.
var node = pkg{"node-linux-ARCH", "22.23.5", map[string]string{
	"x64":   "sha512-3jhC+wcoWxKZxcRqF2sUSl0c9HEXFnur/nuIPx6O6CWKV0jOUWQm7Htw5SuXqqlMCEhi0cJqybFPEb5hhcBiMw==",
	"arm64": "sha512-e1LOUGKVruPGLuVlutn8+Cgm5pI1APm4Kvh+zbb/qe/ZpD9s+TQby5iUgZOWmPpbSKpj0Td8DP1N0NEnXasHizg==",
}}

const nodeBin = "node-linux-ARCH/bin/node"

// recipes are the runtimes that npm offers, by id. Native programs are installed
// without the wrappers that would need Node to start them.
var recipes = map[string]recipe{
	"codex": {
		packages: []pkg{{"@zed-industries/codex-acp-linux-ARCH", "0.16.0", map[string]string{
			"x64":   "sha512-xs5zZBLpJuciEbZNx6ZSNL0qCa9h3i/zWpj40sp6QtF+L4Ow/7qzHdBzboGhHdcz1jrLedfZeRFDA2Elj8TLMA==",
			"arm64": "sha512-8HaZGWVPVs1N6yqImLCKlnlcYTYc9BMCEhaVJk0ON9lyofhK9mOBBAHQndKC4Scqq5JLUHQIOyb8+jwHUe3hSQ==",
		}}},
		bin: map[string]string{"codex-acp": "@zed-industries/codex-acp-linux-ARCH/bin/codex-acp"},
	},
	"opencode": {
		// The baseline build runs on processors without AVX2, too. There is none for
		// arm64 at this version.
		packages: []pkg{{"opencode-linux-ARCH-baseline", "1.18.33", map[string]string{
			"x64": "sha512-1KQGBiiDDeL/VHHbHkOvvFo8Jr97WT5+C1tear+p7IcDTnXgVHXqIjU4O4jM4mHQzykTP2i884FCnW5LDa+zCA==",
		}}},
		bin: map[string]string{"opencode": "opencode-linux-ARCH-baseline/bin/opencode"},
	},
	"claude-code": {
		packages: []pkg{{"@agentclientprotocol/claude-agent-acp", "0.101.0", map[string]string{
			"": "sha512-c9YGBfdJrLcKiinRpXuDuibC+CRGqQpe9+ey/+TuuZ7ejHlVyEELbbvRkxHZN+Hf5XGecJD5i0kvP2opCseATA==",
		}}, node},
		bin: map[string]string{"claude-agent-acp": "@agentclientprotocol/claude-agent-acp/dist/index.js", "node": nodeBin},
	},
	"qwen": {
		packages: []pkg{{"@qwen-code/qwen-code", "0.24.4", map[string]string{
			"": "sha512-pmexy/Nj+BKd3Un1ogqGQE8V4GJn5B6N9PQOrU1GH+lMR29kn6Bgf6YdbZa8hNIoTmAKT1LTPK+P8TibZRPPVg==",
		}}, node},
		bin: map[string]string{"qwen": "@qwen-code/qwen-code/cli-entry.js", "node": nodeBin},
	},
	"gemini": {
		packages: []pkg{{"@google/gemini-cli", "0.61.0", map[string]string{
			"": "sha512-dbQ9A0qBtFJNi6XBkHvfZ6Azpn6PNgH/P8h2MZ67RLlX8hSAVjup39CRWqdRxZv7YXIuhrFaytr8y0jKnkoxnQ==",
		}}, node},
		bin: map[string]string{"gemini": "@google/gemini-cli/bundle/gemini.js", "node": nodeBin},
	},
}

// Installable are the ids of the runtimes that can be installed, sorted.
func Installable() []string { return slices.Sorted(maps.Keys(recipes)) }

// Recommended is the version that is installed when none is named; "" for a runtime
// that cannot be installed.
func Recommended(id string) string {
	if r, ok := recipes[id]; ok {
		return r.packages[0].version
	}
	return ""
}

// InstallCommand is what people type to install a runtime; "" when it cannot be.
func InstallCommand(id string) string {
	if _, ok := recipes[id]; !ok {
		return ""
	}
	return "sojourn runtimes install " + id
}

// ErrVersion reports a version that is not one.
var ErrVersion = errors.New("no exact version")

// versionForm is an exact version: a range or a tag would mean another thing tomorrow.
var versionForm = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]{1,40})?$`)

// machine is npm's word for this machine's architecture; "" when agents have none.
func machine() string {
	return map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
}

// plan is a recipe for one version on one architecture.
type plan struct {
	id, version string
	packages    map[string]string // versions by name
	pins        map[string]string // hashes that must be met, by name
	bin         map[string]string
}

// planFor makes a plan. version "" is the recommended one.
func planFor(id, version, arch string) (plan, error) {
	r, ok := recipes[id]
	if !ok {
		return plan{}, fmt.Errorf("there is no recipe for %q; there are %s", id, strings.Join(Installable(), ", "))
	}
	if version == "" {
		version = r.packages[0].version
	}
	if !versionForm.MatchString(version) {
		return plan{}, fmt.Errorf("%q is %w such as %s", version, ErrVersion, r.packages[0].version)
	}
	p := plan{id: id, version: version, packages: map[string]string{}, pins: map[string]string{}, bin: map[string]string{}}
	here := strings.NewReplacer("ARCH", arch).Replace
	for i, pk := range r.packages {
		hash, v := pk.integrity[arch], pk.version
		if hash == "" {
			hash = pk.integrity[""]
		}
		if hash == "" || arch == "" {
			return plan{}, fmt.Errorf("there is no %s %s for this machine (%s)", id, version, runtime.GOARCH)
		}
		if i == 0 {
			v = version
		}
		p.packages[here(pk.name)] = v
		if v == pk.version {
			p.pins[here(pk.name)] = hash
		}
	}
	for name, path := range r.bin {
		p.bin[name] = here(path)
	}
	return p, nil
}
