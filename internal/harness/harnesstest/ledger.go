package harnesstest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// Ledger is what is durable of one session.
type Ledger struct {
	mu           sync.Mutex
	changed      chan struct{} // closed and replaced at every change
	state        []byte
	conversation string
	worked       bool // a run was activated in this sandbox
	runs         map[sojourn.RunID]*RunRecord
}

// RunRecord is what is durable of one run.
type RunRecord struct {
	Events      []harness.Event
	Questions   []harness.Question
	Withdrawn   []string
	Activations int
	Commits     int
	// The largest batch so far.
	MostEvents, MostBytes int
	cancelled             bool
	answers               map[string]sojourn.Answer
	expired               map[string]bool
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{changed: make(chan struct{}), runs: map[sojourn.RunID]*RunRecord{}}
}

func (l *Ledger) runLocked(id sojourn.RunID) *RunRecord {
	if l.runs[id] == nil {
		l.runs[id] = &RunRecord{answers: map[string]sojourn.Answer{}, expired: map[string]bool{}}
	}
	return l.runs[id]
}

func (l *Ledger) broadcastLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Run returns a copy of what is known of a run.
func (l *Ledger) Run(id sojourn.RunID) RunRecord {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := *l.runLocked(id)
	r.Events, r.Questions, r.Withdrawn = slices.Clone(r.Events), slices.Clone(r.Questions), slices.Clone(r.Withdrawn)
	return r
}

// Texts returns what the agent said in a run, chunk by chunk.
func (l *Ledger) Texts(id sojourn.RunID) []string {
	var out []string
	for _, e := range l.Run(id).Events {
		var d struct {
			Update struct {
				SessionUpdate string
				Content       json.RawMessage
			}
		}
		var c struct{ Text string }
		if e.Type == sojourn.EventAgentUpdate && json.Unmarshal(e.Data, &d) == nil &&
			d.Update.SessionUpdate == "agent_message_chunk" && json.Unmarshal(d.Update.Content, &c) == nil {
			out = append(out, c.Text)
		}
	}
	return out
}

// Logs returns the texts of a run's agent.log events.
func (l *Ledger) Logs(id sojourn.RunID) []string {
	var out []string
	for _, e := range l.Run(id).Events {
		var d struct{ Text string }
		if e.Type == sojourn.EventAgentLog && json.Unmarshal(e.Data, &d) == nil {
			out = append(out, d.Text)
		}
	}
	return out
}

// Conversation is the id that the agent has confirmed.
func (l *Ledger) Conversation() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conversation
}

// State is what the last commit stored.
func (l *Ledger) State() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.state)
}

// NewSandbox forgets what belongs to the sandbox that was lost.
func (l *Ledger) NewSandbox() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state, l.worked = nil, false
}

// Worked reports whether a run was activated in this sandbox.
func (l *Ledger) Worked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.worked
}

// Cancel asks to cancel a run.
func (l *Ledger) Cancel(id sojourn.RunID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runLocked(id).cancelled = true
	l.broadcastLocked()
}

// Answer decides a question; ok false lets it expire.
func (l *Ledger) Answer(id sojourn.RunID, ref, option string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.runLocked(id)
	if ok {
		r.answers[ref] = sojourn.Answer{OptionID: option}
	} else {
		r.expired[ref] = true
	}
	l.broadcastLocked()
}

// Await waits until the run satisfies want, or fails with ctx.
func (l *Ledger) Await(ctx context.Context, id sojourn.RunID, want func(RunRecord) bool) error {
	for {
		l.mu.Lock()
		r, changed := *l.runLocked(id), l.changed
		ok := want(r)
		l.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for run %s: %w", id, context.Cause(ctx))
		}
	}
}

// Port is one drive's access to a ledger.
type Port struct {
	Ledger *Ledger
	Run    sojourn.RunID
	Peer   harness.Link
	// Slow is how long each commit takes.
	Slow time.Duration
	// DieBefore and DieAfter are the number of the commit, over the whole run
	// and from 1 on, before or after which the server dies; 0 means never.
	DieBefore, DieAfter int
	// DieAtActivate makes the server die after the activation was stored.
	DieAtActivate bool
	// Die is called when the server dies; it ends the drive's context.
	Die func()

	mu        sync.Mutex
	cancelled chan struct{}
}

var _ harness.Port = (*Port)(nil)

// ErrDied is what a dead server's calls return.
var ErrDied = errors.New("the server has died")

// Link implements [harness.Port].
func (p *Port) Link() harness.Link { return p.Peer }

var _ harness.Link = (*link.Peer)(nil)

// Activate implements [harness.Port].
func (p *Port) Activate(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p.Ledger.mu.Lock()
	defer p.Ledger.mu.Unlock()
	p.Ledger.runLocked(p.Run).Activations++
	p.Ledger.worked = true
	p.Ledger.broadcastLocked()
	if p.DieAtActivate {
		p.Die()
		return ErrDied
	}
	return nil
}

// Commit implements [harness.Port].
func (p *Port) Commit(ctx context.Context, b harness.Batch) error {
	if p.Slow > 0 {
		select {
		case <-time.After(p.Slow):
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	l := p.Ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.runLocked(p.Run)
	if p.DieBefore > 0 && r.Commits+1 >= p.DieBefore {
		p.Die()
		return ErrDied
	}
	if err := r.check(b); err != nil {
		return err
	}
	r.Commits++
	bytes := 0
	for _, e := range b.Events {
		bytes += len(e.Data)
	}
	r.MostEvents, r.MostBytes = max(r.MostEvents, len(b.Events)), max(r.MostBytes, bytes)
	r.Events = append(r.Events, b.Events...)
	r.Withdrawn = append(r.Withdrawn, b.Withdrawn...)
	for _, q := range b.Asked {
		known := func(o harness.Question) bool { return o.Ref == q.Ref }
		if !slices.ContainsFunc(r.Questions, known) {
			r.Questions = append(r.Questions, q)
		}
	}
	if b.Conversation != "" {
		l.conversation = b.Conversation
	}
	l.state = slices.Clone(b.State)
	l.broadcastLocked()
	if p.DieAfter > 0 && r.Commits >= p.DieAfter {
		p.Die()
		return ErrDied
	}
	return nil
}

// check refuses what the engine and the store would refuse.
func (r *RunRecord) check(b harness.Batch) error {
	if len(b.Asked) > 0 && r.Activations == 0 {
		return errors.New("a question before the run is active")
	}
	for _, e := range b.Events {
		if e.Type != sojourn.EventAgentUpdate && e.Type != sojourn.EventAgentLog {
			return fmt.Errorf("event of type %q", e.Type)
		}
		if !json.Valid(e.Data) || len(e.Data) == 0 || e.Data[0] != '{' {
			return fmt.Errorf("event data is not a JSON object: %.200q", e.Data)
		}
	}
	if len(b.State) == 0 {
		return errors.New("a batch without a state")
	}
	return nil
}

// Answer implements [harness.Port].
func (p *Port) Answer(ctx context.Context, ref string) (sojourn.Answer, bool, error) {
	var a sojourn.Answer
	ok := false
	err := p.Ledger.Await(ctx, p.Run, func(r RunRecord) bool {
		a, ok = r.answers[ref]
		return ok || r.expired[ref]
	})
	return a, ok, err
}

// Cancelled implements [harness.Port].
func (p *Port) Cancelled() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cancelled
}

// watch makes Cancelled follow the ledger until ctx ends.
func (p *Port) watch(ctx context.Context) (stop func()) {
	p.cancelled = make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if p.Ledger.Await(ctx, p.Run, func(r RunRecord) bool { return r.cancelled }) == nil {
			close(p.cancelled)
		}
	}()
	return func() { cancel(); <-done }
}
