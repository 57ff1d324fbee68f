package sojourn

import (
	"errors"
	"fmt"
	"time"
)

// Code says what went wrong in a form to branch on. Codes are API inside the
// program: each contract maps every code to a status and a wire code.
type Code string

// The codes. Each names an action that the caller can take.
const (
	CodeInvalid              Code = "invalid"               // correct the request
	CodeInvalidCursor        Code = "invalid_cursor"        // use a cursor that this session gave out
	CodeTooLarge             Code = "too_large"             // send less
	CodeUnauthenticated      Code = "unauthenticated"       // send a valid key
	CodeForbidden            Code = "forbidden"             // use a key that may do this
	CodeNotFound             Code = "not_found"             // it is not there, or not yours
	CodeMethodNotAllowed     Code = "method_not_allowed"    // use a listed method
	CodeIdempotencyConflict  Code = "idempotency_conflict"  // the key was used with another body
	CodeRateLimited          Code = "rate_limited"          // wait, then repeat
	CodeRunActive            Code = "run_active"            // wait for the active run
	CodeSessionArchived      Code = "session_archived"      // the session takes no more commands
	CodeResumeUnavailable    Code = "resume_unavailable"    // open a new session
	CodeWorkspaceStarting    Code = "workspace_starting"    // repeat after RetryAfter
	CodeWorkspaceUnavailable Code = "workspace_unavailable" // back off, then repeat
	CodeWorkspaceExpired     Code = "workspace_expired"     // ask for a workspace, then repeat
	CodeWorkspaceExpiring    Code = "workspace_expiring"    // repeat; a fresh lease follows
	CodeExecutionLost        Code = "execution_lost"        // submit a new turn
	CodeComputeOutdated      Code = "compute_outdated"      // an administrator updates the compute
	CodeComputeMissing       Code = "compute_not_configured"
	CodeRuntimeUnavailable   Code = "runtime_unavailable"   // install the runtime
	CodeInteractionAnswered  Code = "interaction_answered"  // it has another answer
	CodeInteractionExpired   Code = "interaction_expired"   // submit a fresh turn
	CodeBudgetExceeded       Code = "budget_exceeded"       // raise the limit
	CodeInvalidState         Code = "invalid_state"         // look at the state; another command comes first
	CodeSessionBusy          Code = "session_busy"          // wait for what runs
	CodeClientInUse          Code = "client_in_use"         // reattach to the live session of this client
	CodeIsolationUnavailable Code = "isolation_unavailable" // install what the message names, or ask for less
	CodeOutOfSpace           Code = "out_of_space"          // the server's disk is full
	CodeUnavailable          Code = "unavailable"           // the server is stopping or starting
	CodeInternal             Code = "internal"              // ours; the log has it
)

// Codes lists every code, for tables that must be complete.
var Codes = []Code{
	CodeInvalid, CodeInvalidCursor, CodeTooLarge, CodeUnauthenticated, CodeForbidden, CodeNotFound,
	CodeMethodNotAllowed, CodeIdempotencyConflict, CodeRateLimited, CodeRunActive, CodeSessionArchived,
	CodeResumeUnavailable, CodeWorkspaceStarting, CodeWorkspaceUnavailable, CodeWorkspaceExpired,
	CodeWorkspaceExpiring, CodeExecutionLost, CodeComputeOutdated, CodeComputeMissing,
	CodeRuntimeUnavailable, CodeInteractionAnswered, CodeInteractionExpired, CodeBudgetExceeded,
	CodeInvalidState, CodeSessionBusy, CodeClientInUse, CodeIsolationUnavailable, CodeOutOfSpace, CodeUnavailable, CodeInternal,
}

// Error is a refusal or a failure: a code to branch on, a sentence to read, and
// optionally a cause that only the log sees.
type Error struct {
	Code    Code
	Message string            // a sentence for people; never a secret, never API
	Details map[string]string // named facts that a client may show, such as the missing scope
	// RetryAfter is how long a caller should wait before it repeats the call;
	// zero means that repeating alone does not help.
	RetryAfter time.Duration
	Cause      error // for the log only
}

// Error returns the code and the sentence.
func (e *Error) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Message, e.Cause)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Errorf makes an Error with a formatted sentence.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// CodeOf returns the code of err: that of the first [*Error] in its chain, or
// [CodeInternal]. It returns "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}
