package sojourn

import (
	"math"
	"math/bits"
	"time"
)

// ModelFailure says why a call of a model did not give a whole answer.
type ModelFailure string

// The failures of model calls.
const (
	ModelRefused     ModelFailure = "refused"     // it was not admitted, or asked for what there is not
	ModelUnreachable ModelFailure = "unreachable" // the provider could not be connected to
	ModelStatus      ModelFailure = "status"      // the provider answered with another status than 2xx
	ModelErrorEvent  ModelFailure = "error_event" // the provider reported an error in an answer that had begun
	ModelCut         ModelFailure = "cut"         // the answer ended before its end
	ModelTimeout     ModelFailure = "timeout"     // nothing came for too long
	ModelCancelled   ModelFailure = "cancelled"   // the agent went away
)

// ModelCall is what is known about one call of a model: no part of the question
// or of the answer. Counts are of the provider unless Estimated.
type ModelCall struct {
	API      string `json:"api"`      // anthropic, openai or gemini
	Model    string `json:"model"`    // as the agent named it
	Provider string `json:"provider"` // of the installation's configuration

	Status    int    `json:"status,omitempty"`    // of the provider's answer; 0 when there was none
	RequestID string `json:"requestId,omitempty"` // the provider's name for the call

	// InputTokens is the whole prompt: CachedTokens were read from the provider's
	// cache and CacheWriteTokens written to it. OutputTokens is all that was
	// generated, ReasoningTokens the part that the agent may not have seen.
	InputTokens      int64 `json:"inputTokens"`
	CachedTokens     int64 `json:"cachedTokens,omitempty"`
	CacheWriteTokens int64 `json:"cacheWriteTokens,omitempty"`
	OutputTokens     int64 `json:"outputTokens"`
	ReasoningTokens  int64 `json:"reasoningTokens,omitempty"`
	// Estimated reports that the provider did not say all of it, and the rest was
	// taken from sizes.
	Estimated bool `json:"estimated,omitempty"`

	CostMicroCents Money `json:"costMicroCents"`
	// Unpriced reports that the installation has no price for the model: the cost
	// is then 0.
	Unpriced bool `json:"unpriced,omitempty"`

	Started       time.Time     `json:"startedAt"`
	Duration      time.Duration `json:"durationNanos"`
	TTFT          time.Duration `json:"ttftNanos,omitempty"` // until the answer's first byte; 0 when none came
	RequestBytes  int64         `json:"requestBytes"`
	ResponseBytes int64         `json:"responseBytes"`

	Failure ModelFailure `json:"failure,omitempty"` // "" for a whole answer
	Error   string       `json:"error,omitempty"`   // a bounded sentence, without secrets
}

// ModelError is why the last call of a model in a run failed. Agents end turns as
// if nothing had happened after such a call; the run shows it all the same.
type ModelError struct {
	Status  int          `json:"status,omitempty"` // the provider's; 0 when it gave none
	Failure ModelFailure `json:"failure"`
	Message string       `json:"message"`
}

// err returns what a run remembers of the call; nil for a whole answer.
func (c ModelCall) err() *ModelError {
	if c.Failure == "" {
		return nil
	}
	return &ModelError{Status: c.Status, Failure: c.Failure, Message: c.Error}
}

// ModelPrice is what a million tokens cost. A zero price of cached tokens stands
// for that of other input.
type ModelPrice struct {
	Input      Money
	Cached     Money // input that was read from the cache
	CacheWrite Money // input that was written to the cache
	Output     Money
}

// tokensPriced is the number of tokens that prices are for.
const tokensPriced = 1_000_000

// Cost returns what the call costs, rounded up once to a micro-cent. Counts and
// prices below zero are taken for zero, cached input beyond the input is not
// charged, and the sum stops at the largest amount.
func (p ModelPrice) Cost(c ModelCall) Money {
	input := max(0, c.InputTokens)
	cached := min(max(0, c.CachedTokens), input)
	written := min(max(0, c.CacheWriteTokens), input-cached)
	var hi, lo uint64
	for _, part := range [...]struct {
		tokens int64
		price  Money
	}{
		{input - cached - written, p.Input},
		{cached, orInput(p.Cached, p.Input)},
		{written, orInput(p.CacheWrite, p.Input)},
		{max(0, c.OutputTokens), p.Output},
	} {
		h, l := bits.Mul64(uint64(part.tokens), uint64(max(0, part.price)))
		var carry uint64
		lo, carry = bits.Add64(lo, l, 0)
		hi += h + carry // four products of 63 bits each fit in 128
	}
	if hi >= tokensPriced {
		return math.MaxInt64
	}
	cost, rest := bits.Div64(hi, lo, tokensPriced)
	if cost >= math.MaxInt64 {
		return math.MaxInt64
	}
	if rest > 0 {
		cost++
	}
	return Money(cost)
}

func orInput(price, input Money) Money {
	if price == 0 {
		return input
	}
	return price
}

// NoteModelCall records a call of a model from the sandbox of epoch, and what the
// active run remembers of it. A call that the agent itself gave up says nothing
// about the model.
func (d *Decision) NoteModelCall(epoch int64, c ModelCall) {
	turn, run := TurnID(""), RunID("")
	if r := d.facts.Active; r != nil && r.Epoch == epoch {
		turn, run = r.Turn, r.ID
		if why := c.err(); c.Failure != ModelCancelled && !sameError(why, r.ModelError) {
			next := *r
			next.ModelError = why
			d.putRun(next)
		}
	}
	d.emit(EventModelCalled, turn, run, modelCalled{Epoch: epoch, ModelCall: c})
	d.charge(Charge{Cost: c.CostMicroCents}, turn, run)
}

// modelCalled is the payload of the event.
type modelCalled struct {
	Epoch int64 `json:"epoch"`
	ModelCall
}

func sameError(a, b *ModelError) bool { return a == b || a != nil && b != nil && *a == *b }

// AdmitModelCall refuses a call of a model from the sandbox of epoch. The codes are
// session_archived, workspace_expired and budget_exceeded.
func (f Facts) AdmitModelCall(epoch int64, now time.Time) error {
	if f.Session.Archived() {
		return Errorf(CodeSessionArchived, "The session is archived, and calls no models any more.")
	}
	l := f.Lease
	if l == nil || l.Epoch != epoch || l.State != LeaseDraining && !l.Live(now) {
		return Errorf(CodeWorkspaceExpired, "The lease of this sandbox has ended, and with it its access to models.")
	}
	return f.Session.BudgetAt(now).Admit()
}
