package sojourn

import (
	"encoding/json"
	"time"
)

// EventType names what happened. Contract C shows it with the prefix "wamp.".
type EventType string

// The event types.
const (
	EventSessionCreated       EventType = "session.created"
	EventSessionUpdated       EventType = "session.updated"
	EventSessionArchived      EventType = "session.archived"
	EventTurnSubmitted        EventType = "turn.submitted"
	EventRunQueued            EventType = "run.queued"
	EventRunStarted           EventType = "run.started"   // a worker took it
	EventRunActive            EventType = "run.active"    // the agent has the prompt
	EventRunRecovered         EventType = "run.recovered" // taken up after the server that drove it died
	EventRunCompleted         EventType = "run.completed"
	EventRunFailed            EventType = "run.failed"
	EventRunCrashed           EventType = "run.crashed"
	EventRunCancelled         EventType = "run.cancelled"
	EventRunCancelRequested   EventType = "run.cancel_requested"
	EventWorkspaceAttached    EventType = "workspace.attached"
	EventWorkspaceExpired     EventType = "workspace.expired"
	EventWorkspaceLost        EventType = "workspace.lost"
	EventWorkspaceReleased    EventType = "workspace.released"
	EventWorkspaceRestored    EventType = "workspace.restored"
	EventWorkspaceDraining    EventType = "workspace.draining"      // being ended on purpose, its files captured first
	EventWorkspaceResumed     EventType = "workspace.resumed"       // saved processes go on in a new sandbox
	EventWorkspaceColdStart   EventType = "workspace.cold_start"    // saved processes were lost; files and conversation were not
	EventWorkspaceLimit       EventType = "workspace.limit_reached" // a limit of the sandbox was felt
	EventWorkspaceSilent      EventType = "workspace.unresponsive"  // the keeper does not answer: the sandbox is about to be ended
	EventNetworkChanged       EventType = "network.changed"
	EventNetworkDecided       EventType = "network.decided" // what the proxy let through and refused
	EventCheckpointSealed     EventType = "checkpoint.sealed"
	EventCheckpointFailed     EventType = "checkpoint.failed"
	EventInteractionRequested EventType = "interaction.requested"
	EventInteractionAnswered  EventType = "interaction.answered"
	EventInteractionExpired   EventType = "interaction.expired"
	EventInteractionWithdrawn EventType = "interaction.withdrawn"
	EventAgentUpdate          EventType = "agent.update"    // one protocol update, with its raw form
	EventAgentLog             EventType = "agent.log"       // output outside the protocol
	EventBudgetWarning        EventType = "budget.warning"  // 80 or 95 percent of a limit are used
	EventBudgetReached        EventType = "budget.reached"  // a limit is reached: no more work is admitted
	EventSessionStarted       EventType = "session.started" // of a bare session
	EventSessionPaused        EventType = "session.paused"
	EventSessionResumed       EventType = "session.resumed"
	EventSessionCompleted     EventType = "session.completed"
	EventSessionFailed        EventType = "session.failed"
	EventSessionCancelled     EventType = "session.cancelled"
	EventExecStarted          EventType = "execution.started"
	EventExecCompleted        EventType = "execution.completed" // it ended, or its sandbox was lost: outcome says which
	EventExecRefused          EventType = "execution.rejected"  // it never started
	EventRotationStarted      EventType = "rotation.started"
	EventRotationCompleted    EventType = "rotation.completed"
	EventRotationFailed       EventType = "rotation.failed" // one try
	EventContextUpdated       EventType = "context.updated"
	EventToolRegistered       EventType = "tool.registered"
	EventApprovalRequested    EventType = "approval.requested"
	EventApprovalResolved     EventType = "approval.resolved"
	EventFileWritten          EventType = "file.written"
	EventClientLost           EventType = "client.heartbeat_lost"
	EventClientReattached     EventType = "client.reattached"
	EventBudgetChanged        EventType = "budget.changed"
	EventModelCalled          EventType = "model.called" // one call of a model through the gateway: usage, cost and outcome, no content
)

// EventTypes lists every event type, for the catalogue and for filters.
var EventTypes = []EventType{
	EventSessionCreated, EventSessionUpdated, EventSessionArchived, EventTurnSubmitted,
	EventRunQueued, EventRunStarted, EventRunActive, EventRunRecovered, EventRunCompleted,
	EventRunFailed, EventRunCrashed, EventRunCancelled, EventRunCancelRequested,
	EventWorkspaceAttached, EventWorkspaceExpired, EventWorkspaceLost, EventWorkspaceReleased,
	EventWorkspaceRestored, EventWorkspaceDraining, EventWorkspaceResumed, EventWorkspaceColdStart,
	EventWorkspaceLimit, EventWorkspaceSilent, EventNetworkChanged, EventNetworkDecided, EventCheckpointSealed, EventCheckpointFailed,
	EventInteractionRequested, EventInteractionAnswered, EventInteractionExpired,
	EventInteractionWithdrawn, EventAgentUpdate, EventAgentLog, EventModelCalled,
	EventBudgetWarning, EventBudgetReached, EventBudgetChanged,
	EventSessionStarted, EventSessionPaused, EventSessionResumed, EventSessionCompleted, EventSessionFailed,
	EventSessionCancelled, EventExecStarted, EventExecCompleted, EventExecRefused,
	EventRotationStarted, EventRotationCompleted, EventRotationFailed, EventContextUpdated,
	EventToolRegistered, EventApprovalRequested, EventApprovalResolved, EventFileWritten, EventClientLost, EventClientReattached,
}

// Event is an appended fact. Seq starts at 1 in each session and has no gap; an
// event that was delivered never changes.
type Event struct {
	Session SessionID
	Seq     int64
	At      time.Time
	Type    EventType
	Turn    TurnID // "" when it belongs to none
	Run     RunID  // "" when it belongs to none
	Data    json.RawMessage
}

// EventDraft is an event before the store has numbered it. Data is a JSON
// object; nil stands for the empty one.
type EventDraft struct {
	Type EventType
	Turn TurnID
	Run  RunID
	Data json.RawMessage
}

// draft makes an EventDraft. Marshalling cannot fail: every payload is made of
// plain maps, strings, numbers and raw JSON that was parsed before.
func draft(t EventType, turn TurnID, run RunID, payload any) EventDraft {
	d := EventDraft{Type: t, Turn: turn, Run: run}
	if payload != nil {
		d.Data, _ = json.Marshal(payload)
	}
	return d
}
