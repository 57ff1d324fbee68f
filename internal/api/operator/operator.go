package operator

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/auth"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/hub"
	"github.com/sojourn-dev/sojourn/internal/output"
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
	Runs(ctx context.Context, ref engine.Ref, after sojourn.RunID, limit int) ([]sojourn.Run, error)
	RunByID(context.Context, engine.Ref, sojourn.RunID) (sojourn.Run, error)
	Cancel(context.Context, engine.Ref, sojourn.RunID) (sojourn.Run, error)
	Interactions(context.Context, engine.Ref, sojourn.InteractionState) ([]sojourn.Interaction, error)
	Answer(context.Context, engine.Ref, sojourn.InteractionID, sojourn.Answer) (sojourn.Interaction, error)
	Events(ctx context.Context, ref engine.Ref, after int64, limit int) ([]sojourn.Event, int64, error)
	Follow(ctx context.Context, ref engine.Ref, after int64) (*hub.Cursor, error)
	EnsureWorkspace(ctx context.Context, ref engine.Ref, wait time.Duration) (sojourn.Facts, error)
	Visit(ctx context.Context, ref engine.Ref, wait time.Duration) (*engine.Visit, error)
	SetNetwork(context.Context, engine.Ref, sojourn.NetworkPolicy) (sojourn.Facts, error)
	Suspend(context.Context, engine.Ref) (sojourn.Facts, error)
	Rotate(ctx context.Context, ref engine.Ref, processes bool, wait time.Duration) (sojourn.Facts, error)
	Capabilities(context.Context) (engine.Capabilities, error)
	BareEngine
}

// BareEngine is what sessions without an agent need of it.
type BareEngine interface {
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
	PackSaved(ctx context.Context, ref engine.Ref, name string, wait time.Duration) (*engine.FileArchive, error)
	StartExec(context.Context, engine.Ref, engine.ExecRequest) (sojourn.Facts, sojourn.Exec, error)
	WaitExec(context.Context, engine.Ref, sojourn.ExecID) (sojourn.Facts, sojourn.Exec, error)
	ExecByID(context.Context, engine.Ref, sojourn.ExecID) (sojourn.Exec, error)
	Execs(ctx context.Context, ref engine.Ref, before int64, limit int) ([]sojourn.Exec, error)
	CancelExec(ctx context.Context, ref engine.Ref, id sojourn.ExecID, kill bool) (sojourn.Exec, error)
	WriteExec(ctx context.Context, ref engine.Ref, id sojourn.ExecID, who string, at int64, data []byte, eof bool) error
	ResizeExec(ctx context.Context, ref engine.Ref, id sojourn.ExecID, rows, cols uint16) error
	SignalExec(ctx context.Context, ref engine.Ref, id sojourn.ExecID, name string) error
	ExecOutput(context.Context, engine.Ref, sojourn.ExecID) (*output.Reader, error)
}

// Keys is what this contract needs of the keys.
type Keys interface {
	api.Authenticator
	Create(context.Context, auth.New) (key sojourn.Key, secret string, err error)
	List(context.Context, sojourn.ProjectID) ([]sojourn.Key, error)
	Revoke(context.Context, sojourn.ProjectID, sojourn.KeyID) (sojourn.Key, error)
}

// Config is what an operator may set. The zero value works.
type Config struct {
	api.Settings
	Version   string    // of the server
	StartedAt time.Time // zero means when the handler was made
	// Scopes are the scopes that an app key may be given; nil allows any.
	Scopes []sojourn.Scope
	// WorkspaceWait is how long a call waits for a workspace before it answers
	// that one is starting; 0 means 20 s.
	WorkspaceWait time.Duration
}

// Version is the version of the contract, as its OpenAPI document says it.
const Version = "1.0.0"

// DocumentPath is where the OpenAPI document is served, to anyone.
const DocumentPath = "/operator/v1/openapi.yaml"

// handler answers the calls.
type handler struct {
	engine Engine
	keys   Keys
	config Config
}

// New makes the handler of every path under /operator/v1.
func New(e Engine, k Keys, c Config) http.Handler {
	s, _ := build(e, k, c)
	return s
}

// build makes the handler and the OpenAPI document.
func build(e Engine, k Keys, c Config) (*api.Service, []byte) {
	c.WorkspaceWait = cmp.Or(c.WorkspaceWait, 20*time.Second)
	if c.StartedAt.IsZero() {
		c.StartedAt = e.Now()
	}
	h := &handler{engine: e, keys: k, config: c}
	s := api.NewService(api.Config{
		Settings: c.Settings, Contract: contract, Auth: k,
		Title: "Sojourn operator", Version: Version, Description: description, Server: c.Version,
	})
	h.status(s)
	h.sessions(s)
	h.sandboxes(s)
	h.lifecycle(s)
	h.carryover(s)
	h.executions(s)
	h.attach(s)
	h.turns(s)
	h.interactions(s)
	h.events(s)
	h.shells(s)
	h.files(s)
	h.ports(s)
	h.apiKeys(s)
	text, err := s.Document(DocumentPath)
	if err != nil { // the document is made of constants
		panic(fmt.Errorf("build contract operator: %w", err))
	}
	return s, text
}

const description = `What the command line and the console use: sessions of every contract of a project, with the
leases and checkpoints that they stand on, and API keys. Only admin keys are admitted.`

// ref names a session of any contract in the caller's project.
func ref(ctx context.Context, id string) engine.Ref {
	return engine.Ref{Project: api.Caller(ctx).Project, ID: sojourn.SessionID(id)}
}
