package sojourn

import (
	"encoding/json"
	"time"
)

// Terms are the numbers of a new lease.
type Terms struct {
	Ceiling time.Duration // 0 means DefaultCeiling
	Hold    time.Duration // 0 means DefaultHold
}

// sealingRetry is when to ask again for a lease that a sealing run holds up.
const sealingRetry = 2 * time.Second

// current refuses an epoch that is not that of the session's latest lease.
func (d *Decision) current(epoch int64) error {
	if l := d.facts.Lease; l == nil || l.Epoch != epoch {
		return Errorf(CodeWorkspaceExpired, "Lease epoch %d is over.", epoch)
	}
	return nil
}

// holding refuses an epoch under which the session holds no sandbox: that of an
// older lease, or of one that is not held yet or no more.
func (d *Decision) holding(epoch int64) error {
	if err := d.current(epoch); err != nil {
		return err
	}
	if l := d.facts.Lease; l.State != LeaseHeld {
		return Errorf(CodeWorkspaceExpired, "Lease epoch %d is %s.", epoch, l.State)
	}
	return nil
}

// AdmitsLease returns why no lease of the session may be requested now, or nil.
// The codes are workspace_starting and session_archived.
func (d *Decision) AdmitsLease() error {
	if l := d.facts.Lease; l != nil && !l.State.Terminal() {
		return Errorf(CodeWorkspaceStarting, "Lease epoch %d has not ended.", l.Epoch)
	}
	if s := d.facts.Session; s.Archived() {
		return Errorf(CodeSessionArchived, "The session is archived.")
	} else if s.Bare() && s.State != SessionOpen {
		return invalidState(s, "gets no sandbox")
	}
	if r := d.facts.Active; r != nil && r.State == RunSealing { // a new epoch would fence its checkpoint off
		return &Error{
			Code: CodeWorkspaceStarting, RetryAfter: sealingRetry,
			Message: "A run is being sealed. Retry: a sandbox with its work follows.",
		}
	}
	return nil
}

// RequestLease starts a new epoch: at most one lease of a session is ever not
// terminal, so an older one must have ended.
func (d *Decision) RequestLease(driver, isolation string, t Terms) (Lease, error) {
	if err := d.AdmitsLease(); err != nil {
		return Lease{}, err
	}
	s := &d.facts.Session
	if t.Ceiling == 0 {
		t.Ceiling = DefaultCeiling
	}
	if t.Hold == 0 {
		t.Hold = DefaultHold
	}
	s.LastEpoch++
	l := Lease{
		Session: s.ID, Epoch: s.LastEpoch, State: LeaseRequested, Driver: driver, Isolation: isolation,
		RequestedAt: d.now, Ceiling: t.Ceiling, Hold: t.Hold,
	}
	d.putLease(l)
	return l, nil
}

// HoldLease binds the sandbox that handle names. restored is the checkpoint
// that was restored into it, "" for none. A session that has worked holds no
// sandbox but one that starts from its head: another would pass for a resume.
func (d *Decision) HoldLease(epoch int64, handle json.RawMessage, restored CheckpointID) error {
	if err := d.current(epoch); err != nil {
		return err
	}
	l := *d.facts.Lease
	if l.State != LeaseRequested {
		return Errorf(CodeWorkspaceExpired, "Lease epoch %d is %s.", epoch, l.State)
	}
	if err := d.carries(restored); err != nil {
		return err
	}
	l.State, l.Handle, l.Restored = LeaseHeld, handle, restored
	l.GrantedAt, l.TouchedAt = d.now, d.now
	d.putLease(l)
	if restored != "" {
		payload := map[string]any{"checkpointId": restored}
		if h := d.facts.Head; h != nil && h.ID == restored {
			payload["boundaryRunId"] = h.Run
		}
		d.emit(EventWorkspaceRestored, "", "", payload)
	}
	d.attached(l)
	d.rotated(l)
	return nil
}

// attached says that a lease is held, and has it tended to at its deadline.
func (d *Decision) attached(l Lease) {
	d.emit(EventWorkspaceAttached, "", "", map[string]any{
		"epoch": l.Epoch, "isolation": l.Isolation, "expiresAt": instant(l.Deadline()),
	})
	d.order(WorkLease, string(l.Session), l.Deadline())
}

// carries refuses a sandbox that does not start from where the session stands.
func (d *Decision) carries(restored CheckpointID) error {
	s, h := d.facts.Session, d.facts.Head
	switch {
	case restored != s.Head:
		return Errorf(CodeResumeUnavailable, "The sandbox starts from checkpoint %q, the session stands at %q.", restored, s.Head)
	case d.facts.worked() && (h == nil || !h.Restorable(s.Base)):
		return Errorf(CodeResumeUnavailable, "The session has worked, and no checkpoint of it can be restored.")
	}
	return nil
}

// SetConversation records the agent's own id of the conversation that is open
// in the lease's sandbox, once the agent has confirmed it.
func (d *Decision) SetConversation(epoch int64, conversation string) error {
	if err := d.holding(epoch); err != nil {
		return err
	}
	l := *d.facts.Lease
	l.Conversation = conversation
	d.putLease(l)
	return nil
}

// TouchLease moves the hold on a sign of use. It reports whether the lease is
// still live.
func (d *Decision) TouchLease(epoch int64) bool {
	if d.current(epoch) != nil || !d.facts.Lease.Live(d.now) {
		return false
	}
	l := d.facts.Lease.Touch(d.now)
	d.putLease(l)
	d.order(WorkLease, string(l.Session), l.Deadline())
	return true
}

// VisitLease is TouchLease for a use outside a run: what it writes is not sealed
// by a run's end, so draining must capture it.
func (d *Decision) VisitLease(epoch int64) bool {
	if !d.TouchLease(epoch) {
		return false
	}
	l := *d.facts.Lease
	l.VisitedAt = d.now
	d.putLease(l)
	return true
}

// DrainLease starts to end a held lease on purpose: its files, and with save its
// processes, are captured before its sandbox is destroyed. It is refused with
// run_active while an agent works in it. Draining a draining lease changes
// nothing.
func (d *Decision) DrainLease(epoch int64, why string, save bool) error {
	if err := d.current(epoch); err != nil {
		return err
	}
	l := *d.facts.Lease
	if l.State == LeaseDraining {
		return nil
	}
	if err := d.holding(epoch); err != nil {
		return err
	}
	if r := d.facts.Active; r != nil && (r.State == RunActive || r.State == RunSealing) {
		return Errorf(CodeRunActive, "Run %s uses the sandbox.", r.ID)
	}
	l.State, l.EndReason, l.SaveProcesses = LeaseDraining, why, save
	d.putLease(l)
	d.emit(EventWorkspaceDraining, "", "", map[string]any{"epoch": epoch, "reason": why, "processes": save})
	d.order(WorkLease, string(l.Session), d.now)
	return nil
}

// Unsaved reports whether the sandbox of the latest lease may hold what no
// checkpoint does: it was used outside a run since the last one began to be
// captured.
func (f Facts) Unsaved() bool {
	l := f.Lease
	if l != nil && !l.State.Terminal() && len(f.Running()) > 0 {
		return true
	}
	return l != nil && !l.VisitedAt.IsZero() && (f.Head == nil || !l.VisitedAt.Before(f.Head.CapturingAt))
}

// ResumeProcesses records that the processes of the head go on in the sandbox of
// a lease that was just held.
func (d *Decision) ResumeProcesses(epoch int64) error {
	if err := d.holding(epoch); err != nil {
		return err
	}
	h := d.facts.Head
	if h == nil || h.Processes == nil {
		return Errorf(CodeInternal, "The head has no saved processes.")
	}
	since := d.facts.savedSince()
	for _, x := range d.facts.Running() {
		if since.After(x.StartedAt) {
			x.Result.Saved += max(0, d.now.Sub(since))
			d.putExec(x)
		}
	}
	l := *d.facts.Lease
	l.Resumed = h.Processes.Epoch
	d.putLease(l)
	d.emit(EventWorkspaceResumed, "", "", map[string]any{"epoch": epoch, "fromEpoch": h.Epoch})
	return nil
}

// LoseProcesses records that the saved processes of the head could not go on in
// the sandbox of a lease that was just held; why is for people.
func (d *Decision) LoseProcesses(epoch int64, why string) {
	d.emit(EventWorkspaceColdStart, "", "", map[string]any{"epoch": epoch, "detail": why})
	d.loseExecs()
}

// activeIDs are the turn and the run that an event about the sandbox belongs to; empty
// when nothing is active.
func (d *Decision) activeIDs() (turn TurnID, run RunID) {
	if r := d.facts.Active; r != nil {
		return r.Turn, r.ID
	}
	return "", ""
}

// NoteLimits records that limits of the sandbox were reached. counts are by
// limit: memory, processes, disk.
func (d *Decision) NoteLimits(epoch int64, counts map[string]int64) {
	if d.current(epoch) != nil || len(counts) == 0 {
		return
	}
	turn, run := d.activeIDs()
	d.emit(EventWorkspaceLimit, turn, run, map[string]any{"epoch": epoch, "limits": counts})
}

// NoteSilence records that the keeper of an open lease's sandbox has answered nothing
// for a time, so that the sandbox is about to be ended from outside.
func (d *Decision) NoteSilence(epoch int64, silence time.Duration) {
	if l := d.facts.Lease; l == nil || l.Epoch != epoch || l.State.Terminal() {
		return
	}
	turn, run := d.activeIDs()
	d.emit(EventWorkspaceSilent, turn, run, map[string]any{
		"epoch": epoch, "silentMs": silence.Milliseconds(),
		"detail": "The sandbox's keeper did not answer for " + silence.String() + ": the sandbox is ended.",
	})
}

// EndLease ends the lease for good. Ending an ended lease changes nothing.
func (d *Decision) EndLease(epoch int64, to LeaseState, why string) error {
	if d.current(epoch) != nil {
		return nil
	}
	l := *d.facts.Lease
	if l.State.Terminal() {
		return nil
	}
	if !l.State.CanMove(to) || !to.Terminal() {
		return Errorf(CodeInternal, "A %s lease cannot become %s.", l.State, to)
	}
	held := !l.GrantedAt.IsZero()
	l.State, l.EndedAt, l.EndReason = to, d.now, why
	d.putLease(l)
	if held {
		event := map[LeaseState]EventType{
			LeaseReleased: EventWorkspaceReleased, LeaseExpired: EventWorkspaceExpired, LeaseLost: EventWorkspaceLost,
		}[to]
		d.emit(event, "", "", map[string]any{"epoch": epoch, "reason": why})
	}
	d.leaseOver(l)
	d.order(WorkLease, string(l.Session), d.now) // its sandbox is destroyed at once
	return nil
}

// instant formats a time as contract C and every event shows it.
func instant(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// AdmitsWorkspace returns why the session may not ask for a workspace now, or
// nil. The codes are session_archived, resume_unavailable and
// workspace_expiring, and invalid_state for a bare session that is not open: one that
// is open has a sandbox, or gets one.
func (d *Decision) AdmitsWorkspace() error {
	if s := d.facts.Session; s.Bare() {
		if s.State != SessionOpen {
			return invalidState(s, "has no sandbox")
		}
		return d.bare()
	}
	if d.facts.Active != nil { // its workspace is in use or on its way
		return nil
	}
	return d.admits()
}
