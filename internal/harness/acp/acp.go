package acp

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
)

// The codes of outcomes. Each is stable and names what went wrong.
const (
	CodeAgentError    = "agent_error"                 // the agent refused or failed, in its own words
	CodeAgentExited   = sojourn.StopAgentExited       // its process ended in mid-turn
	CodeAgentProtocol = "agent_protocol"              // its output is not what it should be
	CodeAgentSilent   = "agent_silent"                // it did not answer in the handshake
	CodeOutputLost    = "agent_output_lost"           // the keeper no longer has what was not read
	CodeTurnDeadline  = sojourn.StopTurnDeadline      // the turn took longer than it may
	CodeUnavailable   = "runtime_unavailable"         // its program is not there
	CodeNotRestorable = "conversation_not_restorable" // it does not know the conversation
	CodeUnsupported   = "input_unsupported"           // it does not take this kind of input
)

// The bounds of what an agent can make us hold.
const (
	maxOpenQuestions   = 64 // more are answered as cancelled
	maxOptions         = 64 // of a question; more are not offered
	maxQuestionBytes   = 1 << 20
	maxOutgoing        = 256 // replies that have not arrived; then the agent is not read
	maxBatchEvents     = 256
	maxBatchBytes      = 1 << 20
	maxMessageBytes    = 12 << 10 // of a run's error, with the end of stderr
	maxStopReasonBytes = 200
)

// defaultGrace is how long an agent may take to obey a cancel.
const defaultGrace = 10 * time.Second

// Harness drives ACP agents. The zero value works; it is safe for concurrent
// drives.
type Harness struct {
	// Version is what the agent is told of us; "" means "dev".
	Version string
	// BatchEvery is how long events may wait for others before they are
	// committed; 0 means 75 ms.
	BatchEvery time.Duration
	// StartWithin bounds the handshake; 0 means 2 min.
	StartWithin time.Duration
	// Quiet is how long a loaded conversation's replay must have been silent
	// before the prompt; 0 means 250 ms. QuietMost bounds the wait for it; 0
	// means 5 s.
	Quiet, QuietMost time.Duration
	// KillAfter is the time between TERM and KILL for an agent that has to go;
	// 0 means 2 s.
	KillAfter time.Duration
	// MaxLineBytes bounds a line of the agent's output; 0 means 64 MiB.
	MaxLineBytes int
	// MaxNoiseBytes bounds what an agent may write to its standard output in a
	// turn outside the protocol; 0 means 16 MiB.
	MaxNoiseBytes int64
}

var _ harness.Harness = (*Harness)(nil)

func or[T comparable](v, fallback T) T {
	var zero T
	if v == zero {
		return fallback
	}
	return v
}

// filled returns h with the defaults put in.
func (h Harness) filled() Harness {
	h.Version = or(h.Version, "dev")
	h.BatchEvery = or(h.BatchEvery, 75*time.Millisecond)
	h.StartWithin = or(h.StartWithin, 2*time.Minute)
	h.Quiet = or(h.Quiet, 250*time.Millisecond)
	h.QuietMost = or(h.QuietMost, 5*time.Second)
	h.KillAfter = or(h.KillAfter, 2*time.Second)
	h.MaxLineBytes = or(h.MaxLineBytes, 64<<20)
	h.MaxNoiseBytes = or(h.MaxNoiseBytes, 16<<20)
	return h
}

// Drive is [harness.Harness].
func (h *Harness) Drive(ctx context.Context, job harness.Job, port harness.Port) (harness.Outcome, error) {
	old, err := h.recall(job)
	if err != nil {
		// Nobody knows how far the agent has come, and it never gets better.
		out := crashed(string(sojourn.CodeInternal), "The stored state of the run cannot be read: %v.", err)
		out.Killed = true
		return *out, nil
	}
	if old != nil && old.Run == string(job.Run) && old.Stage == stageEnded {
		return *old.Outcome, nil
	}
	d := newDrive(h.filled(), job, port)
	defer d.close()
	if err := d.run(ctx, old); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return harness.Outcome{}, fmt.Errorf("drive run %s: %w", job.Run, err)
	}
	return *d.st.Outcome, nil
}

// recall reads what an earlier drive has left for this one. A state of another
// epoch is of another sandbox, and one of another run that cannot be read only
// means that the agent is started anew.
func (h *Harness) recall(job harness.Job) (*state, error) {
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
		if job.ProcessEpoch == 0 || job.ProcessEpoch == job.Epoch {
			return nil, nil
		}
		s.Epoch = job.Epoch // its agent goes on here, under another lease
	}
	return s, nil
}

// run brings the run to an outcome.
func (d *drive) run(ctx context.Context, old *state) error {
	if old != nil && old.Run == string(d.job.Run) {
		return d.goOn(ctx, old)
	}
	if old == nil {
		old = &state{}
	}
	d.conversation = d.job.Conversation
	if d.conversation == "" && d.job.Worked {
		d.conversation = old.Conversation // no turn in it has ended in order
	}
	ready, err := d.reuse(ctx, old)
	if err == nil && !ready && d.end == nil {
		err = d.handshake(ctx, old)
	}
	if err == nil && d.end == nil {
		err = d.begin(ctx)
	}
	if err == nil && d.end == nil {
		err = d.turn(ctx)
	}
	if err != nil {
		return err
	}
	return d.finish(ctx)
}

// goOn takes up a run whose prompt may have been given.
func (d *drive) goOn(ctx context.Context, old *state) error {
	d.st, d.live, d.durable = old, true, true
	d.waiting = d.id(stepPrompt)
	d.attach(ctx)
	for _, m := range d.st.Out {
		d.box.put(m)
	}
	for _, o := range d.st.Open {
		d.await(ctx, o)
	}
	// What the agent has said meanwhile comes first: the turn may be over.
	if err := d.pump(ctx, func() bool { return d.caughtUp || d.exit != nil }); err != nil {
		return err
	}
	if d.end == nil {
		if err := d.turn(ctx); err != nil {
			return err
		}
	}
	return d.finish(ctx)
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
