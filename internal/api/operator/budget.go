package operator

import "github.com/sojourn-dev/sojourn"

// BudgetLimits bounds what a session may use. Work is admitted below a limit, so
// that at most what is under way goes beyond it.
type BudgetLimits struct {
	CostMicroCents int64 `json:"costMicroCents,omitempty" minimum:"0" doc:"Of calls of models, in millionths of a cent; 0 is no limit."`
}

// Budget is what a session may use and has used.
type Budget struct {
	Limits         BudgetLimits `json:"limits"`
	CostMicroCents int64        `json:"costMicroCents" doc:"What was used."`
	Reached        string       `json:"reached,omitempty" doc:"The limit that is reached: no more work is admitted."`
}

func (l *BudgetLimits) limits() sojourn.Limits {
	if l == nil {
		return sojourn.Limits{}
	}
	return sojourn.Limits{Cost: sojourn.Money(l.CostMicroCents)}
}

// budgetOf shows a session's budget; nil when there is nothing to say.
func budgetOf(b sojourn.Budget) *Budget {
	if b == (sojourn.Budget{}) {
		return nil
	}
	return &Budget{
		Limits: BudgetLimits{CostMicroCents: int64(b.Limits.Cost)}, CostMicroCents: int64(b.Usage.Cost),
		Reached: string(b.Exhausted()),
	}
}
