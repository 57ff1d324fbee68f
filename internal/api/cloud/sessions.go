package cloud

import (
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
	Title       string            `json:"title,omitempty" maxLength:"512"`
	Runtime     string            `json:"runtime,omitempty" maxLength:"64" doc:"The agent program; the server's default when absent."`
	Metadata    map[string]string `json:"metadata,omitempty" doc:"At most 32 entries of at most 4,096 bytes."`
	InitialTurn *InitialTurn      `json:"initialTurn,omitempty" doc:"A turn to submit at once. The key needs the scope wamp.cloud.turns:submit for it."`
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
		ID: "createSession", Method: http.MethodPost, Path: "/v1/sessions", Status: http.StatusCreated,
		Scope: ScopeSessionsWrite, Summary: "Create a session",
		Description: "Provisions nothing: a turn causes that.",
	}, h.createSession)
	api.Register(s, api.Operation{
		ID: "listSessions", Method: http.MethodGet, Path: "/v1/sessions",
		Scope: ScopeSessionsRead, Summary: "List sessions, newest first",
	}, h.listSessions)
	api.Register(s, api.Operation{
		ID: "getSession", Method: http.MethodGet, Path: "/v1/sessions/{sessionId}",
		Scope: ScopeSessionsRead, Summary: "Read a session with its workspace and continuation",
	}, h.getSession)
	api.Register(s, api.Operation{
		ID: "archiveSession", Method: http.MethodPost, Path: "/v1/sessions/{sessionId}/archive",
		Scope: ScopeSessionsWrite, Summary: "Close a session to commands for good",
		Description: "It stays readable. Archiving an archived session changes nothing; one with an active run is refused.",
	}, h.archiveSession)
}

func (h *handler) createSession(ctx context.Context, in *createSessionInput) (*createSessionOutput, error) {
	if in.Body == nil {
		in.Body = &CreateSessionBody{}
	}
	if in.Body.InitialTurn != nil {
		if err := api.Require(ctx, ScopeTurnsSubmit); err != nil {
			return nil, err
		}
	}
	idem, err := in.Of("cloud.createSession", in.Body)
	if err != nil {
		return nil, err
	}
	create := engine.Create{
		Project: api.Caller(ctx).Project, Contract: sojourn.ContractCloud, Title: in.Body.Title,
		Runtime: in.Body.Runtime, Metadata: in.Body.Metadata, Idempotency: idem,
	}
	if in.Body.InitialTurn != nil {
		create.InitialTurn = in.Body.InitialTurn.Input.Parts()
	}
	created, err := h.engine.CreateSession(ctx, create)
	if err != nil {
		return nil, err
	}
	out := &createSessionOutput{Location: "/v1/sessions/" + string(created.Facts.Session.ID)}
	out.Body.Session = session(created.Facts, h.engine.Now())
	if created.Turn != nil {
		out.Body.Turn = new(turn(*created.Turn))
	}
	if created.Run != nil {
		out.Body.Run = new(run(*created.Run, created.Facts.Open))
	}
	return out, nil
}

func (h *handler) listSessions(ctx context.Context, in *listSessionsInput) (*listSessionsOutput, error) {
	q := engine.SessionQuery{
		Project: api.Caller(ctx).Project, Contract: sojourn.ContractCloud, After: in.Cursor, Limit: in.Limit,
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
