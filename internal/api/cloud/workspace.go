package cloud

import (
	"context"
	"net/http"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

// Placement says whose capacity runs the sessions.
type Placement string

// The placements.
const (
	Managed    Placement = "managed"     // of whoever runs this server
	SelfHosted Placement = "self_hosted" // the organization's own machines
	Owned      Placement = "owned"       // the organization's, at a hosted provider
)

// Capabilities is what a caller can discover.
type Capabilities struct {
	Environments []Environment `json:"environments" minItems:"1" maxItems:"1" doc:"Exactly one: the sandbox platform."`
	Runtimes     []Runtime     `json:"runtimes" doc:"Every agent program that the server knows."`
	Artifacts    Artifacts     `json:"artifacts"`
	Limits       Limits        `json:"limits"`
}

// Environment is the sandbox platform.
type Environment struct {
	ID           string               `json:"id" enum:"managed"`
	Label        string               `json:"label" enum:"WAMP managed sandbox,Organization self-hosted runner,Organization-owned managed sandbox,No compute configured"`
	Availability Availability         `json:"availability"`
	Default      bool                 `json:"default"`
	Runtimes     []string             `json:"runtimes" doc:"The usable runtimes."`
	Workspace    EnvironmentWorkspace `json:"workspace"`
}

// Availability is the field to branch on.
type Availability struct {
	State string `json:"state" enum:"available,not_configured"`
}

// EnvironmentWorkspace says how workspaces are carried.
type EnvironmentWorkspace struct {
	Checkpoint         string `json:"checkpoint" enum:"portable_tree"`
	MaxCheckpointBytes int64  `json:"maxCheckpointBytes"`
}

// Runtime is an agent program.
type Runtime struct {
	ID           string       `json:"id"`
	Label        string       `json:"label"`
	Availability Availability `json:"availability"`
	Conversation string       `json:"conversation" enum:"exact,none" doc:"How faithfully a restored conversation continues."`
	Default      bool         `json:"default,omitempty"`
}

// Artifacts are the ceilings of what is captured.
type Artifacts struct {
	ConversationCheckpointMaxBytes int64 `json:"conversationCheckpointMaxBytes"`
	WorkspaceCheckpointMaxBytes    int64 `json:"workspaceCheckpointMaxBytes"`
}

// Limits are the numbers in force for new leases and requests.
type Limits struct {
	LeaseCeilingSeconds float64 `json:"leaseCeilingSeconds"`
	IdleHoldSeconds     float64 `json:"idleHoldSeconds"`
	TurnDeadlineSeconds float64 `json:"turnDeadlineSeconds,omitempty" doc:"Absent when a turn is bounded by the lease alone."`
	MaxInputParts       int     `json:"maxInputParts"`
	MaxInputBytes       int     `json:"maxInputBytes"`
	MaxRequestBytes     int     `json:"maxRequestBytes"`
}

// CapabilitiesBody is the answer to discovery.
type CapabilitiesBody struct {
	Capabilities Capabilities `json:"capabilities"`
}

type capabilitiesOutput struct{ Body CapabilitiesBody }

func (h *handler) workspace(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "ensureWorkspace", Method: http.MethodPut, Path: "/v1/sessions/{sessionId}/workspace",
		Scope: ScopeTurnsSubmit, Summary: "Bring a session's workspace back",
		Description: "Takes no body. Provisions a fresh sandbox and replays the session's checkpoint into it; a session that still holds a usable lease comes back unchanged. " +
			"Refused when continuation.canContinue is false. When it takes longer than the server waits, the answer is 503 with Retry-After while provisioning goes on.",
	}, h.ensureWorkspace)
	api.Register(s, api.Operation{
		ID: "getCapabilities", Method: http.MethodGet, Path: "/v1/capabilities",
		Scope: ScopeSessionsRead, Summary: "Discover the compute, the runtimes and the limits",
	}, h.getCapabilities)
}

func (h *handler) ensureWorkspace(ctx context.Context, in *api.SessionPath) (*sessionOutput, error) {
	f, err := h.engine.EnsureWorkspace(ctx, ref(ctx, in.SessionID), h.config.WorkspaceWait)
	if sojourn.CodeOf(err) == sojourn.CodeSessionArchived {
		// An archived session cannot continue, and this call has one answer to
		// every session that cannot.
		err = &sojourn.Error{
			Code: sojourn.CodeResumeUnavailable, Details: map[string]string{"reason": string(sojourn.ReasonSessionArchived)},
			Message: "The session is archived: it gets no workspace any more.",
		}
	}
	return h.sessionOutput(f, err)
}

func (h *handler) getCapabilities(ctx context.Context, _ *struct{}) (*capabilitiesOutput, error) {
	c, err := h.engine.Capabilities(ctx)
	if err != nil {
		return nil, err
	}
	return &capabilitiesOutput{Body: CapabilitiesBody{capabilities(c, h.config.Placement)}}, nil
}

// available projects whether something can be used.
func available(yes bool) Availability {
	if yes {
		return Availability{State: "available"}
	}
	return Availability{State: "not_configured"}
}

// label names the capacity that sessions run on.
func label(compute bool, p Placement) string {
	switch {
	case !compute:
		return "No compute configured"
	case p == SelfHosted:
		return "Organization self-hosted runner"
	case p == Owned:
		return "Organization-owned managed sandbox"
	}
	return "WAMP managed sandbox"
}

// capabilities projects what the installation can do.
func capabilities(c engine.Capabilities, p Placement) Capabilities {
	env := Environment{
		ID: "managed", Label: label(c.Compute, p), Availability: available(c.Compute), Default: true, Runtimes: []string{},
		Workspace: EnvironmentWorkspace{
			Checkpoint: string(sojourn.FidelityPortableTree), MaxCheckpointBytes: c.WorkspaceMaxBytes,
		},
	}
	out := Capabilities{
		Runtimes: []Runtime{},
		Artifacts: Artifacts{
			ConversationCheckpointMaxBytes: c.ConversationMaxBytes, WorkspaceCheckpointMaxBytes: c.WorkspaceMaxBytes,
		},
		Limits: Limits{
			LeaseCeilingSeconds: c.Ceiling.Seconds(), IdleHoldSeconds: c.Hold.Seconds(),
			TurnDeadlineSeconds: c.TurnDeadline.Seconds(), MaxInputParts: sojourn.MaxInputParts,
			MaxInputBytes: sojourn.MaxInputBytes, MaxRequestBytes: api.MaxBodyBytes,
		},
	}
	for _, r := range c.Runtimes {
		carried := sojourn.FidelityNone
		if r.Exact {
			carried = sojourn.FidelityExact
		}
		out.Runtimes = append(out.Runtimes, Runtime{
			ID: r.ID, Label: r.Label, Availability: available(r.Available), Conversation: string(carried), Default: r.Default,
		})
		if r.Available && c.Compute {
			env.Runtimes = append(env.Runtimes, r.ID)
		}
	}
	out.Environments = []Environment{env}
	return out
}
