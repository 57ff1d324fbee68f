package harness

import (
	"context"
	"encoding/json"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// Harness drives an agent through one run.
type Harness interface {
	// Drive gives the job's turn to the agent and returns when the agent is
	// done with it, has died, or can do no more. It may be called again for
	// the same run after the server died: Job.State then holds what the last
	// Commit stored, and Drive goes on from there without repeating what the
	// agent has already done. When ctx ends it returns at once and leaves the
	// agent running; the error is then ctx's cause.
	Drive(ctx context.Context, job Job, port Port) (Outcome, error)
}

// Link is what a harness needs of the link to the sandbox. [*link.Peer] is one.
// Every call is retried over reconnects until its context ends.
type Link interface {
	Start(ctx context.Context, p link.StartParams) error
	Read(ctx context.Context, p link.ReadParams) (link.ReadResult, error)
	Write(ctx context.Context, processID, writeID string, data []byte) error
	CloseStdin(ctx context.Context, processID string) error
	Ack(ctx context.Context, processID string, seq int64) error
	Terminate(ctx context.Context, processID string, grace time.Duration) (running bool, err error)
	Remove(ctx context.Context, processID string) error
	ReadFile(ctx context.Context, path string) ([]byte, error)
	WriteFile(ctx context.Context, path string, data []byte) error
	CreateDirectory(ctx context.Context, path string, recursive bool) error
	ReadDirectory(ctx context.Context, path string) ([]link.DirEntry, error)
	GetMetadata(ctx context.Context, path string) (link.Metadata, error)
	RemovePath(ctx context.Context, path string, recursive, force bool) error
}

// Job is one run to drive.
type Job struct {
	Session sojourn.SessionID
	Run     sojourn.RunID
	Epoch   int64
	Input   []sojourn.Part
	Runtime Runtime
	// ProcessEpoch is the epoch under which the processes of the sandbox were
	// started: Epoch, or an older one whose processes go on in it. 0 means Epoch.
	ProcessEpoch int64
	// Env are variables that every process of the session gets; those of the
	// runtime go over them.
	Env map[string]string
	// Model is the name of the model that the session asked for, or of the one that
	// it gets; "" leaves the choice to the runtime.
	Model string
	// ModelURL and Token fill the runtime's templates together with Model: the
	// address of the model gateway as the sandbox sees it, without the part of an
	// API ("http://127.0.0.1:3128/model"), and what the agent shows the gateway in
	// place of a key. A runtime that needs one which is empty is unavailable.
	ModelURL, Token string
	// MCPServers are the session's MCP servers, each as ACP writes it:
	// {"name", "command", "args", "env": [{"name", "value"}]} for a program in
	// the sandbox, {"type": "http", "name", "url", "headers": [{"name",
	// "value"}]} for one outside.
	MCPServers []json.RawMessage
	// Conversation is the agent's own id of the conversation to go on with;
	// "" starts a new one. A conversation that the agent does not know is an
	// outcome with code "conversation_not_restorable", never a fresh start.
	Conversation string
	// Worked says that a prompt may have reached an agent under this epoch.
	// Without a confirmed Conversation the harness then goes on with the one
	// that it had opened for that, if the agent has kept it, and else logs that
	// it begins a new one.
	Worked bool
	// State is what the last Commit under this epoch stored, by this run or by
	// an earlier one; nil when there is none. The harness tells them apart:
	// its own run is taken up again, an earlier one's tells it which agent is
	// running. Without the latter it starts the agent anew.
	State []byte
	// Deadline is when the turn has taken too long: the harness cancels it,
	// then kills the agent.
	Deadline time.Time
	// Grace is how long an agent may take to obey a cancel before it is
	// killed; 0 means 10 s.
	Grace time.Duration
}

// Port is what the engine offers a harness while it drives.
type Port interface {
	Link() Link
	// Activate makes it durable that the prompt is about to be given to the
	// agent. It must succeed before the prompt is written, and may be called
	// again by a drive that takes the run up between the two.
	Activate(ctx context.Context) error
	// Commit makes a batch durable, all of it or nothing. After an error
	// nothing of the batch has happened and Drive must return the error.
	Commit(ctx context.Context, b Batch) error
	// Answer waits for the answer to the question with that ref. It returns
	// false when the question expired.
	Answer(ctx context.Context, ref string) (sojourn.Answer, bool, error)
	// Cancelled is closed when a caller has asked to cancel the run.
	Cancelled() <-chan struct{}
}

// Steered is an optional ability of a [Port]: input that came for a run while
// it was active. A harness that can take it asks between two steps of its agent
// and remembers in its state how far it has come, so that each input is given
// once.
type Steered interface {
	// Steering returns, in order, the inputs that came after the one with that
	// number; 0 means all of them.
	Steering(ctx context.Context, after int64) ([]Steer, error)
}

// Steer is one input for an active run.
type Steer struct {
	Number int64 // from 1, and rising, in the run
	Input  []sojourn.Part
}

// Batch is what a harness has learned since the last one.
type Batch struct {
	Events []Event
	// Asked are questions for the outside. A question whose Ref was asked
	// before in this run is not asked again.
	Asked []Question
	// Withdrawn are refs of questions that the agent took back.
	Withdrawn []string
	// Conversation is set once, when the agent has confirmed the id: not by
	// naming it, but by ending its first turn in it.
	Conversation string
	// State replaces what Job.State will be after a restart: at least the
	// position in the agent's output up to which this batch accounts for it.
	State []byte
}

// Event is something the agent said.
type Event struct {
	Type sojourn.EventType // agent.update or agent.log
	Data json.RawMessage   // a JSON object
}

// Question is a permission or a question that the agent asks.
type Question struct {
	Ref     string // unique in the run
	Kind    string // "permission" or "question"
	Request json.RawMessage
	Options []sojourn.Option
}

// Outcome is how a drive ended.
type Outcome struct {
	// State is completed, cancelled, failed or crashed. After completed and
	// cancelled the agent is at rest and its state files may be captured.
	State      sojourn.RunState
	StopReason string
	Error      *sojourn.RunError // of a failed or crashed run
	Agent      string            // name and version that the agent gave
	// ConversationLost is set when the agent could not go on with
	// Job.Conversation.
	ConversationLost bool
	// Killed is set when the agent had to be killed or ended by itself: its
	// files may be torn, so the run must not be sealed.
	Killed bool
}

var _ Link = (*link.Peer)(nil)
