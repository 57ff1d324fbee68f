package api

import (
	"bytes"
	"encoding/json"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sojourn-dev/sojourn"
)

// Part is one piece of a turn's input.
type Part struct {
	Type     string `json:"type" enum:"text,image,file"`
	Text     string `json:"text,omitempty" doc:"Of a text part."`
	MimeType string `json:"mimeType,omitempty" maxLength:"255" doc:"Of an image or file part."`
	Data     string `json:"data,omitempty" encoding:"base64" doc:"Of an image or file part."`
	Name     string `json:"name,omitempty" maxLength:"1024" doc:"Of a file part."`
}

// Input is what a turn is submitted with: parts, or a string that stands for one
// text part.
type Input struct {
	raw   json.RawMessage
	parts []Part
}

// inputRef is where the document has the schema of an [Input].
const inputRef = "Input"

// partsSchema is what an array of parts is validated with.
var (
	partsRegistry = huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	partsSchema   = partsRegistry.Schema(reflect.TypeFor[[]Part](), true, "")
)

// documented is what the document says about schemas that requests are not
// validated with: of a choice that does not match, a validator can only say
// that, where [Input.Resolve] says what and where.
var documented = map[string]*huma.Schema{inputRef: inputSchema}

var inputSchema = &huma.Schema{
	Description: "The parts of the input, or a string that stands for one text part.",
	OneOf: []*huma.Schema{
		{Type: huma.TypeString, MinLength: new(1)},
		{
			Type: huma.TypeArray, MinItems: new(1), MaxItems: new(sojourn.MaxInputParts),
			Items: &huma.Schema{Ref: "#/components/schemas/Part"},
		},
	},
}

// Schema refers to [inputSchema] and makes sure that the document has a Part.
func (Input) Schema(r huma.Registry) *huma.Schema {
	r.Schema(reflect.TypeFor[Part](), true, "")
	r.Map()[inputRef] = &huma.Schema{}
	return &huma.Schema{Ref: "#/components/schemas/" + inputRef}
}

// UnmarshalJSON takes the value as it is; Resolve says what is wrong with it.
func (in *Input) UnmarshalJSON(b []byte) error {
	in.raw = bytes.Clone(b)
	var text string
	if json.Unmarshal(b, &text) == nil && b[0] == '"' {
		in.parts = []Part{{Type: "text", Text: text}}
		return nil
	}
	if json.Unmarshal(b, &in.parts) != nil {
		in.parts = nil
	}
	return nil
}

// MarshalJSON writes the parts: a string and the part that it stands for are the
// same input.
func (in Input) MarshalJSON() ([]byte, error) { return json.Marshal(in.parts) }

// Resolve returns what is wrong with the input, with the path of each part.
func (in *Input) Resolve(_ huma.Context, at *huma.PathBuffer) []error {
	if in.raw == nil || in.raw[0] == '"' {
		return nil // missing is another error, a string is fine
	}
	var res huma.ValidateResult
	var value any
	if err := json.Unmarshal(in.raw, &value); err != nil {
		res.Add(at, nil, err.Error())
		return res.Errors
	}
	if _, ok := value.([]any); !ok {
		res.Add(at, nil, "expected a string or an array of parts")
		return res.Errors
	}
	huma.Validate(partsRegistry, partsSchema, at, huma.ModeWriteToServer, value, &res)
	return res.Errors
}

// Parts returns the parts as the engine takes them.
func (in Input) Parts() []sojourn.Part {
	out := make([]sojourn.Part, len(in.parts))
	for i, p := range in.parts {
		out[i] = sojourn.Part(p)
	}
	return out
}

// Parts projects the parts of a turn.
func Parts(in []sojourn.Part) []Part {
	out := make([]Part, len(in))
	for i, p := range in {
		out[i] = Part(p)
	}
	return out
}
