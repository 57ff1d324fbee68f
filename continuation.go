package sojourn

import "time"

// ContinuationState is the summary of what a next turn would get.
type ContinuationState string

// The continuation states.
const (
	ContinuationLive        ContinuationState = "live"
	ContinuationFresh       ContinuationState = "fresh"
	ContinuationRestorable  ContinuationState = "restorable"
	ContinuationUnavailable ContinuationState = "unavailable"
)

// ContinuationReason says why a next turn will not carry the previous work. ""
// means that it will.
type ContinuationReason string

// The continuation reasons.
const (
	ReasonNoPriorWork               ContinuationReason = "no_prior_work"
	ReasonCheckpointUnavailable     ContinuationReason = "checkpoint_unavailable"
	ReasonConversationNotRestorable ContinuationReason = "conversation_not_restorable"
	ReasonWorkspaceNotRestorable    ContinuationReason = "workspace_not_restorable"
	ReasonSessionArchived           ContinuationReason = "session_archived"
)

// Continuation is the projection of what a next turn would get, and why not
// more. Reason is "" if and only if the next turn carries the previous work.
type Continuation struct {
	CanContinue  bool
	State        ContinuationState
	Conversation Fidelity
	Workspace    Fidelity
	// Boundary is the run at which the recoverable history ends; "" for none.
	Boundary RunID
	Reason   ContinuationReason
}

// Continuation projects the facts at now. It is the answer to two questions
// that a caller must not mix up: whether another turn is accepted, and whether
// it carries the previous work.
func (f Facts) Continuation(now time.Time) Continuation {
	c := f.carried(now)
	if f.Session.Archived() {
		c = f.carried(time.Time{}) // what the checkpoint keeps; no lease is live for an archived session
		c.CanContinue, c.State, c.Reason = false, ContinuationUnavailable, ReasonSessionArchived
	}
	return c
}

// worked reports whether there is previous work: a run's, or what was put into a
// workspace that was sealed when its lease was drained.
func (f Facts) worked() bool {
	return f.Session.Worked || f.Head != nil && f.Head.State == CheckpointSealed
}

// carried is the continuation of a session that is not archived. At the zero
// time no lease is live.
func (f Facts) carried(now time.Time) Continuation {
	if !f.worked() {
		return Continuation{
			CanContinue: true, State: ContinuationFresh,
			Conversation: FidelityNone, Workspace: FidelityNone, Reason: ReasonNoPriorWork,
		}
	}
	live := !now.IsZero() && f.Lease != nil && f.Lease.Live(now)
	if live {
		c := Continuation{
			CanContinue: true, State: ContinuationLive,
			Conversation: FidelityLive, Workspace: FidelityLive,
		}
		if f.Head != nil && f.Head.State == CheckpointSealed {
			c.Boundary = f.Head.Run
		}
		return c
	}
	return f.restorable()
}

// restorable is what a fresh sandbox would get.
func (f Facts) restorable() Continuation {
	h := f.Head
	if h == nil || h.State != CheckpointSealed {
		return Continuation{
			State: ContinuationUnavailable, Conversation: FidelityNone, Workspace: FidelityNone,
			Reason: ReasonCheckpointUnavailable,
		}
	}
	c := Continuation{
		State: ContinuationUnavailable, Conversation: h.Conversation, Workspace: h.Workspace, Boundary: h.Run,
	}
	switch {
	case h.Conversation != FidelityExact:
		c.Reason = ReasonConversationNotRestorable
	case !h.treeRestorable(f.Session.Base):
		c.Reason = ReasonWorkspaceNotRestorable
	default:
		c.CanContinue, c.State = true, ContinuationRestorable
	}
	return c
}
