package sojourn

import (
	"math"
	"math/bits"
	"time"
)

// Money is an amount in micro-cents: a millionth of a hundredth of the
// currency unit.
type Money int64

// Cents is one cent.
const Cent Money = 1_000_000

// CentsUp returns the amount in whole cents, rounded up, as bills show it.
func (m Money) CentsUp() int64 {
	c := int64(m / Cent)
	if m%Cent > 0 {
		c++
	}
	return c
}

// Limits bound what a session may use. A zero field is no limit.
type Limits struct {
	Cost       Money         `json:"cost,omitempty"`
	Iterations int64         `json:"iterations,omitempty"`
	Duration   time.Duration `json:"duration,omitempty"`
}

// Usage is what a session has used.
type Usage struct {
	Cost       Money         `json:"cost,omitempty"`
	Iterations int64         `json:"iterations,omitempty"`
	Duration   time.Duration `json:"duration,omitempty"`
}

// Charge is one entry against a budget, made after an execution.
type Charge struct {
	Cost       Money
	Iterations int64
	Duration   time.Duration
}

// Limit names a bound of a budget.
type Limit string

// The limits.
const (
	LimitCost       Limit = "cost"
	LimitIterations Limit = "iterations"
	LimitDuration   Limit = "duration"
)

// Budget is the limits of a session and what was used of them.
type Budget struct {
	Limits Limits `json:"limits,omitzero"`
	Usage  Usage  `json:"usage,omitzero"`
}

// Admit refuses work when a limit is reached. The code is budget_exceeded.
func (b Budget) Admit() error {
	if l := b.Exhausted(); l != "" {
		return Errorf(CodeBudgetExceeded, "The session has reached the %s limit of its budget.", l)
	}
	return nil
}

// Exhausted returns the first limit that the usage has reached, or "". Work is
// admitted while it returns "", so the overshoot is at most one execution.
func (b Budget) Exhausted() Limit {
	switch l, u := b.Limits, b.Usage; {
	case l.Cost > 0 && u.Cost >= l.Cost:
		return LimitCost
	case l.Iterations > 0 && u.Iterations >= l.Iterations:
		return LimitIterations
	case l.Duration > 0 && u.Duration >= l.Duration:
		return LimitDuration
	}
	return ""
}

// Charge returns the budget after c. Negative entries count as zero and sums
// stop at the largest value, so a hostile figure can neither refund nor wrap.
func (b Budget) Charge(c Charge) Budget {
	b.Usage.Cost = Money(addClamped(int64(b.Usage.Cost), int64(c.Cost)))
	b.Usage.Iterations = addClamped(b.Usage.Iterations, c.Iterations)
	b.Usage.Duration = time.Duration(addClamped(int64(b.Usage.Duration), int64(c.Duration)))
	return b
}

// Remaining returns what is left under each limit, never negative. A field
// whose limit is zero has no bound and is returned as zero.
func (b Budget) Remaining() Limits {
	return Limits{
		Cost:       max(0, b.Limits.Cost-b.Usage.Cost),
		Iterations: max(0, b.Limits.Iterations-b.Usage.Iterations),
		Duration:   max(0, b.Limits.Duration-b.Usage.Duration),
	}
}

// Warning returns the highest of the thresholds 80 and 95 (percent) that the
// usage has reached under any limit, or 0.
func (b Budget) Warning() int {
	highest := 0
	for _, p := range [...][2]int64{
		{int64(b.Usage.Cost), int64(b.Limits.Cost)},
		{b.Usage.Iterations, b.Limits.Iterations},
		{int64(b.Usage.Duration), int64(b.Limits.Duration)},
	} {
		for _, percent := range [...]int{80, 95} {
			if p[1] > 0 && reaches(p[0], p[1], percent) {
				highest = max(highest, percent)
			}
		}
	}
	return highest
}

// reaches reports whether used is at least percent of a limit above zero. It
// counts in 128 bits: a float would be off for the largest figures.
func reaches(used, limit int64, percent int) bool {
	usedHi, usedLo := bits.Mul64(uint64(max(0, used)), 100)
	limitHi, limitLo := bits.Mul64(uint64(limit), uint64(percent))
	return usedHi > limitHi || usedHi == limitHi && usedLo >= limitLo
}

func addClamped(a, b int64) int64 {
	b = max(0, b)
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
