package sojourn

import (
	"encoding/json"
	"slices"
	"time"
)

// Part is one piece of a turn's input: text, an image or a file.
type Part struct {
	Type     string `json:"type"`               // "text", "image" or "file"
	Text     string `json:"text,omitempty"`     // of a text part
	MimeType string `json:"mimeType,omitempty"` // of an image or file part
	Data     string `json:"data,omitempty"`     // base64, of an image or file part
	Name     string `json:"name,omitempty"`     // of a file part
}

// Turn is one unit of work that an input started. It never changes.
type Turn struct {
	ID          TurnID
	Session     SessionID
	Number      int64 // 1 for the session's first turn
	Input       []Part
	SubmittedAt time.Time
}

// Interaction is a question that a run asks the outside, or that an exec waits for.
type Interaction struct {
	ID      InteractionID
	Session SessionID
	Run     RunID  // "" when an exec waits for it
	Exec    ExecID // "" when a run asks it
	Kind    string // permission or question of a run, approval of an exec
	State   InteractionState
	// Ref is the harness's own name of the question, unique in its run.
	Ref string
	// Request is what is asked, as the agent put it; it is shown, not read.
	Request json.RawMessage
	Options []Option

	OpenedAt  time.Time
	ExpiresAt time.Time // zero for one that waits for as long as its run
	EndedAt   time.Time // zero while open
	Answer    *Answer   // of an answered interaction
	Reason    string    // of an expired or withdrawn one
}

// Option is one offered answer.
type Option struct {
	ID   string `json:"optionId"`
	Name string `json:"name"`
	Kind string `json:"kind"` // allow_once, allow_always, reject_once, reject_always
}

// Answer is what a caller decided: an offered option, or text.
type Answer struct {
	OptionID string `json:"optionId,omitempty"`
	Text     string `json:"text,omitempty"`
	Comment  string `json:"comment,omitempty"` // beside the option, of an approval
}

// InteractionState is a state of an [Interaction].
type InteractionState string

// The interaction states.
const (
	InteractionOpen      InteractionState = "open"      // asked, no answer yet
	InteractionAnswered  InteractionState = "answered"  // a caller decided
	InteractionExpired   InteractionState = "expired"   // can no longer be answered
	InteractionWithdrawn InteractionState = "withdrawn" // the agent took it back
)

// interactionMoves is the whole Interaction machine.
var interactionMoves = map[InteractionState][]InteractionState{
	InteractionOpen:      {InteractionAnswered, InteractionExpired, InteractionWithdrawn},
	InteractionAnswered:  nil,
	InteractionExpired:   nil,
	InteractionWithdrawn: nil,
}

// CanMove reports whether an interaction in state s may enter state to.
func (s InteractionState) CanMove(to InteractionState) bool {
	return slices.Contains(interactionMoves[s], to)
}

// Reasons why an interaction expired.
const (
	ReasonWorkspaceLost = "workspace_lost"
	ReasonRunEnded      = "run_ended"
	ReasonSessionClosed = "session_closed"
	ReasonTimeout       = "timeout"
)
