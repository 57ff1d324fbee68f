package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/sojourn-dev/sojourn"
)

// maxSchemaNodes bounds the schemas that one value is checked against, with every
// reference replaced by what it refers to.
const maxSchemaNodes = 4096

// maxSchemaWork bounds a check: the schemas by the values that they may be for.
const maxSchemaWork = 20_000_000

// toolSchema is a JSON Schema that strangers' values may be checked against.
type toolSchema struct {
	resolved *jsonschema.Resolved
	nodes    int // with references replaced
}

// parseSchema reads the schema of a tool's input. What cannot be checked in bounded
// time is refused: schemas that refer to themselves, and those that references make
// large; so are references to anything but the schema's own $defs. The code is
// invalid.
func parseSchema(raw json.RawMessage) (*toolSchema, error) {
	refuse := func(err error) error {
		return sojourn.Errorf(sojourn.CodeInvalid, "inputSchema: %s.", bounded(err.Error(), 300))
	}
	root := &jsonschema.Schema{}
	if err := json.Unmarshal(raw, root); err != nil {
		return nil, refuse(err)
	}
	draft, known := schemaDrafts[strings.TrimSuffix(root.Schema, "#")]
	if !known {
		return nil, refuse(errSchemaDraft)
	}
	root.Schema = draft
	n, err := (&schemaSize{root: root, known: map[*jsonschema.Schema]int{}}).of(root)
	if err != nil {
		return nil, refuse(err)
	}
	resolved, err := root.Resolve(nil)
	if err != nil {
		return nil, refuse(err)
	}
	return &toolSchema{resolved: resolved, nodes: n}, nil
}

// check refuses a value that the schema does not admit. The code is invalid or
// too_large.
func (s *toolSchema) check(value any) error {
	if s.nodes*valuesIn(value) > maxSchemaWork {
		return sojourn.Errorf(sojourn.CodeTooLarge, "input: it has too many values for a schema of this size.")
	}
	if err := s.resolved.Validate(value); err != nil {
		return sojourn.Errorf(sojourn.CodeInvalid, "input: it is not what the tool takes: %s.", bounded(plainly(err.Error()), 500))
	}
	return nil
}

// What the validator writes of its own insides: a null, a number as a fraction, and a
// bound with all its decimals.
var (
	fractionOne = regexp.MustCompile(`(imum: -?[0-9]+)/1 `)
	manyZeros   = regexp.MustCompile(`(-?[0-9]+)\.0{6}`)
)

// plainly puts what the validator says into plain words.
func plainly(text string) string {
	text = strings.ReplaceAll(text, "<invalid reflect.Value>", "null")
	return manyZeros.ReplaceAllString(fractionOne.ReplaceAllString(text, "$1 "), "$1")
}

// valuesIn counts the values in a JSON value.
func valuesIn(value any) int {
	n := 1
	switch v := value.(type) {
	case map[string]any:
		for _, x := range v {
			n += 1 + valuesIn(x) // its name is one, too
		}
	case []any:
		for _, x := range v {
			n += valuesIn(x)
		}
	}
	return n
}

// schemaSize counts the schemas in a schema.
type schemaSize struct {
	root  *jsonschema.Schema
	known map[*jsonschema.Schema]int // 0 while it is being counted
}

// schemaDrafts are the versions of JSON Schema that are known, as the validator writes
// them; a schema that names none is of the newest.
var schemaDrafts = map[string]string{
	"": "",
	"https://json-schema.org/draft/2020-12/schema": "https://json-schema.org/draft/2020-12/schema",
	"http://json-schema.org/draft-07/schema":       "http://json-schema.org/draft-07/schema#",
	"https://json-schema.org/draft-07/schema":      "http://json-schema.org/draft-07/schema#",
}

// schemaTypes are all there are.
var schemaTypes = []string{"null", "boolean", "object", "array", "number", "string", "integer"}

var (
	errSchemaDraft = errors.New("its $schema is not known: use draft 2020-12 or draft-07")
	errSchemaLoops = errors.New("it refers to itself, which is not supported")
	errSchemaLarge = errors.New("it is too large once its references are followed")
	errSchemaRef   = errors.New("a $ref must be of the form #/$defs/NAME")
)

// of returns how many schemas a value is checked against, at most.
func (z *schemaSize) of(s *jsonschema.Schema) (int, error) {
	if n, seen := z.known[s]; seen {
		if n == 0 {
			return 0, errSchemaLoops
		}
		return n, nil
	}
	z.known[s] = 0
	if s.DynamicRef != "" || s.DynamicAnchor != "" || s != z.root && s.ID != "" {
		return 0, errors.New("$dynamicRef, $dynamicAnchor and an $id within it are not supported")
	}
	for _, t := range append(slices.Clone(s.Types), s.Type) {
		if t != "" && !slices.Contains(schemaTypes, t) {
			return 0, fmt.Errorf("there is no type %q", t)
		}
	}
	n := 1
	parts := subschemas(s)
	if s.Ref != "" {
		to, err := z.target(s.Ref)
		if err != nil {
			return 0, err
		}
		parts = append(parts, to)
	}
	for _, part := range parts {
		more, err := z.of(part)
		if err != nil {
			return 0, err
		}
		if n += more; n > maxSchemaNodes {
			return 0, errSchemaLarge
		}
	}
	z.known[s] = n
	return n, nil
}

// target returns the definition that a reference names.
func (z *schemaSize) target(ref string) (*jsonschema.Schema, error) {
	for prefix, defs := range map[string]map[string]*jsonschema.Schema{"#/$defs/": z.root.Defs, "#/definitions/": z.root.Definitions} {
		name, ok := strings.CutPrefix(ref, prefix)
		if !ok || strings.ContainsAny(name, "/~%") {
			continue
		}
		if s := defs[name]; s != nil {
			return s, nil
		}
	}
	return nil, errSchemaRef
}

// subschemas returns the schemas that are written inside one, but for definitions:
// those count where they are referred to.
func subschemas(s *jsonschema.Schema) (parts []*jsonschema.Schema) {
	v := reflect.ValueOf(*s)
	for i := range v.NumField() {
		switch part := v.Field(i).Interface().(type) {
		case *jsonschema.Schema:
			if part != nil {
				parts = append(parts, part)
			}
		case []*jsonschema.Schema:
			parts = append(parts, part...)
		case map[string]*jsonschema.Schema:
			if name := v.Type().Field(i).Name; name == "Defs" || name == "Definitions" {
				continue
			}
			for _, p := range part {
				parts = append(parts, p)
			}
		}
	}
	return parts
}
