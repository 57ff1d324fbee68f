package sojourn

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// RuntimeNone is the runtime of a session without an agent: it takes execs, and
// no turns.
const RuntimeNone = "none"

// Bare reports whether the session has no agent: its callers run execs in it.
func (s Session) Bare() bool { return s.Runtime == RuntimeNone }

// ExecState is a state of an [Exec].
type ExecState string

// The exec states. Ended, lost and refused are terminal.
const (
	ExecParked  ExecState = "parked"  // waits for the answer to an interaction
	ExecQueued  ExecState = "queued"  // accepted: waits for a sandbox, or for the exec before it
	ExecRunning ExecState = "running" // its process was started, or is about to be
	ExecEnded   ExecState = "ended"   // its process ended, or could not be started; the result is true
	ExecLost    ExecState = "lost"    // its sandbox was lost: how it ended is unknown
	ExecRefused ExecState = "refused" // it never started, for its reason
)

// execMoves is the whole Exec machine.
var execMoves = map[ExecState][]ExecState{
	ExecParked:  {ExecQueued, ExecRefused},
	ExecQueued:  {ExecRunning, ExecRefused},
	ExecRunning: {ExecEnded, ExecLost},
	ExecEnded:   nil,
	ExecLost:    nil,
	ExecRefused: nil,
}

// CanMove reports whether an exec in state s may enter state to.
func (s ExecState) CanMove(to ExecState) bool { return slices.Contains(execMoves[s], to) }

// Terminal reports whether s has no moves.
func (s ExecState) Terminal() bool { return len(execMoves[s]) == 0 }

// ExecReason says why an exec ended other than by itself, or was refused.
type ExecReason string

// The exec reasons.
const (
	ExecTimeout     ExecReason = "timeout"       // it ran for as long as it was allowed to
	ExecCancelled   ExecReason = "cancelled"     // a caller ended it
	ExecRotated     ExecReason = "rotated"       // its sandbox was replaced
	ExecPaused      ExecReason = "paused"        // its session was paused
	ExecClosed      ExecReason = "closed"        // its session was stopped, cancelled or has failed
	ExecBudget      ExecReason = "budget"        // a limit of the budget was reached
	ExecOutOfMemory ExecReason = "out_of_memory" // it was ended at the sandbox's memory limit
	ExecNotStarted  ExecReason = "not_started"   // the sandbox could not start it; Failure says why
	ExecSandboxLost ExecReason = "sandbox_lost"
	ExecBusy        ExecReason = "busy"     // it waited for as long as it was allowed to run
	ExecRejected    ExecReason = "rejected" // its interaction was answered so
	ExecExpired     ExecReason = "expired"  // its interaction was not answered in time
)

// The bounds of an exec.
const (
	MinExecTimeout   = time.Second // contract B: "bounded to 1s-10min"
	MaxExecTimeout   = 10 * time.Minute
	MaxExecGrace     = time.Minute
	DefaultExecGrace = 2 * time.Second
	MaxExecArgs      = 4096
	MaxExecArgBytes  = 128 << 10 // of all arguments together, and of all variables together
	MaxExecInput     = 8 << 20
	MaxOpenExecs     = 512 // of one session, not terminal
	MaxDetachedExecs = 64  // of those, detached
)

// StdinMode says what an exec reads.
type StdinMode string

// The stdin modes.
const (
	StdinNone   StdinMode = ""       // an end of file at once
	StdinGiven  StdinMode = "given"  // what came with the request
	StdinStream StdinMode = "stream" // what callers send while it runs
)

// ExecSpec is what is to be run.
type ExecSpec struct {
	Argv []string          `json:"argv"`
	Dir  string            `json:"dir,omitempty"` // as the caller wrote it; "" is that of the carryover
	Env  map[string]string `json:"env,omitempty"` // laid over those of the carryover
	// Timeout bounds the process, and before that the wait for its turn. 0 is no
	// bound: only for a detached exec.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Grace is how long after SIGTERM SIGKILL follows.
	Grace time.Duration `json:"grace"`
	// Detached says that it runs beside others, and that nobody waits for it.
	Detached bool      `json:"detached,omitempty"`
	Stdin    StdinMode `json:"stdin,omitempty"`
	TTY      bool      `json:"tty,omitempty"`
	Rows     uint16    `json:"rows,omitempty"`
	Cols     uint16    `json:"cols,omitempty"`
	// Tool is the tool that it calls; "" for none.
	Tool string `json:"tool,omitempty"`
	// Ask says that it waits for an approval.
	Ask bool `json:"ask,omitempty"`
	// Hook says that it is the hook before a rotation: it is no iteration.
	Hook bool `json:"hook,omitempty"`
}

// ExecRate is what the time of an exec costs.
type ExecRate struct {
	Exec   Money `json:"exec,omitempty"`   // once
	Second Money `json:"second,omitempty"` // of its process
}

// Cost returns what an exec costs that ran for d, rounded up once to a
// micro-cent.
func (r ExecRate) Cost(d time.Duration) Money {
	hi, lo := bits.Mul64(uint64(max(0, r.Second)), uint64(max(0, d)))
	if hi >= uint64(time.Second) {
		return math.MaxInt64
	}
	cost, rest := bits.Div64(hi, lo, uint64(time.Second))
	if cost >= math.MaxInt64 {
		return math.MaxInt64
	}
	if rest > 0 {
		cost++
	}
	return Money(addClamped(int64(cost), int64(max(0, r.Exec))))
}

// ExecResult is how the process of an exec ended. One of Code, Signal and
// Failure is set.
type ExecResult struct {
	Code    *int   `json:"code,omitempty"`
	Signal  string `json:"signal,omitempty"`  // "SIGKILL"
	Failure string `json:"failure,omitempty"` // why it could not be started, for people

	RunTime  time.Duration `json:"runTime,omitempty"` // from start to exit of the main process, without Saved
	Saved    time.Duration `json:"saved,omitempty"`   // how long it was saved, and ran nowhere; of a running one, too
	CPUTime  time.Duration `json:"cpuTime,omitempty"` // of it and the children that it waited for
	MaxRSS   int64         `json:"maxRSS,omitempty"`  // bytes
	Stdout   int64         `json:"stdout,omitempty"`  // bytes written
	Stderr   int64         `json:"stderr,omitempty"`
	Kept     int64         `json:"kept,omitempty"`     // bytes of both that can be read
	KeptNote string        `json:"keptNote,omitempty"` // why not all of them can
}

// Exec is one process that a caller starts in a session's sandbox, with its
// outcome.
type Exec struct {
	ID      ExecID
	Session SessionID
	Number  int64 // 1 for the session's first
	State   ExecState
	Spec    ExecSpec
	Epoch   int64 // of the lease that it started under; 0 before

	QueuedAt  time.Time
	StartedAt time.Time // zero unless it ran
	EndedAt   time.Time // zero until terminal

	// Ending is why it is being ended; "" while it is not.
	Ending ExecReason
	// Kill says that it is ended without a grace.
	Kill   bool
	Reason ExecReason // "" for an exec that ended by itself
	Result ExecResult // of an ended or lost one
	Rate   ExecRate
	Cost   Money // what was charged for it
}

// Foreground reports whether it takes its turn: one runs at a time.
func (x Exec) Foreground() bool { return !x.Spec.Detached }

// savedSince returns since when the processes of the session are saved and run
// nowhere; zero when they are not.
func (f Facts) savedSince() time.Time {
	h, l := f.Head, f.Lease
	switch {
	case h == nil || h.Processes == nil:
	case l == nil || l.Epoch <= h.Epoch && l.State.Terminal(), l.Epoch > h.Epoch && l.Resumed == 0:
		return h.SealedAt
	}
	return time.Time{}
}

// ran is how long the process of x, which has not ended as far as we know, has run at
// now: the time in which it was saved is left out.
func (f Facts) ran(x Exec, now time.Time) time.Duration {
	if since := f.savedSince(); since.After(x.StartedAt) && since.Before(now) {
		now = since
	}
	return max(0, now.Sub(x.StartedAt)-x.Result.Saved)
}

// execAt returns the open exec of that id.
func (f Facts) execAt(id ExecID) (Exec, bool) {
	i := slices.IndexFunc(f.Execs, func(x Exec) bool { return x.ID == id })
	if i < 0 {
		return Exec{}, false
	}
	return f.Execs[i], true
}

// Running returns the execs that run, the foreground one first.
func (f Facts) Running() []Exec {
	var all []Exec
	for _, x := range f.Execs {
		if x.State == ExecRunning {
			all = append(all, x)
		}
	}
	slices.SortStableFunc(all, func(a, b Exec) int { return compareBool(a.Spec.Detached, b.Spec.Detached) })
	return all
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// busy reports whether a foreground exec runs.
func (f Facts) busy() bool {
	return slices.ContainsFunc(f.Execs, func(x Exec) bool { return x.State == ExecRunning && x.Foreground() })
}
