package client

import (
	"context"
	"net/http"
)

// BudgetLimits bounds what a session may use. Zero is no limit.
type BudgetLimits struct {
	CostMicroCents  int64   `json:"costMicroCents,omitempty"` // in millionths of a cent
	Iterations      int64   `json:"iterations,omitempty"`     // execs that were started
	DurationSeconds float64 `json:"durationSeconds,omitempty"`
}

// Budget is what a session may use and has used.
type Budget struct {
	Limits          BudgetLimits `json:"limits"`
	CostMicroCents  int64        `json:"costMicroCents"`
	Iterations      int64        `json:"iterations,omitempty"`
	DurationSeconds float64      `json:"durationSeconds,omitempty"`
	Remaining       *Remaining   `json:"remaining,omitempty"`
	ClockRunning    bool         `json:"clockRunning,omitempty"`
	Reached         string       `json:"reached,omitempty"` // the limit that is reached; "" for none
}

// Remaining is what is left under each limit; nil for a part without a limit.
type Remaining struct {
	CostMicroCents  *int64   `json:"costMicroCents,omitempty"`
	Iterations      *int64   `json:"iterations,omitempty"`
	DurationSeconds *float64 `json:"durationSeconds,omitempty"`
}

// BudgetChange changes limits of a budget: those that are not zero, and those
// that are to go.
type BudgetChange struct {
	BudgetLimits
	Unlimited []string `json:"unlimited,omitempty"` // cost, iterations, duration
}

// ChangeBudget changes what a session may use. What was used stays.
func (c *Client) ChangeBudget(ctx context.Context, id string, b BudgetChange) (Session, error) {
	var out sessionBody
	err := c.call(ctx, http.MethodPatch, of(id, "budget"), nil, b, &out)
	return out.Session, err
}
