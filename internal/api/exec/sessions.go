package exec

import (
	"context"
	"net/http"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

// CreateBody is what a session is created from.
type CreateBody struct {
	Name      string            `json:"name,omitempty" maxLength:"512"`
	Budget    *Budget           `json:"budget,omitempty" doc:"A session with no limit has nothing stopping it."`
	Rotation  *RotationTerms    `json:"rotation,omitempty"`
	Sandbox   *SandboxSpec      `json:"sandbox,omitempty"`
	ClientID  string            `json:"clientId,omitempty" maxLength:"256" doc:"Your own handle for reattaching later; unique among the sessions that have not ended."`
	OnAbandon string            `json:"onAbandon,omitempty" enum:"pause,stop" doc:"What becomes of the session when heartbeats of its client stay away; nothing when absent."`
	Context   ContextPatch      `json:"context,omitempty" doc:"What its executions start from, as in the call that updates it."`
	Metadata  map[string]string `json:"metadata,omitempty" doc:"At most 32 entries of at most 4,096 bytes."`
	AutoStart bool              `json:"autoStart,omitempty" doc:"Start it at once."`
}

// RotationTerms say how a session's sandboxes are to be replaced.
type RotationTerms struct {
	PreRotateBufferSeconds    *float64 `json:"preRotateBufferSeconds,omitempty" minimum:"0" maximum:"3600" doc:"Grace period before a sandbox is replaced, for cleanup: at most half of the time that a sandbox lives; 0 or absent is the server's choice."`
	IncludeProcessState       bool     `json:"includeProcessState,omitempty" doc:"Carry process state across a rotation, not just files and env. Refused where the isolation cannot."`
	PreRotateHook             []string `json:"preRotateHook,omitempty" maxItems:"4096" doc:"A program with its arguments that runs in the sandbox before it is replaced."`
	CheckpointIntervalSeconds *float64 `json:"checkpointIntervalSeconds,omitempty" minimum:"1" maximum:"2592000" doc:"How much time may pass between two checkpoints while executions run."`
	CheckpointAfterExec       *bool    `json:"checkpointAfterExec,omitempty" doc:"Make a checkpoint after an execution that changed files; true when absent."`
}

func (r *RotationTerms) rotation() (out sojourn.Rotation) {
	if r == nil {
		return out
	}
	out.Processes, out.Hook = r.IncludeProcessState, r.PreRotateHook
	if r.PreRotateBufferSeconds != nil {
		out.Buffer = inSeconds(*r.PreRotateBufferSeconds)
	}
	if r.CheckpointIntervalSeconds != nil {
		out.Checkpoint = inSeconds(*r.CheckpointIntervalSeconds)
	}
	out.NoIdleCheckpoint = r.CheckpointAfterExec != nil && !*r.CheckpointAfterExec
	return out
}

// SessionBody is an answer with one session.
type SessionBody struct {
	Session Session `json:"session"`
}

type sessionOutput struct{ Body SessionBody }

// show projects a session with its context.
func (h *handler) show(ctx context.Context, f sojourn.Facts) (Session, error) {
	carried, err := h.engine.Carryover(ctx, ref(ctx, string(f.Session.ID)))
	if err != nil {
		return Session{}, err
	}
	out := sessionOf(f, h.engine.Now())
	out.Context = new(contextOf(carried))
	return out, nil
}

// shown answers with a session, or with the error that a command gave.
func (h *handler) shown(ctx context.Context, f sojourn.Facts, err error) (*sessionOutput, error) {
	if err != nil {
		return nil, err
	}
	s, err := h.show(ctx, f)
	if err != nil {
		return nil, err
	}
	return &sessionOutput{Body: SessionBody{s}}, nil
}

type createInput struct {
	api.Idempotent
	Body *CreateBody
}

type createOutput struct {
	Location string `header:"Location"`
	Body     SessionBody
}

type listInput struct {
	Status string `query:"status" enum:"pending,running,rotating,paused,completed,failed,cancelled" doc:"Only those that are in this state."`
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50"`
	Offset int    `query:"offset" minimum:"0" maximum:"1000000000" default:"0"`
}

// SessionsBody is a page of sessions, newest first.
type SessionsBody struct {
	Sessions []Session `json:"sessions"`
	Total    int       `json:"total" doc:"How many there are on all pages."`
	Limit    int       `json:"limit"`
	Offset   int       `json:"offset"`
	HasMore  bool      `json:"hasMore"`
}

type listOutput struct{ Body SessionsBody }

// SuccessBody says that it was done.
type SuccessBody struct {
	Success bool `json:"success"`
}

type successOutput struct{ Body SuccessBody }

func (h *handler) sessions(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "createSession", Method: http.MethodPost, Path: sessionsPath, Status: http.StatusCreated,
		Scope: ScopeWrite, Summary: "Create a session",
		Description: "It is pending until it is started: nothing is provisioned before. With autoStart the call starts it and waits for its sandbox, at most 20 seconds.",
	}, h.create)
	api.Register(s, api.Operation{
		ID: "listSessions", Method: http.MethodGet, Path: sessionsPath,
		Scope: ScopeRead, Summary: "List sessions, newest first",
	}, h.list)
	api.Register(s, api.Operation{
		ID: "getSession", Method: http.MethodGet, Path: sessionPath,
		Scope: ScopeRead, Summary: "Read a session",
	}, h.get)
	api.Register(s, api.Operation{
		ID: "updateSession", Method: http.MethodPatch, Path: sessionPath,
		Scope: ScopeWrite, Summary: "Change the limits of a session",
		Description: "A limit that is absent stays, null takes it away. What was used stays. A session that has ended keeps its budget.",
	}, h.update)
	api.Register(s, api.Operation{
		ID: "deleteSession", Method: http.MethodDelete, Path: sessionPath,
		Scope: ScopeWrite, Summary: "Delete a session with all that it has left",
		Description: "Only one that has ended: stop or cancel it first, also one that is pending.",
	}, h.delete)
}

func (h *handler) create(ctx context.Context, in *createInput) (*createOutput, error) {
	if in.Body == nil {
		in.Body = &CreateBody{}
	}
	idem, err := in.Of("exec.createSession", in.Body)
	if err != nil {
		return nil, err
	}
	carry, err := in.Body.Context.patch()
	if err != nil {
		return nil, err
	}
	b := in.Body
	made, err := h.engine.CreateSession(ctx, engine.Create{
		Project: api.Caller(ctx).Project, Contract: sojourn.ContractExec, Runtime: sojourn.RuntimeNone,
		Title: b.Name, Metadata: b.Metadata, Sandbox: b.Sandbox.spec(), Limits: b.Budget.limits(), Rotation: b.Rotation.rotation(),
		Presence: sojourn.Presence{Client: b.ClientID, OnAbandon: sojourn.AbandonMode(b.OnAbandon)}, Carryover: carry, Idempotency: idem,
	})
	if err != nil {
		return nil, err
	}
	f := made.Facts
	if b.AutoStart && f.Session.State == sojourn.SessionNew {
		if f, err = h.autoStart(ctx, f.Session.ID); err != nil {
			return nil, err
		}
	}
	s, err := h.show(ctx, f)
	if err != nil {
		return nil, err
	}
	return &createOutput{Location: sessionsPath + "/" + s.ID, Body: SessionBody{s}}, nil
}

// autoStart starts a session that was just made. When its sandbox does not come up
// the answer is the session all the same: the caller must learn its id.
func (h *handler) autoStart(ctx context.Context, id sojourn.SessionID) (sojourn.Facts, error) {
	at := ref(ctx, string(id))
	f, err := h.engine.StartSession(ctx, at, h.config.SandboxWait)
	if err == nil {
		return f, nil
	}
	f, readErr := h.engine.Session(ctx, at)
	if readErr == nil && f.Session.State != sojourn.SessionNew {
		return f, nil
	}
	return f, err
}

func (h *handler) list(ctx context.Context, in *listInput) (*listOutput, error) {
	q := engine.BareQuery{
		Project: api.Caller(ctx).Project, Contract: sojourn.ContractExec, Limit: in.Limit, Offset: in.Offset,
	}
	switch in.Status {
	case "":
	case "pending":
		q.State = sojourn.SessionNew
	case "running", "rotating":
		q.State, q.Rotating = sojourn.SessionOpen, new(in.Status == "rotating")
	case "paused":
		q.State = sojourn.SessionPaused
	default:
		q.State, q.CloseReason = sojourn.SessionClosed, sojourn.CloseReason(in.Status)
	}
	page, err := h.engine.BareSessions(ctx, q)
	if err != nil {
		return nil, err
	}
	out := SessionsBody{Sessions: []Session{}, Total: page.Total, Limit: in.Limit, Offset: in.Offset}
	now := h.engine.Now()
	for _, f := range page.Sessions {
		out.Sessions = append(out.Sessions, sessionOf(f, now))
	}
	out.HasMore = in.Offset+len(out.Sessions) < page.Total
	return &listOutput{Body: out}, nil
}

func (h *handler) get(ctx context.Context, in *api.SessionPath) (*sessionOutput, error) {
	f, err := h.engine.Session(ctx, ref(ctx, in.SessionID))
	return h.shown(ctx, f, err)
}

type updateInput struct {
	api.SessionPath
	Body UpdateBody
}

// UpdateBody is what can be changed of a session.
type UpdateBody struct {
	Budget BudgetChange `json:"budget"`
}

// BudgetChange changes limits: one that is absent stays, null takes it away.
type BudgetChange struct {
	CostCapCents         Change `json:"costCapCents,omitempty" minimum:"1" maximum:"9000000000000"`
	IterationLimit       Change `json:"iterationLimit,omitempty" minimum:"1" maximum:"1000000000000"`
	DurationLimitSeconds Change `json:"durationLimitSeconds,omitempty" minimum:"1" maximum:"3153600000"`
}

// over returns limits as the change leaves them.
func (c BudgetChange) over(l sojourn.Limits) sojourn.Limits {
	b := budgetOf(l)
	c.CostCapCents.apply(&b.CostCapCents)
	c.IterationLimit.apply(&b.IterationLimit)
	c.DurationLimitSeconds.apply(&b.DurationLimitSeconds)
	return b.limits()
}

func (h *handler) update(ctx context.Context, in *updateInput) (*sessionOutput, error) {
	f, err := h.engine.SetBudget(ctx, ref(ctx, in.SessionID), in.Body.Budget.over)
	return h.shown(ctx, f, err)
}

func (h *handler) delete(ctx context.Context, in *api.SessionPath) (*successOutput, error) {
	if err := h.engine.DeleteSession(ctx, ref(ctx, in.SessionID)); err != nil {
		return nil, err
	}
	return &successOutput{Body: SuccessBody{true}}, nil
}
