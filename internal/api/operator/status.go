package operator

import (
	"context"
	"net/http"

	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

// Status is what the server is and can do now.
type Status struct {
	Version       string    `json:"version"`
	StartedAt     api.Time  `json:"startedAt"`
	UptimeSeconds float64   `json:"uptimeSeconds"`
	Compute       Compute   `json:"compute"`
	Runtimes      []Runtime `json:"runtimes"`
	Limits        Limits    `json:"limits"`
}

// Compute is where sessions run.
type Compute struct {
	Available bool   `json:"available"`
	Driver    string `json:"driver,omitempty"`
	Isolation string `json:"isolation,omitempty"`
	Reason    string `json:"reason,omitempty" doc:"Why this driver was chosen, or why there is none."`
}

// Runtime is an agent program.
type Runtime struct {
	ID        string `json:"id"`
	Label     string `json:"label"`
	Available bool   `json:"available"`
	Reason    string `json:"reason,omitempty" doc:"Why it cannot be used."`
	Exact     bool   `json:"exact" doc:"Whether a restored conversation is the same to the model."`
	Default   bool   `json:"default,omitempty"`
}

// Limits are the numbers in force for new leases and captures.
type Limits struct {
	CeilingSeconds       float64 `json:"ceilingSeconds"`
	HoldSeconds          float64 `json:"holdSeconds"`
	TurnDeadlineSeconds  float64 `json:"turnDeadlineSeconds,omitempty"`
	WorkspaceMaxBytes    int64   `json:"workspaceMaxBytes"`
	ConversationMaxBytes int64   `json:"conversationMaxBytes"`
}

// StatusBody is the answer with the status.
type StatusBody struct {
	Status Status `json:"status"`
}

type statusOutput struct{ Body StatusBody }

func (h *handler) status(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "getStatus", Method: http.MethodGet, Path: "/operator/v1/status", Summary: "Read what the server is and can do",
	}, h.getStatus)
}

func (h *handler) getStatus(ctx context.Context, _ *struct{}) (*statusOutput, error) {
	c, err := h.engine.Capabilities(ctx)
	if err != nil {
		return nil, err
	}
	out := status(c)
	out.Version, out.StartedAt = h.config.Version, api.Instant(h.config.StartedAt)
	out.UptimeSeconds = h.engine.Now().Sub(h.config.StartedAt).Seconds()
	return &statusOutput{Body: StatusBody{out}}, nil
}

// status projects what the installation can do.
func status(c engine.Capabilities) Status {
	out := Status{
		Compute:  Compute{Available: c.Compute, Driver: c.Driver, Isolation: c.Isolation, Reason: c.ComputeReason},
		Runtimes: []Runtime{},
		Limits: Limits{
			CeilingSeconds: c.Ceiling.Seconds(), HoldSeconds: c.Hold.Seconds(), TurnDeadlineSeconds: c.TurnDeadline.Seconds(),
			WorkspaceMaxBytes: c.WorkspaceMaxBytes, ConversationMaxBytes: c.ConversationMaxBytes,
		},
	}
	for _, r := range c.Runtimes {
		out.Runtimes = append(out.Runtimes, Runtime{
			ID: r.ID, Label: r.Label, Available: r.Available, Reason: r.Reason, Exact: r.Exact, Default: r.Default,
		})
	}
	return out
}
