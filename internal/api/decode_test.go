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
			!strings.Contains(err.Error(), "too large") && !strings.Contains(err.Error(), "surrogate") && !strings.Contains(err.Error(), "twice") {
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

// A decoder would put U+FFFD in their place, and not say so.
func TestDecodeRefusesHalvesOfCharacters(t *testing.T) {
	for text, at := range map[string]string{
		`"\ud800"`: "byte 1:", `{"a":["x\udfffy"]}`: "byte 8:", `{"k\ud83d":1}`: "byte 3:", `"\ud83dx\ude00"`: "byte 1:",
		`"\ud83d\ud83d\ude00"`: "byte 1:", `"\ud83d\ude00\uDE00"`: "byte 13:", `"\\\ud800"`: "byte 3:", `["\ude00\ud83d"]`: "byte 2:",
	} {
		var v any
		var raw struct{ A json.RawMessage }
		for _, into := range []any{&v, &raw} {
			if err := Decode([]byte(text), into); into == any(&v) && (err == nil || !strings.Contains(err.Error(), at)) || err == nil {
				t.Errorf("%s: %v, want it refused at %s", text, err, at)
			}
		}
	}
	for text, want := range map[string]string{
		`"\ud83d\ude00"`: "😀", `"\\ud800"`: `\ud800`, `"\ufffd"`: "\ufffd", `"a\n\u00e9\uD83D\uDE00b"`: "a\né😀b", `"\ud7ff\ue000"`: "\ud7ff\ue000",
	} {
		var v string
		if err := Decode([]byte(text), &v); err != nil || v != want {
			t.Errorf("%s: %q, %v, want %q", text, v, err, want)
		}
	}
}

// JSON Schema calls every number without a fraction an integer.
func TestAWholeNumberMayHaveAnyForm(t *testing.T) {
	type body struct {
		Rows uint16          `json:"rows"`
		Ms   *int64          `json:"ms"`
		List []int           `json:"list"`
		Raw  json.RawMessage `json:"raw"`
	}
	var got body
	if err := Decode([]byte(`{"list":[1.0,2,30e-1],"rows":1e3,"raw":{"a":1e3,"b":2.0},"ms":-1000.0}`), &got); err != nil {
		t.Fatal(err)
	}
	if got.Rows != 1000 || *got.Ms != -1000 || len(got.List) != 3 || got.List[2] != 3 || string(got.Raw) != `{"a":1e3,"b":2.0}` {
		t.Errorf("%+v", got)
	}
	for text, want := range map[string]string{
		`{"rows":70000}`:                  "rows: expected a whole number from 0 to 65535",
		`{"rows":-1}`:                     "rows: expected a whole number from 0 to 65535",
		`{"rows":1.5}`:                    "rows: expected a whole number from 0 to 65535",
		`{"rows":1e-999999999}`:           "rows: expected a whole number from 0 to 65535",
		`{"ms":9007199254740993.0}`:       "ms: expected a whole number from -9223372036854775808 to 9223372036854775807",
		`{"ms":1.0000000000000000000001}`: "ms: expected a whole number from -9223372036854775808 to 9223372036854775807",
		`{"ms":"1"}`:                      "ms: expected a whole number from -9223372036854775808 to 9223372036854775807",
		`{"list":{}}`:                     "list: expected an array",
	} {
		var b body
		if err := Decode([]byte(text), &b); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	var v any
	if err := Decode([]byte(`{"a":1e400}`), &v); err == nil || err.Error() != "the number 1e400 is too large" {
		t.Errorf("1e400: %v", err)
	}
	if got := plainNumbers("expected number <= 1.6777216e+07"); got != "expected number <= 16777216" {
		t.Error(got)
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
