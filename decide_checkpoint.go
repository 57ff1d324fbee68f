package sojourn

// BeginCheckpoint records that a capture of the sealing run starts.
func (d *Decision) BeginCheckpoint(id CheckpointID, run RunID, epoch int64) (Checkpoint, error) {
	r := d.facts.Active
	if r == nil || r.ID != run || r.State != RunSealing {
		return Checkpoint{}, Errorf(CodeExecutionLost, "Run %s is not sealing.", run)
	}
	return d.capturing(id, run, epoch), nil
}

// BeginDrain records that a capture of the draining lease's sandbox starts. Its
// boundary is that of the head: nothing has run since.
func (d *Decision) BeginDrain(id CheckpointID, epoch int64) (Checkpoint, error) {
	if err := d.draining(epoch); err != nil {
		return Checkpoint{}, err
	}
	boundary := d.facts.Session.LastRun
	if h := d.facts.Head; h != nil {
		boundary = h.Run
	}
	return d.capturing(id, boundary, epoch), nil
}

// draining refuses an epoch whose lease is not being drained.
func (d *Decision) draining(epoch int64) error {
	if err := d.current(epoch); err != nil {
		return err
	}
	if l := d.facts.Lease; l.State != LeaseDraining {
		return Errorf(CodeWorkspaceExpired, "Lease epoch %d is %s.", epoch, l.State)
	}
	return nil
}

// capturing records a checkpoint that follows on the head.
func (d *Decision) capturing(id CheckpointID, run RunID, epoch int64) Checkpoint {
	c := Checkpoint{
		ID: id, Session: d.facts.Session.ID, Run: run, Epoch: epoch, State: CheckpointCapturing,
		Format: FormatV2, Base: d.facts.Session.Base, CapturingAt: d.now,
	}
	if d.facts.Head != nil {
		c.Parent = d.facts.Head.ID
	}
	d.checkpoints = append(d.checkpoints, c)
	return c
}

// Seal makes c the session's head and ends its run, in one change: a completed
// run is recoverable, or the events say why not. It refuses when another
// checkpoint was sealed since c began, or c's lease is over and a newer one is
// granted: late writers are fenced off.
func (d *Decision) Seal(c Checkpoint, n CaptureNotes) error {
	r := d.facts.Active
	if r == nil || r.ID != c.Run || r.State != RunSealing {
		return Errorf(CodeExecutionLost, "Run %s is not sealing.", c.Run)
	}
	if err := d.next(c); err != nil {
		return err
	}
	d.sealHead(c, r.Turn, r.ID, n)
	return d.EndRun(r.ID, r.Final, r.StopReason, nil)
}

// SealDrain makes c the session's head, when a next turn could go on from it, and
// ends the draining lease that it was captured from. A capture that is not whole
// never takes the place of a head that is: the event says what is missing, and
// what was done since the head is lost. Where nothing was done yet, nothing is. A bare
// session goes on without what was lost, and is told of it with its next sandbox.
func (d *Decision) SealDrain(c Checkpoint, n CaptureNotes, to LeaseState) error {
	if err := d.draining(c.Epoch); err != nil {
		return err
	}
	if err := d.next(c); err != nil {
		return err
	}
	lost := !d.facts.Session.Bare() && d.facts.Head == nil && (d.facts.Session.Worked || d.facts.Unsaved())
	if c.Whole(d.facts.Session.Base) || lost {
		d.sealHead(c, "", "", n)
	} else {
		d.AbandonCheckpoint(c)
		d.emit(EventCheckpointFailed, "", "", failedCapture(c, n))
	}
	return d.EndLease(c.Epoch, to, d.facts.Lease.EndReason)
}

// CallOffDrain gives a draining lease back to the session, because c, which was
// captured from it, is not whole: to end it would lose what is missing.
func (d *Decision) CallOffDrain(c Checkpoint, n CaptureNotes) error {
	if err := d.draining(c.Epoch); err != nil {
		return err
	}
	l := *d.facts.Lease
	l.State, l.EndReason, l.SaveProcesses = LeaseHeld, "", false
	d.putLease(l)
	d.AbandonCheckpoint(c)
	d.emit(EventCheckpointFailed, "", "", failedCapture(c, n))
	d.attached(l)
	return nil
}

// next refuses a checkpoint that cannot be sealed now.
func (d *Decision) next(c Checkpoint) error {
	if !c.State.CanMove(CheckpointSealed) {
		return Errorf(CodeExecutionLost, "Checkpoint %s is %s and cannot be sealed.", c.ID, c.State)
	}
	head := CheckpointID("")
	if d.facts.Head != nil {
		head = d.facts.Head.ID
	}
	if c.Parent != head || c.Epoch != d.facts.Session.LastEpoch {
		return Errorf(CodeExecutionLost, "Checkpoint %s is not next in the session's chain.", c.ID)
	}
	return nil
}

// sealHead seals c as the session's head and says so, or what is missing of it.
func (d *Decision) sealHead(c Checkpoint, turn TurnID, run RunID, n CaptureNotes) {
	c.State, c.SealedAt = CheckpointSealed, d.now
	d.checkpoints = append(d.checkpoints, c)
	d.facts.Session.Head, d.facts.Head = c.ID, copied(&c)
	if !c.Restorable(d.facts.Session.Base) {
		d.emit(EventCheckpointFailed, turn, run, failedCapture(c, n))
		return
	}
	payload := map[string]any{
		"checkpointId": c.ID, "conversation": c.Conversation, "workspace": c.Workspace,
		"entries": c.Entries, "bytes": c.Bytes, "storedBytes": c.Stored,
	}
	if len(n.Skipped) > 0 {
		payload["skipped"] = n.Skipped
	}
	if p := c.Processes; p != nil {
		payload["processes"] = map[string]any{"bytes": p.Bytes, "storedBytes": p.Stored}
	}
	if run == "" && c.Run != "" {
		payload["boundaryRunId"] = c.Run
	}
	d.emit(EventCheckpointSealed, turn, run, payload)
}

// CaptureNotes is what a capture has to tell besides its record.
type CaptureNotes struct {
	// Skipped counts what a checkpoint does not carry by its nature, such as
	// sockets, by kind.
	Skipped map[string]int64
	// ConversationDetail and WorkspaceDetail name what stood in the way of a part
	// that was not captured, such as the entry that could not be read.
	ConversationDetail, WorkspaceDetail string
}

// failedCapture is the payload of an event about a checkpoint that cannot be
// restored: what is missing of it and why. What is not known is left out.
func failedCapture(c Checkpoint, n CaptureNotes) map[string]any {
	payload := map[string]any{"checkpointId": c.ID, "conversation": c.Conversation, "workspace": c.Workspace}
	for name, text := range map[string]string{
		"conversationReason": c.ConversationReason, "conversationDetail": n.ConversationDetail,
		"workspaceReason": c.WorkspaceReason, "workspaceDetail": n.WorkspaceDetail,
	} {
		if text != "" {
			payload[name] = text
		}
	}
	return payload
}

// AbandonCheckpoint records that c, which was capturing, will never be sealed.
func (d *Decision) AbandonCheckpoint(c Checkpoint) {
	if c.State != CheckpointCapturing {
		return
	}
	c.State = CheckpointAbandoned
	d.checkpoints = append(d.checkpoints, c)
}

// RefuseHead records that the agent could not go on with the head checkpoint's
// conversation although it was captured: a new head with the id given stands
// for the same boundary and says that the conversation is not restorable.
func (d *Decision) RefuseHead(id CheckpointID) error {
	return d.replaceHead(id, func(c *Checkpoint) {
		c.Conversation, c.ConversationReason = FidelityResultOnly, "refused_by_agent"
	})
}

// CondemnHead records that the stored bytes of the head checkpoint are not those
// that were sealed: a new head with the id given stands for the same boundary
// and says that nothing of it is restorable.
func (d *Decision) CondemnHead(id CheckpointID) error {
	return d.replaceHead(id, func(c *Checkpoint) {
		c.Conversation, c.ConversationReason = FidelityResultOnly, "damaged"
		c.Workspace, c.WorkspaceReason = FidelityNone, "damaged"
	})
}

// replaceHead puts a changed copy of the head in its place.
func (d *Decision) replaceHead(id CheckpointID, change func(*Checkpoint)) error {
	h := d.facts.Head
	if h == nil {
		return Errorf(CodeInternal, "There is no checkpoint to refuse.")
	}
	c := *h
	c.ID, c.Parent, c.SealedAt, c.Processes = id, h.ID, d.now, nil
	change(&c)
	d.checkpoints = append(d.checkpoints, c)
	d.facts.Session.Head, d.facts.Head = c.ID, copied(&c)
	d.emit(EventCheckpointFailed, "", h.Run, failedCapture(c, CaptureNotes{}))
	return nil
}
