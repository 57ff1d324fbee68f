package engine

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn"
)

func TestSchemasCheckInputs(t *testing.T) {
	for _, c := range []struct {
		schema, input string
		ok            bool
	}{
		{``, `[1, null]`, true},
		{``, `{"a":`, false},
		{`true`, `1`, true},
		{`{"type":"object","required":["a"],"properties":{"a":{"type":"integer","minimum":1}}}`, `{"a":2}`, true},
		{`{"type":"object","required":["a"],"properties":{"a":{"type":"integer","minimum":1}}}`, `{"a":0}`, false},
		{`{"type":"object","required":["a"]}`, `{}`, false},
		{`{"$defs":{"n":{"type":"string"}},"properties":{"x":{"$ref":"#/$defs/n"},"y":{"$ref":"#/$defs/n"}}}`, `{"x":"1","y":2}`, false},
		{`{"definitions":{"n":{"type":"string"}},"items":{"$ref":"#/definitions/n"}}`, `["a","b"]`, true},
		{`{"$schema":"http://json-schema.org/draft-07/schema","type":"string"}`, `"a"`, true},
		{`{"$schema":"https://json-schema.org/draft/2020-12/schema#","type":"string"}`, `"a"`, true},
		{`{"properties":{"const":{"enum":["$ref"]}}}`, `{"const":"$ref"}`, true},
	} {
		err := checkToolInput(json.RawMessage(c.schema), []byte(c.input))
		if (err == nil) != c.ok || err != nil && sojourn.CodeOf(err) != sojourn.CodeInvalid {
			t.Errorf("%s for %s: %v", c.input, c.schema, err)
		}
	}
}

// TestHostileSchemasAreRefused: what would take the server down, or keep it busy, is
// not taken in.
func TestHostileSchemasAreRefused(t *testing.T) {
	var doubling strings.Builder // thirty definitions that each refer twice to the next
	doubling.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
	for i := range 30 {
		fmt.Fprintf(&doubling, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	doubling.WriteString(`"d30":{}}}`)
	for name, schema := range map[string]string{
		"itself":      `{"$ref":"#"}`,
		"in a circle": `{"$defs":{"a":{"not":{"$ref":"#/$defs/b"}},"b":{"anyOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"}`,
		"in depth":    `{"$defs":{"a":{"properties":{"const":{"$ref":"#/$defs/a"}}}},"$ref":"#/$defs/a"}`,
		"doubling":    doubling.String(),
		"elsewhere":   `{"$ref":"http://169.254.169.254/schema"}`,
		"a file":      `{"properties":{"a":{"$ref":"file:///etc/passwd"}}}`,
		"by pointer":  `{"properties":{"a":{"$ref":"#/properties/a"}}}`,
		"dynamic":     `{"$dynamicAnchor":"x","items":{"$dynamicRef":"#x"}}`,
		"another id":  `{"items":{"$id":"http://x/y","$ref":"#/$defs/a"},"$defs":{"a":{}}}`,
		"wide":        `{"allOf":[` + strings.Repeat(`{},`, maxSchemaNodes) + `{}]}`,
		"no schema":   `{"type":7}`,
		"no JSON":     `{`,
		"a number":    `7`,
		"old":         `{"$schema":"http://json-schema.org/draft-04/schema#"}`,
		"no pattern":  `{"pattern":"("}`,
	} {
		if s, err := parseSchema(json.RawMessage(schema)); sojourn.CodeOf(err) != sojourn.CodeInvalid {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	schema := json.RawMessage(`{"items":{"allOf":[` + strings.Repeat(`{"type":"number"},`, 2000) + `{}]}}`)
	input := []byte("[" + strings.Repeat("1,", 100_000) + "1]")
	if err := checkToolInput(schema, input); sojourn.CodeOf(err) != sojourn.CodeTooLarge {
		t.Errorf("a check of %d by %d: %v", 2000, 100_000, err)
	}
}

func FuzzSchema(f *testing.F) {
	f.Add([]byte(`{"type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"type":"string"}}}`), []byte(`{"a":"b"}`))
	f.Add([]byte(`{"$ref":"#"}`), []byte(`1`))
	f.Add([]byte(`{"dependencies":{"a":{"$ref":"#/definitions/a"}},"definitions":{"a":{"dependencies":{"b":{"$ref":"#/definitions/a"}}}}}`), []byte(`{"a":1,"b":2}`))
	f.Fuzz(func(t *testing.T, schema, input []byte) {
		if len(schema) > sojourn.MaxToolBytes || len(input) > maxToolInput {
			return
		}
		err := checkToolInput(schema, input) // must come back, and say what it means
		if code := sojourn.CodeOf(err); err != nil && code != sojourn.CodeInvalid && code != sojourn.CodeTooLarge {
			t.Error(err)
		}
	})
}
