package exec

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// Tool is something that can be run by name.
type Tool struct {
	Name             string          `json:"name" minLength:"1" maxLength:"64"`
	Description      string          `json:"description,omitempty" maxLength:"4096"`
	InputSchema      json.RawMessage `json:"inputSchema,omitempty" doc:"A JSON Schema that each input must satisfy."`
	Command          *Argv           `json:"command,omitempty" doc:"Gets the input as JSON on its stdin; or"`
	URL              string          `json:"url,omitempty" maxLength:"2048" doc:"gets it as the body of a POST, made from the sandbox."`
	RequiresApproval bool            `json:"requiresApproval,omitempty" doc:"Each call waits until it is approved."`
}

// RegisteredTool is a tool as a session has it.
type RegisteredTool struct {
	Tool
	UpdatedAt api.Time `json:"updatedAt"`
}

func toolOf(t sojourn.Tool) RegisteredTool {
	out := RegisteredTool{Tool: Tool{
		Name: t.Name, Description: t.Description, InputSchema: t.InputSchema, URL: t.URL, RequiresApproval: t.Ask,
	}, UpdatedAt: api.Instant(t.UpdatedAt)}
	if len(t.Argv) > 0 {
		out.Command = &Argv{args: t.Argv}
	}
	return out
}

type toolInput struct {
	api.SessionPath
	Body Tool
}

// ToolBody is an answer with one tool.
type ToolBody struct {
	Tool RegisteredTool `json:"tool"`
}

type toolOutput struct{ Body ToolBody }

// ToolsBody lists tools, by name.
type ToolsBody struct {
	Tools []RegisteredTool `json:"tools"`
}

type toolsOutput struct{ Body ToolsBody }

func (h *handler) tools(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "registerTool", Method: http.MethodPost, Path: sessionPath + "/tools", Status: http.StatusCreated,
		Scope: ScopeWrite, Summary: "Register an agent tool",
		Description: "In place of one of the same name. Tools are carried across rotations and called through exec, with tool and input.",
	}, h.registerTool)
	api.Register(s, api.Operation{
		ID: "listTools", Method: http.MethodGet, Path: sessionPath + "/tools",
		Scope: ScopeRead, Summary: "List the tools of a session",
	}, h.listTools)
}

func (h *handler) registerTool(ctx context.Context, in *toolInput) (*toolOutput, error) {
	b := in.Body
	t := sojourn.Tool{
		Name: b.Name, Description: b.Description, InputSchema: b.InputSchema, URL: b.URL, Ask: b.RequiresApproval,
	}
	if isNull(t.InputSchema) {
		t.InputSchema = nil
	}
	if b.Command != nil {
		t.Argv = b.Command.args
	}
	t, err := h.engine.RegisterTool(ctx, ref(ctx, in.SessionID), t)
	if err != nil {
		return nil, err
	}
	return &toolOutput{Body: ToolBody{toolOf(t)}}, nil
}

func (h *handler) listTools(ctx context.Context, in *api.SessionPath) (*toolsOutput, error) {
	found, err := h.engine.Tools(ctx, ref(ctx, in.SessionID))
	if err != nil {
		return nil, err
	}
	out := &toolsOutput{Body: ToolsBody{Tools: []RegisteredTool{}}}
	for _, t := range found {
		out.Body.Tools = append(out.Body.Tools, toolOf(t))
	}
	return out, nil
}
