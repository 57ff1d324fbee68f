package sojourn

import "time"

// The bounds of a rotation's terms.
const (
	MinSandboxTimeout   = 2 * time.Second
	MaxSandboxTimeout   = 30 * 24 * time.Hour
	MaxRotationBuffer   = time.Hour
	DefaultRotateBuffer = 30 * time.Second
	MinCheckpointEvery  = time.Second
	DefaultCheckpoint   = 5 * time.Minute
	// MaxRotationTries is how often a rotation is tried before its session fails:
	// contract B retries twice.
	MaxRotationTries = 3
)

// RotationReason says why a sandbox is replaced.
type RotationReason string

// The rotation reasons.
const (
	RotatePlanned   RotationReason = "timeout"      // the sandbox nears its timeout
	RotateRequested RotationReason = "requested"    // a caller asked
	RotateLost      RotationReason = "sandbox_lost" // it ended by itself
)

// Rotation is how the sandboxes of a bare session are replaced, and what is known
// of that.
type Rotation struct {
	// Buffer is how long before the sandbox's timeout it begins; 0 is
	// [DefaultRotateBuffer], or half the timeout of a short-lived sandbox.
	Buffer    time.Duration `json:"buffer,omitempty"`
	Processes bool          `json:"processes,omitempty"` // running processes are carried
	Hook      []string      `json:"hook,omitempty"`      // runs in the sandbox before it is replaced
	// Checkpoint is how much time may pass between two checkpoints while execs
	// run; 0 is [DefaultCheckpoint].
	Checkpoint time.Duration `json:"checkpoint,omitempty"`
	// NoIdleCheckpoint switches off the checkpoint after an exec that changed files.
	NoIdleCheckpoint bool `json:"noIdleCheckpoint,omitempty"`

	Count  int64     `json:"count,omitempty"` // rotations that were completed
	LastAt time.Time `json:"lastAt,omitzero"`

	BegunAt time.Time      `json:"begunAt,omitzero"` // zero when none is under way
	Why     RotationReason `json:"why,omitempty"`
	From    int64          `json:"from,omitempty"`  // the epoch that is replaced
	Tries   int            `json:"tries,omitempty"` // that failed

	// Lost says what a sandbox took with it that no checkpoint has; nil for
	// nothing. It is that of the latest loss.
	Lost *Loss `json:"lost,omitempty"`
}

// Loss is what is missing after a sandbox was lost: what was written since.
type Loss struct {
	Epoch int64     `json:"epoch"` // of the lease that ended
	Since time.Time `json:"since"` // files written from here on are gone
	At    time.Time `json:"at"`    // when the lease ended
}

// Rotating reports whether the sandbox is being replaced.
func (s Session) Rotating() bool { return !s.Rotation.BegunAt.IsZero() }

// buffer is how long before the deadline of l its replacement begins.
func (r Rotation) buffer(l Lease) time.Duration {
	if r.Buffer > 0 {
		return min(r.Buffer, l.Ceiling/2)
	}
	return min(DefaultRotateBuffer, l.Ceiling/2)
}

// RotateAt returns when the session's sandbox is to be replaced; zero when there
// is none.
func (f Facts) RotateAt() time.Time {
	l := f.Lease
	if l == nil || l.State != LeaseHeld {
		return time.Time{}
	}
	return l.GrantedAt.Add(l.Ceiling - f.Session.Rotation.buffer(*l))
}
