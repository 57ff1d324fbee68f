package sojourn

import (
	"encoding/json"
	"reflect"
	"slices"
	"time"

	"pgregory.net/rapid"
)

// benchLog is what the events of a session have said so far, read one by one.
type benchLog struct {
	rotating  bool
	rotations int64
	lost      bool                          // the client, and it has not come back
	closed    EventType                     // the event that closed the session
	reached   bool                          // a limit of the budget
	models    Money                         // what calls of models have cost
	execs     map[ExecID][]EventType        // in order
	approvals map[InteractionID][]EventType // in order

	openFor   time.Duration // for how long the session was open in all
	countedAt time.Time
}

// said is the part of the payloads that the log reads.
type said struct {
	Exec     ExecID        `json:"executionId"`
	Hook     bool          `json:"hook"`
	Approval InteractionID `json:"approvalId"`
	Cost     Money         `json:"costMicroCents"`
}

// openExecs are the execs that facts hold: those that run or are parked, and the
// first four of either kind that are queued.
func (w *world) openExecs() (open []Exec) {
	queued := map[bool]int{}
	for _, x := range w.execs {
		if x.State == ExecQueued {
			queued[x.Spec.Detached]++
		}
		if !x.State.Terminal() && (x.State != ExecQueued || queued[x.Spec.Detached] <= 4) {
			open = append(open, x)
		}
	}
	slices.SortStableFunc(open, func(a, b Exec) int { return -compareBool(a.Spec.Detached, b.Spec.Detached) })
	return open
}

// sameExecs compares the execs that a decision left with the rows: what it holds is
// true, and all that run or are parked are there.
func (w *world) sameExecs(t *rapid.T, left []Exec) {
	for _, x := range left {
		if row, ok := w.exec(x.ID); !ok || !reflect.DeepEqual(row, x) {
			t.Fatalf("the decision left another exec than its change:\n%+v\n%+v", x, row)
		}
	}
	for _, row := range w.execs {
		holds := slices.ContainsFunc(left, func(x Exec) bool { return x.ID == row.ID })
		if row.State.Terminal() && holds || (row.State == ExecRunning || row.State == ExecParked) && !holds {
			t.Fatalf("exec %s is %s, and the decision left it in its facts: %v", row.ID, row.State, holds)
		}
	}
}

func (w *world) exec(id ExecID) (Exec, bool) {
	i := slices.IndexFunc(w.execs, func(x Exec) bool { return x.ID == id })
	if i < 0 {
		return Exec{}, false
	}
	return w.execs[i], true
}

// execsSeen are the execs as the decision d sees them.
func (w *world) execsSeen(d *Decision) []Exec {
	all := slices.Clone(w.execs)
	for _, x := range d.execs {
		if i := slices.IndexFunc(all, func(o Exec) bool { return o.ID == x.ID }); i >= 0 {
			all[i] = x
		} else {
			all = append(all, x)
		}
	}
	return all
}

// before looks at the rows before c is written: what was used only grows, and the
// open time is counted.
func (w *world) before(t *rapid.T, c Change) {
	was, now := w.session.Budget.Usage, c.Session.Budget.Usage
	if now.Cost < was.Cost || now.Iterations < was.Iterations || now.Duration < was.Duration {
		t.Fatalf("what was used shrank: %+v, then %+v", was, now)
	}
	if w.session.State == SessionOpen {
		w.log.openFor += w.now.Sub(w.log.countedAt)
	}
	w.log.countedAt = w.now
}

// applyBare writes what only a bare session has.
func (w *world) applyBare(t *rapid.T, c Change) {
	w.execs = put(t, w.execs, c.Execs, execMoves, func(x Exec) (ExecID, ExecState) { return x.ID, x.State })
	for _, in := range c.ExecInputs {
		w.inputs[in.Exec] = in.Data
	}
	for _, x := range c.Execs {
		if x.State.Terminal() {
			delete(w.inputs, x.ID)
		}
	}
	if c.Carryover != nil {
		w.carryover = *c.Carryover
	}
	for _, tool := range c.Tools {
		w.tools[tool.Name] = tool
	}
	for _, e := range c.Events {
		w.log.read(t, e)
	}
}

// read takes over what one more event says, and checks that it may follow on those
// before it.
func (l *benchLog) read(t *rapid.T, e EventDraft) {
	var s said
	if len(e.Data) > 0 {
		if err := json.Unmarshal(e.Data, &s); err != nil {
			t.Fatalf("the payload of %s is no object: %v: %s", e.Type, err, e.Data)
		}
	}
	switch e.Type {
	case EventRotationStarted, EventRotationFailed, EventRotationCompleted:
		if (e.Type == EventRotationStarted) == l.rotating || l.closed != "" {
			t.Fatalf("%s, and a rotation is under way: %v; closed by %q", e.Type, l.rotating, l.closed)
		}
		l.rotating = e.Type != EventRotationCompleted
		if e.Type == EventRotationCompleted {
			l.rotations++
		}
	case EventSessionCompleted, EventSessionFailed, EventSessionCancelled:
		if l.closed != "" {
			t.Fatalf("%s after %s", e.Type, l.closed)
		}
		l.closed, l.rotating = e.Type, false
	case EventExecStarted:
		if l.rotating && !s.Hook || l.closed != "" {
			t.Fatalf("exec %s started; rotating: %v; closed by %q", s.Exec, l.rotating, l.closed)
		}
		l.execs[s.Exec] = append(l.execs[s.Exec], e.Type)
	case EventExecCompleted, EventExecRefused:
		l.execs[s.Exec] = append(l.execs[s.Exec], e.Type)
	case EventApprovalRequested, EventApprovalResolved:
		l.approvals[s.Approval] = append(l.approvals[s.Approval], e.Type)
	case EventModelCalled:
		l.models += s.Cost
	case EventBudgetReached:
		l.reached = true
	case EventClientLost:
		if l.lost {
			t.Fatal("the client was lost twice and had not come back")
		}
		l.lost = true
	case EventClientReattached:
		l.lost = false
	}
}

// checkBudget: each exec that ran was charged once and for what it ran, and so was
// each call of a model; and what remains is what was not used.
func (w *world) checkBudget(t *rapid.T) {
	want := Usage{Cost: w.log.models}
	for _, x := range w.execs {
		if x.State != ExecEnded && x.State != ExecLost {
			if x.Cost != 0 {
				t.Fatalf("exec %s is %s and was charged %d", x.ID, x.State, x.Cost)
			}
			continue
		}
		ran := x.Result.RunTime
		if x.State == ExecLost {
			ran = x.EndedAt.Sub(x.StartedAt) // at most
		}
		if cost := x.Rate.Cost(ran); x.Cost > cost || x.State == ExecEnded && x.Cost != cost {
			t.Fatalf("exec %s ran for %v and was charged %d, want %d", x.ID, ran, x.Cost, cost)
		}
		want.Cost += x.Cost
		if !x.Spec.Hook {
			want.Iterations++
		}
	}
	b := w.session.BudgetAt(w.now)
	if w.session.Bare() {
		want.Duration = w.log.openFor
	}
	if b.Usage != want {
		t.Fatalf("used is %+v, the rows say %+v", b.Usage, want)
	}
	l, left := b.Limits, b.Remaining()
	if l.Cost > 0 && left.Cost != max(0, l.Cost-want.Cost) || l.Iterations > 0 && left.Iterations != max(0, l.Iterations-want.Iterations) ||
		l.Duration > 0 && left.Duration != max(0, l.Duration-want.Duration) {
		t.Fatalf("of %+v were used %+v, and %+v remain", l, want, left)
	}
}

// checkBare holds what only a bare session has against the invariants.
func (w *world) checkBare(t *rapid.T) {
	s := w.session
	if s.Execs != int64(len(w.execs)) {
		t.Fatalf("%d execs are counted, %d are there", s.Execs, len(w.execs))
	}
	for i, x := range w.execs {
		if x.Number != int64(i)+1 {
			t.Fatalf("exec %d has the number %d", i+1, x.Number)
		}
		w.checkExec(t, x)
	}
	for id := range w.inputs {
		if x, ok := w.exec(id); !ok || x.State.Terminal() {
			t.Fatalf("the input of exec %s is kept, which is %q", id, x.State)
		}
	}
	if n := len(slices.Collect(w.foreground())); n > 1 {
		t.Fatalf("%d foreground execs run", n)
	}
	if s.Rotating() != w.log.rotating || s.Rotation.Count != w.log.rotations {
		t.Fatalf("the session rotates: %v, for the time %d; the events say %v, %d", s.Rotating(), s.Rotation.Count, w.log.rotating, w.log.rotations)
	}
	if s.Presence.LostAt.IsZero() == w.log.lost {
		t.Fatalf("the client was lost at %v, and the events say %v", s.Presence.LostAt, w.log.lost)
	}
	if w.carryover.Bytes() > MaxCarryoverBytes || len(w.tools) > MaxTools {
		t.Fatalf("a carryover of %d bytes, and %d tools", w.carryover.Bytes(), len(w.tools))
	}
	w.checkState(t)
	w.checkTimers(t)
}

// foreground are the execs that run and take turns.
func (w *world) foreground() func(func(Exec) bool) {
	return func(yield func(Exec) bool) {
		for _, x := range w.execs {
			if x.State == ExecRunning && x.Foreground() && !x.Spec.Hook && !yield(x) {
				return
			}
		}
	}
}

// checkExec: an exec says what it is in exactly the events that belong to its
// state, and one that runs has a sandbox, or its processes are saved.
func (w *world) checkExec(t *rapid.T, x Exec) {
	want := map[ExecState][]EventType{
		ExecRunning: {EventExecStarted}, ExecEnded: {EventExecStarted, EventExecCompleted},
		ExecLost: {EventExecStarted, EventExecCompleted}, ExecRefused: {EventExecRefused},
	}[x.State]
	if got := w.log.execs[x.ID]; !slices.Equal(got, want) {
		t.Fatalf("exec %s is %s, and its events are %v", x.ID, x.State, got)
	}
	if x.State.Terminal() == x.EndedAt.IsZero() || (x.Epoch == 0) != x.StartedAt.IsZero() || x.State == ExecRefused && x.Reason == "" {
		t.Fatalf("exec %+v does not say when or why", x)
	}
	if x.State != ExecRunning {
		return
	}
	f := w.facts()
	switch l := f.Lease; {
	case l != nil && (l.State == LeaseHeld || l.State == LeaseDraining):
	case l != nil && f.Head != nil && f.Head.Processes != nil && (w.session.State != SessionClosed || !l.State.Terminal()):
	default:
		t.Fatalf("exec %s runs nowhere: lease %+v, head %+v", x.ID, l, f.Head)
	}
}

// checkApproval: an approval that is open has an exec that is parked for it.
func (w *world) checkApproval(t *rapid.T, i Interaction) {
	x, _ := w.exec(i.Exec)
	if x.State != ExecParked || w.session.State == SessionClosed || i.ExpiresAt.IsZero() {
		t.Fatalf("approval %s is open in a session that is %s, its exec is %q", i.ID, w.session.State, x.State)
	}
}

// checkState: what the session's state says is what its facts and events say.
func (w *world) checkState(t *rapid.T) {
	s := w.session
	if !s.Bare() {
		return
	}
	closed := map[CloseReason]EventType{
		CloseCompleted: EventSessionCompleted, CloseFailed: EventSessionFailed, CloseCancelled: EventSessionCancelled,
	}[s.CloseReason]
	if closed != w.log.closed || (s.State == SessionClosed) != (closed != "") || (s.State == SessionClosed) == s.Ending.At.IsZero() {
		t.Fatalf("the session is %s for %q since %v, and the events say %q", s.State, s.CloseReason, s.Ending.At, w.log.closed)
	}
	if s.Ending.Reason == StopBudget && (s.Ending.Limit == "" || !w.log.reached) {
		t.Fatalf("the budget closed the session at limit %q, and the events say that one was reached: %v", s.Ending.Limit, w.log.reached)
	}
	if (s.State == SessionOpen) == s.ClockAt.IsZero() || (s.State == SessionPaused) == s.PausedAt.IsZero() {
		t.Fatalf("a session that is %s has its clock at %v and was paused at %v", s.State, s.ClockAt, s.PausedAt)
	}
	if !s.DeletedAt.IsZero() && s.State != SessionClosed {
		t.Fatalf("a session that is %s was deleted", s.State)
	}
	for id, got := range w.log.approvals {
		i := w.interactions[slices.IndexFunc(w.interactions, func(i Interaction) bool { return i.ID == id })]
		want := []EventType{EventApprovalRequested, EventApprovalResolved}
		if i.State == InteractionOpen {
			want = want[:1]
		}
		if !slices.Equal(got, want) {
			t.Fatalf("approval %s is %s, and its events are %v", id, i.State, got)
		}
	}
}

// checkTimers: what must happen by itself is ordered in time.
func (w *world) checkTimers(t *rapid.T) {
	s := w.session
	by := func(kind, key string, at time.Time) {
		if due, ok := w.work[kind+" "+key]; !ok || due.After(at) {
			t.Fatalf("%s of %s is due by %v, and ordered for %v (%v)", kind, key, at, due, ok)
		}
	}
	if at := s.clockDue(); !at.IsZero() {
		by(WorkClock, string(s.ID), at)
	}
	if p := s.Presence; s.State != SessionClosed && !p.SeenAt.IsZero() && p.LostAt.IsZero() {
		by(WorkPresence, string(s.ID), p.SeenAt.Add(MissedHeartbeats*HeartbeatEvery))
	}
	for _, i := range w.interactions {
		if i.State == InteractionOpen && i.Exec != "" {
			by(WorkInteraction, string(i.ID), i.ExpiresAt)
		} else if due, ok := w.work[WorkInteraction+" "+string(i.ID)]; ok {
			t.Fatalf("interaction %s is %s, and its end is ordered for %v", i.ID, i.State, due)
		}
	}
	if !s.DeletedAt.IsZero() {
		by(WorkPurge, string(s.ID), s.DeletedAt)
	}
}
