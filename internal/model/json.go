package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
)

// writer builds JSON in which raw parts stay as they are: package json would
// compact and escape them.
type writer struct{ bytes.Buffer }

// raw writes pieces as they are.
func (w *writer) raw(pieces ...string) {
	for _, p := range pieces {
		w.WriteString(p)
	}
}

// str writes a JSON string.
func (w *writer) str(s string) { w.Write(quote(s)) }

// list writes raw values as an array.
func (w *writer) list(items []json.RawMessage) {
	w.WriteByte('[')
	for i, it := range items {
		if i > 0 {
			w.WriteByte(',')
		}
		w.Write(it)
	}
	w.WriteByte(']')
}

// extra writes further fields of an object that has some already, by name.
func (w *writer) extra(fields map[string]json.RawMessage) {
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		w.WriteByte(',')
		w.str(k)
		w.WriteByte(':')
		w.Write(fields[k])
	}
}

// quote encodes a string without the escapes that only HTML needs.
func quote(s string) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always encodes
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// oneLine takes the spaces between tokens out of a value: items are stored a
// line each.
func oneLine(raw json.RawMessage) (json.RawMessage, error) {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// isObject reports whether raw is a JSON object.
func isObject(raw []byte) bool {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	return len(raw) > 0 && raw[0] == '{' && json.Valid(raw)
}

var errNotObject = errors.New("not a JSON object")

// object is a JSON object whose fields keep their order and their bytes.
type object struct {
	keys   []string
	fields map[string]json.RawMessage
}

func parseObject(data []byte) (object, error) {
	o := object{fields: map[string]json.RawMessage{}}
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return o, errNotObject
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return o, err
		}
		key, _ := t.(string)
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return o, err
		}
		o.set(key, v)
	}
	_, err := d.Token()
	return o, err
}

// set puts a field in its place, or at the end.
func (o *object) set(key string, v json.RawMessage) {
	if _, ok := o.fields[key]; !ok {
		o.keys = append(o.keys, key)
	}
	o.fields[key] = v
}

// text is a field that is a string; "" when it is none.
func (o *object) text(key string) string {
	var s string
	_ = json.Unmarshal(o.fields[key], &s)
	return s
}

func (o *object) encode() (json.RawMessage, error) {
	var w writer
	w.WriteByte('{')
	for i, k := range o.keys {
		if i > 0 {
			w.WriteByte(',')
		}
		w.str(k)
		w.WriteByte(':')
		w.Write(o.fields[k])
	}
	w.WriteByte('}')
	return oneLine(w.Bytes())
}

// growing are the string fields of an object that come in pieces.
type growing map[string]*strings.Builder

func (g growing) add(key, piece string) {
	if g[key] == nil {
		g[key] = new(strings.Builder)
	}
	g[key].WriteString(piece)
}

// finish appends to each field of o what has come for it.
func (g growing) finish(o *object) {
	for _, k := range slices.Sorted(maps.Keys(g)) {
		o.set(k, quote(o.text(k)+g[k].String()))
	}
}
