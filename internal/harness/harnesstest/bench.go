package harnesstest

import (
	"context"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
)

// Bench is one session with a sandbox, driven by one harness.
type Bench struct {
	Harness harness.Harness
	Runtime harness.Runtime
	Sandbox *Sandbox
	Ledger  *Ledger
	Epoch   int64
	// Grace is each job's; 0 means the harness's own.
	Grace time.Duration
	// Within is how long a turn may take; 0 means for ever.
	Within time.Duration
	// Port is copied into each drive's port, for its faults.
	Port Port
}

// NewBench returns a bench with an empty ledger.
func NewBench(t testing.TB, h harness.Harness, r harness.Runtime, programs Programs) *Bench {
	t.Helper()
	return &Bench{Harness: h, Runtime: r, Sandbox: NewSandbox(t, programs), Ledger: NewLedger(), Epoch: 1}
}

// patience bounds each drive of a test.
const patience = time.Minute

// Drive drives a run once, as a server does that may die in it.
func (b *Bench) Drive(t testing.TB, run sojourn.RunID, prompt string) (harness.Outcome, error) {
	t.Helper()
	return b.DriveParts(t, run, []sojourn.Part{{Type: "text", Text: prompt}})
}

// DriveParts is Drive for any input.
func (b *Bench) DriveParts(t testing.TB, run sojourn.RunID, input []sojourn.Part) (harness.Outcome, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	peer := b.Sandbox.Peer(t)
	defer peer.Close()
	p := &Port{
		Ledger: b.Ledger, Run: run, Peer: peer, Slow: b.Port.Slow,
		DieBefore: b.Port.DieBefore, DieAfter: b.Port.DieAfter, DieAtActivate: b.Port.DieAtActivate, Die: cancel,
	}
	stop := p.watch(ctx)
	defer stop()
	job := harness.Job{
		Session: "ses", Run: run, Epoch: b.Epoch, Input: input, Runtime: b.Runtime,
		Conversation: b.Ledger.Conversation(), Worked: b.Ledger.Worked(), State: b.Ledger.State(), Grace: b.Grace,
	}
	if b.Within > 0 {
		job.Deadline = time.Now().Add(b.Within)
	}
	return b.Harness.Drive(ctx, job, p)
}

// Turn drives a run to its outcome.
func (b *Bench) Turn(t testing.TB, run sojourn.RunID, prompt string) harness.Outcome {
	t.Helper()
	out, err := b.Drive(t, run, prompt)
	if err != nil {
		t.Fatalf("drive %s: %v", run, err)
	}
	return out
}

// Completed drives a run that has to complete.
func (b *Bench) Completed(t testing.TB, run sojourn.RunID, prompt string) harness.Outcome {
	t.Helper()
	out := b.Turn(t, run, prompt)
	if out.State != sojourn.RunCompleted {
		t.Fatalf("run %s: %s, want completed", run, Describe(out))
	}
	return out
}

// Background drives a run while the test goes on; the returned function waits
// for its outcome.
func (b *Bench) Background(t testing.TB, run sojourn.RunID, prompt string) (wait func() harness.Outcome) {
	t.Helper()
	type result struct {
		out harness.Outcome
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := b.Drive(t, run, prompt)
		done <- result{out, err}
	}()
	return func() harness.Outcome {
		t.Helper()
		r := <-done
		if r.err != nil {
			t.Fatalf("drive %s: %v", run, r.err)
		}
		return r.out
	}
}

// Await waits until the run's ledger satisfies want.
func (b *Bench) Await(t testing.TB, run sojourn.RunID, want func(RunRecord) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := b.Ledger.Await(ctx, run, want); err != nil {
		t.Fatal(err)
	}
}

// Describe says what an outcome is, for failure lines.
func Describe(o harness.Outcome) string {
	s := string(o.State) + " (" + o.StopReason + ")"
	if o.Error != nil {
		s += " " + o.Error.Code + ": " + o.Error.Message
	}
	if o.Killed {
		s += " [killed]"
	}
	return s
}
