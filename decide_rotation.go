package sojourn

import "time"

// RequestRotation begins a rotation that a caller asked for. While one is under
// way it changes nothing. The codes are invalid_state and workspace_starting.
func (d *Decision) RequestRotation() error {
	s := d.facts.Session
	if err := d.bare(); err != nil {
		return err
	}
	if s.State != SessionOpen {
		return invalidState(s, "has no sandbox to rotate")
	}
	if s.Rotating() {
		return nil
	}
	if l := d.facts.Lease; l == nil || l.State != LeaseHeld {
		return Errorf(CodeWorkspaceStarting, "The sandbox is coming up.")
	}
	d.beginRotation(RotateRequested)
	return nil
}

// BeginRotation begins to replace the sandbox of an open session: from here no
// exec starts until a fresh one carries its work. It reports false when one is
// under way, or when there is none to replace yet.
func (d *Decision) BeginRotation(why RotationReason) bool {
	s, l := d.facts.Session, d.facts.Lease
	if !s.Bare() || s.State != SessionOpen || s.Rotating() || l == nil || l.State == LeaseRequested {
		return false
	}
	d.beginRotation(why)
	return true
}

func (d *Decision) beginRotation(why RotationReason) {
	s, l := &d.facts.Session, d.facts.Lease
	r := &s.Rotation
	r.BegunAt, r.Why, r.From, r.Tries = d.now, why, l.Epoch, 0
	d.emit(EventRotationStarted, "", "", map[string]any{
		"reason": why, "epoch": l.Epoch, "processes": r.Processes, "deadline": instant(l.GrantedAt.Add(l.Ceiling)),
	})
	d.order(WorkBench, string(s.ID), d.now)
}

// FailRotation records that a try to replace the sandbox has failed; why is for
// people. After [MaxRotationTries] the session fails. It reports whether another
// try follows.
func (d *Decision) FailRotation(why string) bool { return d.failRotation(why, false) }

// GiveUpRotation records that the sandbox cannot be replaced, however often that is
// tried: the session fails.
func (d *Decision) GiveUpRotation(why string) { d.failRotation(why, true) }

func (d *Decision) failRotation(why string, final bool) bool {
	s := &d.facts.Session
	if !s.Rotating() || s.State != SessionOpen {
		return false
	}
	r := &s.Rotation
	r.Tries++
	again := r.Tries < MaxRotationTries && !final
	d.emit(EventRotationFailed, "", "", map[string]any{"attempt": r.Tries, "error": why, "retrying": again})
	if !again {
		d.close(CloseFailed, Ending{Reason: StopRotation, Text: why})
	}
	return again
}

// rotated completes a rotation with the lease that was just held.
func (d *Decision) rotated(l Lease) {
	s := &d.facts.Session
	if !s.Rotating() {
		return
	}
	r := &s.Rotation
	payload := map[string]any{
		"reason": r.Why, "fromEpoch": r.From, "epoch": l.Epoch, "durationMs": d.now.Sub(r.BegunAt).Milliseconds(),
		"checkpointId": l.Restored, "expiresAt": instant(l.Deadline()),
	}
	if r.Lost != nil && r.Lost.Epoch >= r.From {
		payload["lost"] = map[string]any{"since": instant(r.Lost.Since)}
	}
	r.Count++
	r.LastAt = d.now
	d.rotationOver()
	d.emit(EventRotationCompleted, "", "", payload)
	d.order(WorkBench, string(s.ID), d.now)
}

// rotationOver forgets the rotation under way.
func (d *Decision) rotationOver() {
	r := &d.facts.Session.Rotation
	r.BegunAt, r.Why, r.From, r.Tries = time.Time{}, "", 0, 0
}

// leaseOver records what the end of a bare session's lease means: its execs have
// ended, unless their processes were saved, and what no checkpoint has is lost.
func (d *Decision) leaseOver(l Lease) {
	s := &d.facts.Session
	if !s.Bare() {
		return
	}
	h := d.facts.Head
	lost := d.facts.Unsaved()
	if !d.saved(l) {
		// What ran has gone on writing since the head was captured, unless that was
		// the end of its sandbox.
		last := h != nil && h.Epoch == l.Epoch && h.SealedAt.Equal(d.now)
		lost = lost || !last && len(d.facts.Running()) > 0
		d.loseExecs()
	}
	if lost {
		since := s.StartedAt
		if h != nil {
			since = h.CapturingAt
		}
		s.Rotation.Lost = &Loss{Epoch: l.Epoch, Since: since, At: d.now}
	}
	d.order(WorkBench, string(s.ID), d.now)
}

// saved reports whether the processes that run are in the head, for the lease that
// follows on l, which has ended.
func (d *Decision) saved(l Lease) bool {
	h := d.facts.Head
	if h == nil || h.Processes == nil || d.facts.Session.State == SessionClosed {
		return false
	}
	return l.SaveProcesses && h.Epoch == l.Epoch || l.GrantedAt.IsZero() // it never came up to take them
}

// BeginCapture records that a capture of a held sandbox starts, whose lease goes
// on. The code is workspace_expired.
func (d *Decision) BeginCapture(id CheckpointID, epoch int64) (Checkpoint, error) {
	if err := d.holding(epoch); err != nil {
		return Checkpoint{}, err
	}
	if err := d.bare(); err != nil {
		return Checkpoint{}, err
	}
	return d.capturing(id, d.facts.Session.LastRun, epoch), nil
}

// SealCapture makes c, captured from a sandbox that goes on, the session's head,
// if a fresh sandbox could go on from it. One that is not whole, or that has the
// tree of the head, is abandoned; the event says what is missing.
func (d *Decision) SealCapture(c Checkpoint, n CaptureNotes) error {
	if err := d.holding(c.Epoch); err != nil {
		return err
	}
	if err := d.next(c); err != nil {
		return err
	}
	if !c.Whole(d.facts.Session.Base) {
		d.AbandonCheckpoint(c)
		d.emit(EventCheckpointFailed, "", "", failedCapture(c, n))
		return nil
	}
	l, h := *d.facts.Lease, d.facts.Head
	if h != nil && h.TreeDigest == c.TreeDigest && h.Restorable(d.facts.Session.Base) {
		d.AbandonCheckpoint(c)
		if l.VisitedAt.Before(c.CapturingAt) {
			l.VisitedAt = time.Time{} // what was used since has changed nothing
			d.putLease(l)
		}
		return nil
	}
	d.sealHead(c, "", "", n)
	return nil
}

// SkipHook records that the hook before the rotation under way does not run, because
// no time is left for it: as an exec that was refused. id is new.
func (d *Decision) SkipHook(id ExecID) {
	s := &d.facts.Session
	s.Execs++
	x := Exec{
		ID: id, Session: s.ID, Number: s.Execs, State: ExecQueued, QueuedAt: d.now,
		Spec: ExecSpec{Argv: s.Rotation.Hook, Hook: true},
	}
	d.putExec(x)
	d.refuseExec(x, ExecRotated)
}
