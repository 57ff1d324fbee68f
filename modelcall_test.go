package sojourn

import (
	"math"
	"math/big"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestModelCostIsExactAndRoundedUpOnce(t *testing.T) {
	price := ModelPrice{Input: 300 * Cent, Cached: 30 * Cent, CacheWrite: 375 * Cent, Output: 1500 * Cent}
	for _, c := range []struct {
		name  string
		price ModelPrice
		call  ModelCall
		want  Money
	}{
		{"nothing", price, ModelCall{}, 0},
		{"one token of each", price, ModelCall{InputTokens: 3, CachedTokens: 1, CacheWriteTokens: 1, OutputTokens: 1}, 300 + 30 + 375 + 1500},
		{"reasoning is in the output", price, ModelCall{OutputTokens: 2, ReasoningTokens: 2}, 3000},
		{"rounded up", ModelPrice{Input: 1}, ModelCall{InputTokens: 1}, 1},
		{"rounded once", ModelPrice{Input: 1, Output: 1}, ModelCall{InputTokens: 1, OutputTokens: 1}, 1},
		{"no rounding of what is whole", ModelPrice{Input: 1}, ModelCall{InputTokens: tokensPriced}, 1},
		{"cached at the input's price", ModelPrice{Input: 1_000_000}, ModelCall{InputTokens: 5, CachedTokens: 3, CacheWriteTokens: 2}, 5},
		{"cached beyond the input", price, ModelCall{InputTokens: 1, CachedTokens: 9, CacheWriteTokens: 9}, 30},
		{"negative counts", price, ModelCall{InputTokens: -5, CachedTokens: -1, OutputTokens: -7}, 0},
		{"beyond the largest amount", ModelPrice{Input: math.MaxInt64}, ModelCall{InputTokens: math.MaxInt64}, math.MaxInt64},
	} {
		if got := c.price.Cost(c.call); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestModelCostAgreesWithBigIntegers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.Int64Range(0, math.MaxInt64)
		p := ModelPrice{
			Input: Money(count.Draw(t, "input price")), Cached: Money(rapid.Int64Range(1, math.MaxInt64).Draw(t, "cached price")),
			CacheWrite: Money(rapid.Int64Range(1, math.MaxInt64).Draw(t, "write price")), Output: Money(count.Draw(t, "output price")),
		}
		c := ModelCall{InputTokens: count.Draw(t, "input"), OutputTokens: count.Draw(t, "output")}
		c.CachedTokens = rapid.Int64Range(0, c.InputTokens).Draw(t, "cached")
		c.CacheWriteTokens = rapid.Int64Range(0, c.InputTokens-c.CachedTokens).Draw(t, "written")
		sum := new(big.Int)
		for _, x := range [][2]int64{
			{c.InputTokens - c.CachedTokens - c.CacheWriteTokens, int64(p.Input)},
			{c.CachedTokens, int64(p.Cached)},
			{c.CacheWriteTokens, int64(p.CacheWrite)},
			{c.OutputTokens, int64(p.Output)},
		} {
			sum.Add(sum, new(big.Int).Mul(big.NewInt(x[0]), big.NewInt(x[1])))
		}
		sum.Add(sum, big.NewInt(tokensPriced-1)).Div(sum, big.NewInt(tokensPriced))
		want := int64(math.MaxInt64)
		if sum.IsInt64() {
			want = sum.Int64()
		}
		if got := p.Cost(c); int64(got) != want {
			t.Fatalf("%+v of %+v costs %d, want %d", c, p, got, want)
		}
	})
}

// TestEndTurnHidesNoModelFailure: agents end turns with end_turn although their
// last call of the model has failed.
func TestEndTurnHidesNoModelFailure(t *testing.T) {
	failed := ModelCall{Status: 529, Failure: ModelStatus, Error: "overloaded"}
	for _, c := range []struct {
		name  string
		calls []ModelCall
		epoch int64
		shown bool
	}{
		{"no call", nil, 1, false},
		{"the only call failed", []ModelCall{failed}, 1, true},
		{"the last call failed", []ModelCall{{}, failed}, 1, true},
		{"a retry gave an answer", []ModelCall{failed, {}}, 1, false},
		{"the agent gave up another", []ModelCall{failed, {Failure: ModelCancelled}}, 1, true},
		{"only given up", []ModelCall{{Failure: ModelCancelled}}, 1, false},
		{"from an older sandbox", []ModelCall{failed}, 0, false},
	} {
		f := scene(t, RunActive, LeaseHeld)
		for _, call := range c.calls {
			d := decideOn(t, f, func(d *Decision) error { d.NoteModelCall(c.epoch, call); return nil })
			e := d.Change().Events
			if len(e) != 1 || e[0].Type != EventModelCalled || (e[0].Run == theRun) != (c.epoch == 1) {
				t.Errorf("%s: events %+v, want one model.called of the run it belongs to", c.name, e)
			}
			f = d.Facts()
		}
		f = must(t, f, noon.Add(2*time.Minute), func(d *Decision) error { return d.FinishRun(theRun, RunCompleted, "end_turn") })
		d := f.Decide(noon.Add(3 * time.Minute))
		if err := d.EndRun(theRun, RunCompleted, "", nil); err != nil {
			t.Fatal(err)
		}
		events := d.Change().Events
		p := payload(t, events[len(events)-1])
		m, shown := p["modelError"].(map[string]any)
		if shown != c.shown {
			t.Errorf("%s: run.completed says %v, want a modelError: %v", c.name, p, c.shown)
		}
		if shown && (m["status"] != 529.0 || m["message"] != "overloaded" || m["failure"] != "status") {
			t.Errorf("%s: modelError is %v", c.name, m)
		}
	}
}

func TestModelsAreForTheSandboxThatIsHeld(t *testing.T) {
	for lease, want := range map[LeaseState]Code{
		"": CodeWorkspaceExpired, LeaseRequested: CodeWorkspaceExpired, LeaseHeld: "", LeaseDraining: "",
		LeaseReleased: CodeWorkspaceExpired, LeaseExpired: CodeWorkspaceExpired, LeaseLost: CodeWorkspaceExpired,
	} {
		refused(t, "under a lease that is "+orNone(string(lease)), scene(t, "", lease).AdmitModelCall(1, noon.Add(time.Minute)), want)
	}
	f := scene(t, "", LeaseHeld)
	refused(t, "under another epoch", f.AdmitModelCall(2, noon.Add(time.Minute)), CodeWorkspaceExpired)
	refused(t, "after the hold", f.AdmitModelCall(1, noon.Add(48*time.Hour)), CodeWorkspaceExpired)
	archived := must(t, scene(t, "", ""), noon.Add(time.Minute), (*Decision).Archive)
	refused(t, "when archived", archived.AdmitModelCall(1, noon.Add(time.Minute)), CodeSessionArchived)
}

// TestCallsOfModelsAreChargedAndBounded: a call is admitted below the limit,
// charged once it has ended, and the one that goes beyond is the last (G8).
func TestCallsOfModelsAreChargedAndBounded(t *testing.T) {
	f := Facts{Session: Session{ID: "s", State: SessionOpen, LastEpoch: 1, Budget: Budget{Limits: Limits{Cost: 100}}}}
	f.Lease = &Lease{
		Session: "s", Epoch: 1, State: LeaseHeld, GrantedAt: noon, TouchedAt: noon, Ceiling: DefaultCeiling, Hold: DefaultHold,
	}
	var told []EventType
	call := func(cost Money) {
		t.Helper()
		if err := f.AdmitModelCall(1, noon); err != nil {
			t.Fatalf("a call was refused at %d of 100: %v", f.Session.Budget.Usage.Cost, err)
		}
		d := f.Decide(noon)
		d.NoteModelCall(1, ModelCall{CostMicroCents: cost})
		f = d.Facts()
		for _, e := range d.Change().Events {
			if e.Type != EventModelCalled {
				told = append(told, e.Type)
			}
		}
	}
	call(79)
	call(1)  // 80: a warning
	call(14) // 94
	call(5)  // 99: another
	call(50) // the overshoot
	if want := []EventType{EventBudgetWarning, EventBudgetWarning, EventBudgetReached}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
	if got := f.Session.Budget.Usage.Cost; got != 149 {
		t.Errorf("charged %d, want 149", got)
	}
	if err := f.AdmitModelCall(1, noon); CodeOf(err) != CodeBudgetExceeded {
		t.Errorf("a call beyond the limit: %v", err)
	}
	if err := f.Decide(noon).Submit("t", "r", hello); CodeOf(err) != CodeBudgetExceeded {
		t.Errorf("a turn beyond the limit: %v", err)
	}
}
