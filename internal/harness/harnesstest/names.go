package harnesstest

import "github.com/sojourn-dev/sojourn/internal/harness"

// Names that the suite uses often.
type (
	// Outcome is [harness.Outcome].
	Outcome = harness.Outcome
	// Event is [harness.Event].
	Event = harness.Event
)
