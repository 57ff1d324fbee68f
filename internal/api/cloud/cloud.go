package cloud

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/hub"
)

// Engine is what this contract needs of the engine.
type Engine interface {
	Now() time.Time
	CreateSession(context.Context, engine.Create) (engine.Created, error)
	Session(context.Context, engine.Ref) (sojourn.Facts, error)
	Sessions(context.Context, engine.SessionQuery) (engine.SessionPage, error)
	Archive(context.Context, engine.Ref) (sojourn.Facts, error)
	Submit(context.Context, engine.Ref, engine.Submit) (engine.Submitted, error)
	Turns(ctx context.Context, ref engine.Ref, after int64, limit int) ([]sojourn.Turn, error)
	Turn(context.Context, engine.Ref, sojourn.TurnID) (sojourn.Turn, error)
	Runs(ctx context.Context, ref engine.Ref, after sojourn.RunID, limit int) ([]sojourn.Run, error)
	RunByID(context.Context, engine.Ref, sojourn.RunID) (sojourn.Run, error)
	Cancel(context.Context, engine.Ref, sojourn.RunID) (sojourn.Run, error)
	Interactions(context.Context, engine.Ref, sojourn.InteractionState) ([]sojourn.Interaction, error)
	Answer(context.Context, engine.Ref, sojourn.InteractionID, sojourn.Answer) (sojourn.Interaction, error)
	Events(ctx context.Context, ref engine.Ref, after int64, limit int) ([]sojourn.Event, int64, error)
	Follow(ctx context.Context, ref engine.Ref, after int64) (*hub.Cursor, error)
	EnsureWorkspace(ctx context.Context, ref engine.Ref, wait time.Duration) (sojourn.Facts, error)
	Capabilities(context.Context) (engine.Capabilities, error)
}

// Config is what an operator may set. The zero value works.
type Config struct {
	api.Settings
	Version string // of the server
	// Placement says whose capacity runs the sessions; "" means [Managed].
	Placement Placement
	// WorkspaceWait is how long a call waits for a workspace before it answers
	// that one is starting; 0 means 20 s.
	WorkspaceWait time.Duration
}

// The scopes of the contract.
const (
	ScopeSessionsRead       sojourn.Scope = "wamp.cloud.sessions:read"
	ScopeSessionsWrite      sojourn.Scope = "wamp.cloud.sessions:write"
	ScopeTurnsSubmit        sojourn.Scope = "wamp.cloud.turns:submit"
	ScopeInteractionsAnswer sojourn.Scope = "wamp.cloud.interactions:answer"
)

// Scopes lists every scope of the contract.
var Scopes = []sojourn.Scope{ScopeSessionsRead, ScopeSessionsWrite, ScopeTurnsSubmit, ScopeInteractionsAnswer}

// Version is the version of the contract, as its OpenAPI document says it.
const Version = "1.0.0"

// DocumentPath is where the OpenAPI document is served, to anyone.
const DocumentPath = "/v1/openapi.yaml"

// handler answers the calls.
type handler struct {
	engine Engine
	config Config
}

// New makes the handler of every path of the contract: /v1/sessions and below,
// /v1/capabilities and [DocumentPath].
func New(e Engine, auth api.Authenticator, c Config) http.Handler {
	s, _ := build(e, auth, c)
	return s
}

// build makes the handler and the OpenAPI document.
func build(e Engine, auth api.Authenticator, c Config) (*api.Service, []byte) {
	c.WorkspaceWait = cmp.Or(c.WorkspaceWait, 20*time.Second)
	h := &handler{engine: e, config: c}
	s := api.NewService(api.Config{
		Settings: c.Settings, Contract: contract, Auth: auth,
		Title: "Sojourn cloud sessions", Version: Version, Description: description, Server: c.Version,
	})
	h.sessions(s)
	h.turns(s)
	h.interactions(s)
	h.events(s)
	h.workspace(s)
	text, err := s.Document(DocumentPath)
	if err != nil { // the document is made of constants
		panic(fmt.Errorf("build contract cloud: %w", err))
	}
	return s, text
}

const description = `Durable agent sessions. A turn is accepted with 202 before any compute exists;
follow the event log to see it run. Compute is never a resource: a session shows it as its workspace, and says in its
continuation what a further turn would get.

Send a key as "Authorization: Bearer <key>". Repeating a POST with the same Idempotency-Key and body repeats nothing.
Optional fields without a value are absent. Unknown fields and query parameters are refused.`

// ref names a session as the caller may see it.
func ref(ctx context.Context, id string) engine.Ref {
	return engine.Ref{
		Project: api.Caller(ctx).Project, Contract: sojourn.ContractCloud, ID: sojourn.SessionID(id),
	}
}
