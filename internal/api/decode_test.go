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
			!strings.Contains(err.Error(), "range") {
			t.Errorf("%q is refused: %v", data, err)
		}
	})
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
