package store

import (
	"time"

	"github.com/sojourn-dev/sojourn"
)

// SessionQuery selects sessions, newest first.
type SessionQuery struct {
	Project  sojourn.ProjectID // "" for all
	Contract sojourn.Contract  // "" for all
	Archived *bool             // nil for both
	After    SessionCursor     // continue behind this one; zero to start
	Limit    int               // 0 means 100
}

// SessionCursor is the place of a session in the order of creation.
type SessionCursor struct {
	CreatedAt time.Time
	ID        sojourn.SessionID
}

// IdempotencyKey is a caller's name for one command.
type IdempotencyKey struct {
	Project sojourn.ProjectID
	Key     string
}

// Remembered is a command that was carried out under an idempotency key.
type Remembered struct {
	Status    int    // of the reply
	Body      []byte // of the reply
	CreatedAt time.Time
	ExpiresAt time.Time
}

// Work is a row of the work table.
type Work struct {
	Kind, ID  string
	DueAt     time.Time // when it may be claimed: timer, retry time and claim end in one
	Attempt   int
	Fence     int64
	Rev       int64
	Owner     string // "" while nobody holds it
	Payload   []byte
	LastError string
	DeadAt    time.Time // zero unless it was given up
}

func (t *Tx) Facts(id sojourn.SessionID) (sojourn.Facts, error)  { panic("soon") }
func (t *Tx) FactsOfRun(id sojourn.RunID) (sojourn.Facts, error) { panic("soon") }
func (t *Tx) Apply(c sojourn.Change) error                       { panic("soon") }
func (t *Tx) Sessions(q SessionQuery) ([]sojourn.Facts, error)   { panic("soon") }
func (t *Tx) Turn(id sojourn.TurnID) (sojourn.Turn, error)       { panic("soon") }
func (t *Tx) Turns(s sojourn.SessionID, after int64, limit int) ([]sojourn.Turn, error) {
	panic("soon")
}
func (t *Tx) Run(id sojourn.RunID) (sojourn.Run, error) { panic("soon") }

// Runs returns the runs of a session behind the run after ("" to start), oldest first.
func (t *Tx) Runs(s sojourn.SessionID, after sojourn.RunID, limit int) ([]sojourn.Run, error) {
	panic("soon")
}
func (t *Tx) Interaction(id sojourn.InteractionID) (sojourn.Interaction, error) { panic("soon") }

// Interactions returns those of a session in a state ("" for all), oldest first.
func (t *Tx) Interactions(s sojourn.SessionID, state sojourn.InteractionState) ([]sojourn.Interaction, error) {
	panic("soon")
}
func (t *Tx) Checkpoint(id sojourn.CheckpointID) (sojourn.Checkpoint, error) { panic("soon") }
func (t *Tx) Checkpoints(s sojourn.SessionID) ([]sojourn.Checkpoint, error)  { panic("soon") }
func (t *Tx) Lease(s sojourn.SessionID, epoch int64) (sojourn.Lease, error)  { panic("soon") }
func (t *Tx) OpenLeases() ([]sojourn.Lease, error)                           { panic("soon") }
func (t *Tx) UndestroyedLeases() ([]sojourn.Lease, error)                    { panic("soon") }
func (t *Tx) MarkDestroyed(s sojourn.SessionID, epoch int64) error           { panic("soon") }
func (t *Tx) Events(s sojourn.SessionID, after int64, limit int) ([]sojourn.Event, error) {
	panic("soon")
}

// RunState returns nil for a run that has none.
func (t *Tx) RunState(run sojourn.RunID) ([]byte, error)        { panic("soon") }
func (t *Tx) PutRunState(run sojourn.RunID, state []byte) error { panic("soon") }
func (t *Tx) Remember(k IdempotencyKey, hash [32]byte, expires time.Time) (*Remembered, error) {
	panic("soon")
}
func (t *Tx) StoreReply(k IdempotencyKey, status int, body []byte) error { panic("soon") }
func (t *Tx) PutKey(k sojourn.Key) error                                 { panic("soon") }
func (t *Tx) Key(id sojourn.KeyID) (sojourn.Key, error)                  { panic("soon") }
func (t *Tx) KeyByHash(hash [32]byte) (sojourn.Key, error)               { panic("soon") }
func (t *Tx) Keys(p sojourn.ProjectID) ([]sojourn.Key, error)            { panic("soon") }

// AnyKey reports whether the installation has a key that is not revoked.
func (t *Tx) AnyKey() (bool, error) { panic("soon") }

// DeadWork lists what was given up, latest first.
func (t *Tx) DeadWork(limit int) ([]Work, error) { panic("soon") }
