package sojourn

import (
	"slices"
	"time"
)

// RunState is a state of a [Run].
type RunState string

// The run states. Queued runs wait for a worker, starting runs for a sandbox
// and an agent; an active run's prompt has been given to the agent; a sealing
// run's agent is done and its checkpoint is being made. The rest are terminal.
const (
	RunQueued    RunState = "queued"    // entered by a submit
	RunStarting  RunState = "starting"  // a worker drives it; compute is being provided
	RunActive    RunState = "active"    // the prompt may have reached the agent
	RunSealing   RunState = "sealing"   // the agent is done, the outcome is recorded
	RunCompleted RunState = "completed" // the agent ended the turn
	RunFailed    RunState = "failed"    // refused for a reason that repeating will not change
	RunCrashed   RunState = "crashed"   // execution was lost
	RunCancelled RunState = "cancelled" // a caller ended it
)

// runMoves is the whole Run machine. A state with no moves is terminal.
var runMoves = map[RunState][]RunState{
	RunQueued:    {RunStarting, RunFailed, RunCancelled},
	RunStarting:  {RunActive, RunFailed, RunCrashed, RunCancelled},
	RunActive:    {RunSealing, RunFailed, RunCrashed, RunCancelled},
	RunSealing:   {RunCompleted, RunCrashed, RunCancelled},
	RunCompleted: nil,
	RunFailed:    nil,
	RunCrashed:   nil,
	RunCancelled: nil,
}

// CanMove reports whether a run in state s may enter state to.
func (s RunState) CanMove(to RunState) bool { return slices.Contains(runMoves[s], to) }

// Terminal reports whether s has no moves.
func (s RunState) Terminal() bool { return len(runMoves[s]) == 0 }

// Stop reasons that are ours. An agent's own stop reasons are passed on.
const (
	// StopExecutionDeadline ends a run whose lease passed its ceiling or hold.
	StopExecutionDeadline = "execution_deadline"
	// StopWorkspaceLost ends a run whose sandbox died.
	StopWorkspaceLost = "workspace_lost"
	// StopTurnDeadline ends a run that took longer than a turn may.
	StopTurnDeadline = "turn_deadline"
	// StopAgentExited ends a run whose agent process ended in mid-turn.
	StopAgentExited = "agent_exited"
	// StopCancelled ends a run that a caller cancelled.
	StopCancelled = "cancelled"
)

// RunError says why a run did not complete. Code is stable, Message is for
// people and may hold the tail of the agent's own words, masked and bounded.
type RunError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Run is one execution of one turn, under at most one lease.
type Run struct {
	ID      RunID
	Session SessionID
	Turn    TurnID
	State   RunState
	Epoch   int64 // the lease it runs under; 0 until one is held

	QueuedAt  time.Time
	StartedAt time.Time // zero until starting
	ActiveAt  time.Time // zero until the prompt was given to the agent
	SealingAt time.Time // zero until the agent was done
	EndedAt   time.Time // zero until terminal
	CancelAt  time.Time // zero until a caller asked to cancel

	// StopReason is the agent's word for why the turn ended, or one of ours.
	StopReason string
	Error      *RunError
	// ModelError is why the last call of a model in the run failed; nil when there
	// was none or it gave a whole answer.
	ModelError *ModelError
	// Final is the state that a sealing run will enter; "" before.
	Final RunState
}

// Worked reports whether the run may have done work that a next turn would
// want carried: its prompt may have reached the agent.
func (r Run) Worked() bool { return !r.ActiveAt.IsZero() }
