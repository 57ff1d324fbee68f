package engine

import (
	"time"

	"github.com/sojourn-dev/sojourn"
)

// Ref names a session as a caller may see it. A session of another project, or
// of another contract, does not exist for it. An empty Contract sees every
// session of the project: only the operator contract uses that.
type Ref struct {
	Project  sojourn.ProjectID
	Contract sojourn.Contract
	ID       sojourn.SessionID
}

// Create is what a session is created from.
type Create struct {
	Project  sojourn.ProjectID
	Contract sojourn.Contract
	Title    string
	Runtime  string // "" means the configured default
	Model    string // "" leaves the choice to the installation
	Metadata map[string]string
	Sandbox  sojourn.SandboxSpec
	Limits   sojourn.Limits // of its budget
	// Rotation, Presence and Carryover are of a bare session.
	Rotation    sojourn.Rotation
	Presence    sojourn.Presence
	Carryover   sojourn.CarryoverPatch
	InitialTurn []sojourn.Part // nil submits nothing
	Idempotency sojourn.Idempotency
}

// Created is a new session, or the one that the same command made before.
type Created struct {
	Facts sojourn.Facts
	Turn  *sojourn.Turn // of the initial turn
	Run   *sojourn.Run
}

// Submit is what a turn is submitted from.
type Submit struct {
	Input       []sojourn.Part
	Idempotency sojourn.Idempotency
}

// Submitted is an accepted turn: durable, and certain to reach an end.
type Submitted struct {
	Facts sojourn.Facts
	Turn  sojourn.Turn
	Run   sojourn.Run
}

// SessionQuery selects sessions, newest first.
type SessionQuery struct {
	Project  sojourn.ProjectID
	Contract sojourn.Contract // "" selects every contract
	Archived *bool            // nil selects both
	After    string           // a cursor that a page gave out; "" starts
	Limit    int              // 1..200; 0 means 50
}

// SessionPage is one page of sessions.
type SessionPage struct {
	Sessions []sojourn.Facts
	Next     string // the cursor of the next page; "" when this was the last
}

// Capabilities is what the installation can do now.
type Capabilities struct {
	// Compute reports whether there is anywhere to run.
	Compute bool
	// ComputeReason says why not, or why this driver was chosen.
	ComputeReason string
	Driver        string
	Isolation     string
	Runtimes      []RuntimeStatus
	// WorkspaceMaxBytes and ConversationMaxBytes cap what a checkpoint holds.
	WorkspaceMaxBytes    int64
	ConversationMaxBytes int64
	Ceiling              time.Duration
	Hold                 time.Duration
	TurnDeadline         time.Duration
}

// RuntimeStatus is one agent program and whether a run can use it.
type RuntimeStatus struct {
	ID        string
	Label     string
	Available bool
	Reason    string // why not
	Exact     bool   // a restored conversation is the same to the model
	Default   bool
}
