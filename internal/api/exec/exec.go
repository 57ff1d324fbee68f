package exec

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
	"github.com/sojourn-dev/sojourn/internal/output"
)

// Engine is what this contract needs of the engine.
type Engine interface {
	Now() time.Time
	CreateSession(context.Context, engine.Create) (engine.Created, error)
	Session(context.Context, engine.Ref) (sojourn.Facts, error)
	BareSessions(context.Context, engine.BareQuery) (engine.BarePage, error)
	StartSession(ctx context.Context, ref engine.Ref, wait time.Duration) (sojourn.Facts, error)
	PauseSession(context.Context, engine.Ref) (sojourn.Facts, error)
	ResumeSession(ctx context.Context, ref engine.Ref, wait time.Duration) (sojourn.Facts, error)
	StopSession(ctx context.Context, ref engine.Ref, text string) (sojourn.Facts, error)
	CancelSession(context.Context, engine.Ref) (sojourn.Facts, error)
	DeleteSession(context.Context, engine.Ref) error
	RotateSession(context.Context, engine.Ref) (sojourn.Facts, error)
	Heartbeat(context.Context, engine.Ref) (sojourn.Facts, error)
	Reattach(ctx context.Context, ref engine.Ref, client string) (sojourn.Facts, error)
	SetBudget(ctx context.Context, ref engine.Ref, change func(sojourn.Limits) sojourn.Limits) (sojourn.Facts, error)
	Carryover(context.Context, engine.Ref) (sojourn.Carryover, error)
	UpdateCarryover(context.Context, engine.Ref, sojourn.CarryoverPatch) (sojourn.Facts, sojourn.Carryover, error)
	Tools(context.Context, engine.Ref) ([]sojourn.Tool, error)
	RegisterTool(context.Context, engine.Ref, sojourn.Tool) (sojourn.Tool, error)
	Interactions(context.Context, engine.Ref, sojourn.InteractionState) ([]sojourn.Interaction, error)
	Answer(context.Context, engine.Ref, sojourn.InteractionID, sojourn.Answer) (sojourn.Interaction, error)
	EventsOf(ctx context.Context, ref engine.Ref, after int64, limit int, types []sojourn.EventType) ([]sojourn.Event, int64, error)
	Follow(ctx context.Context, ref engine.Ref, after int64) (*hub.Cursor, error)
	Execs
	Files
}

// Execs is what it needs of the engine for execs.
type Execs interface {
	StartExec(context.Context, engine.Ref, engine.ExecRequest) (sojourn.Facts, sojourn.Exec, error)
	WaitExec(context.Context, engine.Ref, sojourn.ExecID) (sojourn.Facts, sojourn.Exec, error)
	WaitExecOver(context.Context, engine.Ref, sojourn.ExecID) (sojourn.Facts, sojourn.Exec, error)
	ExecByID(context.Context, engine.Ref, sojourn.ExecID) (sojourn.Exec, error)
	Execs(ctx context.Context, ref engine.Ref, before int64, limit int) ([]sojourn.Exec, error)
	CancelExec(ctx context.Context, ref engine.Ref, id sojourn.ExecID, kill bool) (sojourn.Exec, error)
	SignalExec(ctx context.Context, ref engine.Ref, id sojourn.ExecID, name string) error
	ResizeExec(ctx context.Context, ref engine.Ref, id sojourn.ExecID, rows, cols uint16) error
	WriteExec(ctx context.Context, ref engine.Ref, id sojourn.ExecID, who string, at int64, data []byte, eof bool) error
	ExecOutput(context.Context, engine.Ref, sojourn.ExecID) (*output.Reader, error)
}

// Config is what an operator may set. The zero value works.
type Config struct {
	api.Settings
	// SandboxWait is how long a call waits for a session's sandbox before it
	// answers that it is still coming up; 0 means 20 s.
	SandboxWait time.Duration
}

// The scopes of the contract.
const (
	ScopeRead  sojourn.Scope = "sandbox:read"
	ScopeWrite sojourn.Scope = "sandbox:write"
)

// Scopes lists every scope of the contract.
var Scopes = []sojourn.Scope{ScopeRead, ScopeWrite}

// Version is the version of the contract, as its OpenAPI document says it.
const Version = "1.0.0"

// DocumentPath is where the OpenAPI document is served, to anyone.
const DocumentPath = "/api/v1/openapi.yaml"

// The paths of the contract.
const (
	sessionsPath = "/api/v1/agent/sessions"
	sessionPath  = sessionsPath + "/{sessionId}"
)

// handler answers the calls.
type handler struct {
	engine Engine
	config Config
}

// New makes the handler of every path under /api/v1.
func New(e Engine, auth api.Authenticator, c Config) http.Handler {
	s, _ := build(e, auth, c)
	return s
}

// build makes the handler and the OpenAPI document.
func build(e Engine, auth api.Authenticator, c Config) (*api.Service, []byte) {
	c.SandboxWait = cmp.Or(c.SandboxWait, 20*time.Second)
	h := &handler{engine: e, config: c}
	s := api.NewService(api.Config{
		Settings: c.Settings, Contract: contract, Auth: auth,
		Title: "Sojourn agent sessions", Version: Version, Description: description,
	})
	h.sessions(s)
	h.lifecycle(s)
	h.presence(s)
	h.approvals(s)
	h.context(s)
	h.tools(s)
	h.execs(s)
	h.executions(s)
	h.input(s)
	h.output(s)
	h.files(s)
	h.transfers(s)
	h.events(s)
	text, err := s.Document(DocumentPath)
	if err != nil { // the document is made of constants
		panic(fmt.Errorf("build contract exec: %w", err))
	}
	return s, text
}

const description = `Agent sessions: a durable wrapper around a series of executions. A session carries a
budget, keeps its working directory and its context across sandbox rotations, and can be reattached to.

Send a key as "Authorization: ApiKey <key>". Names are in camelCase; snake_case is read as well, and answered to the
header "Accept-Case: snake". What you key yourself (env, customState, metadata, a tool's input and schema) stays as it is.
Unknown fields and query parameters are refused. Repeating a POST with the same Idempotency-Key and body repeats nothing,
where the call takes that header. X-RateLimit-Limit, -Remaining and -Reset (seconds until all are there again) tell what is left of the key's calls.`

// ref names a session as the caller may see it.
func ref(ctx context.Context, id string) engine.Ref {
	return engine.Ref{Project: api.Caller(ctx).Project, Contract: sojourn.ContractExec, ID: sojourn.SessionID(id)}
}
