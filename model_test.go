package sojourn

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"pgregory.net/rapid"
)

// world is the smallest store: the rows of one session and its log. It accepts
// changes and checks, on each, what must hold between a change and the rows
// before it.
type world struct {
	now          time.Time
	session      Session
	turns        []Turn
	runs         []Run
	leases       []Lease
	interactions []Interaction
	checkpoints  []Checkpoint
	execs        []Exec
	inputs       map[ExecID][]byte // of execs that are not over
	carryover    Carryover
	tools        map[string]Tool
	events       []EventDraft
	work         map[string]time.Time // kind and key → due
	ids          int
	log          benchLog // what the events of a bare session have said so far
}

func (w *world) id(noun string) string {
	w.ids++
	return fmt.Sprintf("%s-%d", noun, w.ids)
}

// facts reads the facts from the rows, as a store does.
func (w *world) facts() Facts {
	f := Facts{Session: w.session}
	if n := len(w.leases); n > 0 {
		f.Lease = &w.leases[n-1]
	}
	for i := range w.runs {
		if !w.runs[i].State.Terminal() {
			f.Active = &w.runs[i]
		}
		f.Last = &w.runs[i]
	}
	for i := range w.checkpoints {
		if w.checkpoints[i].ID == w.session.Head {
			f.Head = &w.checkpoints[i]
		}
	}
	for _, i := range w.interactions {
		if i.State == InteractionOpen {
			f.Open = append(f.Open, i)
		}
	}
	f.Execs = w.openExecs()
	return f.clone()
}

// decide makes one decision of one or more commands, and applies its change
// unless a command was refused.
func (w *world) decide(t *rapid.T, commands ...func(*Decision) error) error {
	d := w.facts().Decide(w.now)
	for _, c := range commands {
		if err := c(d); err != nil {
			if e, ok := err.(*Error); !ok || !slices.Contains(Codes, e.Code) || e.Message == "" {
				t.Fatalf("refused with %#v, which is no refusal of the domain", err)
			}
			return err
		}
	}
	w.apply(t, d.Change())
	left, stored := d.Facts(), w.facts()
	left.Session.LastSeq = stored.Session.LastSeq // the store numbers events
	if len(left.Open) == 0 {
		left.Open = nil
	}
	w.sameExecs(t, left.Execs)
	left.Execs, stored.Execs = nil, nil
	if !reflect.DeepEqual(left, stored) {
		t.Fatalf("the decision left other facts than its change:\n%+v\n%+v", left, stored)
	}
	w.check(t)
	return nil
}

// apply writes a change, and checks that each row may become what it becomes.
func (w *world) apply(t *rapid.T, c Change) {
	if c.Session.UpdatedAt.Before(w.session.UpdatedAt) || c.Session.LastEpoch < w.session.LastEpoch {
		t.Fatalf("the session went back: %+v, then %+v", w.session, c.Session)
	}
	for _, l := range c.Leases {
		known := slices.ContainsFunc(w.leases, func(have Lease) bool { return have.Epoch == l.Epoch && !have.GrantedAt.IsZero() })
		heads := []CheckpointID{w.session.Head, c.Session.Head} // before and after this change
		if !known && !l.GrantedAt.IsZero() && !slices.Contains(heads, l.Restored) {
			t.Fatalf("lease epoch %d was granted with %q restored, and the heads are %q", l.Epoch, l.Restored, heads)
		}
	}
	w.before(t, c)
	seq := w.session.LastSeq
	w.session = c.Session
	w.session.LastSeq = seq + int64(len(c.Events))
	w.turns = append(w.turns, c.Turns...)
	w.runs = put(t, w.runs, c.Runs, runMoves, func(r Run) (RunID, RunState) { return r.ID, r.State })
	w.leases = put(t, w.leases, c.Leases, leaseMoves, func(l Lease) (int64, LeaseState) { return l.Epoch, l.State })
	w.interactions = put(t, w.interactions, c.Interactions, interactionMoves, func(i Interaction) (InteractionID, InteractionState) { return i.ID, i.State })
	w.checkpoints = put(t, w.checkpoints, c.Checkpoints, checkpointMoves, func(c Checkpoint) (CheckpointID, CheckpointState) { return c.ID, c.State })
	w.applyBare(t, c)
	w.events = append(w.events, c.Events...)
	for _, o := range c.Work {
		if key := o.Kind + " " + o.Key; o.Cancel {
			delete(w.work, key)
		} else {
			w.work[key] = o.Due
		}
	}
}

// put writes rows: new ones last, known ones in place. A row in a terminal
// state never changes again, and a state is only left by moves of its table.
func put[R any, K comparable, S ~string](t *rapid.T, rows, changed []R, moves map[S][]S, key func(R) (K, S)) []R {
	for _, next := range changed {
		k, to := key(next)
		if _, ok := moves[to]; !ok {
			t.Fatalf("%v enters %q, which is no state", k, to)
		}
		i := slices.IndexFunc(rows, func(r R) bool { have, _ := key(r); return have == k })
		if i < 0 {
			rows = append(rows, next)
			continue
		}
		_, from := key(rows[i])
		if len(moves[from]) == 0 && !reflect.DeepEqual(rows[i], next) {
			t.Fatalf("%v was %s, which is an end, and changed:\n%+v\n%+v", k, from, rows[i], next)
		}
		if !reachable(plain(moves), string(from))[string(to)] {
			t.Fatalf("%v moved from %s to %s, which the table does not allow", k, from, to)
		}
		rows[i] = next
	}
	return rows
}

// check holds the rows and the log against the invariants.
func (w *world) check(t *rapid.T) {
	w.checkRuns(t)
	w.checkLeases(t)
	w.checkInteractions(t)
	w.checkHead(t)
	w.checkBudget(t)
	w.checkBare(t)
	for i, turn := range w.turns {
		if turn.Number != int64(i)+1 {
			t.Fatalf("turn %d has the number %d", i+1, turn.Number)
		}
	}
	if w.session.Turns != int64(len(w.turns)) || len(w.turns) != len(w.runs) {
		t.Fatalf("%d turns are counted, %d are there, with %d runs", w.session.Turns, len(w.turns), len(w.runs))
	}
	if w.session.LastSeq != int64(len(w.events)) {
		t.Fatalf("the last number is %d of %d events", w.session.LastSeq, len(w.events))
	}
	for _, e := range w.events {
		if e.Run != "" && e.Turn == "" {
			t.Fatalf("a %s of run %s names no turn", e.Type, e.Run)
		}
	}
}

// checkRuns: at most one run is active (G4), every run that ended says so in
// exactly one event, and the others in none (G1).
func (w *world) checkRuns(t *rapid.T) {
	ends := map[EventType]RunState{
		EventRunCompleted: RunCompleted, EventRunFailed: RunFailed, EventRunCrashed: RunCrashed, EventRunCancelled: RunCancelled,
	}
	ended := map[RunID][]RunState{}
	for _, e := range w.events {
		if state, ok := ends[e.Type]; ok {
			ended[e.Run] = append(ended[e.Run], state)
		}
	}
	active := []RunID{}
	for _, r := range w.runs {
		_, driven := w.work[WorkRun+" "+string(r.ID)]
		if driven == r.State.Terminal() {
			t.Fatalf("run %s is %s, and work is ordered for it: %v", r.ID, r.State, driven)
		}
		if !r.State.Terminal() {
			active = append(active, r.ID)
			if len(ended[r.ID]) != 0 {
				t.Fatalf("run %s is %s, and its events say %v", r.ID, r.State, ended[r.ID])
			}
			continue
		}
		if !slices.Equal(ended[r.ID], []RunState{r.State}) {
			t.Fatalf("run %s is %s, and its events say %v", r.ID, r.State, ended[r.ID])
		}
		if r.EndedAt.IsZero() {
			t.Fatalf("run %s is %s without an end", r.ID, r.State)
		}
	}
	if len(active) > 1 || len(active) == 1 && w.session.ActiveRun != active[0] || len(active) == 0 && w.session.ActiveRun != "" {
		t.Fatalf("active are %v, and the session says %q", active, w.session.ActiveRun)
	}
	worked := slices.ContainsFunc(w.runs, Run.Worked)
	if worked != w.session.Worked {
		t.Fatalf("a run worked: %v, and the session says %v", worked, w.session.Worked)
	}
}

// checkLeases: at most one lease is not ended, and it is the latest (G3); epochs
// are 1, 2, 3, …; the end of a held lease is ordered.
func (w *world) checkLeases(t *rapid.T) {
	for i, l := range w.leases {
		if l.Epoch != int64(i)+1 {
			t.Fatalf("lease %d has epoch %d", i+1, l.Epoch)
		}
		if !l.State.Terminal() && i != len(w.leases)-1 {
			t.Fatalf("lease epoch %d is %s beside a newer one", l.Epoch, l.State)
		}
		if l.State == LeaseHeld {
			if due, ok := w.work[WorkLease+" "+string(w.session.ID)]; !ok || due.After(l.Deadline()) {
				t.Fatalf("lease epoch %d ends at %v, and its end is ordered for %v (%v)", l.Epoch, l.Deadline(), due, ok)
			}
		}
	}
	if w.session.LastEpoch != int64(len(w.leases)) {
		t.Fatalf("the last epoch is %d of %d leases", w.session.LastEpoch, len(w.leases))
	}
	if n := len(w.leases); w.session.Archived() && n > 0 && !w.leases[n-1].State.Terminal() {
		t.Fatalf("an archived session has a %s lease", w.leases[n-1].State)
	}
}

// checkInteractions: an open question belongs to the run that is active, or to an
// exec that is parked, and each was asked in one event and ended in at most one.
func (w *world) checkInteractions(t *rapid.T) {
	asked, ended := 0, 0
	for _, e := range w.events {
		switch e.Type {
		case EventInteractionRequested, EventApprovalRequested:
			asked++
		case EventInteractionAnswered, EventInteractionExpired, EventInteractionWithdrawn:
			ended++
		}
	}
	open := 0
	for _, i := range w.interactions {
		if i.State != InteractionOpen {
			if i.EndedAt.IsZero() || (i.State == InteractionAnswered) != (i.Answer != nil) {
				t.Fatalf("interaction %+v does not say when or how it ended", i)
			}
			continue
		}
		open++
		if i.Exec != "" {
			w.checkApproval(t, i)
			continue
		}
		r := w.facts().Active
		if r == nil || r.ID != i.Run || r.State != RunActive {
			t.Fatalf("interaction %s of run %s is open, and active is %+v", i.ID, i.Run, r)
		}
	}
	if asked != len(w.interactions) || ended != asked-open {
		t.Fatalf("%d asked and %d ended in the events, of %d questions with %d open", asked, ended, len(w.interactions), open)
	}
}

// checkHead: the head is sealed and the last of its chain, and the projection
// keeps its rule (G6).
func (w *world) checkHead(t *rapid.T) {
	var sealed []CheckpointID
	for _, c := range w.checkpoints {
		if c.State != CheckpointSealed {
			continue
		}
		parent := CheckpointID("")
		if len(sealed) > 0 {
			parent = sealed[len(sealed)-1]
		}
		if c.Parent != parent {
			t.Fatalf("checkpoint %s has the parent %q, want %q", c.ID, c.Parent, parent)
		}
		sealed = append(sealed, c.ID)
	}
	if len(sealed) > 0 && w.session.Head != sealed[len(sealed)-1] || len(sealed) == 0 && w.session.Head != "" {
		t.Fatalf("the head is %q of %v", w.session.Head, sealed)
	}
	c := w.facts().Continuation(w.now)
	if (c.Reason == "") != (c.State == ContinuationLive || c.State == ContinuationRestorable) {
		t.Fatalf("continuation %+v", c)
	}
}
