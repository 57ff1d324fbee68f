package operator

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// Carryover is what execs start from in every sandbox of a session.
type Carryover struct {
	Dir       string                     `json:"dir,omitempty" doc:"Where they start; the workspace when absent."`
	Env       map[string]string          `json:"env"`
	Custom    map[string]json.RawMessage `json:"custom" doc:"What callers keep there; any JSON."`
	UpdatedAt api.Time                   `json:"updatedAt,omitempty"`
}

// CarryoverPatch changes a carryover as a JSON merge patch does.
type CarryoverPatch struct {
	Dir      *string                    `json:"dir,omitempty" maxLength:"4096" doc:"In the workspace; an empty one is the workspace again."`
	Env      map[string]string          `json:"env,omitempty" doc:"Variables to set."`
	UnsetEnv []string                   `json:"unsetEnv,omitempty" maxItems:"1024" doc:"Variables to forget."`
	Custom   map[string]json.RawMessage `json:"custom,omitempty" doc:"Merged into what is there; null forgets."`
}

func (p *CarryoverPatch) patch() sojourn.CarryoverPatch {
	if p == nil {
		return sojourn.CarryoverPatch{}
	}
	out := sojourn.CarryoverPatch{Dir: p.Dir, Custom: p.Custom}
	if len(p.Env)+len(p.UnsetEnv) > 0 {
		out.Env = map[string]*string{}
	}
	for _, name := range p.UnsetEnv {
		out.Env[name] = nil
	}
	for name, value := range p.Env {
		out.Env[name] = &value
	}
	return out
}

// CarryoverBody is an answer with a carryover.
type CarryoverBody struct {
	Context Carryover `json:"context"`
}

type carryoverOutput struct{ Body CarryoverBody }

func carryoverBody(c sojourn.Carryover, err error) (*carryoverOutput, error) {
	if err != nil {
		return nil, err
	}
	out := Carryover{Dir: c.Dir, Env: c.Env, Custom: c.Custom, UpdatedAt: api.Instant(c.UpdatedAt)}
	if out.Env == nil {
		out.Env = map[string]string{}
	}
	if out.Custom == nil {
		out.Custom = map[string]json.RawMessage{}
	}
	return &carryoverOutput{Body: CarryoverBody{out}}, nil
}

type changeCarryoverInput struct {
	api.SessionPath
	Body CarryoverPatch
}

// Tool is something that callers can run by name.
type Tool struct {
	Name             string          `json:"name" minLength:"1" maxLength:"64" pattern:"^[A-Za-z0-9_-]+$"`
	Description      string          `json:"description,omitempty" maxLength:"4096"`
	InputSchema      json.RawMessage `json:"inputSchema,omitempty" doc:"A JSON Schema that its input must match."`
	Command          []string        `json:"command,omitempty" doc:"Gets the input on its stdin."`
	URL              string          `json:"url,omitempty" maxLength:"2048" doc:"In place of a command: gets the input as the body of a POST from the sandbox."`
	RequiresApproval bool            `json:"requiresApproval,omitempty" doc:"Each call waits for an approval."`
	UpdatedAt        api.Time        `json:"updatedAt,omitempty" readOnly:"true"`
}

func tool(t sojourn.Tool) Tool {
	return Tool{
		Name: t.Name, Description: t.Description, InputSchema: t.InputSchema, Command: t.Argv, URL: t.URL,
		RequiresApproval: t.Ask, UpdatedAt: api.Instant(t.UpdatedAt),
	}
}

type registerToolInput struct {
	api.SessionPath
	Body Tool
}

// ToolBody is an answer with one tool.
type ToolBody struct {
	Tool Tool `json:"tool"`
}

type toolOutput struct{ Body ToolBody }

// ToolsBody lists tools by name.
type ToolsBody struct {
	Tools []Tool `json:"tools"`
}

type toolsOutput struct{ Body ToolsBody }

func (h *handler) carryover(s *api.Service) {
	const path = "/operator/v1/sessions/{sessionId}"
	api.Register(s, api.Operation{
		ID: "getContext", Method: http.MethodGet, Path: path + "/context", Summary: "Read what execs start from in every sandbox",
	}, h.getCarryover)
	api.Register(s, api.Operation{
		ID: "changeContext", Method: http.MethodPatch, Path: path + "/context", Summary: "Change what execs start from",
		Description: "It is carried from sandbox to sandbox. Execs that were started before do not see it.",
	}, h.changeCarryover)
	api.Register(s, api.Operation{
		ID: "listTools", Method: http.MethodGet, Path: path + "/tools", Summary: "List the tools of a session",
	}, h.listTools)
	api.Register(s, api.Operation{
		ID: "registerTool", Method: http.MethodPost, Path: path + "/tools", Summary: "Register a tool, in place of one of the same name",
	}, h.registerTool)
}

func (h *handler) getCarryover(ctx context.Context, in *api.SessionPath) (*carryoverOutput, error) {
	return carryoverBody(h.engine.Carryover(ctx, ref(ctx, in.SessionID)))
}

func (h *handler) changeCarryover(ctx context.Context, in *changeCarryoverInput) (*carryoverOutput, error) {
	_, c, err := h.engine.UpdateCarryover(ctx, ref(ctx, in.SessionID), in.Body.patch())
	return carryoverBody(c, err)
}

func (h *handler) listTools(ctx context.Context, in *api.SessionPath) (*toolsOutput, error) {
	found, err := h.engine.Tools(ctx, ref(ctx, in.SessionID))
	if err != nil {
		return nil, err
	}
	out := &toolsOutput{Body: ToolsBody{Tools: []Tool{}}}
	for _, t := range found {
		out.Body.Tools = append(out.Body.Tools, tool(t))
	}
	return out, nil
}

func (h *handler) registerTool(ctx context.Context, in *registerToolInput) (*toolOutput, error) {
	b := in.Body
	t, err := h.engine.RegisterTool(ctx, ref(ctx, in.SessionID), sojourn.Tool{
		Name: b.Name, Description: b.Description, InputSchema: b.InputSchema, Argv: b.Command, URL: b.URL, Ask: b.RequiresApproval,
	})
	if err != nil {
		return nil, err
	}
	return &toolOutput{Body: ToolBody{tool(t)}}, nil
}
