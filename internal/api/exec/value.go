package exec

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sojourn-dev/sojourn/internal/api"
)

// The values here take more forms than one, or need a better word than a schema
// has for what is wrong with them. Requests are validated with an open schema, and
// each value says itself what it is not; the document has the true one.
const (
	argvRef = "Argv"
	sizeRef = "Size"
)

// documented is what the document says of them.
var documented = map[string]*huma.Schema{
	argvRef: {
		Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString}, MinItems: new(1),
		Description: "A program and its arguments, exactly as they are given to it.",
		Examples:    []any{[]string{"python3", "triage.py", "--batch", "7"}},
	},
	sizeRef: {
		Description: "Bytes, as a number or as a text with a unit: Ki, Mi, Gi, Ti, or k, M, G, T of powers of ten.",
		OneOf:       []*huma.Schema{{Type: huma.TypeString}, {Type: huma.TypeInteger, Minimum: new(1.0)}},
		Examples:    []any{"4Gi"},
	},
}

// open refers to a documented schema, and has requests validated with an open one.
func open(r huma.Registry, name string) *huma.Schema {
	r.Map()[name] = &huma.Schema{}
	return &huma.Schema{Ref: "#/components/schemas/" + name}
}

// wrong is a resolver's answer with one error.
func wrong(at *huma.PathBuffer, message string) []error {
	return []error{&huma.ErrorDetail{Location: at.String(), Message: message}}
}

// Argv is a program and its arguments.
type Argv struct {
	args []string
	text bool // a string was given
	bad  bool
}

// Schema documents the form.
func (Argv) Schema(r huma.Registry) *huma.Schema { return open(r, argvRef) }

// UnmarshalJSON reads an array; Resolve says what is wrong with anything else.
func (a *Argv) UnmarshalJSON(b []byte) error {
	var items []*string
	if a.text = b[0] == '"'; a.text {
		return nil
	}
	a.bad = json.Unmarshal(b, &items) != nil || items == nil
	for _, item := range items {
		if item == nil {
			a.bad = true
			return nil
		}
		a.args = append(a.args, *item)
	}
	return nil
}

// MarshalJSON writes the array.
func (a Argv) MarshalJSON() ([]byte, error) { return json.Marshal(a.args) }

// Resolve says what is wrong with it.
func (a *Argv) Resolve(_ huma.Context, at *huma.PathBuffer) []error {
	switch {
	case a.text:
		return wrong(at, `expected an array of strings, not one string: no shell reads it. For a line of shell write ["sh", "-c", "the line"]`)
	case a.bad:
		return wrong(at, "expected an array of strings")
	}
	return nil
}

// Size is a number of bytes. On the wire it is that number, or a text such as
// "512Mi", "4Gi" or "1G".
type Size struct {
	bytes int64
	bad   bool
}

// sizeUnits are the units of a [Size]. Those of a power of two come first, from
// the largest: a size is written with the first one that is exact.
var sizeUnits = []struct {
	suffix string
	bytes  int64
}{
	{"Ti", 1 << 40},
	{"Gi", 1 << 30},
	{"Mi", 1 << 20},
	{"Ki", 1 << 10},
	{"T", 1e12},
	{"G", 1e9},
	{"M", 1e6},
	{"k", 1e3},
	{"K", 1e3},
	{"B", 1},
}

const maxSizeText = 32

// Schema documents the form.
func (Size) Schema(r huma.Registry) *huma.Schema { return open(r, sizeRef) }

// MarshalJSON writes the text.
func (s Size) MarshalJSON() ([]byte, error) {
	for _, u := range sizeUnits[:4] {
		if s.bytes >= u.bytes && s.bytes%u.bytes == 0 {
			return json.Marshal(strconv.FormatInt(s.bytes/u.bytes, 10) + u.suffix)
		}
	}
	return json.Marshal(strconv.FormatInt(s.bytes, 10))
}

// UnmarshalJSON reads both forms; Resolve says what is wrong with anything else.
func (s *Size) UnmarshalJSON(b []byte) error {
	n, ok := parseSize(string(bytes.Trim(b, `"`)))
	s.bytes, s.bad = n, !ok
	return nil
}

// Resolve says what is wrong with it.
func (s *Size) Resolve(_ huma.Context, at *huma.PathBuffer) []error {
	if s.bad {
		return wrong(at, "expected a number of bytes above zero, or a text such as 512Mi or 4Gi")
	}
	return nil
}

// parseSize reads a positive number of bytes, rounded down to a whole one.
func parseSize(text string) (int64, bool) {
	if len(text) > maxSizeText || strings.Trim(text, "0123456789.TGMKkBi") != "" {
		return 0, false
	}
	unit := int64(1)
	for _, u := range sizeUnits {
		if number, ok := strings.CutSuffix(text, u.suffix); ok {
			text, unit = number, u.bytes
			break
		}
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n * unit, n > 0 && n <= math.MaxInt64/unit
	}
	f, err := strconv.ParseFloat(text, 64)
	n := f * float64(unit)
	return int64(n), err == nil && n >= 1 && n < math.MaxInt64
}

// Change is a new value of a limit: a number, or null for no limit. One that was
// absent changes nothing.
type Change struct {
	given bool
	value *int64
}

// Schema documents the form.
func (Change) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeInteger, Nullable: true}
}

// UnmarshalJSON reads a number or null.
func (c *Change) UnmarshalJSON(b []byte) error {
	c.given = true
	return api.Decode(b, &c.value)
}

// apply changes a limit.
func (c Change) apply(limit **int64) {
	if c.given {
		*limit = c.value
	}
}
