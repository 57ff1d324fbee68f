package client

import (
	"context"
	"net/http"
)

// Sandbox is what a session asks of its sandboxes. A zero field leaves the choice
// to the installation; what it cannot give is refused.
type Sandbox struct {
	Image     string         `json:"image,omitempty"`
	Isolation string         `json:"isolation,omitempty"` // container, gvisor or microvm
	Limits    *SandboxLimits `json:"limits,omitempty"`
	Network   *Network       `json:"network,omitempty"`
	Idle      string         `json:"idle,omitempty"` // destroy or snapshot
	// TimeoutSeconds is how long one sandbox of a session without an agent lives.
	TimeoutSeconds float64 `json:"timeoutSeconds,omitempty"`
}

// SandboxLimits bounds what one sandbox may use. Zero takes the installation's default.
type SandboxLimits struct {
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	DiskBytes   int64 `json:"diskBytes,omitempty"`
	MilliCPUs   int   `json:"milliCPUs,omitempty"` // 1000 is one core
	Processes   int   `json:"processes,omitempty"`
	OpenFiles   int   `json:"openFiles,omitempty"`
}

// Network is what sandboxes of a session may reach.
type Network struct {
	Mode        string   `json:"mode"`            // none, allow or open
	Allow       []string `json:"allow,omitempty"` // rules of the mode allow: HOST, HOST:PORT, *.DOMAIN
	Credentials []string `json:"credentials,omitempty"`
	Raw         bool     `json:"raw,omitempty"`
}

// SetNetwork changes what the sandboxes of a session may reach. It has taken
// effect when it returns.
func (c *Client) SetNetwork(ctx context.Context, id string, n Network) (Session, error) {
	var out sessionBody
	err := c.call(ctx, http.MethodPut, of(id, "network"), nil, n, &out)
	return out.Session, err
}

// Suspend saves what a session's sandbox holds and gives the sandbox back.
func (c *Client) Suspend(ctx context.Context, id string) (Session, error) {
	var out sessionBody
	err := c.call(ctx, http.MethodPost, of(id, "suspend"), nil, nil, &out)
	return out.Session, err
}

// Rotate replaces a session's sandbox by a fresh one that carries the work, and
// with processes the running processes, too. The code workspace_starting asks to
// call EnsureWorkspace. A session without an agent has only begun to rotate when
// this returns.
func (c *Client) Rotate(ctx context.Context, id string, processes bool) (Session, error) {
	var out sessionBody
	err := c.call(ctx, http.MethodPost, of(id, "rotate"), nil, map[string]bool{"processes": processes}, &out)
	return out.Session, err
}
