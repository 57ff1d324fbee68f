package sojourn

import (
	"slices"
	"time"
)

// SessionState is a state of a [Session].
type SessionState string

// The session states.
const (
	SessionNew    SessionState = "new"    // nothing was submitted yet
	SessionOpen   SessionState = "open"   // takes work
	SessionPaused SessionState = "paused" // holds work back until resumed
	SessionClosed SessionState = "closed" // takes no more work, for its close reason
)

// sessionMoves is the whole Session machine.
var sessionMoves = map[SessionState][]SessionState{
	SessionNew:    {SessionOpen, SessionClosed},
	SessionOpen:   {SessionPaused, SessionClosed},
	SessionPaused: {SessionOpen, SessionClosed},
	SessionClosed: nil,
}

// CanMove reports whether a session in state s may enter state to.
func (s SessionState) CanMove(to SessionState) bool { return slices.Contains(sessionMoves[s], to) }

// CloseReason says why a session closed.
type CloseReason string

// The close reasons.
const (
	CloseCompleted CloseReason = "completed"
	CloseFailed    CloseReason = "failed"
	CloseCancelled CloseReason = "cancelled"
)

// Session is the durable record of one agent's work. It owns the event
// sequence, and outlives every sandbox it starts in.
type Session struct {
	ID       SessionID
	Project  ProjectID
	Contract Contract
	Title    string
	Runtime  string
	Model    string // what the runtime is to use; "" is the installation's choice
	Metadata map[string]string
	Base     string // the repository commit that its trees build on; "" for none
	Sandbox  SandboxSpec
	Budget   Budget
	Rotation Rotation // of a bare session
	Presence Presence // of a bare session's caller

	State       SessionState
	CloseReason CloseReason
	Ending      Ending // of a bare session: why and when it was closed

	CreatedAt  time.Time
	UpdatedAt  time.Time
	ArchivedAt time.Time // zero unless archived
	DeletedAt  time.Time // zero unless deleted
	StartedAt  time.Time // of a bare session: when it was opened; zero before
	PausedAt   time.Time // zero unless paused
	// ClockAt is from when on the time is not charged yet; zero while the clock of
	// the budget stands still.
	ClockAt time.Time

	LastSeq   int64        // the number of its last event
	LastEpoch int64        // the epoch of its last lease, live or not; 0 before the first
	Turns     int64        // how many turns were submitted
	Execs     int64        // how many execs were accepted
	ActiveRun RunID        // the run that is not terminal; "" when none
	LastRun   RunID        // the latest run; "" before the first
	Worked    bool         // a run's prompt may have reached an agent
	Head      CheckpointID // the checkpoint of the latest run that was sealed; "" before
}

// Facts is all that decisions about one session are made from: the session and
// the rows that it points to, as of one transaction.
type Facts struct {
	Session Session
	Lease   *Lease      // the latest lease, live or ended
	Active  *Run        // the run that is not terminal
	Last    *Run        // the latest run, terminal or not
	Head    *Checkpoint // the latest sealed checkpoint
	Open    []Interaction
	// Execs are those of a bare session that run or are parked, and of those that
	// are queued the first ones of either kind: detached ones, then by number.
	Execs []Exec
}

// Archived reports whether the session is closed to commands for good.
func (s Session) Archived() bool { return !s.ArchivedAt.IsZero() }

// WorkspaceState is what a session shows of its compute.
type WorkspaceState string

// The workspace states: that is the entire vocabulary.
const (
	WorkspaceUnavailable WorkspaceState = "unavailable"
	WorkspaceAttached    WorkspaceState = "attached"
	WorkspaceExpired     WorkspaceState = "expired"
)

// Workspace is the projection of a session's lease.
type Workspace struct {
	State WorkspaceState
	// ExpiresAt is the deadline truly in force when attached, and the moment
	// the lease ended when expired; zero when unavailable.
	ExpiresAt time.Time
}

// Workspace projects the session's lease at now. It is computed on every read
// and never stored.
func (f Facts) Workspace(now time.Time) Workspace {
	l := f.Lease
	if l == nil || l.GrantedAt.IsZero() {
		return Workspace{State: WorkspaceUnavailable}
	}
	if l.Live(now) {
		return Workspace{State: WorkspaceAttached, ExpiresAt: l.Deadline()}
	}
	ended := l.Deadline()
	if !l.EndedAt.IsZero() && l.EndedAt.Before(ended) {
		ended = l.EndedAt
	}
	if ended.After(now) { // being drained: the workspace is already gone for callers
		ended = now
	}
	if now.Sub(ended) >= ExpiredShown {
		return Workspace{State: WorkspaceUnavailable}
	}
	return Workspace{State: WorkspaceExpired, ExpiresAt: ended}
}
