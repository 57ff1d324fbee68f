package cloud

import (
	"encoding/json"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// Session is the durable record of one agent's work.
type Session struct {
	ID           string            `json:"id"`
	Title        string            `json:"title,omitempty"`
	Runtime      string            `json:"runtime" doc:"The agent program that runs the session's turns."`
	Metadata     map[string]string `json:"metadata,omitempty"`
	CreatedAt    api.Time          `json:"createdAt"`
	UpdatedAt    api.Time          `json:"updatedAt"`
	ArchivedAt   api.Time          `json:"archivedAt,omitempty"`
	Workspace    Workspace         `json:"workspace"`
	Continuation Continuation      `json:"continuation"`
	ActiveRun    ActiveRun         `json:"activeRun" doc:"The run that has not ended, or null."`
	LastRun      *Run              `json:"lastRun,omitempty" doc:"The latest run, ended or not."`
	LastError    *RunError         `json:"lastError,omitempty" doc:"Why the latest run did not complete."`
}

// Workspace is what a session shows of its compute.
type Workspace struct {
	State     string   `json:"state" enum:"unavailable,attached,expired"`
	ExpiresAt api.Time `json:"expiresAt,omitempty" doc:"The deadline truly in force when attached; it moves while the workspace is in use. In the past when expired."`
}

// Continuation is what a further turn would get.
type Continuation struct {
	CanContinue   bool     `json:"canContinue" doc:"Whether the session accepts another turn."`
	State         string   `json:"state" enum:"live,fresh,restorable,unavailable"`
	Conversation  Fidelity `json:"conversation"`
	Workspace     Tree     `json:"workspace"`
	BoundaryRunID string   `json:"boundaryRunId,omitempty" doc:"The run at which the recoverable history ends."`
	Reason        string   `json:"reason,omitempty" enum:"no_prior_work,checkpoint_unavailable,conversation_not_restorable,workspace_not_restorable,session_archived" doc:"Present whenever a next turn will not carry the previous work, and absent whenever it will."`
}

// Fidelity is how faithfully the conversation is carried.
type Fidelity struct {
	Fidelity string `json:"fidelity" enum:"live,exact,result_only,none"`
}

// Tree is how faithfully the files are carried.
type Tree struct {
	Fidelity string `json:"fidelity" enum:"live,portable_tree,none"`
}

// ActiveRun is a run, or null.
type ActiveRun struct{ *Run }

// MarshalJSON writes the run or null.
func (a ActiveRun) MarshalJSON() ([]byte, error) { return json.Marshal(a.Run) }

// UnmarshalJSON reads the run or null.
func (a *ActiveRun) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &a.Run) }

// Schema documents the form.
func (ActiveRun) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{{Ref: "#/components/schemas/Run"}, {Type: "null"}}}
}

// Turn is one unit of work.
type Turn struct {
	ID          string     `json:"id"`
	SessionID   string     `json:"sessionId"`
	Number      int64      `json:"number" doc:"1 for the first turn of the session."`
	Input       []api.Part `json:"input"`
	SubmittedAt api.Time   `json:"submittedAt"`
}

// Run is one execution of one turn.
type Run struct {
	ID                string    `json:"id"`
	SessionID         string    `json:"sessionId"`
	TurnID            string    `json:"turnId"`
	State             string    `json:"state" enum:"queued,provisioning,running,awaiting_interaction,completed,failed,crashed,cancelled"`
	QueuedAt          api.Time  `json:"queuedAt"`
	StartedAt         api.Time  `json:"startedAt,omitempty"`
	EndedAt           api.Time  `json:"endedAt,omitempty"`
	CancelRequestedAt api.Time  `json:"cancelRequestedAt,omitempty"`
	StopReason        string    `json:"stopReason,omitempty" doc:"The agent's word for why the turn ended, or execution_deadline, workspace_lost, turn_deadline, agent_exited, cancelled."`
	LastError         *RunError `json:"lastError,omitempty"`
}

// RunError says why a run did not complete.
type RunError struct {
	Code    string `json:"code" doc:"Stable; branch on it."`
	Message string `json:"message"`
}

// Interaction is a question that a run asks.
type Interaction struct {
	ID          string          `json:"id"`
	SessionID   string          `json:"sessionId"`
	RunID       string          `json:"runId"`
	Kind        string          `json:"kind" enum:"permission,question"`
	State       string          `json:"state" enum:"open,answered,expired,withdrawn"`
	Request     json.RawMessage `json:"request,omitempty" doc:"What is asked, as the agent put it."`
	Options     []Option        `json:"options,omitempty" doc:"The offered answers."`
	RequestedAt api.Time        `json:"requestedAt"`
	EndedAt     api.Time        `json:"endedAt,omitempty"`
	Answer      *Answer         `json:"answer,omitempty"`
	Reason      string          `json:"reason,omitempty" doc:"Why it can no longer be answered: workspace_lost, run_ended, withdrawn."`
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
}

// Event is an appended fact of a session.
type Event struct {
	ID         string          `json:"id"`
	Sequence   int64           `json:"sequence" doc:"Starts at 1 in each session and has no gap."`
	SessionID  string          `json:"sessionId"`
	TurnID     string          `json:"turnId,omitempty"`
	RunID      string          `json:"runId,omitempty"`
	Type       string          `json:"type"`
	OccurredAt api.Time        `json:"occurredAt"`
	Data       json.RawMessage `json:"data"`
}

// session projects a session at now.
func session(f sojourn.Facts, now time.Time) Session {
	s := f.Session
	out := Session{
		ID: string(s.ID), Title: s.Title, Runtime: s.Runtime, Metadata: s.Metadata,
		CreatedAt: api.Instant(s.CreatedAt), UpdatedAt: api.Instant(s.UpdatedAt), ArchivedAt: api.Instant(s.ArchivedAt),
		Workspace: workspace(f.Workspace(now)), Continuation: continuation(f.Continuation(now)),
	}
	if f.Active != nil {
		out.ActiveRun.Run = new(run(*f.Active, f.Open))
	}
	if f.Last != nil {
		out.LastRun = new(run(*f.Last, f.Open))
		out.LastError = out.LastRun.LastError
	}
	return out
}

func workspace(w sojourn.Workspace) Workspace {
	return Workspace{State: string(w.State), ExpiresAt: api.Instant(w.ExpiresAt)}
}

func continuation(c sojourn.Continuation) Continuation {
	return Continuation{
		CanContinue: c.CanContinue, State: string(c.State),
		Conversation: Fidelity{string(c.Conversation)}, Workspace: Tree{string(c.Workspace)},
		BoundaryRunID: string(c.Boundary), Reason: string(c.Reason),
	}
}

func turn(t sojourn.Turn) Turn {
	return Turn{
		ID: string(t.ID), SessionID: string(t.Session), Number: t.Number,
		Input: api.Parts(t.Input), SubmittedAt: api.Instant(t.SubmittedAt),
	}
}

// run projects a run; open holds the session's open interactions.
func run(r sojourn.Run, open []sojourn.Interaction) Run {
	out := Run{
		ID: string(r.ID), SessionID: string(r.Session), TurnID: string(r.Turn), State: runState(r, open),
		QueuedAt: api.Instant(r.QueuedAt), StartedAt: api.Instant(r.StartedAt), EndedAt: api.Instant(r.EndedAt),
		CancelRequestedAt: api.Instant(r.CancelAt),
	}
	if r.State.Terminal() {
		out.StopReason = r.StopReason
	}
	if r.Error != nil {
		out.LastError = &RunError{Code: r.Error.Code, Message: r.Error.Message}
	}
	return out
}

// runState names a run's state in the words of the contract.
func runState(r sojourn.Run, open []sojourn.Interaction) string {
	switch r.State {
	case sojourn.RunStarting:
		return "provisioning"
	case sojourn.RunActive:
		for _, i := range open {
			if i.Run == r.ID && i.State == sojourn.InteractionOpen {
				return "awaiting_interaction"
			}
		}
		return "running"
	case sojourn.RunSealing: // the agent is done, the run is not: its outcome can still change
		return "running"
	}
	return string(r.State)
}

func interaction(i sojourn.Interaction) Interaction {
	out := Interaction{
		ID: string(i.ID), SessionID: string(i.Session), RunID: string(i.Run), Kind: i.Kind, State: string(i.State),
		Request: i.Request, RequestedAt: api.Instant(i.OpenedAt), EndedAt: api.Instant(i.EndedAt), Reason: i.Reason,
	}
	for _, o := range i.Options {
		out.Options = append(out.Options, Option{OptionID: o.ID, Name: o.Name, Kind: o.Kind})
	}
	if i.Answer != nil {
		out.Answer = &Answer{OptionID: i.Answer.OptionID, Text: i.Answer.Text}
	}
	return out
}
