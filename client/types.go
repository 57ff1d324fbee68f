package client

import (
	"encoding/json"
	"time"
)

// Session is a session with what it stands on.
type Session struct {
	ID               string            `json:"id"`
	Project          string            `json:"project"`
	Contract         string            `json:"contract"` // agents, exec or cloud
	Title            string            `json:"title,omitempty"`
	Runtime          string            `json:"runtime"`
	Model            string            `json:"model,omitempty"`
	Metadata         map[string]string `json:"metadata,omitempty"`
	State            string            `json:"state"` // new, open, paused or closed
	CloseReason      string            `json:"closeReason,omitempty"`
	CreatedAt        time.Time         `json:"createdAt"`
	UpdatedAt        time.Time         `json:"updatedAt"`
	ArchivedAt       *time.Time        `json:"archivedAt,omitempty"`
	Turns            int64             `json:"turns"`
	LastSequence     int64             `json:"lastSequence"`
	Budget           *Budget           `json:"budget,omitempty"`
	Status           string            `json:"status,omitempty"` // of a session without an agent, as for what follows
	StartedAt        *time.Time        `json:"startedAt,omitempty"`
	PausedAt         *time.Time        `json:"pausedAt,omitempty"`
	Ending           *Ending           `json:"ending,omitempty"`
	Executions       int64             `json:"executions,omitempty"`
	OpenExecutions   []Execution       `json:"openExecutions,omitempty"`
	Rotation         *Rotation         `json:"rotation,omitempty"`
	Client           *SessionClient    `json:"client,omitempty"`
	Sandbox          *Sandbox          `json:"sandbox,omitempty"`
	Workspace        Workspace         `json:"workspace"`
	Continuation     Continuation      `json:"continuation"`
	Lease            *Lease            `json:"lease,omitempty"`
	ActiveRun        *Run              `json:"activeRun,omitempty"`
	LastRun          *Run              `json:"lastRun,omitempty"`
	Checkpoint       *Checkpoint       `json:"checkpoint,omitempty"` // the latest sealed one
	OpenInteractions []Interaction     `json:"openInteractions,omitempty"`
}

// Workspace is what a session shows of its compute.
type Workspace struct {
	State     string     `json:"state"` // unavailable, attached or expired
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
}

// Continuation is what a further turn would get. Reason is "" if and only if it
// carries the previous work.
type Continuation struct {
	CanContinue   bool     `json:"canContinue"`
	State         string   `json:"state"` // live, fresh, restorable or unavailable
	Conversation  Fidelity `json:"conversation"`
	Workspace     Fidelity `json:"workspace"`
	BoundaryRunID string   `json:"boundaryRunId,omitempty"`
	Reason        string   `json:"reason,omitempty"`
}

// Fidelity is how faithfully a part is carried: live, exact, result_only,
// portable_tree or none.
type Fidelity struct {
	Fidelity string `json:"fidelity"`
}

// Lease is a session's claim on one sandbox.
type Lease struct {
	Epoch                int64      `json:"epoch"`
	State                string     `json:"state"`
	Driver               string     `json:"driver"`
	Isolation            string     `json:"isolation"`
	RequestedAt          time.Time  `json:"requestedAt"`
	GrantedAt            *time.Time `json:"grantedAt,omitempty"`
	TouchedAt            *time.Time `json:"touchedAt,omitempty"`
	EndedAt              *time.Time `json:"endedAt,omitempty"`
	EndReason            string     `json:"endReason,omitempty"`
	CeilingSeconds       float64    `json:"ceilingSeconds"`
	HoldSeconds          float64    `json:"holdSeconds"`
	CeilingAt            *time.Time `json:"ceilingAt,omitempty"`
	HoldUntil            *time.Time `json:"holdUntil,omitempty"`
	RestoredCheckpointID string     `json:"restoredCheckpointId,omitempty"`
}

// Run is one execution of one turn.
type Run struct {
	ID                string     `json:"id"`
	SessionID         string     `json:"sessionId"`
	TurnID            string     `json:"turnId"`
	State             string     `json:"state"` // queued, starting, active, sealing, completed, failed, crashed or cancelled
	Epoch             int64      `json:"epoch,omitempty"`
	QueuedAt          time.Time  `json:"queuedAt"`
	StartedAt         *time.Time `json:"startedAt,omitempty"`
	ActiveAt          *time.Time `json:"activeAt,omitempty"`
	SealingAt         *time.Time `json:"sealingAt,omitempty"`
	EndedAt           *time.Time `json:"endedAt,omitempty"`
	CancelRequestedAt *time.Time `json:"cancelRequestedAt,omitempty"`
	StopReason        string     `json:"stopReason,omitempty"`
	LastError         *RunError  `json:"lastError,omitempty"`
}

// RunError says why a run did not complete.
type RunError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Checkpoint is a sealed capture.
type Checkpoint struct {
	ID                 string     `json:"id"`
	RunID              string     `json:"runId"`
	Epoch              int64      `json:"epoch"`
	State              string     `json:"state"`
	Format             string     `json:"format"`
	Conversation       string     `json:"conversation,omitempty"`
	ConversationReason string     `json:"conversationReason,omitempty"`
	Workspace          string     `json:"workspace,omitempty"`
	WorkspaceReason    string     `json:"workspaceReason,omitempty"`
	Entries            int64      `json:"entries"`
	Bytes              int64      `json:"bytes"`
	StoredBytes        int64      `json:"storedBytes"`
	ProcessBytes       int64      `json:"processBytes,omitempty"` // of the saved processes of the same boundary
	SealedAt           *time.Time `json:"sealedAt,omitempty"`
}

// Part is one piece of a turn's input.
type Part struct {
	Type     string `json:"type"` // text, image or file
	Text     string `json:"text,omitempty"`
	MimeType string `json:"mimeType,omitempty"`
	Data     string `json:"data,omitempty"` // base64
	Name     string `json:"name,omitempty"`
}

// Text is an input of one text.
func Text(s string) []Part { return []Part{{Type: "text", Text: s}} }

// TurnInput is what a turn is submitted with.
type TurnInput struct {
	Input []Part `json:"input"`
}

// Turn is one unit of work.
type Turn struct {
	ID          string    `json:"id"`
	SessionID   string    `json:"sessionId"`
	Number      int64     `json:"number"`
	Input       []Part    `json:"input"`
	SubmittedAt time.Time `json:"submittedAt"`
}

// Interaction is a question that a run asks, or an approval that an execution
// waits for.
type Interaction struct {
	ID          string          `json:"id"`
	SessionID   string          `json:"sessionId"`
	RunID       string          `json:"runId,omitempty"`
	ExecutionID string          `json:"executionId,omitempty"`
	Kind        string          `json:"kind"`  // permission, question or approval
	State       string          `json:"state"` // open, answered, expired or withdrawn
	Request     json.RawMessage `json:"request,omitempty"`
	Options     []Option        `json:"options,omitempty"`
	RequestedAt time.Time       `json:"requestedAt"`
	ExpiresAt   *time.Time      `json:"expiresAt,omitempty"`
	EndedAt     *time.Time      `json:"endedAt,omitempty"`
	Answer      *Answer         `json:"answer,omitempty"`
	Reason      string          `json:"reason,omitempty"`
}

// Option is one offered answer.
type Option struct {
	OptionID string `json:"optionId"`
	Name     string `json:"name"`
	Kind     string `json:"kind"` // allow_once, allow_always, reject_once or reject_always
}

// Answer is an offered option, or a text.
type Answer struct {
	OptionID string `json:"optionId,omitempty"`
	Text     string `json:"text,omitempty"`
	Comment  string `json:"comment,omitempty"` // beside the option, of an approval
}

// Event is an appended fact of a session.
type Event struct {
	Sequence   int64           `json:"sequence"` // 1 for the first, without a gap
	SessionID  string          `json:"sessionId"`
	TurnID     string          `json:"turnId,omitempty"`
	RunID      string          `json:"runId,omitempty"`
	Type       string          `json:"type"` // such as run.completed
	OccurredAt time.Time       `json:"occurredAt"`
	Data       json.RawMessage `json:"data"`
}

// Key is an API key without its secret.
type Key struct {
	ID        string     `json:"id"`
	Project   string     `json:"project"`
	Kind      string     `json:"kind"` // admin, app, environment or runner
	Name      string     `json:"name,omitempty"`
	Scopes    []string   `json:"scopes,omitempty"`
	Hint      string     `json:"hint"` // the last characters of the secret
	CreatedAt time.Time  `json:"createdAt"`
	RevokedAt *time.Time `json:"revokedAt,omitempty"`
}

// Status is what the server is and can do now.
type Status struct {
	Version       string    `json:"version"`
	StartedAt     time.Time `json:"startedAt"`
	UptimeSeconds float64   `json:"uptimeSeconds"`
	Compute       Compute   `json:"compute"`
	Runtimes      []Runtime `json:"runtimes"`
	Limits        Limits    `json:"limits"`
}

// Compute is where sessions run.
type Compute struct {
	Available bool   `json:"available"`
	Driver    string `json:"driver,omitempty"`
	Isolation string `json:"isolation,omitempty"`
	Reason    string `json:"reason,omitempty"`
}

// Runtime is an agent program.
type Runtime struct {
	ID        string `json:"id"`
	Label     string `json:"label"`
	Available bool   `json:"available"`
	Reason    string `json:"reason,omitempty"`
	Exact     bool   `json:"exact"`
	Default   bool   `json:"default,omitempty"`
}

// Limits are the numbers in force for new leases and captures.
type Limits struct {
	CeilingSeconds       float64 `json:"ceilingSeconds"`
	HoldSeconds          float64 `json:"holdSeconds"`
	TurnDeadlineSeconds  float64 `json:"turnDeadlineSeconds,omitempty"`
	WorkspaceMaxBytes    int64   `json:"workspaceMaxBytes"`
	ConversationMaxBytes int64   `json:"conversationMaxBytes"`
}
