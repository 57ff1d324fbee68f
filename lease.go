package sojourn

import (
	"encoding/json"
	"slices"
	"time"
)

// The numbers of contract C (seed "sandboxes and environments", "Leases are
// bounded twice"), used where the operator sets no other.
const (
	// DefaultCeiling is the hard bound of a lease, from when it was granted.
	DefaultCeiling = 24 * time.Hour
	// DefaultHold is how long an untouched lease is kept.
	DefaultHold = 25 * time.Minute
	// ExpiringWithin is how close to the ceiling new work is refused.
	ExpiringWithin = 60 * time.Second
	// ExpiredShown is how long an ended lease is shown as expired; after it
	// the session shows that no sandbox is associated.
	ExpiredShown = 24 * time.Hour
)

// LeaseState is a state of a [Lease].
type LeaseState string

// The lease states.
const (
	LeaseRequested LeaseState = "requested" // a sandbox is being made
	LeaseHeld      LeaseState = "held"      // a sandbox is bound to the session
	LeaseDraining  LeaseState = "draining"  // being ended on purpose
	LeaseReleased  LeaseState = "released"  // ended on purpose
	LeaseExpired   LeaseState = "expired"   // ended by its ceiling or hold
	LeaseLost      LeaseState = "lost"      // its sandbox died, or never came up
)

// leaseMoves is the whole Lease machine. A state with no moves is terminal.
var leaseMoves = map[LeaseState][]LeaseState{
	LeaseRequested: {LeaseHeld, LeaseReleased, LeaseLost},
	LeaseHeld:      {LeaseDraining, LeaseReleased, LeaseExpired, LeaseLost},
	LeaseDraining:  {LeaseHeld, LeaseReleased, LeaseExpired, LeaseLost}, // held: called off
	LeaseReleased:  nil,
	LeaseExpired:   nil,
	LeaseLost:      nil,
}

// CanMove reports whether a lease in state s may enter state to.
func (s LeaseState) CanMove(to LeaseState) bool { return slices.Contains(leaseMoves[s], to) }

// Terminal reports whether s has no moves.
func (s LeaseState) Terminal() bool { return len(leaseMoves[s]) == 0 }

// Lease is a session's exclusive, bounded claim on one sandbox. Epoch is its
// fencing number: it grows with each grant, and a report under an older epoch
// changes nothing.
type Lease struct {
	Session SessionID
	Epoch   int64
	State   LeaseState

	Driver    string          // the sandbox driver that made it
	Isolation string          // the wall it has
	Handle    json.RawMessage // what the driver recovers it from

	RequestedAt time.Time
	GrantedAt   time.Time // zero until held
	TouchedAt   time.Time // the last sign of use; zero until held
	EndedAt     time.Time // zero until terminal
	Ceiling     time.Duration
	Hold        time.Duration
	EndReason   string // why it ended, or is draining

	// VisitedAt is the last use of its sandbox outside a run, such as a shell;
	// zero for none. What such use has written is captured when the lease is
	// drained.
	VisitedAt time.Time
	// SaveProcesses says that draining saves the processes, too.
	SaveProcesses bool
	// Resumed is the epoch whose processes go on in its sandbox; 0 when they were
	// started in it.
	Resumed int64

	// Restored is the checkpoint that its sandbox started from; "" for none.
	Restored CheckpointID
	// Conversation is the agent's own id of the conversation that is open in
	// this sandbox, kept only after the agent confirmed it.
	Conversation string
}

// Deadline returns when the lease ends if it is not touched: the earlier of
// ceiling and hold. It is the zero time until the lease is held.
func (l Lease) Deadline() time.Time {
	if l.GrantedAt.IsZero() {
		return time.Time{}
	}
	ceiling, hold := l.GrantedAt.Add(l.Ceiling), l.TouchedAt.Add(l.Hold)
	if hold.Before(ceiling) {
		return hold
	}
	return ceiling
}

// Live reports whether the lease holds a sandbox and has not passed its
// deadline at now.
func (l Lease) Live(now time.Time) bool {
	return l.State == LeaseHeld && now.Before(l.Deadline())
}

// Expiring reports whether a live lease is too close to its ceiling at now for
// new work. The hold does not count: the work itself pushes it out.
func (l Lease) Expiring(now time.Time) bool {
	return l.Live(now) && l.GrantedAt.Add(l.Ceiling).Sub(now) < ExpiringWithin
}

// Touch returns the lease as it stands after a sign of use at now. A lease that
// is not live is returned unchanged: it cannot be revived.
func (l Lease) Touch(now time.Time) Lease {
	if l.Live(now) && now.After(l.TouchedAt) {
		l.TouchedAt = now
	}
	return l
}

// ProcessEpoch is the epoch under which the processes of its sandbox were started.
func (l Lease) ProcessEpoch() int64 {
	if l.Resumed > 0 {
		return l.Resumed
	}
	return l.Epoch
}
