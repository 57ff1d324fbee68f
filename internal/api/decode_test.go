package api

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
)

func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"a":[1,2,{"b":"c"}]}`, `"\ud800"`, `"\\\"["`, `[[[[`, `{"a":1}{}`, "\xff", `{"a`, `nul`, ``, ` `,
		strings.Repeat("[", 65) + strings.Repeat("]", 65), `"` + strings.Repeat("[", 100) + `"`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var v any
		err := Decode(data, &v)
		if err == nil && (!json.Valid(data) || !utf8.Valid(data)) {
			t.Errorf("%q is taken", data)
		}
		if err == nil && depth(v) > MaxBodyDepth {
			t.Errorf("%q is taken", data)
		}
		if err != nil && json.Valid(data) && utf8.Valid(data) && strings.Count(string(data), "[")+strings.Count(string(data), "{") <= MaxBodyDepth &&
			!strings.Contains(err.Error(), "range") && !strings.Contains(err.Error(), "twice") {
			t.Errorf("%q is refused: %v", data, err)
		}
	})
}

// A schema sees the last of two equal names; a decoder merges them.
func TestDecodeRefusesANameThatIsThereTwice(t *testing.T) {
	for _, s := range []string{
		`{"a":1,"a":1}`, `{"a":1,"\u0061":2}`, `[{"b":{"a":1,"c":[1,{}],"a":null}}]`,
		`{"metadata":{"x":"1"},"title":"","metadata":{"y":"2"}}`,
	} {
		var v any
		if err := Decode([]byte(s), &v); err == nil || !strings.Contains(err.Error(), "twice") {
			t.Errorf("%s: %v", s, err)
		}
	}
	for _, s := range []string{
		`{"a":"a","b":"a"}`, `[{"a":1},{"a":1}]`, `{"a":{"a":{"a":1}}}`, `{"a":["a","a",{"a":"a"}],"b":"\"a"}`,
		`["a","a"]`, `{"A":1,"a":2}`, `"a"`, `{"a\\":1,"a":2}`, `{"x":[],"y":{},"z":"{\"x\":"}`,
	} {
		var v any
		if err := Decode([]byte(s), &v); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}

func depth(v any) int {
	deepest := 0
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			deepest = max(deepest, depth(e))
		}
		return deepest + 1
	case map[string]any:
		for _, e := range v {
			deepest = max(deepest, depth(e))
		}
		return deepest + 1
	}
	return 0
}

func FuzzInput(f *testing.F) {
	for _, s := range []string{`"text"`, `""`, `[]`, `[{"type":"text","text":"a"}]`, `{}`, `null`, `[null]`, `7`, `[{"type":1}]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var in Input
		if json.Unmarshal(data, &in) != nil {
			return
		}
		errs := in.Resolve(nil, newPath())
		if len(errs) == 0 {
			in.Parts()
			if _, err := json.Marshal(in); err != nil {
				t.Errorf("%s cannot be written again: %v", data, err)
			}
		}
	})
}

func newPath() *huma.PathBuffer { return huma.NewPathBuffer(nil, 0) }
