package sojourn

// BeginCheckpoint records that a capture of the sealing run starts.
func (d *Decision) BeginCheckpoint(id CheckpointID, run RunID, epoch int64) (Checkpoint, error) {
	r := d.facts.Active
	if r == nil || r.ID != run || r.State != RunSealing {
		return Checkpoint{}, Errorf(CodeExecutionLost, "Run %s is not sealing.", run)
	}
	c := Checkpoint{
		ID: id, Session: d.facts.Session.ID, Run: run, Epoch: epoch, State: CheckpointCapturing,
		Format: FormatV2, Base: d.facts.Session.Base, CapturingAt: d.now,
	}
	if d.facts.Head != nil {
		c.Parent = d.facts.Head.ID
	}
	d.checkpoints = append(d.checkpoints, c)
	return c, nil
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
	c.State, c.SealedAt = CheckpointSealed, d.now
	d.checkpoints = append(d.checkpoints, c)
	d.facts.Session.Head, d.facts.Head = c.ID, copied(&c)
	if c.Restorable(d.facts.Session.Base) {
		payload := map[string]any{
			"checkpointId": c.ID, "conversation": c.Conversation, "workspace": c.Workspace,
			"entries": c.Entries, "bytes": c.Bytes, "storedBytes": c.Stored,
		}
		if len(n.Skipped) > 0 {
			payload["skipped"] = n.Skipped
		}
		d.emit(EventCheckpointSealed, r.Turn, r.ID, payload)
	} else {
		d.emit(EventCheckpointFailed, r.Turn, r.ID, failedCapture(c, n))
	}
	return d.EndRun(r.ID, r.Final, r.StopReason, nil)
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
	c.ID, c.Parent, c.SealedAt = id, h.ID, d.now
	change(&c)
	d.checkpoints = append(d.checkpoints, c)
	d.facts.Session.Head, d.facts.Head = c.ID, copied(&c)
	d.emit(EventCheckpointFailed, "", h.Run, failedCapture(c, CaptureNotes{}))
	return nil
}
