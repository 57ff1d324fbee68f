package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// Carryover returns what a session's execs start from.
func (e *Engine) Carryover(ctx context.Context, ref Ref) (c sojourn.Carryover, err error) {
	err = e.view(ctx, ref, func(tx *store.Tx, _ sojourn.Facts) (err error) {
		c, err = tx.Carryover(ref.ID)
		return err
	})
	return c, err
}

// UpdateCarryover changes what a session's execs start from.
func (e *Engine) UpdateCarryover(ctx context.Context, ref Ref, p sojourn.CarryoverPatch) (facts sojourn.Facts, c sojourn.Carryover, err error) {
	facts, err = e.update(ctx, ref, func(tx *store.Tx, d *sojourn.Decision) error {
		old, err := tx.Carryover(ref.ID)
		if err != nil {
			return err
		}
		c, err = d.UpdateCarryover(old, p)
		return err
	})
	return facts, c, err
}

// Tools returns the tools of a session, by name.
func (e *Engine) Tools(ctx context.Context, ref Ref) (tools []sojourn.Tool, err error) {
	err = e.view(ctx, ref, func(tx *store.Tx, _ sojourn.Facts) (err error) {
		tools, err = tx.Tools(ref.ID)
		return err
	})
	return tools, err
}

// RegisterTool registers a tool, in place of one of the same name. The codes are
// invalid, too_large and invalid_state.
func (e *Engine) RegisterTool(ctx context.Context, ref Ref, t sojourn.Tool) (sojourn.Tool, error) {
	if err := checkToolURL(t.URL); err != nil {
		return t, err
	}
	if len(t.InputSchema) > sojourn.MaxToolBytes { // before it is parsed
		return t, sojourn.Errorf(sojourn.CodeTooLarge, "inputSchema: at most %d bytes.", sojourn.MaxToolBytes)
	}
	if _, err := resolveSchema(t.InputSchema); err != nil {
		return t, err
	}
	_, err := e.update(ctx, ref, func(tx *store.Tx, d *sojourn.Decision) error {
		if s := d.Facts().Session; !s.Bare() {
			return sojourn.Errorf(sojourn.CodeInvalid, "The session has an agent (%s), with tools of its own.", s.Runtime)
		}
		all, err := tx.Tools(ref.ID)
		if err != nil {
			return err
		}
		others := 0
		for _, o := range all {
			if o.Name != t.Name {
				others++
			}
		}
		t, err = d.RegisterTool(t, others)
		return err
	})
	return t, err
}

// checkToolURL refuses what the sandbox could not post to, and what would put a
// password into rows and events.
func checkToolURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return sojourn.Errorf(sojourn.CodeInvalid, "url: must be http or https, with a host and without a user.")
	}
	return nil
}

// resolveSchema returns the schema that the input of a tool has to match; nil when
// there is none. The code is invalid. What a schema refers to must be in it.
func resolveSchema(text json.RawMessage) (*jsonschema.Resolved, error) {
	if len(text) == 0 {
		return nil, nil
	}
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return nil, sojourn.Errorf(sojourn.CodeInvalid, "inputSchema: must be a JSON Schema, which is an object.")
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, badSchema(err)
	}
	// Without a loader a reference to another document is an error.
	resolved, err := s.Resolve(nil)
	if err != nil {
		return nil, badSchema(err)
	}
	return resolved, nil
}

func badSchema(err error) error {
	return &sojourn.Error{
		Code: sojourn.CodeInvalid, Cause: err,
		Message: "inputSchema: is no JSON Schema that can be used here: " + bounded(err.Error(), 300) + ".",
	}
}
