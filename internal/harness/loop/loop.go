package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/model"
)

// The codes of outcomes. Each is stable and names what went wrong.
const (
	CodeModelError    = "model_error"        // the model's server refused or failed, in its own words
	CodeModelUnknown  = "model_unavailable"  // no model of that name is configured
	CodeModelChanged  = "model_api_changed"  // the conversation is in another API's items
	CodeContextFull   = "context_full"       // the conversation is too long, even summarised
	CodeNotStored     = "conversation_error" // the conversation could not be written to the sandbox
	CodeTurnDeadline  = sojourn.StopTurnDeadline
	CodeNotRestorable = string(sojourn.ReasonConversationNotRestorable)
	CodeUnsupported   = "input_unsupported" // no model takes this kind of input
)

// The stop reasons of completed runs, as ACP names them.
const (
	stopEnd     = "end_turn"
	stopLength  = "max_tokens"
	stopSteps   = "max_turn_requests"
	stopRefusal = "refusal"
)

// Meter is asked before each request to a model and told after it. A session
// without a meter is not bounded.
type Meter interface {
	// Admit refuses a request; a [*sojourn.Error] gives the run's error.
	Admit(ctx context.Context, job harness.Job) error
	// Report tells what a request has cost. It is called once for each that
	// was made, with what the model's server said of it.
	Report(ctx context.Context, job harness.Job, call ModelCall) error
}

// ModelCall is one request to a model.
type ModelCall struct {
	Model    string // the endpoint's own name for it
	API      model.API
	Usage    model.Usage // zero when the server did not get to say
	Duration time.Duration
	Err      error // why there was no reply; the key is not in it
}

// Config says what a Harness needs. Models is required.
type Config struct {
	// Models finds the endpoint of a model by the name that sessions use; ""
	// asks for the default.
	Models func(name string) (model.Endpoint, error)
	Meter  Meter
	// MCP makes the requests to MCP servers outside the sandbox; nil refuses
	// such servers.
	MCP http.RoundTripper
	// Instructions are the system prompt; "" means our own.
	Instructions string
	// BatchEvery is how long events may wait for others before they are
	// committed; 0 means 75 ms.
	BatchEvery time.Duration
	// MaxSteps is how often a turn may ask the model; 0 means 200.
	MaxSteps int
	// Attempts is how often one step asks a model that fails for a while; 0
	// means 6. Patience bounds one pause between two of them; 0 means 2 min.
	Attempts int
	Patience time.Duration
	// CompactAt is the share of the model's context, in percent, from which on
	// the conversation is summarised; 0 means 80.
	CompactAt int
	// MCPStart bounds the start of each MCP server; 0 means 30 s.
	MCPStart time.Duration
}

// Harness is the built-in loop. It is safe for concurrent drives.
type Harness struct{ cfg Config }

var _ harness.Harness = (*Harness)(nil)

// New returns the loop.
func New(cfg Config) (*Harness, error) {
	if cfg.Models == nil {
		return nil, errors.New("built-in loop: no models")
	}
	cfg.Instructions = or(cfg.Instructions, instructions)
	cfg.BatchEvery = or(cfg.BatchEvery, 75*time.Millisecond)
	cfg.MaxSteps = or(cfg.MaxSteps, 200)
	cfg.Attempts = or(cfg.Attempts, 6)
	cfg.Patience = or(cfg.Patience, 2*time.Minute)
	cfg.CompactAt = or(cfg.CompactAt, 80)
	cfg.MCPStart = or(cfg.MCPStart, 30*time.Second)
	return &Harness{cfg}, nil
}

func or[T comparable](v, fallback T) T {
	var zero T
	if v == zero {
		return fallback
	}
	return v
}

// Drive is [harness.Harness].
func (h *Harness) Drive(ctx context.Context, job harness.Job, port harness.Port) (harness.Outcome, error) {
	old, err := recall(job)
	if err != nil {
		out := crashed(string(sojourn.CodeInternal), "The stored state of the run cannot be read: %v.", err)
		out.Killed = true
		return *out, nil
	}
	if old != nil && old.Run == string(job.Run) && old.Stage == stageEnded {
		return *old.Outcome, nil
	}
	d := newDrive(ctx, h.cfg, job, port)
	defer d.close()
	out, err := d.run(old)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return harness.Outcome{}, fmt.Errorf("drive run %s: %w", job.Run, err)
	}
	return *out, nil
}

// recall reads what an earlier drive has left for this one. A state of another
// epoch is of another sandbox, unless its processes go on in this one.
func recall(job harness.Job) (*state, error) {
	s, err := decodeState(job.State)
	if err != nil {
		var whose struct {
			Run   string `json:"run"`
			Epoch int64  `json:"epoch"`
		}
		if json.Unmarshal(job.State, &whose) == nil && whose.Run != "" && (whose.Run != string(job.Run) || whose.Epoch != job.Epoch) {
			return nil, nil
		}
		return nil, err
	}
	if s != nil && s.Epoch != job.Epoch {
		if s.Epoch != job.ProcessEpoch {
			return nil, nil
		}
		s.Epoch = job.Epoch
	}
	return s, nil
}

// failed makes the outcome of a run that repeating would not help.
func failed(code, format string, args ...any) *outcome {
	return &outcome{
		State: sojourn.RunFailed,
		Error: &sojourn.RunError{Code: code, Message: clip(fmt.Sprintf(format, args...), maxMessageBytes)},
	}
}

// crashed makes the outcome of a run whose execution was lost.
func crashed(code, format string, args ...any) *outcome {
	o := failed(code, format, args...)
	o.State, o.StopReason = sojourn.RunCrashed, code
	return o
}
