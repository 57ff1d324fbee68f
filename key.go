package sojourn

import (
	"slices"
	"time"
)

// KeyKind says what a key is for.
type KeyKind string

// The key kinds.
const (
	KeyAdmin       KeyKind = "admin"       // may do everything in its project, and manage keys
	KeyApp         KeyKind = "app"         // an application; what its scopes say
	KeyEnvironment KeyKind = "environment" // an executor
	KeyRunner      KeyKind = "runner"      // a runner
)

// KeyKinds lists every kind.
var KeyKinds = []KeyKind{KeyAdmin, KeyApp, KeyEnvironment, KeyRunner}

// Scope is one thing a key may do, by the name that a contract uses.
type Scope string

// Key is the record of an API key. The secret is stored only as a hash.
type Key struct {
	ID        KeyID
	Project   ProjectID
	Kind      KeyKind
	Name      string
	Scopes    []Scope // of an app key
	Hash      [32]byte
	Hint      string // the last characters of the secret, to tell keys apart
	CreatedAt time.Time
	RevokedAt time.Time // zero while it is valid
}

// Principal is who is calling: a key that was presented and is valid.
type Principal struct {
	Key     KeyID
	Project ProjectID
	Kind    KeyKind
	Scopes  []Scope
}

// May reports whether the principal may do what scope names.
func (p Principal) May(scope Scope) bool {
	return p.Kind == KeyAdmin || p.Kind == KeyApp && slices.Contains(p.Scopes, scope)
}
