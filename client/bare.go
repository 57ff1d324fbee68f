package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// RotationTerms is how the sandboxes of a session without an agent are replaced.
type RotationTerms struct {
	BufferSeconds     float64  `json:"bufferSeconds,omitempty"`
	Processes         bool     `json:"processes,omitempty"`
	Hook              []string `json:"hook,omitempty"`
	CheckpointSeconds float64  `json:"checkpointSeconds,omitempty"`
	NoIdleCheckpoint  bool     `json:"noIdleCheckpoint,omitempty"`
}

// Rotation is how the sandboxes of a session are replaced, and what is known of it.
type Rotation struct {
	RotationTerms
	Count   int64      `json:"count"`
	LastAt  *time.Time `json:"lastAt,omitempty"`
	NextAt  *time.Time `json:"nextAt,omitempty"`
	BegunAt *time.Time `json:"begunAt,omitempty"` // nil unless one is under way
	Why     string     `json:"why,omitempty"`     // timeout, requested or sandbox_lost
	Tries   int        `json:"tries,omitempty"`
	Lost    *Loss      `json:"lost,omitempty"`
}

// Loss says which files a sandbox that was lost took with it: those written since.
type Loss struct {
	Epoch int64     `json:"epoch"`
	Since time.Time `json:"since"`
	At    time.Time `json:"at"`
}

// SessionClient is a caller's own handle of a session, and its last sign of life.
type SessionClient struct {
	ID              string     `json:"id,omitempty"`
	OnAbandon       string     `json:"onAbandon,omitempty"`
	Attached        bool       `json:"attached"`
	LastHeartbeatAt *time.Time `json:"lastHeartbeatAt,omitempty"`
	NextHeartbeatBy *time.Time `json:"nextHeartbeatBy,omitempty"`
	LostAt          *time.Time `json:"lostAt,omitempty"`
}

// Ending is why and when a session without an agent was closed.
type Ending struct {
	Reason string    `json:"reason"`
	Limit  string    `json:"limit,omitempty"`
	Text   string    `json:"text,omitempty"`
	At     time.Time `json:"at"`
}

// post makes a call that answers with the session.
func (c *Client) post(ctx context.Context, id, verb string, in any) (Session, error) {
	var out sessionBody
	err := c.call(ctx, http.MethodPost, of(id, verb), nil, in, &out)
	return out.Session, err
}

// StartSession starts a session without an agent. Its sandbox may still be coming
// up when this returns.
func (c *Client) StartSession(ctx context.Context, id string) (Session, error) {
	return c.post(ctx, id, "start", nil)
}

// PauseSession holds a session: its sandbox is given back, its clock stands still.
func (c *Client) PauseSession(ctx context.Context, id string) (Session, error) {
	return c.post(ctx, id, "pause", nil)
}

// ResumeSession lets a paused session go on.
func (c *Client) ResumeSession(ctx context.Context, id string) (Session, error) {
	return c.post(ctx, id, "resume", nil)
}

// StopSession ends a session in good order. reason is for the record.
func (c *Client) StopSession(ctx context.Context, id, reason string) (Session, error) {
	return c.post(ctx, id, "stop", map[string]string{"reason": reason})
}

// CancelSession ends a session and kills what runs.
func (c *Client) CancelSession(ctx context.Context, id string) (Session, error) {
	return c.post(ctx, id, "cancel", nil)
}

// Heartbeat says that the session's client is there.
func (c *Client) Heartbeat(ctx context.Context, id string) (Session, error) {
	return c.post(ctx, id, "heartbeat", nil)
}

// DeleteSession deletes a session that has ended, with all that it has left.
func (c *Client) DeleteSession(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, of(id), nil, nil, nil)
}

// Reattach returns the live session of a client, and says that it is there.
func (c *Client) Reattach(ctx context.Context, client string) (Session, error) {
	var out sessionBody
	err := c.call(ctx, http.MethodPost, "/sessions/reattach", nil, map[string]string{"clientId": client}, &out)
	return out.Session, err
}

// Carryover is what execs start from in every sandbox of a session.
type Carryover struct {
	Dir       string                     `json:"dir,omitempty"` // "" means the workspace
	Env       map[string]string          `json:"env"`
	Custom    map[string]json.RawMessage `json:"custom"`
	UpdatedAt *time.Time                 `json:"updatedAt,omitempty"`
}

// CarryoverPatch changes a carryover as a JSON merge patch does.
type CarryoverPatch struct {
	Dir      *string                    `json:"dir,omitempty"` // nil leaves it
	Env      map[string]string          `json:"env,omitempty"`
	UnsetEnv []string                   `json:"unsetEnv,omitempty"`
	Custom   map[string]json.RawMessage `json:"custom,omitempty"` // null forgets
}

type carryoverBody struct{ Context Carryover }

// Carryover returns what a session's execs start from.
func (c *Client) Carryover(ctx context.Context, id string) (Carryover, error) {
	var out carryoverBody
	err := c.call(ctx, http.MethodGet, of(id, "context"), nil, nil, &out)
	return out.Context, err
}

// ChangeCarryover changes what a session's execs start from.
func (c *Client) ChangeCarryover(ctx context.Context, id string, p CarryoverPatch) (Carryover, error) {
	var out carryoverBody
	err := c.call(ctx, http.MethodPatch, of(id, "context"), nil, p, &out)
	return out.Context, err
}

// Tool is something that callers can run by name: a command or an address.
type Tool struct {
	Name             string          `json:"name"`
	Description      string          `json:"description,omitempty"`
	InputSchema      json.RawMessage `json:"inputSchema,omitempty"`
	Command          []string        `json:"command,omitempty"`
	URL              string          `json:"url,omitempty"`
	RequiresApproval bool            `json:"requiresApproval,omitempty"`
	UpdatedAt        *time.Time      `json:"updatedAt,omitempty"`
}

// Tools returns the tools of a session, by name.
func (c *Client) Tools(ctx context.Context, id string) ([]Tool, error) {
	var out struct{ Tools []Tool }
	err := c.call(ctx, http.MethodGet, of(id, "tools"), nil, nil, &out)
	return out.Tools, err
}

// RegisterTool registers a tool, in place of one of the same name.
func (c *Client) RegisterTool(ctx context.Context, id string, t Tool) (Tool, error) {
	var out struct{ Tool Tool }
	err := c.call(ctx, http.MethodPost, of(id, "tools"), nil, t, &out)
	return out.Tool, err
}
