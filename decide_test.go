package sojourn

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// The ids that the scenes use.
const (
	theRun      RunID         = "run-1"
	theTurn     TurnID        = "turn-1"
	theQuestion InteractionID = "question-1"
)

var hello = []Part{{Type: "text", Text: "hello"}}

var yesOrNo = []Option{{ID: "yes", Name: "Yes", Kind: "allow_once"}, {ID: "no", Name: "No", Kind: "reject_once"}}

// must makes one more decision on f and returns the facts that it leaves.
func must(t *testing.T, f Facts, now time.Time, decide func(*Decision) error) Facts {
	t.Helper()
	d := f.Decide(now)
	if err := decide(d); err != nil {
		t.Fatal(err)
	}
	return d.Facts()
}

// scene returns the facts of a session, led there by decisions one second apart:
// its only run is in the given state ("" for no run) and its only lease, too.
// A starting or later run needs a lease that is held; when the lease should be
// in another state, it enters it last. An active run has one open question.
func scene(t *testing.T, run RunState, lease LeaseState) Facts {
	t.Helper()
	now := noon
	d, err := Create(now, NewSession{ID: "s", Project: DefaultProject, Contract: ContractCloud, Runtime: "script"})
	if err != nil {
		t.Fatal(err)
	}
	f := d.Facts()
	step := func(decide func(*Decision) error) {
		t.Helper()
		now = now.Add(time.Second)
		f = must(t, f, now, decide)
	}
	if run != "" {
		step(func(d *Decision) error { return d.Submit(theTurn, theRun, hello) })
	}
	if lease != "" {
		step(func(d *Decision) error { _, err := d.RequestLease("fake", "none", Terms{}); return err })
	}
	if lease != "" && lease != LeaseRequested || slices.Contains([]RunState{RunActive, RunSealing, RunCompleted}, run) {
		if f.Lease == nil {
			t.Fatalf("a run cannot be %s without a lease", run)
		}
		step(func(d *Decision) error { return d.HoldLease(1, []byte(`{}`), "") })
	}
	switch run {
	case "", RunQueued:
	case RunStarting:
		step(func(d *Decision) error { return d.StartRun(theRun) })
	case RunActive, RunSealing, RunCompleted:
		step(func(d *Decision) error { return d.StartRun(theRun) })
		step(func(d *Decision) error { return d.ActivateRun(theRun, 1) })
		step(func(d *Decision) error {
			return d.Ask(Interaction{ID: theQuestion, Run: theRun, Kind: "permission", Ref: "ref-1", Options: yesOrNo})
		})
		if run != RunActive {
			step(func(d *Decision) error { return d.FinishRun(theRun, RunCompleted, "end_turn") })
		}
		if run == RunCompleted {
			step(func(d *Decision) error {
				return d.Seal(capture(f, FidelityExact, FidelityPortableTree), CaptureNotes{})
			})
		}
	case RunFailed, RunCrashed, RunCancelled:
		step(func(d *Decision) error { return d.StartRun(theRun) })
		step(func(d *Decision) error { return d.EndRun(theRun, run, "", nil) })
	}
	switch lease {
	case LeaseReleased, LeaseExpired, LeaseLost:
		step(func(d *Decision) error { return d.EndLease(1, lease, "the test says so") })
	case LeaseDraining:
		f = f.clone() // no decision drains yet
		f.Lease.State = LeaseDraining
	}
	return f
}

// capture is a checkpoint that the session of f would seal next.
func capture(f Facts, conversation, workspace Fidelity) Checkpoint {
	c := Checkpoint{
		ID: "checkpoint-1", Session: f.Session.ID, Run: theRun, Epoch: f.Session.LastEpoch, State: CheckpointCapturing,
		Format: FormatV2, Base: f.Session.Base, Conversation: conversation, Workspace: workspace,
	}
	if f.Head != nil {
		c.Parent = f.Head.ID
	}
	return c
}

// command is one decision by name. Its target is the state that it would put
// the run, or the lease, into; "" when it is not a move.
type command struct {
	name   string
	target string
	decide func(*Decision) error
}

func runCommands(f Facts) []command {
	commands := []command{
		{"Submit", "", func(d *Decision) error { return d.Submit("turn-2", "run-2", hello) }},
		{"StartRun", "starting", func(d *Decision) error { return d.StartRun(theRun) }},
		{"ActivateRun", "active", func(d *Decision) error { return d.ActivateRun(theRun, 1) }},
		{"FinishRun as completed", "sealing", func(d *Decision) error { return d.FinishRun(theRun, RunCompleted, "end_turn") }},
		{"FinishRun as cancelled", "sealing", func(d *Decision) error { return d.FinishRun(theRun, RunCancelled, StopCancelled) }},
		{"CancelRun", "", func(d *Decision) error { _, err := d.CancelRun(theRun); return err }},
		{"RecoverRun", "", func(d *Decision) error { return d.RecoverRun(theRun) }},
		{"Ask", "", func(d *Decision) error {
			return d.Ask(Interaction{ID: "question-2", Run: theRun, Kind: "question", Ref: "ref-2"})
		}},
		{"Withdraw", "", func(d *Decision) error { d.Withdraw(theRun, "ref-1"); return nil }},
		{"BeginCheckpoint", "", func(d *Decision) error { _, err := d.BeginCheckpoint("checkpoint-2", theRun, 1); return err }},
		{"Seal", "completed", func(d *Decision) error {
			return d.Seal(capture(f, FidelityExact, FidelityPortableTree), CaptureNotes{})
		}},
		{"Archive", "", (*Decision).Archive},
	}
	for _, to := range slices.Sorted(maps.Keys(runMoves)) {
		target := string(to)
		if !to.Terminal() {
			target = "never"
		}
		commands = append(commands, command{"EndRun as " + string(to), target, func(d *Decision) error {
			return d.EndRun(theRun, to, "", nil)
		}})
	}
	return commands
}

func leaseCommands() []command {
	commands := []command{
		{"RequestLease", "", func(d *Decision) error { _, err := d.RequestLease("fake", "none", Terms{}); return err }},
		{"HoldLease", "", func(d *Decision) error { return d.HoldLease(1, []byte(`{}`), "") }},
		{"DrainLease", "", func(d *Decision) error { return d.DrainLease(1, "suspended", true) }},
		{"SealDrain", "", func(d *Decision) error {
			return d.SealDrain(capture(d.Facts(), FidelityExact, FidelityPortableTree), CaptureNotes{}, LeaseReleased)
		}},
		{"CallOffDrain", "", func(d *Decision) error {
			return d.CallOffDrain(capture(d.Facts(), FidelityExact, FidelityNone), CaptureNotes{})
		}},
		{"SetConversation", "", func(d *Decision) error { return d.SetConversation(1, "agent-session") }},
		{"TouchLease", "", func(d *Decision) error {
			if !d.TouchLease(1) {
				return errNotLive
			}
			return nil
		}},
		{"Archive", "", (*Decision).Archive},
	}
	for _, to := range slices.Sorted(maps.Keys(leaseMoves)) {
		commands = append(commands, command{"EndLease as " + string(to), "", func(d *Decision) error {
			return d.EndLease(1, to, "the test says so")
		}})
	}
	return commands
}

var errNotLive = errors.New("not live")

// TestDecisionsTable runs every command in every state. The golden file is the
// table to read: what each does, or the code that it is refused with. States in
// which all commands do the same share a section.
func TestDecisionsTable(t *testing.T) {
	var runs, leases sections
	for _, state := range append([]RunState{""}, slices.Sorted(maps.Keys(runMoves))...) {
		f := scene(t, state, LeaseHeld)
		var b strings.Builder
		for _, c := range runCommands(f) {
			err := writeCell(&b, f, c)
			allowed := state != "" && state.CanMove(RunState(c.target))
			if c.target != "" && allowed != (err == nil) {
				t.Errorf("a %s run, %s: error %v, and the table allows it: %v", orNone(string(state)), c.name, err, allowed)
			}
		}
		runs.add(orNone(string(state)), b.String())
	}
	for _, state := range append([]LeaseState{""}, slices.Sorted(maps.Keys(leaseMoves))...) {
		f := scene(t, "", state)
		var b strings.Builder
		for _, c := range leaseCommands() {
			err := writeCell(&b, f, c)
			allowed := state != "" && state.CanMove(LeaseState(c.target))
			if c.target != "" && allowed != (err == nil) {
				t.Errorf("a %s lease, %s: error %v, and the table allows it: %v", orNone(string(state)), c.name, err, allowed)
			}
		}
		leases.add(orNone(string(state)), b.String())
	}
	checkGolden(t, "decisions.golden", "# What each command does in each state. Written by TestDecisionsTable.\n"+
		runs.text("run (the lease is held)")+leases.text("lease (nothing runs)"))
}

// sections are bodies of text, each with every heading that it stands under.
type sections struct {
	headings [][]string
	bodies   []string
}

func (s *sections) add(heading, body string) {
	if i := slices.Index(s.bodies, body); i >= 0 {
		s.headings[i] = append(s.headings[i], heading)
		return
	}
	s.headings, s.bodies = append(s.headings, []string{heading}), append(s.bodies, body)
}

func (s *sections) text(what string) string {
	var b strings.Builder
	for i, body := range s.bodies {
		fmt.Fprintf(&b, "\n## %s: %s\n%s", what, strings.Join(s.headings[i], ", "), body)
	}
	return b.String()
}

func orNone(state string) string {
	if state == "" {
		return "none"
	}
	return state
}

// writeCell runs one command and writes what came of it.
func writeCell(b *strings.Builder, f Facts, c command) error {
	d := f.Decide(noon.Add(time.Minute))
	err := c.decide(d)
	said := ""
	switch {
	case errors.Is(err, errNotLive):
		said = "reports false"
	case err != nil:
		said = "refused " + string(CodeOf(err))
	default:
		said = strings.Join(effects(d.Change()), ", ")
	}
	fmt.Fprintf(b, "%-24s %s\n", c.name, orNone(said))
	return err
}

// effects says in words what a change writes.
func effects(c Change) []string {
	var words []string
	for _, x := range c.Checkpoints {
		words = append(words, "checkpoint "+string(x.State))
	}
	for _, x := range c.Leases {
		words = append(words, "lease "+string(x.State))
	}
	for _, x := range c.Runs {
		words = append(words, "run "+string(x.State))
	}
	for _, x := range c.Events {
		words = append(words, "event "+string(x.Type))
	}
	for _, x := range c.Work {
		verb := "orders"
		if x.Cancel {
			verb = "withdraws"
		}
		words = append(words, verb+" work "+x.Kind)
	}
	return words
}

// TestDecisionsNeverChangeTheFactsTheyStartFrom: a refused or abandoned
// decision leaves nothing behind.
func TestDecisionsNeverChangeTheFactsTheyStartFrom(t *testing.T) {
	for state := range runMoves {
		f := scene(t, state, LeaseHeld)
		for _, c := range append(runCommands(f), leaseCommands()...) {
			before := fmt.Sprintf("%+v %+v %+v %+v %+v", f.Session, deref(f.Lease), deref(f.Active), deref(f.Last), f.Open)
			_ = c.decide(f.Decide(noon.Add(time.Minute)))
			after := fmt.Sprintf("%+v %+v %+v %+v %+v", f.Session, deref(f.Lease), deref(f.Active), deref(f.Last), f.Open)
			if before != after {
				t.Errorf("a %s run, %s changed the facts:\n%s\n%s", state, c.name, before, after)
			}
		}
	}
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
