package sojourn

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// machines states every machine a second time, apart from the tables: each line
// is a state and the states that it may enter. The first line is where a noun
// begins. A change of a table must be made here too, on purpose.
var machines = map[string]string{
	"SessionState": `
		new → open closed
		open → paused closed
		paused → open closed
		closed →`,
	"RunState": `
		queued → starting failed cancelled
		starting → active failed crashed cancelled
		active → sealing failed crashed cancelled
		sealing → completed crashed cancelled
		completed →
		failed →
		crashed →
		cancelled →`,
	"LeaseState": `
		requested → held released lost
		held → draining released expired lost
		draining → held released expired lost
		released →
		expired →
		lost →`,
	"InteractionState": `
		open → answered expired withdrawn
		answered →
		expired →
		withdrawn →`,
	"CheckpointState": `
		capturing → sealed abandoned
		sealed →
		abandoned →`,
	"ExecState": `
		parked → queued refused
		queued → running refused
		running → ended lost
		ended →
		lost →
		refused →`,
}

// projected are the state types that have no machine: they are computed from
// facts on every read and never stored.
var projected = []string{"ContinuationState", "WorkspaceState"}

// tables are the machines as the domain uses them.
func tables() map[string]map[string][]string {
	return map[string]map[string][]string{
		"SessionState":     plain(sessionMoves),
		"RunState":         plain(runMoves),
		"LeaseState":       plain(leaseMoves),
		"InteractionState": plain(interactionMoves),
		"CheckpointState":  plain(checkpointMoves),
		"ExecState":        plain(execMoves),
	}
}

func plain[S ~string](moves map[S][]S) map[string][]string {
	out := map[string][]string{}
	for from, to := range moves {
		out[string(from)] = nil
		for _, s := range to {
			out[string(from)] = append(out[string(from)], string(s))
		}
	}
	return out
}

// parseMachine reads one machine of machines. It returns the first state, too.
func parseMachine(text string) (string, map[string][]string) {
	first, moves := "", map[string][]string{}
	for line := range strings.Lines(strings.TrimSpace(text)) {
		from, to, _ := strings.Cut(strings.TrimSpace(line), " →")
		if first == "" {
			first = from
		}
		moves[from] = strings.Fields(to)
	}
	return first, moves
}

func TestEveryMachineIsTheStatedOne(t *testing.T) {
	for noun, moves := range tables() {
		_, want := parseMachine(machines[noun])
		for from := range want {
			for to := range want {
				got, want := slices.Contains(moves[from], to), slices.Contains(want[from], to)
				if got != want {
					t.Errorf("%s: %s → %s is allowed: %v, want %v", noun, from, to, got, want)
				}
			}
		}
		if got, want := slices.Sorted(maps.Keys(moves)), slices.Sorted(maps.Keys(want)); !slices.Equal(got, want) {
			t.Errorf("%s: the table has the states %v, want %v", noun, got, want)
		}
	}
}

func TestEveryStateIsReachableAndEndsSomewhere(t *testing.T) {
	for noun, moves := range tables() {
		first, _ := parseMachine(machines[noun])
		from := reachable(moves, first)
		for state := range moves {
			if !from[state] {
				t.Errorf("%s: %s cannot be reached from %s", noun, state, first)
			}
			ends := func(s string) bool { return len(moves[s]) == 0 }
			if !slices.ContainsFunc(slices.Collect(maps.Keys(reachable(moves, state))), ends) {
				t.Errorf("%s: no end can be reached from %s", noun, state)
			}
			if slices.Contains(moves[state], state) {
				t.Errorf("%s: %s may move to itself", noun, state)
			}
			seen := map[string]bool{}
			for _, to := range moves[state] {
				if _, ok := moves[to]; !ok {
					t.Errorf("%s: %s may enter %q, which is no state", noun, state, to)
				}
				if seen[to] {
					t.Errorf("%s: %s lists %s twice", noun, state, to)
				}
				seen[to] = true
			}
		}
	}
}

func reachable(moves map[string][]string, from string) map[string]bool {
	seen, next := map[string]bool{from: true}, []string{from}
	for len(next) > 0 {
		state := next[0]
		next = next[1:]
		for _, to := range moves[state] {
			if !seen[to] {
				seen[to] = true
				next = append(next, to)
			}
		}
	}
	return seen
}

func TestCanMoveAndTerminalFollowTheTables(t *testing.T) {
	checkMachine(t, sessionMoves, SessionState.CanMove, nil)
	checkMachine(t, runMoves, RunState.CanMove, RunState.Terminal)
	checkMachine(t, leaseMoves, LeaseState.CanMove, LeaseState.Terminal)
	checkMachine(t, interactionMoves, InteractionState.CanMove, nil)
	checkMachine(t, checkpointMoves, CheckpointState.CanMove, nil)
	checkMachine(t, execMoves, ExecState.CanMove, ExecState.Terminal)
}

func checkMachine[S ~string](t *testing.T, moves map[S][]S, canMove func(S, S) bool, terminal func(S) bool) {
	t.Helper()
	for from, allowed := range moves {
		if terminal != nil && terminal(from) != (len(allowed) == 0) {
			t.Errorf("%s.Terminal() = %v with %d moves", from, terminal(from), len(allowed))
		}
		for _, to := range append(slices.Collect(maps.Keys(moves)), "", "no such state") {
			if got, want := canMove(from, to), slices.Contains(allowed, to); got != want {
				t.Errorf("%q.CanMove(%q) = %v, want %v", from, to, got, want)
			}
			if canMove("no such state", to) {
				t.Errorf("an unknown state may move to %q", to)
			}
		}
	}
}

// TestEveryStateConstantIsInItsTable reads the source, so that a constant or a
// whole noun that was forgotten fails here.
func TestEveryStateConstantIsInItsTable(t *testing.T) {
	constants, tables := stringConstants(t), tables()
	for typ, values := range constants {
		if !strings.HasSuffix(typ, "State") || slices.Contains(projected, typ) {
			continue
		}
		table, ok := tables[typ]
		if !ok {
			t.Errorf("%s has no machine in this test: add its table, or say that it is projected", typ)
			continue
		}
		for name, value := range values {
			if _, ok := table[value]; !ok {
				t.Errorf("%s = %q is missing from the table of %s", name, value, typ)
			}
		}
		if len(values) != len(table) {
			t.Errorf("%s has %d constants and %d states in its table", typ, len(values), len(table))
		}
	}
	for typ := range tables {
		if constants[typ] == nil {
			t.Errorf("%s has a machine and no constants", typ)
		}
	}
}

func TestEveryListIsComplete(t *testing.T) {
	constants := stringConstants(t)
	for typ, list := range map[string][]string{
		"Code":      texts(Codes),
		"EventType": texts(EventTypes),
		"KeyKind":   texts(KeyKinds),
	} {
		want := slices.Sorted(maps.Values(constants[typ]))
		got := slices.Sorted(slices.Values(list))
		if !slices.Equal(got, want) {
			t.Errorf("the list of every %s is %v, the constants are %v", typ, got, want)
		}
	}
}

// zeros are the constants that name the zero value of their type: what a caller
// gets who says nothing.
var zeros = []string{"StdinNone", "AbandonKeep"}

// TestConstantsOfATypeDiffer guards against two names for one stored value.
func TestConstantsOfATypeDiffer(t *testing.T) {
	for typ, values := range stringConstants(t) {
		seen := map[string]string{}
		for name, value := range values {
			if other, ok := seen[value]; ok {
				t.Errorf("%s: %s and %s are both %q", typ, name, other, value)
			}
			seen[value] = name
			if (value == "") != slices.Contains(zeros, name) {
				t.Errorf("%s: %s is %q, and \"\" means none everywhere but in %v", typ, name, value, zeros)
			}
		}
	}
}

func texts[S ~string](list []S) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = string(s)
	}
	return out
}

// stringConstants returns the typed string constants of the package: type →
// constant name → value.
func stringConstants(t *testing.T) map[string]map[string]string {
	t.Helper()
	out := map[string]map[string]string{}
	for _, file := range domainFiles(t) {
		for _, decl := range file.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok || group.Tok != token.CONST {
				continue
			}
			for _, spec := range group.Specs {
				v := spec.(*ast.ValueSpec)
				typ, ok := v.Type.(*ast.Ident)
				if !ok || len(v.Values) != 1 {
					continue
				}
				text, ok := v.Values[0].(*ast.BasicLit)
				if !ok || text.Kind != token.STRING {
					continue
				}
				value, err := strconv.Unquote(text.Value)
				if err != nil {
					t.Fatal(err)
				}
				if out[typ.Name] == nil {
					out[typ.Name] = map[string]string{}
				}
				out[typ.Name][v.Names[0].Name] = value
			}
		}
	}
	if len(out) < 5 {
		t.Fatalf("found only %d types with constants: the parser of this test is broken", len(out))
	}
	return out
}

// domainFiles parses the package's own files, tests aside.
func domainFiles(t *testing.T) []*ast.File {
	t.Helper()
	var files []*ast.File
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}
