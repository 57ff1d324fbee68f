package exec

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// Context is what every execution of a session starts from, in every sandbox.
type Context struct {
	WorkingDir  string                     `json:"workingDir"`
	Env         map[string]string          `json:"env"`
	CustomState map[string]json.RawMessage `json:"customState"`
}

func contextOf(c sojourn.Carryover) Context {
	out := Context{WorkingDir: c.Dir, Env: c.Env, CustomState: c.Custom}
	if out.WorkingDir == "" {
		out.WorkingDir = sojourn.WorkspacePath
	}
	if out.Env == nil {
		out.Env = map[string]string{}
	}
	if out.CustomState == nil {
		out.CustomState = map[string]json.RawMessage{}
	}
	return out
}

// ContextPatch changes a context as a JSON merge patch (RFC 7396): workingDir, env
// and customState, in either spelling; every other name is one of customState.
type ContextPatch map[string]json.RawMessage

// contextNames are the names of a patch that are not the caller's own.
var contextNames = map[string]string{
	"workingDir": "workingDir", "working_dir": "workingDir", "env": "env", "customState": "customState", "custom_state": "customState",
}

// patch reads it.
func (c ContextPatch) patch() (p sojourn.CarryoverPatch, err error) {
	p.Custom = map[string]json.RawMessage{}
	var state json.RawMessage
	seen := map[string]bool{}
	for name, value := range c {
		known := contextNames[name]
		switch {
		case known == "":
			p.Custom[name] = value
			continue
		case seen[known]:
			return p, sojourn.Errorf(sojourn.CodeInvalid, "%s is there in two spellings.", known)
		}
		seen[known] = true
		switch known {
		case "workingDir":
			var dir *string
			if json.Unmarshal(value, &dir) != nil {
				return p, sojourn.Errorf(sojourn.CodeInvalid, "workingDir: expected a string or null.")
			}
			if dir == nil {
				dir = new("")
			}
			p.Dir = dir
		case "env":
			if isNull(value) {
				p.NoEnv = true
			} else if json.Unmarshal(value, &p.Env) != nil {
				return p, sojourn.Errorf(sojourn.CodeInvalid, "env: expected an object of strings, or null for one that goes.")
			}
		case "customState":
			state = value
		}
	}
	return p, mergeState(&p, state)
}

// mergeState adds a customState to the names beside it.
func mergeState(p *sojourn.CarryoverPatch, state json.RawMessage) error {
	switch {
	case state == nil:
		return nil
	case isNull(state):
		p.NoCustom = true
		return nil
	}
	var names map[string]json.RawMessage
	if json.Unmarshal(state, &names) != nil {
		return sojourn.Errorf(sojourn.CodeInvalid, "customState: expected an object or null.")
	}
	for name, value := range names {
		if _, twice := p.Custom[name]; twice {
			return sojourn.Errorf(sojourn.CodeInvalid, "customState.%s is there beside customState, too.", name)
		}
		p.Custom[name] = value
	}
	return nil
}

func isNull(b json.RawMessage) bool { return string(bytes.TrimSpace(b)) == "null" }

type contextInput struct {
	api.SessionPath
	Body ContextPatch
}

// ContextBody is a session's context.
type ContextBody struct {
	Context Context `json:"context"`
}

type contextOutput struct{ Body ContextBody }

// ContextChangedBody is a session with its new context.
type ContextChangedBody struct {
	Session Session `json:"session"`
	Context Context `json:"context"`
}

type contextChangedOutput struct{ Body ContextChangedBody }

func (h *handler) context(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "updateContext", Method: http.MethodPost, Path: sessionPath + "/context",
		Scope: ScopeWrite, Summary: "Update the carried context",
		Description: "A merge patch: null deletes. workingDir, env and customState are typed; every other name goes into customState. " +
			"The whole is bounded to 256 KiB. It holds from the next execution on.",
	}, h.updateContext)
	api.Register(s, api.Operation{
		ID: "getContext", Method: http.MethodGet, Path: sessionPath + "/context",
		Scope: ScopeRead, Summary: "Read the carried context",
	}, h.getContext)
}

func (h *handler) updateContext(ctx context.Context, in *contextInput) (*contextChangedOutput, error) {
	p, err := in.Body.patch()
	if err != nil {
		return nil, err
	}
	f, c, err := h.engine.UpdateCarryover(ctx, ref(ctx, in.SessionID), p)
	if err != nil {
		return nil, err
	}
	shown := contextOf(c)
	s := sessionOf(f, h.engine.Now())
	s.Context = &shown
	return &contextChangedOutput{Body: ContextChangedBody{s, shown}}, nil
}

func (h *handler) getContext(ctx context.Context, in *api.SessionPath) (*contextOutput, error) {
	c, err := h.engine.Carryover(ctx, ref(ctx, in.SessionID))
	if err != nil {
		return nil, err
	}
	return &contextOutput{Body: ContextBody{contextOf(c)}}, nil
}
