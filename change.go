package sojourn

import (
	"maps"
	"slices"
	"time"
)

// Change is what a decision wants written: all of it or nothing. Rows hold
// their new values; events are numbered by the store in order.
type Change struct {
	Session      Session
	Created      bool // the session is new
	Turns        []Turn
	Runs         []Run
	Leases       []Lease
	Interactions []Interaction
	Checkpoints  []Checkpoint
	Execs        []Exec
	ExecInputs   []ExecInput
	Carryover    *Carryover // nil leaves it
	Tools        []Tool
	Events       []EventDraft
	Work         []WorkOrder
}

// ExecInput is what an exec reads on its stdin.
type ExecInput struct {
	Exec ExecID
	Data []byte
}

// WorkOrder asks for work after the commit: the outbox entry of a decision. One
// order exists per (Kind, Key); a later one moves its due time.
type WorkOrder struct {
	Kind   string
	Key    string
	Due    time.Time
	Cancel bool // withdraw it instead
}

// The kinds of work.
const (
	WorkRun   = "run"   // key: run id; drive the run to its end
	WorkLease = "lease" // key: session id; end the lease when its deadline has passed

	WorkBench       = "bench"       // key: session id; drive the sandbox and the execs of a bare session
	WorkClock       = "clock"       // key: session id; look at its duration limit
	WorkPresence    = "presence"    // key: session id; look for its client's heartbeats
	WorkInteraction = "interaction" // key: interaction id; expire it
	WorkPurge       = "purge"       // key: session id; delete what a deleted session has left
)

// Decision decides on one session at one moment. Its methods are the only
// writers of states: each refuses a move that the tables do not list, and
// records what it changed. After an error the decision must be thrown away.
type Decision struct {
	now   time.Time
	facts Facts

	created      bool
	turns        []Turn
	runs         map[RunID]Run
	runOrder     []RunID
	leases       map[int64]Lease
	interactions map[InteractionID]Interaction
	asked        []InteractionID
	checkpoints  []Checkpoint
	execs        []Exec
	inputs       []ExecInput
	carryover    *Carryover
	tools        []Tool
	events       []EventDraft
	work         []WorkOrder
}

// Decide starts a decision on f at now.
func (f Facts) Decide(now time.Time) *Decision {
	return &Decision{
		now: now, facts: f.clone(),
		runs: map[RunID]Run{}, leases: map[int64]Lease{}, interactions: map[InteractionID]Interaction{},
	}
}

// Facts returns the facts as the decision leaves them.
func (d *Decision) Facts() Facts { return d.facts }

// Now returns the moment of the decision.
func (d *Decision) Now() time.Time { return d.now }

// Change returns what the decision wants written.
func (d *Decision) Change() Change {
	c := Change{
		Session: d.facts.Session, Created: d.created, Turns: d.turns,
		Checkpoints: d.checkpoints, Execs: d.execs, ExecInputs: d.inputs, Carryover: d.carryover, Tools: d.tools,
		Events: d.events, Work: d.work,
	}
	for _, id := range d.runOrder {
		c.Runs = append(c.Runs, d.runs[id])
	}
	for _, epoch := range slices.Sorted(maps.Keys(d.leases)) {
		c.Leases = append(c.Leases, d.leases[epoch])
	}
	for _, id := range d.asked {
		c.Interactions = append(c.Interactions, d.interactions[id])
	}
	return c
}

func (f Facts) clone() Facts {
	f.Session.Metadata = maps.Clone(f.Session.Metadata)
	f.Lease, f.Active, f.Last, f.Head = copied(f.Lease), copied(f.Active), copied(f.Last), copied(f.Head)
	f.Open, f.Execs = slices.Clone(f.Open), slices.Clone(f.Execs)
	return f
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

func (d *Decision) emit(t EventType, turn TurnID, run RunID, payload any) {
	d.events = append(d.events, draft(t, turn, run, payload))
	d.facts.Session.UpdatedAt = d.now
}

func (d *Decision) order(kind, key string, due time.Time) {
	d.work = append(d.work, WorkOrder{Kind: kind, Key: key, Due: due})
}

func (d *Decision) withdraw(kind, key string) {
	d.work = append(d.work, WorkOrder{Kind: kind, Key: key, Cancel: true})
}

// putRun records a run's new value and keeps the facts that show it in step.
func (d *Decision) putRun(r Run) {
	if _, seen := d.runs[r.ID]; !seen {
		d.runOrder = append(d.runOrder, r.ID)
	}
	d.runs[r.ID] = r
	s := &d.facts.Session
	if s.LastRun == r.ID {
		d.facts.Last = copied(&r)
	}
	if r.State.Terminal() {
		if s.ActiveRun == r.ID {
			s.ActiveRun, d.facts.Active = "", nil
		}
		return
	}
	s.ActiveRun, d.facts.Active = r.ID, copied(&r)
}

// putLease records a lease's new value.
func (d *Decision) putLease(l Lease) {
	d.leases[l.Epoch] = l
	d.facts.Lease = copied(&l)
}

// putInteraction records an interaction's new value.
func (d *Decision) putInteraction(i Interaction) {
	if _, seen := d.interactions[i.ID]; !seen {
		d.asked = append(d.asked, i.ID)
	}
	d.interactions[i.ID] = i
	d.facts.Open = slices.DeleteFunc(d.facts.Open, func(o Interaction) bool { return o.ID == i.ID })
	if i.State == InteractionOpen {
		d.facts.Open = append(d.facts.Open, i)
	}
}
