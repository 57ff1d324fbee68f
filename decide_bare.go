package sojourn

import (
	"slices"
	"time"
)

// Why a bare session was closed. A caller's own words are kept beside it.
const (
	StopRequested = "stopped"
	StopBudget    = "budget_exhausted"
	StopAbandoned = "client_abandoned"
	StopRotation  = "rotation_failed"
	StopNoSandbox = "sandbox_unavailable"
)

// MaxStopText bounds the words of a caller who stops a session.
const MaxStopText = 1024

// Ending is why and when a session was closed.
type Ending struct {
	Reason string    `json:"reason,omitempty"` // one of the Stop words, or StopCancelled
	Limit  Limit     `json:"limit,omitempty"`  // that was reached, with budget_exhausted
	Text   string    `json:"text,omitempty"`   // a caller's words, or what went wrong
	At     time.Time `json:"at,omitzero"`
}

// invalidState refuses a command that the session's state does not allow.
func invalidState(s Session, what string) *Error {
	state := string(s.State)
	if s.State == SessionClosed {
		state = string(s.CloseReason)
	}
	return &Error{
		Code: CodeInvalidState, Message: "A session that is " + state + " " + what + ".",
		Details: map[string]string{"state": state},
	}
}

// Start opens a new bare session: from here its sandbox is provided and its clock
// runs. The code is invalid_state.
func (d *Decision) Start() error {
	s := &d.facts.Session
	if err := d.bare(); err != nil {
		return err
	}
	if s.State != SessionNew {
		return invalidState(*s, "cannot be started")
	}
	s.State, s.StartedAt = SessionOpen, d.now
	d.emit(EventSessionStarted, "", "", nil)
	d.runClock()
	d.order(WorkBench, string(s.ID), d.now)
	if s.Presence.OnAbandon != AbandonKeep && s.Presence.Client != "" {
		s.Presence.SeenAt = d.now // whoever starts it is there
		d.order(WorkPresence, string(s.ID), d.now.Add(MissedHeartbeats*HeartbeatEvery))
	}
	return nil
}

// bare refuses a session that has an agent. One that is archived is closed, and
// refuses by that.
func (d *Decision) bare() error {
	if s := d.facts.Session; !s.Bare() {
		return Errorf(CodeInvalid, "The session has an agent (%s): it takes turns, no execs.", s.Runtime)
	}
	return nil
}

// Pause holds a session: no exec is accepted, the one that runs may finish, then
// its sandbox is given back. Its clock stops.
func (d *Decision) Pause() error {
	s := &d.facts.Session
	if err := d.bare(); err != nil {
		return err
	}
	if s.State != SessionOpen {
		return invalidState(*s, "cannot be paused")
	}
	d.stopClock()
	s.State, s.PausedAt = SessionPaused, d.now
	d.emit(EventSessionPaused, "", "", nil)
	d.order(WorkBench, string(s.ID), d.now)
	return nil
}

// Resume lets a paused session go on, in a sandbox that carries its work. The
// codes are invalid_state and budget_exceeded.
func (d *Decision) Resume() error {
	s := &d.facts.Session
	if err := d.bare(); err != nil {
		return err
	}
	if s.State != SessionPaused {
		return invalidState(*s, "cannot be resumed")
	}
	if err := s.Budget.Admit(); err != nil {
		return err
	}
	s.State, s.PausedAt = SessionOpen, time.Time{}
	d.emit(EventSessionResumed, "", "", nil)
	d.runClock()
	d.order(WorkBench, string(s.ID), d.now)
	return nil
}

// Close ends a session for good. With CloseCancelled what runs is killed at once.
// Closing a closed session changes nothing.
func (d *Decision) Close(how CloseReason, why, text string) error {
	if err := d.bare(); err != nil {
		return err
	}
	d.close(how, Ending{Reason: why, Text: text})
	return nil
}

func (d *Decision) close(how CloseReason, end Ending) {
	s := &d.facts.Session
	if s.State == SessionClosed {
		return
	}
	d.stopClock()
	d.rotationOver()
	end.At = d.now
	s.State, s.CloseReason, s.Ending, s.PausedAt = SessionClosed, how, end, time.Time{}
	event := map[CloseReason]EventType{
		CloseCompleted: EventSessionCompleted, CloseFailed: EventSessionFailed, CloseCancelled: EventSessionCancelled,
	}[how]
	payload := map[string]any{"stopReason": end.Reason}
	if end.Limit != "" {
		payload["limit"] = end.Limit
	}
	if end.Text != "" {
		payload["detail"] = end.Text
	}
	d.emit(event, "", "", payload)
	for _, x := range slices.Clone(d.facts.Execs) {
		if x.State == ExecParked {
			d.refuseExec(x, closedReason(*s))
		}
	}
	if l := d.facts.Lease; l == nil || l.State.Terminal() {
		d.loseExecs() // their processes were saved, for a sandbox that will not come
	}
	d.order(WorkBench, string(s.ID), d.now)
	d.withdraw(WorkClock, string(s.ID))
	d.withdraw(WorkPresence, string(s.ID))
}

// Delete makes a closed session's record go. Deleting it again changes nothing.
func (d *Decision) Delete() error {
	s := &d.facts.Session
	if err := d.bare(); err != nil {
		return err
	}
	if s.State != SessionClosed {
		return invalidState(*s, "cannot be deleted: stop or cancel it first")
	}
	if s.DeletedAt.IsZero() {
		s.DeletedAt, s.UpdatedAt = d.now, d.now
		d.order(WorkPurge, string(s.ID), d.now)
	}
	return nil
}

// BudgetAt is the session's budget with the time that has passed on its clock.
func (s Session) BudgetAt(now time.Time) Budget {
	b := s.Budget
	if !s.ClockAt.IsZero() && now.After(s.ClockAt) {
		b = b.Charge(Charge{Duration: now.Sub(s.ClockAt)})
	}
	return b
}

// BudgetAt is the session's budget as admission sees it at now: with the time that
// has passed on its clock, and with the execs that run as if they ended now. What is
// shown and what stops are one figure.
func (f Facts) BudgetAt(now time.Time) Budget {
	b := f.Session.BudgetAt(now)
	for _, x := range f.Running() {
		b = b.Charge(x.charge(f.ran(x, now)))
	}
	return b
}

// runClock starts the session's clock, and has its duration limit looked at.
func (d *Decision) runClock() {
	s := &d.facts.Session
	s.ClockAt = d.now
	if at := s.clockDue(); !at.IsZero() {
		d.order(WorkClock, string(s.ID), at)
	}
}

// stopClock charges the time since the clock was started, or last charged.
func (d *Decision) stopClock() {
	s := &d.facts.Session
	if s.ClockAt.IsZero() {
		return
	}
	d.warned(s.BudgetAt(d.now), "", "")
	s.ClockAt = time.Time{}
	d.withdraw(WorkClock, string(s.ID))
}

// clockDue returns when the next threshold of the duration limit is reached; zero
// for none.
func (s Session) clockDue() time.Time {
	limit := s.Budget.Limits.Duration
	if limit <= 0 || s.ClockAt.IsZero() {
		return time.Time{}
	}
	for _, percent := range [...]int64{80, 95, 100} {
		rest := time.Duration(100 - percent)
		at := limit - (limit/100*rest + limit%100*rest/100) // limit*rest may pass what 64 bits hold
		if s.Budget.Usage.Duration < at {
			return s.ClockAt.Add(at - s.Budget.Usage.Duration)
		}
	}
	return s.ClockAt
}

// CheckClock charges the time that has passed, and stops the session when its
// duration limit is reached. It returns when to look again; zero for never.
func (d *Decision) CheckClock() time.Time {
	s := &d.facts.Session
	if s.ClockAt.IsZero() || s.State != SessionOpen {
		return time.Time{}
	}
	if due := s.clockDue(); due.IsZero() || d.now.Before(due) {
		return due
	}
	d.warned(s.BudgetAt(d.now), "", "")
	s.ClockAt = d.now
	next := s.clockDue()
	if next.After(d.now) {
		return next
	}
	d.exhausted(LimitDuration) // also when another limit is reached: only that one waits for what runs
	return time.Time{}
}

// warned takes over what was used, and says which thresholds that has passed. turn
// and run are "" for what no run has used.
func (d *Decision) warned(b Budget, turn TurnID, run RunID) {
	s := &d.facts.Session
	before := s.Budget
	s.Budget = b
	if now := b.Warning(); now > before.Warning() && s.Ending.Reason != StopBudget {
		d.emit(EventBudgetWarning, turn, run, map[string]any{"percent": now, "remaining": b.Remaining()})
	}
	if l := b.Exhausted(); l != "" && before.Exhausted() == "" && s.Ending.Reason != StopBudget {
		d.emit(EventBudgetReached, turn, run, map[string]any{"limit": l})
	}
}

// exhausted ends a session whose budget has reached a limit, or would if what runs
// ended now.
func (d *Decision) exhausted(l Limit) {
	d.stopClock()
	if d.facts.Session.Budget.Exhausted() == "" {
		d.emit(EventBudgetReached, "", "", map[string]any{"limit": l})
	}
	d.close(CloseCompleted, Ending{Reason: StopBudget, Limit: l})
}

// SetLimits changes what the session may use. What was used stays. The codes are
// invalid and invalid_state.
func (d *Decision) SetLimits(l Limits) error {
	s := &d.facts.Session
	switch {
	case s.State == SessionClosed:
		return invalidState(*s, "has a budget that does not change any more")
	case s.Archived():
		return Errorf(CodeSessionArchived, "The session is archived.")
	case min(int64(l.Cost), l.Iterations, int64(l.Duration)) < 0:
		return Errorf(CodeInvalid, "budget: a limit must not be negative.")
	}
	d.emit(EventBudgetChanged, "", "", map[string]any{"limits": l})
	b := s.BudgetAt(d.now)
	b.Limits = l
	d.warned(b, "", "")
	if !s.ClockAt.IsZero() {
		d.withdraw(WorkClock, string(s.ID))
		d.runClock()
	}
	d.stopIfSpent()
	return nil
}

// NoteFiles records that a caller wrote files.
func (d *Decision) NoteFiles(paths []string, total int64) {
	const shown = 20
	more := max(0, len(paths)-shown)
	payload := map[string]any{"paths": paths[:len(paths)-more], "bytes": total}
	if more > 0 {
		payload["more"] = more
	}
	d.emit(EventFileWritten, "", "", payload)
}
