package sojourn

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestMergePatchIsThatOfTheStandard goes through the examples of RFC 7396,
// appendix A. "" stands for a value that is not there.
func TestMergePatchIsThatOfTheStandard(t *testing.T) {
	for _, c := range []struct{ old, patch, want string }{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`["a","b"]`, `["c","d"]`, `["c","d"]`},
		{`{"a":"b"}`, `["c"]`, `["c"]`},
		{`{"a":"foo"}`, `null`, ``},
		{`{"a":"foo"}`, `"bar"`, `"bar"`},
		{`{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		{``, `{"a":{"bb":null}}`, `{"a":{}}`},
		{`null`, " {\"a\":\n1}", `{"a":1}`},
	} {
		got, keep := mergePatch(json.RawMessage(c.old), json.RawMessage(c.patch))
		if keep != (c.want != "") {
			t.Errorf("%s on %s: kept %v, want %q", c.patch, c.old, keep, c.want)
		} else if keep && !sameJSON(t, string(got), c.want) {
			t.Errorf("%s on %s is %s, want %s", c.patch, c.old, got, c.want)
		}
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	for text, into := range map[string]*any{a: &x, b: &y} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	return a == b || reflect.DeepEqual(x, y)
}

func TestPatchChangesOnlyWhatItNames(t *testing.T) {
	was := Carryover{
		Dir: "/workspace/src", Env: map[string]string{"A": "1", "B": "2"},
		Custom: map[string]json.RawMessage{"plan": json.RawMessage(`{"step":1,"done":[]}`), "note": json.RawMessage(`"x"`)},
	}
	got, err := was.Patch(CarryoverPatch{
		Env:    map[string]*string{"A": nil, "C": new("3")},
		Custom: map[string]json.RawMessage{"plan": json.RawMessage(`{"step":2}`), "note": json.RawMessage(`null`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"B": "2", "C": "3"}; got.Dir != was.Dir || !reflect.DeepEqual(got.Env, want) {
		t.Errorf("directory %q, variables %v; want the old one and %v", got.Dir, got.Env, want)
	}
	if len(got.Custom) != 1 || !sameJSON(t, string(got.Custom["plan"]), `{"step":2,"done":[]}`) {
		t.Errorf("custom state %s", got.Custom)
	}
	if was.Env["A"] != "1" || string(was.Custom["note"]) != `"x"` {
		t.Errorf("the patch changed what it was laid over: %+v", was)
	}
	got, err = was.Patch(CarryoverPatch{Dir: new(""), NoEnv: true, NoCustom: true, Env: map[string]*string{"D": new("4")}})
	if err != nil || got.Dir != "" || len(got.Custom) != 0 || !reflect.DeepEqual(got.Env, map[string]string{"D": "4"}) {
		t.Errorf("after it was forgotten: %+v, %v", got, err)
	}
}

func TestPatchIsBounded(t *testing.T) {
	text := func(n int) json.RawMessage { return json.RawMessage(`"` + strings.Repeat("x", n) + `"`) }
	custom := func(v json.RawMessage) CarryoverPatch {
		return CarryoverPatch{Custom: map[string]json.RawMessage{"k": v}}
	}
	nested := func(n int) json.RawMessage {
		return json.RawMessage(strings.Repeat(`{"[\"{":`, n) + "1" + strings.Repeat("}", n))
	}
	room := MaxCarryoverBytes - Carryover{Custom: map[string]json.RawMessage{"k": text(0)}, Env: map[string]string{}}.Bytes()
	for _, c := range []struct {
		name  string
		patch CarryoverPatch
		want  Code
	}{
		{"the most bytes", custom(text(room)), ""},
		{"a byte more", custom(text(room + 1)), CodeTooLarge},
		{"the deepest nesting", custom(nested(maxNesting)), ""},
		{"a level more", custom(nested(maxNesting + 1)), CodeInvalid},
		{"no JSON", custom(json.RawMessage(`{"a":`)), CodeInvalid},
		{"nothing at all", custom(nil), CodeInvalid},
		{"a variable without a name", CarryoverPatch{Env: map[string]*string{"": new("x")}}, CodeInvalid},
		{"a directory outside", CarryoverPatch{Dir: new("/etc")}, CodeInvalid},
	} {
		_, err := Carryover{}.Patch(c.patch)
		refused(t, c.name, err, c.want)
	}
}

func TestWorkspaceDirIsInTheWorkspace(t *testing.T) {
	for dir, want := range map[string]string{
		"": "", "/workspace": "/workspace", "/workspace/": "/workspace", "src": "/workspace/src", "./a//b/.": "/workspace/a/b",
		"a/../b": "/workspace/b", "/workspace/a/..": "/workspace", "..": "-", "../workspace/a": "/workspace/a", "a/../../etc": "-",
		"/": "-", "/workspaces": "-", "/workspace/../etc": "-", "/home": "-", "a\x00b": "-", strings.Repeat("d", 4097): "-", "...": "/workspace/...",
	} {
		got, err := WorkspaceDir(dir)
		if (err != nil) != (want == "-") || err == nil && got != want {
			t.Errorf("%.20q is %q, %v; want %q", dir, got, err, want)
		}
		if err != nil && CodeOf(err) != CodeInvalid {
			t.Errorf("%.20q: code %q, want invalid", dir, CodeOf(err))
		}
	}
}

func TestVariablesAreWhatAProcessTakes(t *testing.T) {
	for _, c := range []struct {
		name, key, value string
		want             Code
	}{
		{"a name", "PATH_2", "x", ""},
		{"an underscore", "_", "", ""},
		{"the longest name", strings.Repeat("A", 256), "", ""},
		{"a byte more", strings.Repeat("A", 257), "", CodeInvalid},
		{"no name", "", "x", CodeInvalid},
		{"a digit first", "2A", "x", CodeInvalid},
		{"an equals sign", "A=B", "x", CodeInvalid},
		{"a letter beyond ASCII", "É", "x", CodeInvalid},
		{"a NUL in the name", "A\x00", "x", CodeInvalid},
		{"a NUL in the value", "A", "x\x00y", CodeInvalid},
		{"any other text as value", "A", "=\n'\"\t", ""},
		{"the most bytes", "A", strings.Repeat("x", MaxExecArgBytes-3), ""},
		{"a byte more", "A", strings.Repeat("x", MaxExecArgBytes-2), CodeTooLarge},
	} {
		refused(t, c.name, CheckEnv("env", map[string]string{c.key: c.value}), c.want)
	}
	err := CheckEnv("env", map[string]string{strings.Repeat("\xff", 500): ""})
	if e, ok := err.(*Error); !ok || len(e.Message) > 300 {
		t.Errorf("a long name is shown whole: %v", err)
	}
}

func TestAClosedSessionKeepsItsCarryover(t *testing.T) {
	d := bareScene(t, SessionClosed).Decide(noon.Add(time.Hour))
	_, err := d.UpdateCarryover(Carryover{}, CarryoverPatch{Dir: new("a")})
	refused(t, "a change after the end", err, CodeInvalidState)
	_, err = d.RegisterTool(Tool{Name: "lint", Argv: []string{"lint"}}, 0)
	refused(t, "a tool after the end", err, CodeInvalidState)
}

func TestToolsAreChecked(t *testing.T) {
	base := Tool{Name: "lint", Argv: []string{"lint"}}
	with := func(change func(*Tool)) Tool {
		tool := base
		change(&tool)
		return tool
	}
	for _, c := range []struct {
		name   string
		tool   Tool
		others int
		want   Code
	}{
		{"a command", base, 0, ""},
		{"the last one", base, MaxTools - 1, ""},
		{"one more", base, MaxTools, CodeTooLarge},
		{"a url", with(func(x *Tool) { x.Argv, x.URL = nil, "https://tools.example/lint" }), 0, ""},
		{"both", with(func(x *Tool) { x.URL = "https://tools.example/lint" }), 0, CodeInvalid},
		{"neither", with(func(x *Tool) { x.Argv = nil }), 0, CodeInvalid},
		{"a long url", with(func(x *Tool) { x.Argv, x.URL = nil, "https://"+strings.Repeat("x", MaxToolURL) }), 0, CodeInvalid},
		{"no name", with(func(x *Tool) { x.Name = "" }), 0, CodeInvalid},
		{"the longest name", with(func(x *Tool) { x.Name = strings.Repeat("n", MaxToolName) }), 0, ""},
		{"a byte more", with(func(x *Tool) { x.Name = strings.Repeat("n", MaxToolName+1) }), 0, CodeInvalid},
		{"a name with a space", with(func(x *Tool) { x.Name = "a b" }), 0, CodeInvalid},
		{"an empty program", with(func(x *Tool) { x.Argv = []string{""} }), 0, CodeInvalid},
		{"a NUL", with(func(x *Tool) { x.Argv = []string{"a", "b\x00"} }), 0, CodeInvalid},
		{"a description that is no text", with(func(x *Tool) { x.Description = "\xff" }), 0, CodeInvalid},
		{"a long description", with(func(x *Tool) { x.Description = strings.Repeat("d", MaxDescription+1) }), 0, CodeInvalid},
		{"a schema that is no JSON", with(func(x *Tool) { x.InputSchema = json.RawMessage(`{`) }), 0, CodeInvalid},
		{"a large schema", with(func(x *Tool) { x.InputSchema = json.RawMessage(`"` + strings.Repeat("s", MaxToolBytes) + `"`) }), 0, CodeTooLarge},
	} {
		d := bareScene(t, SessionNew).Decide(noon)
		got, err := d.RegisterTool(c.tool, c.others)
		refused(t, c.name, err, c.want)
		if err == nil && (got.Session != "s" || !got.UpdatedAt.Equal(noon) || len(d.Change().Tools) != 1) {
			t.Errorf("%s: registered as %+v", c.name, got)
		}
	}
}
