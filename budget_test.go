package sojourn

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestCentsAreRoundedUp(t *testing.T) {
	for m, want := range map[Money]int64{
		0: 0, 1: 1, Cent - 1: 1, Cent: 1, Cent + 1: 2, 99 * Cent: 99, 99*Cent + 1: 100,
		math.MaxInt64: math.MaxInt64/int64(Cent) + 1,
	} {
		if got := m.CentsUp(); got != want {
			t.Errorf("%d micro-cents are %d cents, want %d", m, got, want)
		}
	}
}

func TestExhaustedNamesTheFirstLimitReached(t *testing.T) {
	all := Limits{Cost: 10 * Cent, Iterations: 3, Duration: time.Minute}
	for _, c := range []struct {
		name   string
		limits Limits
		usage  Usage
		want   Limit
	}{
		{"nothing used", all, Usage{}, ""},
		{"just below each limit", all, Usage{10*Cent - 1, 2, time.Minute - 1}, ""},
		{"cost reached", all, Usage{Cost: 10 * Cent}, LimitCost},
		{"cost passed", all, Usage{Cost: 11 * Cent}, LimitCost},
		{"iterations reached", all, Usage{Iterations: 3}, LimitIterations},
		{"duration reached", all, Usage{Duration: time.Minute}, LimitDuration},
		{"all reached: cost is named", all, Usage{10 * Cent, 3, time.Minute}, LimitCost},
		{"no limits", Limits{}, Usage{math.MaxInt64, math.MaxInt64, math.MaxInt64}, ""},
		{"a zero limit is no limit", Limits{Iterations: 3}, Usage{Cost: math.MaxInt64}, ""},
	} {
		if got := (Budget{c.limits, c.usage}).Exhausted(); got != c.want {
			t.Errorf("%s: Exhausted = %q, want %q", c.name, got, c.want)
		}
	}
}

// TestOvershootIsAtMostOneExecution is guarantee G8: work is admitted while no
// limit is reached and charged after, so that only the last execution can pass
// a limit.
func TestOvershootIsAtMostOneExecution(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Budget{Limits: Limits{Cost: Money(rapid.Int64Range(1, 1000).Draw(t, "limit"))}}
		last := Money(0)
		for b.Exhausted() == "" {
			last = Money(rapid.Int64Range(1, 300).Draw(t, "cost"))
			b = b.Charge(Charge{Cost: last})
		}
		if over := b.Usage.Cost - b.Limits.Cost; over >= last {
			t.Fatalf("passed the limit by %d with a last execution of %d", over, last)
		}
	})
}

func TestChargeNeitherRefundsNorWraps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		used, entry := rapid.Int64Range(0, math.MaxInt64), rapid.Int64()
		before := Budget{Usage: Usage{
			Money(used.Draw(t, "cost used")), used.Draw(t, "iterations used"), time.Duration(used.Draw(t, "duration used")),
		}}
		c := Charge{Money(entry.Draw(t, "cost")), entry.Draw(t, "iterations"), time.Duration(entry.Draw(t, "duration"))}
		after := before.Charge(c)
		for _, f := range []struct {
			name                   string
			before, entry, charged int64
		}{
			{"cost", int64(before.Usage.Cost), int64(c.Cost), int64(after.Usage.Cost)},
			{"iterations", before.Usage.Iterations, c.Iterations, after.Usage.Iterations},
			{"duration", int64(before.Usage.Duration), int64(c.Duration), int64(after.Usage.Duration)},
		} {
			want := new(big.Int).Add(big.NewInt(f.before), big.NewInt(max(0, f.entry)))
			if limit := big.NewInt(math.MaxInt64); want.Cmp(limit) > 0 {
				want = limit
			}
			if f.charged != want.Int64() {
				t.Fatalf("%s: %d charged with %d is %d, want %s", f.name, f.before, f.entry, f.charged, want)
			}
		}
		if after.Limits != before.Limits {
			t.Fatal("a charge changed the limits")
		}
	})
}

func TestRemainingIsNeverNegative(t *testing.T) {
	b := Budget{Limits: Limits{Cost: 10, Duration: time.Minute}, Usage: Usage{Cost: 3, Iterations: 7, Duration: time.Hour}}
	if got, want := b.Remaining(), (Limits{Cost: 7}); got != want {
		t.Errorf("Remaining = %+v, want %+v", got, want)
	}
}

func TestWarningAtItsThresholds(t *testing.T) {
	for used, want := range map[int64]int{0: 0, 79: 0, 80: 80, 94: 80, 95: 95, 100: 95, 1000: 95} {
		if got := (Budget{Limits{Iterations: 100}, Usage{Iterations: used}}).Warning(); got != want {
			t.Errorf("%d of 100 used: Warning = %d, want %d", used, got, want)
		}
	}
	mixed := Budget{Limits{Cost: 100, Iterations: 100, Duration: 100}, Usage{Cost: 10, Iterations: 96, Duration: 85}}
	if got := mixed.Warning(); got != 95 {
		t.Errorf("Warning = %d, want that of the most used limit, 95", got)
	}
	if got := (Budget{Usage: Usage{Cost: math.MaxInt64}}).Warning(); got != 0 {
		t.Errorf("without limits: Warning = %d, want 0", got)
	}
}

// TestWarningIsExact compares with whole numbers of any size, close to the
// thresholds, where floating point goes wrong.
func TestWarningIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, math.MaxInt64).Draw(t, "limit")
		percent := rapid.SampledFrom([]int64{80, 95}).Draw(t, "percent")
		edge := new(big.Int).Mul(big.NewInt(limit), big.NewInt(percent))
		used := max(0, edge.Div(edge, big.NewInt(100)).Int64()+rapid.Int64Range(-2, 2).Draw(t, "offset"))
		want := 0
		for _, p := range []int64{80, 95} {
			of := new(big.Int).Mul(big.NewInt(limit), big.NewInt(p))
			if new(big.Int).Mul(big.NewInt(used), big.NewInt(100)).Cmp(of) >= 0 {
				want = int(p)
			}
		}
		b := Budget{Limits{Duration: time.Duration(limit)}, Usage{Duration: time.Duration(used)}}
		if got := b.Warning(); got != want {
			t.Fatalf("%d of %d used: Warning = %d, want %d", used, limit, got, want)
		}
	})
}
