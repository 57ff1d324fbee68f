package archtest

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// mayImport says, for every package of the module, which other packages of the
// module it may import, tests aside. "." is the domain. It is a statement of
// policy: change it in a commit of its own, with the reason, and never to fix a
// build.
var mayImport = map[string]string{
	".":       "", // and of others, the standard library only
	"client":  "",
	"sandbox": "",

	// Sandboxes: a driver knows its contract, and what drivers share. The fake one
	// has a keeper in its own process.
	"sandbox/image":             "sandbox sandbox/internal/inroot sandbox/internal/local",
	"sandbox/internal/inroot":   "",
	"sandbox/internal/cgroup":   "",
	"sandbox/internal/quota":    "",
	"sandbox/internal/local":    "sandbox sandbox/internal/cgroup sandbox/internal/nat sandbox/internal/quota",
	"sandbox/internal/nat":      "",
	"sandbox/internal/filter":   "",
	"sandbox/process":           "sandbox sandbox/internal/filter sandbox/internal/local",
	"sandbox/gvisor":            "sandbox sandbox/internal/local sandbox/internal/nat",
	"sandbox/gvisor/gvisortest": "",
	"sandbox/namespace":         "sandbox sandbox/internal/filter sandbox/internal/inroot sandbox/internal/local sandbox/internal/nat",
	"sandbox/docker":            "sandbox sandbox/internal/local",
	"sandbox/docker/dockertest": "",
	"sandbox/warm":              "sandbox",
	"sandbox/fake":              "internal/keeper internal/link sandbox",
	"sandbox/sandboxtest":       ". internal/checkpoint internal/egress internal/keeper internal/link sandbox",

	// What runs in a sandbox, and the line to it.
	"internal/link":                "",
	"internal/files":               "",
	"internal/keeper":              "internal/files internal/link internal/tarball",
	"internal/tarball":             "",
	"internal/harness":             ". internal/link sandbox",
	"internal/harness/acp":         ". internal/harness internal/link sandbox",
	"internal/harness/loop":        ". internal/harness internal/link internal/model sandbox",
	"internal/harness/script":      "internal/keeper",
	"internal/model":               "",
	"internal/harness/harnesstest": ". internal/harness internal/keeper internal/link sandbox",

	"internal/runtimes": "internal/config internal/harness sandbox",

	// What is kept.
	"internal/checkpoint":      "",
	"internal/config":          "",
	"internal/output":          "",
	"internal/snapshot":        "",
	"internal/store":           ".",
	"internal/store/migration": "",
	"internal/store/sqlite":    ". internal/store internal/store/migration",
	"internal/store/storetest": ". internal/store",
	"internal/work":            ". internal/store",
	"internal/hub":             ". internal/store",

	// The way out of sandboxes. It knows the path of its socket, and no driver.
	"internal/egress": ". sandbox",

	// Models, for agents that must not have their keys.
	"internal/gateway":           ".",
	"internal/gateway/modeltest": "",

	// Who decides.
	"internal/engine": ". internal/checkpoint internal/harness internal/hub internal/link internal/output internal/store internal/work sandbox",

	// What callers see. A contract never sees a row.
	"internal/auth":         ".",
	"internal/api":          ".",
	"internal/api/cloud":    ". internal/api internal/engine internal/hub",
	"internal/api/exec":     ". internal/api internal/engine internal/hub internal/output",
	"internal/api/operator": ". internal/api internal/auth internal/engine internal/hub internal/output",
	"internal/api/apitest":  ". internal/servertest sandbox/fake",

	// Where the parts are put together. Only the command, and the whole server in
	// a test, name an implementation.
	"internal/server": ". internal/api internal/api/cloud internal/api/exec internal/api/operator internal/auth internal/checkpoint " +
		"internal/egress " +
		"internal/engine internal/gateway internal/harness internal/hub internal/output internal/snapshot internal/store sandbox",
	"internal/servertest": ". internal/checkpoint internal/engine internal/harness internal/harness/acp internal/harness/script internal/keeper " +
		"internal/output internal/server internal/store internal/store/sqlite sandbox sandbox/fake",
	"cmd/sojourn": ". client internal/checkpoint internal/config internal/egress internal/gateway internal/harness internal/harness/acp internal/harness/loop internal/harness/script internal/host internal/keeper internal/link internal/model internal/output " +
		"internal/runtimes internal/server internal/snapshot internal/store internal/store/sqlite internal/tarball internal/terminal sandbox sandbox/docker sandbox/gvisor sandbox/image sandbox/namespace sandbox/process sandbox/warm",
	"internal/host":     "",
	"internal/terminal": "",
	"internal/archtest": "",
}

// mayUse says which packages may import what is not ours and has a price: a
// program in a program, a database, a wire. A path stands for all below it.
var mayUse = map[string]string{
	"github.com/google/go-containerregistry": "sandbox/image",
	"gvisor.dev/gvisor":                      "sandbox/gvisor", // minutes of compiling
	"github.com/moby/moby":                   "sandbox/docker",
	"modernc.org/sqlite":                     "internal/store/sqlite",
	"go.yaml.in/yaml":                        "internal/config",
	"filippo.io/age":                         "internal/server internal/servertest internal/snapshot",
	"database/sql":                           "internal/store internal/store/migration internal/store/sqlite",
	"github.com/pressly/goose":               "internal/store/migration",
	"gocloud.dev":                            "cmd/sojourn internal/checkpoint internal/server internal/servertest internal/snapshot sandbox/sandboxtest",
	"github.com/danielgtaylor":               "internal/api internal/api/cloud internal/api/exec internal/api/operator",
	"github.com/coder/websocket":             "client internal/api internal/api/operator internal/link",
	"github.com/creack/pty":                  "internal/keeper",
	"github.com/modelcontextprotocol/go-sdk": "internal/harness/loop",
}

// never are the walls that no change of the tables above may open: each is a
// package, or a tree of them ("/..."), and what it must never reach directly.
var never = []struct{ from, to, why string }{
	{"internal/api/...", "internal/store/...", "a contract package never sees a row"},
	{"internal/engine", "net/http", "the engine never sees HTTP"},
	{"internal/engine", "database/sql", "the engine never sees SQL"},
	{"internal/engine", "internal/api/...", "the engine does not know its contracts"},
	{"internal/api/cloud", "internal/api/operator", "contracts never see each other"},
	{"internal/api/cloud", "internal/api/exec", "contracts never see each other"},
	{"internal/api/exec", "internal/api/cloud", "contracts never see each other"},
	{"internal/api/exec", "internal/api/operator", "contracts never see each other"},
	{"internal/api/operator", "internal/api/exec", "contracts never see each other"},
	{"internal/api/operator", "internal/api/cloud", "contracts never see each other"},
	{"internal/server", "internal/store/sqlite", "only the command names an implementation"},
	{"internal/server", "sandbox/gvisor", "only the command names an implementation"},
	{"internal/server", "internal/harness/acp", "only the command names an implementation"},
	{"sandbox/gvisor", "sandbox/namespace", "drivers never see each other"},
	{"sandbox/namespace", "sandbox/gvisor", "drivers never see each other"},
	{"sandbox/docker", "sandbox/gvisor", "drivers never see each other"},
	{"sandbox/docker", "sandbox/namespace", "drivers never see each other"},
	{"internal/harness/...", "internal/engine", "a harness is driven, and drives nobody"},
	{"internal/keeper", "internal/engine", "the keeper runs in the sandbox and knows no session"},
	{"client", "internal/...", "the client speaks the wire, as anybody's would"},
}

func TestImports(t *testing.T) {
	got := moduleImports(t)
	for _, pkg := range slices.Sorted(maps.Keys(got)) {
		allowed, ok := mayImport[pkg]
		if !ok {
			t.Errorf("%s has no entry in mayImport: say where it belongs", pkg)
			continue
		}
		ours := strings.Fields(allowed)
		for imp := range got[pkg] {
			to, isOurs := own(imp)
			switch {
			case isOurs && !slices.Contains(ours, to):
				t.Errorf("%s imports %s, which the policy does not allow", pkg, to)
			case !isOurs && pkg == "." && strings.Contains(imp, "."):
				t.Errorf("the domain imports %s: standard library only", imp)
			}
		}
		for _, to := range ours { // keep the policy as tight as the code
			if !got[pkg][strings.TrimSuffix(module+"/"+to, "/.")] {
				t.Errorf("mayImport[%q] allows %s, which nothing uses", pkg, to)
			}
		}
	}
	for pkg := range mayImport {
		if got[pkg] == nil {
			t.Errorf("mayImport names %s, which is not there", pkg)
		}
	}
}

func TestForeignImportsStayWhereTheyBelong(t *testing.T) {
	got := moduleImports(t)
	for path, where := range mayUse {
		used := map[string]bool{}
		for pkg, imports := range got {
			for imp := range imports {
				if imp == path || strings.HasPrefix(imp, path+"/") {
					used[pkg] = true
				}
			}
		}
		for pkg := range used {
			if !slices.Contains(strings.Fields(where), pkg) {
				t.Errorf("%s imports %s, which belongs to %s", pkg, path, where)
			}
		}
		for _, pkg := range strings.Fields(where) {
			if !used[pkg] {
				t.Errorf("mayUse[%q] allows %s, which does not use it", path, pkg)
			}
		}
	}
}

func TestWallsStand(t *testing.T) {
	got := moduleImports(t)
	for _, wall := range never {
		for pkg, imports := range got {
			if !within(wall.from, pkg) {
				continue
			}
			for imp := range imports {
				to := imp
				if o, isOurs := own(imp); isOurs {
					to = o
				}
				if within(wall.to, to) {
					t.Errorf("%s imports %s: %s", pkg, to, wall.why)
				}
			}
		}
	}
}

// moduleImports returns what each package of the module imports, tests aside.
func moduleImports(t *testing.T) map[string]map[string]bool {
	t.Helper()
	got := map[string]map[string]bool{}
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		if got[f.pkg] == nil {
			got[f.pkg] = map[string]bool{}
		}
		for _, imp := range f.imports(t) {
			got[f.pkg][imp] = true
		}
	}
	return got
}

// own returns the directory of a package of this module.
func own(imp string) (string, bool) {
	if imp == module {
		return ".", true
	}
	return strings.CutPrefix(imp, module+"/")
}

// within reports whether path is pattern, or below it when it ends in "/...".
func within(pattern, path string) bool {
	tree, isTree := strings.CutSuffix(pattern, "/...")
	return path == tree || isTree && strings.HasPrefix(path, tree+"/")
}
