package engine

import (
	"encoding/json"

	"github.com/sojourn-dev/sojourn"
)

// Rates are what the time of an exec costs.
type Rates struct {
	VCPUSecond sojourn.Money // of each virtual CPU that the sandbox may use
	GiBSecond  sojourn.Money // of each GiB of memory that it may use
	Exec       sojourn.Money // once
}

// ExecRequest is what an exec is started from: an argv, or a tool with its input.
type ExecRequest struct {
	Spec  sojourn.ExecSpec
	Input []byte // of sojourn.StdinGiven
	// Tool names a registered tool instead of an argv; ToolInput is its input, a
	// JSON value that its schema admits.
	Tool        string
	ToolInput   json.RawMessage
	Idempotency sojourn.Idempotency
}

// BareQuery selects bare sessions of a project, newest first. A zero field
// selects all.
type BareQuery struct {
	Project     sojourn.ProjectID
	Contract    sojourn.Contract
	State       sojourn.SessionState
	CloseReason sojourn.CloseReason
	Rotating    *bool
	Limit       int // 1..200; 0 means 50
	Offset      int
}

// BarePage is a page of sessions, and how many there are in all.
type BarePage struct {
	Sessions []sojourn.Facts
	Total    int
}

// ExecRefusal says as an error why an exec was refused; nil for one that was not.
func ExecRefusal(x sojourn.Exec) error {
	if x.State != sojourn.ExecRefused {
		return nil
	}
	details := map[string]string{"executionId": string(x.ID), "reason": string(x.Reason)}
	code, text := sojourn.CodeInvalidState, "The exec was not started ("+string(x.Reason)+")."
	switch x.Reason {
	case sojourn.ExecBusy:
		code, text = sojourn.CodeSessionBusy, "Another exec ran for as long as this one could wait."
	case sojourn.ExecBudget:
		code, text = sojourn.CodeBudgetExceeded, "The budget of the session was used up before the exec could start."
	}
	return &sojourn.Error{Code: code, Message: text, Details: details}
}
