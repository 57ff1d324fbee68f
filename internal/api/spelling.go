package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sojourn-dev/sojourn"
)

// names are the names in JSON of a Go type that may be spelled in two ways:
// camelCase, as the types here have them, and snake_case. Keys of maps, raw JSON
// and types that read themselves have no names: they belong to whoever sent them.
// A nil *names has none.
type names struct {
	fields map[string]*names // of a struct, by the name in camelCase
	camel  map[string]string // from snake_case, where that differs
	snake  map[string]string // and the other way
	each   *names            // of the elements of an array or the values of a map
}

// field returns the names of what an object has under name.
func (n *names) field(name string) *names {
	switch {
	case n == nil:
		return nil
	case n.each != nil:
		return n.each
	}
	if camel, ok := n.camel[name]; ok {
		name = camel
	}
	return n.fields[name]
}

func (n *names) element() *names {
	if n == nil {
		return nil
	}
	return n.each
}

func (n *names) toCamel(name string) string {
	if n != nil && n.camel[name] != "" {
		return n.camel[name]
	}
	return name
}

func (n *names) toSnake(name string) string {
	if n != nil && n.snake[name] != "" {
		return n.snake[name]
	}
	return name
}

var (
	readsItself  = reflect.TypeFor[json.Unmarshaler]()
	writesItself = reflect.TypeFor[json.Marshaler]()
	namesByType  sync.Map // reflect.Type to *names
)

// namesOf returns the names of a type.
func namesOf(t reflect.Type) *names {
	if n, ok := namesByType.Load(t); ok {
		return n.(*names)
	}
	n := learn(t, map[reflect.Type]*names{})
	namesByType.Store(t, n)
	return n
}

// learn reads the names of t; known are those being read, of types that hold
// themselves.
func learn(t reflect.Type, known map[reflect.Type]*names) *names {
	if n, ok := known[t]; ok {
		return n
	}
	if p := reflect.PointerTo(t); p.Implements(readsItself) || p.Implements(writesItself) {
		return nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return learn(t.Elem(), known)
	case reflect.Slice, reflect.Array, reflect.Map:
		if each := learn(t.Elem(), known); each != nil {
			return &names{each: each}
		}
	case reflect.Struct:
		n := &names{fields: map[string]*names{}, camel: map[string]string{}, snake: map[string]string{}}
		known[t] = n
		n.learnFields(t, known)
		return n
	}
	return nil
}

func (n *names) learnFields(t reflect.Type, known map[reflect.Type]*names) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
			n.learnFields(f.Type, known)
		case !f.IsExported() || name == "" || name == "-":
		default:
			n.fields[name] = learn(f.Type, known)
			n.alias(name)
		}
	}
}

func (n *names) alias(name string) {
	if s := snakeCase(name); s != name {
		n.camel[s], n.snake[name] = name, s
	}
}

// snakeCase spells a name in camelCase with underscores.
func snakeCase(camel string) string {
	var b strings.Builder
	for _, c := range []byte(camel) {
		if c >= 'A' && c <= 'Z' {
			b.WriteByte('_')
			c += 'a' - 'A'
		}
		b.WriteByte(c)
	}
	return b.String()
}

// respell returns a JSON text with its names as spell gives them, and all else as
// it was. The text is valid JSON.
func respell(data []byte, n *names, spell func(n *names, name string) string) []byte {
	type level struct {
		of     *names
		object bool
	}
	out := make([]byte, 0, len(data)+len(data)/8)
	var open []level
	next, inName := n, false // what the next value is, and whether a string would be a name
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{':
			open, inName = append(open, level{next, true}), true
		case '[':
			open, next = append(open, level{next, false}), next.element()
		case '}', ']':
			open, inName = open[:len(open)-1], false
		case ',':
			if top := open[len(open)-1]; top.object {
				inName = true
			} else {
				next = top.of.element()
			}
		case '"':
			from := i
			for i++; data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
			text := data[from : i+1]
			if inName {
				inName = false
				text, next = respellName(text, open[len(open)-1].of, spell)
			}
			out = append(out, text...)
			continue
		}
		out = append(out, data[i])
	}
	return out
}

// respellName spells one name of an object, and returns what its value is.
func respellName(text []byte, of *names, spell func(n *names, name string) string) ([]byte, *names) {
	var name string
	_ = json.Unmarshal(text, &name) // valid JSON has valid strings
	if to := spell(of, name); to != name {
		text, _ = json.Marshal(to) // a string always has a form
	}
	return text, of.field(name)
}

// respelled is a request body that reads as if its names were in camelCase. What
// is no JSON, or too much of it, reads as it is: it is refused later.
type respelled struct {
	body  io.ReadCloser
	names *names
	text  io.Reader // nil before the first read
}

func (b *respelled) Close() error { return b.body.Close() }

func (b *respelled) Read(p []byte) (int, error) {
	if b.text == nil {
		data, err := io.ReadAll(io.LimitReader(b.body, MaxBodyBytes+1))
		switch _, deep := deeperThan(data, MaxBodyDepth); {
		case err != nil:
			return 0, err
		case len(data) > MaxBodyBytes:
			b.text = io.MultiReader(bytes.NewReader(data), b.body)
		case deep || !json.Valid(data):
			b.text = bytes.NewReader(data)
		default:
			b.text = bytes.NewReader(respell(data, b.names, (*names).toCamel))
		}
	}
	return b.text.Read(p)
}

// snakeInput gives the query parameters and the body of a request the names that
// its operation knows them by. The same parameter in both spellings is refused; of
// a body, [Decode] refuses that.
func snakeInput(r *http.Request, in reflect.Type) error {
	body, query := inputNames(in)
	if body != nil && r.Body != nil {
		r.Body = &respelled{body: r.Body, names: body}
	}
	if r.URL.RawQuery == "" {
		return nil
	}
	var changed bool
	parts := strings.Split(r.URL.RawQuery, "&")
	for i, part := range parts {
		key, value, hasValue := strings.Cut(part, "=")
		name, err := url.QueryUnescape(key)
		if err != nil || query.camel[name] == "" {
			continue
		}
		camel := query.camel[name]
		if r.URL.Query().Has(camel) {
			return sojourn.Errorf(sojourn.CodeInvalid, "The parameter %s is there in two spellings.", camel)
		}
		parts[i], changed = camel, true
		if hasValue {
			parts[i] += "=" + value
		}
	}
	if changed {
		u := *r.URL
		u.RawQuery = strings.Join(parts, "&")
		r.URL = &u
	}
	return nil
}

// inputNames returns the names of the body of an operation's input, nil for none,
// and of its query parameters.
func inputNames(in reflect.Type) (body, query *names) {
	query = &names{camel: map[string]string{}, snake: map[string]string{}}
	for _, f := range reflect.VisibleFields(in) {
		if f.Name == "Body" && len(f.Index) == 1 {
			body = namesOf(f.Type)
		}
		if name, _, _ := strings.Cut(f.Tag.Get("query"), ","); name != "" {
			query.alias(name)
		}
	}
	return body, query
}

// Encode writes a value as JSON in the spelling that the caller of ctx asked for.
func Encode(ctx context.Context, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil || !Snake(ctx) {
		return text, err
	}
	return respell(text, namesOf(reflect.TypeOf(v)), (*names).toSnake), nil
}

// answered spells the body of an answer. Errors are spelled where they are made.
func answered(ctx huma.Context, _ string, v any) (any, error) {
	if _, failed := v.(*failure); failed || v == nil || !Snake(ctx.Context()) {
		return v, nil
	}
	text, err := Encode(ctx.Context(), v)
	return json.RawMessage(text), err
}

// SnakeCase spells every name in a JSON text that is wholly ours. What is no JSON
// comes back as it is.
func SnakeCase(data []byte) []byte {
	if !json.Valid(data) {
		return data
	}
	return respell(data, nil, func(_ *names, name string) string { return snakeCase(name) })
}
