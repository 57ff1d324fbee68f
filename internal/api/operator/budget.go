package operator

import (
	"context"
	"math"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// BudgetLimits bounds what a session may use. Work is admitted below every limit,
// so that at most what is under way goes beyond one.
type BudgetLimits struct {
	CostMicroCents  int64   `json:"costMicroCents,omitempty" minimum:"1" doc:"Of execs and calls of models, in millionths of a cent; absent is no limit, as for the others."`
	Iterations      int64   `json:"iterations,omitempty" minimum:"1" doc:"Execs that were started."`
	DurationSeconds float64 `json:"durationSeconds,omitempty" minimum:"1" doc:"While the session is open: a paused one uses none."`
}

// Remaining is what is left under each limit; a part without a limit is absent.
type Remaining struct {
	CostMicroCents  *int64   `json:"costMicroCents,omitempty"`
	Iterations      *int64   `json:"iterations,omitempty"`
	DurationSeconds *float64 `json:"durationSeconds,omitempty"`
}

// Budget is what a session may use and has used.
type Budget struct {
	Limits          BudgetLimits `json:"limits"`
	CostMicroCents  int64        `json:"costMicroCents" doc:"What was used."`
	Iterations      int64        `json:"iterations,omitempty"`
	DurationSeconds float64      `json:"durationSeconds,omitempty"`
	Remaining       *Remaining   `json:"remaining,omitempty" doc:"Absent when there is no limit."`
	ClockRunning    bool         `json:"clockRunning,omitempty" doc:"Whether time is being used."`
	Reached         string       `json:"reached,omitempty" doc:"The limit that is reached: no more work is admitted."`
}

func (l *BudgetLimits) limits() sojourn.Limits {
	if l == nil {
		return sojourn.Limits{}
	}
	return sojourn.Limits{Cost: sojourn.Money(l.CostMicroCents), Iterations: l.Iterations, Duration: seconds(l.DurationSeconds)}
}

// seconds is a duration on the wire, as far as one can be counted.
func seconds(s float64) time.Duration {
	if s >= math.MaxInt64/float64(time.Second) {
		return math.MaxInt64
	}
	return time.Duration(s * float64(time.Second)).Round(time.Microsecond)
}

// budgetOf shows a session's budget at now; nil when there is nothing to say.
func budgetOf(f sojourn.Facts, now time.Time) *Budget {
	s, b := f.Session, f.BudgetAt(now)
	if b == (sojourn.Budget{}) {
		return nil
	}
	l, u, left := b.Limits, b.Usage, b.Remaining()
	out := &Budget{
		Limits:         BudgetLimits{int64(l.Cost), l.Iterations, l.Duration.Seconds()},
		CostMicroCents: int64(u.Cost), Iterations: u.Iterations, DurationSeconds: u.Duration.Round(time.Millisecond).Seconds(),
		ClockRunning: !s.ClockAt.IsZero(), Reached: string(b.Exhausted()),
	}
	if l == (sojourn.Limits{}) {
		return out
	}
	out.Remaining = &Remaining{}
	if l.Cost > 0 {
		out.Remaining.CostMicroCents = new(int64(left.Cost))
	}
	if l.Iterations > 0 {
		out.Remaining.Iterations = new(left.Iterations)
	}
	if l.Duration > 0 {
		out.Remaining.DurationSeconds = new(left.Duration.Round(time.Millisecond).Seconds())
	}
	return out
}

// ChangeBudgetBody changes limits of a budget. What it leaves out stays.
type ChangeBudgetBody struct {
	BudgetLimits
	Unlimited []string `json:"unlimited,omitempty" enum:"cost,iterations,duration" maxItems:"3" doc:"The limits to take away."`
}

type changeBudgetInput struct {
	api.SessionPath
	Body ChangeBudgetBody
}

// over returns the limits l as the change leaves them.
func (c ChangeBudgetBody) over(l sojourn.Limits) sojourn.Limits {
	for _, which := range c.Unlimited {
		switch sojourn.Limit(which) {
		case sojourn.LimitCost:
			l.Cost = 0
		case sojourn.LimitIterations:
			l.Iterations = 0
		case sojourn.LimitDuration:
			l.Duration = 0
		}
	}
	given := c.limits()
	if given.Cost > 0 {
		l.Cost = given.Cost
	}
	if given.Iterations > 0 {
		l.Iterations = given.Iterations
	}
	if given.Duration > 0 {
		l.Duration = given.Duration
	}
	return l
}

func (h *handler) changeBudget(ctx context.Context, in *changeBudgetInput) (*sessionOutput, error) {
	at := ref(ctx, in.SessionID)
	return h.sessionOutput(h.engine.SetBudget(ctx, at, in.Body.over))
}
