package operator

import (
	"net/http"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// contract is how this API answers.
var contract = api.Contract{
	Name: "operator", Replies: replies, Envelope: api.Envelope, ErrorBody: api.ErrorBody{},
}

// replies says how this contract answers each domain code: by its own name.
var replies = func() map[sojourn.Code]api.Reply {
	m := map[sojourn.Code]api.Reply{}
	for code, status := range statuses {
		m[code] = api.Reply{Status: status, Code: string(code), RetryAfter: retries[code]}
	}
	return m
}()

var statuses = map[sojourn.Code]int{
	sojourn.CodeInvalid:              http.StatusUnprocessableEntity,
	sojourn.CodeInvalidCursor:        http.StatusBadRequest,
	sojourn.CodeTooLarge:             http.StatusRequestEntityTooLarge,
	sojourn.CodeUnauthenticated:      http.StatusUnauthorized,
	sojourn.CodeForbidden:            http.StatusForbidden,
	sojourn.CodeNotFound:             http.StatusNotFound,
	sojourn.CodeMethodNotAllowed:     http.StatusMethodNotAllowed,
	sojourn.CodeIdempotencyConflict:  http.StatusConflict,
	sojourn.CodeRateLimited:          http.StatusTooManyRequests,
	sojourn.CodeRunActive:            http.StatusConflict,
	sojourn.CodeSessionArchived:      http.StatusConflict,
	sojourn.CodeResumeUnavailable:    http.StatusConflict,
	sojourn.CodeWorkspaceStarting:    http.StatusServiceUnavailable,
	sojourn.CodeWorkspaceUnavailable: http.StatusServiceUnavailable,
	sojourn.CodeWorkspaceExpired:     http.StatusConflict,
	sojourn.CodeWorkspaceExpiring:    http.StatusConflict,
	sojourn.CodeExecutionLost:        http.StatusConflict,
	sojourn.CodeComputeOutdated:      http.StatusConflict,
	sojourn.CodeComputeMissing:       http.StatusConflict,
	sojourn.CodeRuntimeUnavailable:   http.StatusConflict,
	sojourn.CodeInteractionAnswered:  http.StatusConflict,
	sojourn.CodeInteractionExpired:   http.StatusConflict,
	sojourn.CodeBudgetExceeded:       http.StatusConflict,
	sojourn.CodeInvalidState:         http.StatusConflict,
	sojourn.CodeSessionBusy:          http.StatusConflict,
	sojourn.CodeClientInUse:          http.StatusConflict,
	sojourn.CodeIsolationUnavailable: http.StatusUnprocessableEntity,
	sojourn.CodeOutOfSpace:           http.StatusInsufficientStorage,
	sojourn.CodeUnavailable:          http.StatusServiceUnavailable,
	sojourn.CodeInternal:             http.StatusInternalServerError,
}

// retries are the hints for errors that name none themselves.
var retries = map[sojourn.Code]time.Duration{
	sojourn.CodeRateLimited:       time.Second,
	sojourn.CodeWorkspaceStarting: 2 * time.Second,
	sojourn.CodeUnavailable:       2 * time.Second,
}
