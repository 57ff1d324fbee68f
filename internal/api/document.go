package api

import (
	"fmt"
	"maps"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// security documents how a key is sent.
func (c *Contract) security() *huma.SecurityScheme {
	if c.Scheme == "" {
		return &huma.SecurityScheme{Type: "http", Scheme: "bearer", Description: "An API key."}
	}
	text := "The word " + c.Scheme + ", a space, and an API key."
	if c.KeyHeader != "" {
		text += " The header " + c.KeyHeader + " with the key alone will do, too."
	}
	return &huma.SecurityScheme{Type: "apiKey", In: "header", Name: "Authorization", Description: text}
}

// errorResponse documents how every operation answers an error.
func (s *Service) errorResponse() *huma.Response {
	registry := s.api.OpenAPI().Components.Schemas
	return &huma.Response{
		Description: "An error.",
		Content: map[string]*huma.MediaType{
			"application/json": {Schema: registry.Schema(reflect.TypeOf(s.c.Contract.ErrorBody), true, "Error")},
		},
	}
}

// streamResponse documents an answer that is a page or a stream of its parts.
func (s *Service) streamResponse(page any) *huma.Response {
	registry := s.api.OpenAPI().Components.Schemas
	return &huma.Response{
		Description: "A page, or with \"Accept: text/event-stream\" a stream that does not end.",
		Content: map[string]*huma.MediaType{
			"application/json":  {Schema: registry.Schema(reflect.TypeOf(page), true, "Page")},
			"text/event-stream": {Schema: &huma.Schema{Type: "string", Description: "Server-sent events: id is the sequence number, event the type, data the event as JSON in one line. Comments are heartbeats."}},
		},
	}
}

// document describes bodies that are not JSON.
func (op *Operation) document(h *huma.Operation) {
	binary := func(kind string) map[string]*huma.MediaType {
		return map[string]*huma.MediaType{kind: {Schema: &huma.Schema{Type: "string", Format: "binary"}}}
	}
	if op.Upload != "" {
		h.RequestBody = &huma.RequestBody{Required: true, Content: binary(op.Upload)}
	}
	if op.Download != "" {
		h.Responses["200"] = &huma.Response{Description: "A body of any size.", Content: binary(op.Download)}
	}
	if op.Socket {
		h.DefaultStatus = http.StatusSwitchingProtocols
		h.Responses["101"] = &huma.Response{Description: "A WebSocket."}
	}
}

// Document serves the OpenAPI document of the operations registered so far at
// path, to anyone, and returns it.
func (s *Service) Document(path string) ([]byte, error) {
	schemas := s.api.OpenAPI().Components.Schemas.Map()
	validated := maps.Clone(schemas)
	for _, known := range []map[string]*huma.Schema{documented, s.c.Contract.Documented} {
		for name, schema := range known {
			if _, used := schemas[name]; used {
				schemas[name] = schema
			}
		}
	}
	text, err := s.api.OpenAPI().YAML()
	clear(schemas)
	maps.Copy(schemas, validated)
	if err != nil {
		return nil, fmt.Errorf("write the OpenAPI document of contract %s: %w", s.c.Contract.Name, err)
	}
	s.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		w.Header().Set("Cache-Control", "no-cache")
		w.Write(text) // an error here is the reader's, who is gone
	})
	return text, nil
}

// Answer is a JSON answer whose status, or whether it is one at all, is decided by
// the handler.
func Answer(status int, body any, header http.Header) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		text, err := Encode(hc.Context(), body)
		if err != nil { // a body is plain data
			panic(fmt.Errorf("encode an answer: %w", err))
		}
		for name, values := range header {
			for _, v := range values {
				hc.AppendHeader(name, v)
			}
		}
		hc.SetHeader("Content-Type", "application/json")
		hc.SetStatus(status)
		if _, err := hc.BodyWriter().Write(append(text, '\n')); err != nil {
			panic(http.ErrAbortHandler) // the reader is gone
		}
	}}
}
