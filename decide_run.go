package sojourn

import "slices"

// moveRun moves the active run, or refuses.
func (d *Decision) moveRun(id RunID, to RunState) (Run, error) {
	r := d.facts.Active
	if r == nil || r.ID != id {
		return Run{}, Errorf(CodeExecutionLost, "Run %s is not active.", id)
	}
	if !r.State.CanMove(to) {
		return Run{}, Errorf(CodeExecutionLost, "Run %s is %s and cannot become %s.", id, r.State, to)
	}
	next := *r
	next.State = to
	return next, nil
}

// StartRun records that a worker has taken the run.
func (d *Decision) StartRun(id RunID) error {
	r, err := d.moveRun(id, RunStarting)
	if err != nil {
		return err
	}
	r.StartedAt = d.now
	d.putRun(r)
	d.emit(EventRunStarted, r.Turn, r.ID, nil)
	return nil
}

// ActivateRun records that the prompt is about to be given to the agent under
// epoch: from here the run counts as work.
func (d *Decision) ActivateRun(id RunID, epoch int64) error {
	if err := d.holding(epoch); err != nil {
		return err
	}
	r, err := d.moveRun(id, RunActive)
	if err != nil {
		return err
	}
	r.ActiveAt, r.Epoch = d.now, epoch
	d.facts.Session.Worked = true
	d.putRun(r)
	d.emit(EventRunActive, r.Turn, r.ID, nil)
	return nil
}

// FinishRun records that the agent is done: the run will become final, which is
// completed or cancelled, once its checkpoint is decided.
func (d *Decision) FinishRun(id RunID, final RunState, stopReason string) error {
	if final != RunCompleted && final != RunCancelled {
		return Errorf(CodeInternal, "A sealing run cannot become %s.", final)
	}
	r, err := d.moveRun(id, RunSealing)
	if err != nil {
		return err
	}
	r.SealingAt, r.StopReason, r.Final = d.now, stopReason, final
	d.putRun(r)
	d.expireOpen(id, ReasonRunEnded)
	return nil
}

// EndRun moves the run to a terminal state. Open interactions of the run expire:
// with workspace_lost when its sandbox is gone, else with run_ended. The event
// says what the state says; there is exactly one per run.
func (d *Decision) EndRun(id RunID, to RunState, stopReason string, why *RunError) error {
	r, err := d.moveRun(id, to)
	if err != nil {
		return err
	}
	if !to.Terminal() {
		return Errorf(CodeInternal, "%s is not an end.", to)
	}
	r.EndedAt = d.now
	if stopReason != "" {
		r.StopReason = stopReason
	}
	r.Error = why
	reason := ReasonRunEnded
	if r.StopReason == StopWorkspaceLost || r.StopReason == StopExecutionDeadline {
		reason = ReasonWorkspaceLost
	}
	d.expireOpen(id, reason)
	d.putRun(r)
	payload := map[string]any{}
	if r.StopReason != "" {
		payload["stopReason"] = r.StopReason
	}
	if why != nil {
		payload["error"] = why
		payload["code"] = why.Code
	}
	if r.ModelError != nil {
		payload["modelError"] = r.ModelError
	}
	event := map[RunState]EventType{
		RunCompleted: EventRunCompleted, RunFailed: EventRunFailed,
		RunCrashed: EventRunCrashed, RunCancelled: EventRunCancelled,
	}[to]
	d.emit(event, r.Turn, r.ID, payload)
	d.withdraw(WorkRun, string(r.ID))
	return nil
}

// CancelRun asks the run to end. A queued run ends at once; a sealing one ends
// as it was going to; asking again changes nothing. For a run that is already
// over it reports false.
func (d *Decision) CancelRun(id RunID) (bool, error) {
	r := d.facts.Active
	if r == nil || r.ID != id {
		return false, nil
	}
	if r.State == RunQueued {
		return true, d.EndRun(id, RunCancelled, StopCancelled, nil)
	}
	if !r.CancelAt.IsZero() || r.State == RunSealing {
		return true, nil
	}
	next := *r
	next.CancelAt = d.now
	d.putRun(next)
	d.emit(EventRunCancelRequested, r.Turn, r.ID, nil)
	return true, nil
}

// RecoverRun records that the run was taken up after the server that drove it
// had died.
func (d *Decision) RecoverRun(id RunID) error {
	r := d.facts.Active
	if r == nil || r.ID != id {
		return Errorf(CodeExecutionLost, "Run %s is not active.", id)
	}
	d.emit(EventRunRecovered, r.Turn, r.ID, map[string]any{"state": r.State})
	return nil
}

// Ask records a question of the active run. A question with the same Ref in the
// same run is the same question and is not asked again.
func (d *Decision) Ask(i Interaction) error {
	r := d.facts.Active
	if r == nil || r.ID != i.Run || r.State != RunActive {
		return Errorf(CodeExecutionLost, "Run %s is not active.", i.Run)
	}
	for _, open := range d.facts.Open {
		if open.Run == i.Run && open.Ref == i.Ref {
			return nil
		}
	}
	i.Session, i.State, i.OpenedAt = d.facts.Session.ID, InteractionOpen, d.now
	d.putInteraction(i)
	d.emit(EventInteractionRequested, r.Turn, r.ID, map[string]any{
		"interactionId": i.ID, "kind": i.Kind, "request": i.Request, "options": i.Options,
	})
	return nil
}

// Answer records a decision on i, which the caller has read in the same
// transaction. The same answer again changes nothing, as does the same decision on an
// exec with another comment; another one is refused.
func (d *Decision) Answer(i Interaction, a Answer) error {
	switch i.State {
	case InteractionAnswered:
		if i.Answer != nil && (*i.Answer == a || i.Exec != "" && i.Answer.OptionID == a.OptionID) {
			return nil
		}
		return Errorf(CodeInteractionAnswered, "The interaction already has another answer.")
	case InteractionOpen:
	default:
		return &Error{
			Code: CodeInteractionExpired, Details: map[string]string{"reason": i.Reason},
			Message: "The interaction can no longer be answered (" + i.Reason + "). Submit a fresh turn.",
		}
	}
	if err := checkAnswer(i, a); err != nil {
		return err
	}
	i.State, i.Answer, i.EndedAt = InteractionAnswered, &a, d.now
	d.putInteraction(i)
	if x, ok := d.facts.execAt(i.Exec); ok {
		d.resolve(i, x)
	}
	d.emit(EventInteractionAnswered, d.turnOf(i.Run), i.Run, map[string]any{"interactionId": i.ID, "answer": a})
	return nil
}

func checkAnswer(i Interaction, a Answer) error {
	if (a.OptionID == "") == (a.Text == "") {
		return Errorf(CodeInvalid, "An answer is either an optionId or a text.")
	}
	if len(a.Comment) > MaxStopText {
		return Errorf(CodeInvalid, "comment: at most %d bytes.", MaxStopText)
	}
	if (i.Kind == "permission" || i.Exec != "") && a.OptionID == "" {
		return Errorf(CodeInvalid, "A permission is answered with an optionId.")
	}
	if a.OptionID != "" && !slices.ContainsFunc(i.Options, func(o Option) bool { return o.ID == a.OptionID }) {
		return Errorf(CodeInvalid, "optionId %q was not offered.", a.OptionID)
	}
	return nil
}

// Withdraw records that the agent took a question back.
func (d *Decision) Withdraw(run RunID, ref string) {
	for _, i := range slices.Clone(d.facts.Open) {
		if i.Run == run && i.Ref == ref {
			i.State, i.EndedAt, i.Reason = InteractionWithdrawn, d.now, "withdrawn"
			d.putInteraction(i)
			d.emit(EventInteractionWithdrawn, d.turnOf(run), run, map[string]any{"interactionId": i.ID})
		}
	}
}

func (d *Decision) expireOpen(run RunID, reason string) {
	for _, i := range slices.Clone(d.facts.Open) {
		if i.Run != run {
			continue
		}
		i.State, i.EndedAt, i.Reason = InteractionExpired, d.now, reason
		d.putInteraction(i)
		d.emit(EventInteractionExpired, d.turnOf(run), run, map[string]any{"interactionId": i.ID, "reason": reason})
	}
}

// turnOf returns the turn that the active run executes; "" for another run.
func (d *Decision) turnOf(run RunID) TurnID {
	if r := d.facts.Active; r != nil && r.ID == run {
		return r.Turn
	}
	return ""
}

// Note records events that change nothing else, such as agent updates.
func (d *Decision) Note(events ...EventDraft) {
	d.events = append(d.events, events...)
	d.facts.Session.UpdatedAt = d.now
}
