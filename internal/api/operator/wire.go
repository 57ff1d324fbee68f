package operator

import (
	"encoding/json"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// Session is a session with what it stands on.
type Session struct {
	ID               string            `json:"id"`
	Project          string            `json:"project"`
	Contract         string            `json:"contract" doc:"The contract that created it: agents, exec or cloud."`
	Title            string            `json:"title,omitempty"`
	Runtime          string            `json:"runtime"`
	Model            string            `json:"model,omitempty" doc:"The model that it asks for."`
	Metadata         map[string]string `json:"metadata,omitempty"`
	State            string            `json:"state" enum:"new,open,paused,closed"`
	CloseReason      string            `json:"closeReason,omitempty"`
	CreatedAt        api.Time          `json:"createdAt"`
	UpdatedAt        api.Time          `json:"updatedAt"`
	ArchivedAt       api.Time          `json:"archivedAt,omitempty"`
	Turns            int64             `json:"turns" doc:"How many turns were submitted."`
	LastSequence     int64             `json:"lastSequence" doc:"The number of the last event."`
	Status           string            `json:"status,omitempty" enum:"pending,running,rotating,paused,completed,failed,cancelled" doc:"Of a session without an agent, as for what follows."`
	StartedAt        api.Time          `json:"startedAt,omitempty"`
	PausedAt         api.Time          `json:"pausedAt,omitempty"`
	Ending           *Ending           `json:"ending,omitempty"`
	Executions       int64             `json:"executions,omitempty" doc:"How many were accepted."`
	OpenExecutions   []Execution       `json:"openExecutions,omitempty" doc:"Those that run or are parked, and the first of those that are queued."`
	Rotation         *Rotation         `json:"rotation,omitempty"`
	Client           *Client           `json:"client,omitempty"`
	Budget           *Budget           `json:"budget,omitempty" doc:"Absent when nothing bounds it and nothing was used."`
	Sandbox          *Sandbox          `json:"sandbox,omitempty" doc:"What the session asks of its sandboxes; absent when nothing."`
	Workspace        Workspace         `json:"workspace"`
	Continuation     Continuation      `json:"continuation"`
	Lease            *Lease            `json:"lease,omitempty" doc:"The latest lease, live or ended."`
	ActiveRun        *Run              `json:"activeRun,omitempty" doc:"The run that has not ended."`
	LastRun          *Run              `json:"lastRun,omitempty"`
	Checkpoint       *Checkpoint       `json:"checkpoint,omitempty" doc:"The latest sealed checkpoint."`
	OpenInteractions []Interaction     `json:"openInteractions,omitempty"`
}

// Workspace is what a session shows of its compute.
type Workspace struct {
	State     string   `json:"state" enum:"unavailable,attached,expired"`
	ExpiresAt api.Time `json:"expiresAt,omitempty"`
}

// Continuation is what a further turn would get.
type Continuation struct {
	CanContinue   bool     `json:"canContinue"`
	State         string   `json:"state" enum:"live,fresh,restorable,unavailable"`
	Conversation  Fidelity `json:"conversation"`
	Workspace     Fidelity `json:"workspace"`
	BoundaryRunID string   `json:"boundaryRunId,omitempty"`
	Reason        string   `json:"reason,omitempty" doc:"Absent if and only if the next turn carries the previous work."`
}

// Fidelity is how faithfully a part is carried.
type Fidelity struct {
	Fidelity string `json:"fidelity" enum:"live,exact,result_only,portable_tree,none"`
}

// Lease is a session's claim on one sandbox.
type Lease struct {
	Epoch          int64    `json:"epoch" doc:"The fencing number; it grows with each lease."`
	State          string   `json:"state" enum:"requested,held,draining,released,expired,lost"`
	Driver         string   `json:"driver"`
	Isolation      string   `json:"isolation"`
	RequestedAt    api.Time `json:"requestedAt"`
	GrantedAt      api.Time `json:"grantedAt,omitempty"`
	TouchedAt      api.Time `json:"touchedAt,omitempty"`
	EndedAt        api.Time `json:"endedAt,omitempty"`
	EndReason      string   `json:"endReason,omitempty"`
	CeilingSeconds float64  `json:"ceilingSeconds"`
	HoldSeconds    float64  `json:"holdSeconds"`
	CeilingAt      api.Time `json:"ceilingAt,omitempty" doc:"The deadline that nothing moves."`
	HoldUntil      api.Time `json:"holdUntil,omitempty" doc:"The deadline that use moves."`
	Restored       string   `json:"restoredCheckpointId,omitempty" doc:"The checkpoint that its sandbox started from."`
}

// Run is one execution of one turn.
type Run struct {
	ID         string    `json:"id"`
	SessionID  string    `json:"sessionId"`
	TurnID     string    `json:"turnId"`
	State      string    `json:"state" enum:"queued,starting,active,sealing,completed,failed,crashed,cancelled"`
	Epoch      int64     `json:"epoch,omitempty" doc:"The lease that it runs under."`
	QueuedAt   api.Time  `json:"queuedAt"`
	StartedAt  api.Time  `json:"startedAt,omitempty"`
	ActiveAt   api.Time  `json:"activeAt,omitempty"`
	SealingAt  api.Time  `json:"sealingAt,omitempty"`
	EndedAt    api.Time  `json:"endedAt,omitempty"`
	CancelAt   api.Time  `json:"cancelRequestedAt,omitempty"`
	StopReason string    `json:"stopReason,omitempty"`
	LastError  *RunError `json:"lastError,omitempty"`
}

// RunError says why a run did not complete.
type RunError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Checkpoint is a sealed capture.
type Checkpoint struct {
	ID                 string   `json:"id"`
	RunID              string   `json:"runId" doc:"The boundary."`
	Epoch              int64    `json:"epoch"`
	State              string   `json:"state" enum:"capturing,sealed,abandoned"`
	Format             string   `json:"format"`
	Conversation       string   `json:"conversation,omitempty"`
	ConversationReason string   `json:"conversationReason,omitempty"`
	Workspace          string   `json:"workspace,omitempty"`
	WorkspaceReason    string   `json:"workspaceReason,omitempty"`
	Entries            int64    `json:"entries"`
	Bytes              int64    `json:"bytes" doc:"Of data in both trees."`
	StoredBytes        int64    `json:"storedBytes" doc:"Added to the blob store."`
	ProcessBytes       int64    `json:"processBytes,omitempty" doc:"Of the saved processes of the same boundary."`
	SealedAt           api.Time `json:"sealedAt,omitempty"`
}

// Turn is one unit of work.
type Turn struct {
	ID          string     `json:"id"`
	SessionID   string     `json:"sessionId"`
	Number      int64      `json:"number"`
	Input       []api.Part `json:"input"`
	SubmittedAt api.Time   `json:"submittedAt"`
}

// Interaction is a question that a run asks, or an approval that an execution
// waits for.
type Interaction struct {
	ID          string          `json:"id"`
	SessionID   string          `json:"sessionId"`
	RunID       string          `json:"runId,omitempty"`
	ExecutionID string          `json:"executionId,omitempty"`
	Kind        string          `json:"kind"`
	State       string          `json:"state" enum:"open,answered,expired,withdrawn"`
	Request     json.RawMessage `json:"request,omitempty"`
	Options     []Option        `json:"options,omitempty"`
	RequestedAt api.Time        `json:"requestedAt"`
	ExpiresAt   api.Time        `json:"expiresAt,omitempty" doc:"When it can no longer be answered; absent when only the end of its run ends it."`
	EndedAt     api.Time        `json:"endedAt,omitempty"`
	Answer      *Answer         `json:"answer,omitempty"`
	Reason      string          `json:"reason,omitempty"`
}

// Option is one offered answer.
type Option struct {
	OptionID string `json:"optionId"`
	Name     string `json:"name"`
	Kind     string `json:"kind"`
}

// Answer is what a caller decided: an offered option, or a text.
type Answer struct {
	OptionID string `json:"optionId,omitempty" maxLength:"1024"`
	Text     string `json:"text,omitempty" maxLength:"1048576"`
	Comment  string `json:"comment,omitempty" maxLength:"4096" doc:"Beside the option, of an approval."`
}

// Event is an appended fact of a session, as it is stored.
type Event struct {
	Sequence   int64           `json:"sequence"`
	SessionID  string          `json:"sessionId"`
	TurnID     string          `json:"turnId,omitempty"`
	RunID      string          `json:"runId,omitempty"`
	Type       string          `json:"type"`
	OccurredAt api.Time        `json:"occurredAt"`
	Data       json.RawMessage `json:"data"`
}

// Key is an API key without its secret.
type Key struct {
	ID        string   `json:"id"`
	Project   string   `json:"project"`
	Kind      string   `json:"kind" enum:"admin,app,environment,runner"`
	Name      string   `json:"name,omitempty"`
	Scopes    []string `json:"scopes,omitempty"`
	Hint      string   `json:"hint" doc:"The last characters of the secret."`
	CreatedAt api.Time `json:"createdAt"`
	RevokedAt api.Time `json:"revokedAt,omitempty"`
}

// session projects a session at now.
func session(f sojourn.Facts, now time.Time) Session {
	s, w, c := f.Session, f.Workspace(now), f.Continuation(now)
	out := Session{
		ID: string(s.ID), Project: string(s.Project), Contract: string(s.Contract), Title: s.Title, Runtime: s.Runtime, Model: s.Model,
		Metadata: s.Metadata, State: string(s.State), CloseReason: string(s.CloseReason),
		CreatedAt: api.Instant(s.CreatedAt), UpdatedAt: api.Instant(s.UpdatedAt), ArchivedAt: api.Instant(s.ArchivedAt),
		Turns: s.Turns, LastSequence: s.LastSeq, Sandbox: sandboxOf(s.Sandbox), Budget: budgetOf(f, now),
		Workspace: Workspace{State: string(w.State), ExpiresAt: api.Instant(w.ExpiresAt)},
		Continuation: Continuation{
			CanContinue: c.CanContinue, State: string(c.State), Conversation: Fidelity{string(c.Conversation)},
			Workspace: Fidelity{string(c.Workspace)}, BoundaryRunID: string(c.Boundary), Reason: string(c.Reason),
		},
	}
	out.bare(f, now)
	if f.Lease != nil {
		out.Lease = new(lease(*f.Lease))
	}
	if f.Active != nil {
		out.ActiveRun = new(run(*f.Active))
	}
	if f.Last != nil {
		out.LastRun = new(run(*f.Last))
	}
	if f.Head != nil {
		out.Checkpoint = new(checkpoint(*f.Head))
	}
	for _, i := range f.Open {
		out.OpenInteractions = append(out.OpenInteractions, interaction(i))
	}
	return out
}

func lease(l sojourn.Lease) Lease {
	out := Lease{
		Epoch: l.Epoch, State: string(l.State), Driver: l.Driver, Isolation: l.Isolation,
		RequestedAt: api.Instant(l.RequestedAt), GrantedAt: api.Instant(l.GrantedAt),
		TouchedAt: api.Instant(l.TouchedAt), EndedAt: api.Instant(l.EndedAt), EndReason: l.EndReason,
		CeilingSeconds: l.Ceiling.Seconds(), HoldSeconds: l.Hold.Seconds(), Restored: string(l.Restored),
	}
	if !l.GrantedAt.IsZero() && !l.State.Terminal() {
		out.CeilingAt, out.HoldUntil = api.Instant(l.GrantedAt.Add(l.Ceiling)), api.Instant(l.TouchedAt.Add(l.Hold))
	}
	return out
}

func run(r sojourn.Run) Run {
	out := Run{
		ID: string(r.ID), SessionID: string(r.Session), TurnID: string(r.Turn), State: string(r.State), Epoch: r.Epoch,
		QueuedAt: api.Instant(r.QueuedAt), StartedAt: api.Instant(r.StartedAt), ActiveAt: api.Instant(r.ActiveAt),
		SealingAt: api.Instant(r.SealingAt), EndedAt: api.Instant(r.EndedAt), CancelAt: api.Instant(r.CancelAt),
		StopReason: r.StopReason,
	}
	if r.Error != nil {
		out.LastError = &RunError{Code: r.Error.Code, Message: r.Error.Message}
	}
	return out
}

func checkpoint(c sojourn.Checkpoint) Checkpoint {
	out := Checkpoint{
		ID: string(c.ID), RunID: string(c.Run), Epoch: c.Epoch, State: string(c.State), Format: c.Format,
		Conversation: string(c.Conversation), ConversationReason: c.ConversationReason,
		Workspace: string(c.Workspace), WorkspaceReason: c.WorkspaceReason,
		Entries: c.Entries, Bytes: c.Bytes, StoredBytes: c.Stored, SealedAt: api.Instant(c.SealedAt),
	}
	if c.Processes != nil {
		out.ProcessBytes = c.Processes.Bytes
	}
	return out
}

func turn(t sojourn.Turn) Turn {
	return Turn{
		ID: string(t.ID), SessionID: string(t.Session), Number: t.Number,
		Input: api.Parts(t.Input), SubmittedAt: api.Instant(t.SubmittedAt),
	}
}

func interaction(i sojourn.Interaction) Interaction {
	out := Interaction{
		ID: string(i.ID), SessionID: string(i.Session), RunID: string(i.Run), ExecutionID: string(i.Exec), Kind: i.Kind, State: string(i.State),
		Request: i.Request, RequestedAt: api.Instant(i.OpenedAt), ExpiresAt: api.Instant(i.ExpiresAt), EndedAt: api.Instant(i.EndedAt), Reason: i.Reason,
	}
	for _, o := range i.Options {
		out.Options = append(out.Options, Option{OptionID: o.ID, Name: o.Name, Kind: o.Kind})
	}
	if i.Answer != nil {
		out.Answer = &Answer{OptionID: i.Answer.OptionID, Text: i.Answer.Text, Comment: i.Answer.Comment}
	}
	return out
}

func event(e sojourn.Event) Event {
	out := Event{
		Sequence: e.Seq, SessionID: string(e.Session), TurnID: string(e.Turn), RunID: string(e.Run),
		Type: string(e.Type), OccurredAt: api.Instant(e.At), Data: e.Data,
	}
	if len(e.Data) == 0 {
		out.Data = json.RawMessage("{}")
	}
	return out
}

func apiKey(k sojourn.Key) Key {
	out := Key{
		ID: string(k.ID), Project: string(k.Project), Kind: string(k.Kind), Name: k.Name, Hint: k.Hint,
		CreatedAt: api.Instant(k.CreatedAt), RevokedAt: api.Instant(k.RevokedAt),
	}
	for _, s := range k.Scopes {
		out.Scopes = append(out.Scopes, string(s))
	}
	return out
}
