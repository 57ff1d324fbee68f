package operator

import (
	"cmp"
	"context"
	"net/http"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

// SessionBody is an answer with one session.
type SessionBody struct {
	Session Session `json:"session"`
}

type sessionOutput struct{ Body SessionBody }

func (h *handler) sessionOutput(f sojourn.Facts, err error) (*sessionOutput, error) {
	if err != nil {
		return nil, err
	}
	return &sessionOutput{Body: SessionBody{session(f, h.engine.Now())}}, nil
}

// CreateSessionBody is what a session is created from.
type CreateSessionBody struct {
	Contract    string            `json:"contract,omitempty" enum:"cloud,exec" doc:"The contract that the session will belong to. Absent: exec for the runtime none, else cloud."`
	Title       string            `json:"title,omitempty" maxLength:"512"`
	Runtime     string            `json:"runtime,omitempty" maxLength:"64" doc:"The agent program, or none for a session that takes execs; the server's default when absent."`
	Model       string            `json:"model,omitempty" maxLength:"256" doc:"The model that the runtime is to use; the installation's choice when absent."`
	Metadata    map[string]string `json:"metadata,omitempty" doc:"At most 32 entries of at most 4,096 bytes."`
	Budget      *BudgetLimits     `json:"budget,omitempty" doc:"What the session may use; without bounds when absent."`
	Sandbox     *Sandbox          `json:"sandbox,omitempty" doc:"What the session asks of its sandboxes."`
	Rotation    *RotationTerms    `json:"rotation,omitempty" doc:"Of a session without an agent, as for what follows."`
	ClientID    string            `json:"clientId,omitempty" maxLength:"256" doc:"The caller's own handle, unique among the live sessions, to reattach by."`
	OnAbandon   string            `json:"onAbandon,omitempty" enum:"pause,stop" doc:"What becomes of the session when the client's heartbeats stay away; nothing when absent."`
	Context     *CarryoverPatch   `json:"context,omitempty" doc:"What execs start from."`
	InitialTurn *InitialTurn      `json:"initialTurn,omitempty" doc:"A turn to submit at once."`
}

// InitialTurn is a turn that is submitted with its session.
type InitialTurn struct {
	Input api.Input `json:"input"`
}

// CreatedSessionBody is a new session, with what its initial turn made.
type CreatedSessionBody struct {
	Session Session `json:"session"`
	Turn    *Turn   `json:"turn,omitempty"`
	Run     *Run    `json:"run,omitempty"`
}

type createSessionInput struct {
	api.Idempotent
	Body *CreateSessionBody
}

type createSessionOutput struct {
	Location string `header:"Location"`
	Body     CreatedSessionBody
}

type listSessionsInput struct {
	Limit    int    `query:"limit" minimum:"1" maximum:"200" default:"50"`
	Cursor   string `query:"cursor" doc:"The nextCursor of the page before."`
	Contract string `query:"contract" enum:"agents,exec,cloud" doc:"Only sessions of this contract."`
	Archived string `query:"archived" enum:"true,false" doc:"Only archived sessions, or only others; both when absent."`
}

// SessionsBody is a page of sessions, newest first.
type SessionsBody struct {
	Sessions   []Session `json:"sessions"`
	NextCursor string    `json:"nextCursor,omitempty" doc:"Absent on the last page."`
}

type listSessionsOutput struct{ Body SessionsBody }

func (h *handler) sessions(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "createSession", Method: http.MethodPost, Path: "/operator/v1/sessions", Status: http.StatusCreated,
		Summary:     "Create a session",
		Description: "Provisions nothing: a turn causes that.",
	}, h.createSession)
	api.Register(s, api.Operation{
		ID: "listSessions", Method: http.MethodGet, Path: "/operator/v1/sessions",
		Summary: "List sessions, newest first",
	}, h.listSessions)
	api.Register(s, api.Operation{
		ID: "getSession", Method: http.MethodGet, Path: "/operator/v1/sessions/{sessionId}",
		Summary: "Read a session with what it stands on",
	}, h.getSession)
	api.Register(s, api.Operation{
		ID: "archiveSession", Method: http.MethodPost, Path: "/operator/v1/sessions/{sessionId}/archive",
		Summary:     "Close a session to commands for good",
		Description: "It stays readable. Archiving an archived session changes nothing; one with an active run is refused.",
	}, h.archiveSession)
	api.Register(s, api.Operation{
		ID: "ensureWorkspace", Method: http.MethodPut, Path: "/operator/v1/sessions/{sessionId}/workspace",
		Summary: "Bring a session's workspace back", Description: "Takes no body. A session that holds a usable lease comes back unchanged.",
	}, h.ensureWorkspace)
}

// complete fills in what follows from the rest: the contract exec and the runtime
// none are two words for the same thing.
func (b *CreateSessionBody) complete() error {
	if b.Contract == "" && b.Runtime == sojourn.RuntimeNone {
		b.Contract = string(sojourn.ContractExec)
	}
	b.Contract = cmp.Or(b.Contract, string(sojourn.ContractCloud))
	bare := b.Contract == string(sojourn.ContractExec)
	if bare {
		b.Runtime = cmp.Or(b.Runtime, sojourn.RuntimeNone)
	}
	switch isNone := b.Runtime == sojourn.RuntimeNone; {
	case bare != isNone:
		return sojourn.Errorf(sojourn.CodeInvalid, "runtime: the contract exec is for sessions without an agent, and only that.")
	case bare && (b.InitialTurn != nil || b.Model != ""):
		return sojourn.Errorf(sojourn.CodeInvalid, "A session without an agent has neither a model nor turns.")
	case !bare && (b.Rotation != nil || b.ClientID != "" || b.OnAbandon != "" || b.Context != nil || b.Sandbox != nil && b.Sandbox.Timeout != 0):
		return sojourn.Errorf(sojourn.CodeInvalid, "rotation, clientId, onAbandon, context and sandbox.timeoutSeconds are of sessions without an agent.")
	}
	return nil
}

func (h *handler) createSession(ctx context.Context, in *createSessionInput) (*createSessionOutput, error) {
	if in.Body == nil {
		in.Body = &CreateSessionBody{}
	}
	if err := in.Body.complete(); err != nil {
		return nil, err
	}
	idem, err := in.Of("operator.createSession", in.Body)
	if err != nil {
		return nil, err
	}
	create := engine.Create{
		Project: api.Caller(ctx).Project, Contract: sojourn.Contract(in.Body.Contract), Title: in.Body.Title,
		Runtime: in.Body.Runtime, Model: in.Body.Model, Metadata: in.Body.Metadata, Sandbox: in.Body.Sandbox.spec(), Limits: in.Body.Budget.limits(), Idempotency: idem,
		Rotation: in.Body.Rotation.rotation(), Carryover: in.Body.Context.patch(),
		Presence: sojourn.Presence{Client: in.Body.ClientID, OnAbandon: sojourn.AbandonMode(in.Body.OnAbandon)},
	}
	if in.Body.InitialTurn != nil {
		create.InitialTurn = in.Body.InitialTurn.Input.Parts()
	}
	created, err := h.engine.CreateSession(ctx, create)
	if err != nil {
		return nil, err
	}
	out := &createSessionOutput{Location: "/operator/v1/sessions/" + string(created.Facts.Session.ID)}
	out.Body.Session = session(created.Facts, h.engine.Now())
	if created.Turn != nil {
		out.Body.Turn = new(turn(*created.Turn))
	}
	if created.Run != nil {
		out.Body.Run = new(run(*created.Run))
	}
	return out, nil
}

func (h *handler) listSessions(ctx context.Context, in *listSessionsInput) (*listSessionsOutput, error) {
	q := engine.SessionQuery{
		Project: api.Caller(ctx).Project, Contract: sojourn.Contract(in.Contract), After: in.Cursor, Limit: in.Limit,
	}
	if in.Archived != "" {
		q.Archived = new(in.Archived == "true")
	}
	page, err := h.engine.Sessions(ctx, q)
	if err != nil {
		return nil, err
	}
	out := &listSessionsOutput{Body: SessionsBody{Sessions: []Session{}, NextCursor: page.Next}}
	now := h.engine.Now()
	for _, f := range page.Sessions {
		out.Body.Sessions = append(out.Body.Sessions, session(f, now))
	}
	return out, nil
}

func (h *handler) getSession(ctx context.Context, in *api.SessionPath) (*sessionOutput, error) {
	return h.sessionOutput(h.engine.Session(ctx, ref(ctx, in.SessionID)))
}

func (h *handler) archiveSession(ctx context.Context, in *api.SessionPath) (*sessionOutput, error) {
	return h.sessionOutput(h.engine.Archive(ctx, ref(ctx, in.SessionID)))
}

func (h *handler) ensureWorkspace(ctx context.Context, in *api.SessionPath) (*sessionOutput, error) {
	return h.sessionOutput(h.engine.EnsureWorkspace(ctx, ref(ctx, in.SessionID), h.config.WorkspaceWait))
}
