package engine

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestSchemasHaveTypesThatThereAre(t *testing.T) {
	for _, schema := range []string{`{"type":"foo"}`, `{"type":["string","foo"]}`, `{"properties":{"a":{"type":"foo"}}}`} {
		if _, err := parseSchema(json.RawMessage(schema)); err == nil || !strings.Contains(err.Error(), `"foo"`) {
			t.Errorf("%s: %v, want the type named", schema, err)
		}
	}
}

func TestWhatDoesNotFitASchemaIsSaidPlainly(t *testing.T) {
	s, err := parseSchema(json.RawMessage(`{"type":["object","number"],"minimum":0}`))
	if err != nil {
		t.Fatal(err)
	}
	for want, value := range map[string]any{"null has type": nil, "minimum: -1 is less than 0.": -1.0} {
		if err := s.check(value); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", value, err, want)
		}
	}
}
