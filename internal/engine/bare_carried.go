package engine

import (
	"context"
	"net/url"
	"strings"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/link"
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
	if len(t.InputSchema) > 0 {
		if _, err := parseSchema(t.InputSchema); err != nil {
			return t, err
		}
	}
	if len(t.Argv) > 0 && strings.HasPrefix(t.Argv[0], link.ProgramPrefix) {
		return t, sojourn.Errorf(sojourn.CodeInvalid, "command: names that begin with %q belong to the server.", link.ProgramPrefix)
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
