package exec

import (
	"net/http"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// contract is how this API answers.
var contract = api.Contract{
	Name: "exec", Replies: replies, Envelope: envelope, ErrorBody: ErrorBody{},
	Scheme: "ApiKey", KeyHeader: "X-API-Key", Snake: true, RateHeaders: true,
	Documented: documented, Words: words,
}

// ErrorBody is an error on the wire.
type ErrorBody struct {
	Error     string  `json:"error" doc:"A sentence for people; it may change."`
	Code      string  `json:"code" doc:"Stable; branch on it."`
	RequestID string  `json:"requestId" doc:"The x-request-id of the answer."`
	Details   Details `json:"details,omitempty" doc:"Named facts: scope (that the key lacks), executionId, reason (a stable word), fields (what was wrong with which part of the request)."`
}

// Details are named facts about an error.
type Details map[string]any

// stateWords are this contract's words for states that the domain names otherwise.
var stateWords = map[string]string{string(sojourn.SessionNew): "pending", string(sojourn.SessionOpen): "running"}

func envelope(p api.Problem) any {
	body := ErrorBody{Error: p.Message, Code: p.Code, RequestID: p.RequestID}
	if word := stateWords[p.Details["state"]]; word != "" {
		body.Error = strings.Replace(body.Error, " is "+p.Details["state"]+" ", " is "+word+" ", 1)
		p.Details["state"] = word
	}
	if len(p.Details) > 0 || len(p.Fields) > 0 {
		body.Details = Details{}
		for k, v := range p.Details {
			body.Details[k] = v
		}
		if len(p.Fields) > 0 {
			body.Details["fields"] = p.Fields
		}
	}
	return body
}

// replies says how this contract answers each domain code. A retry hint goes into
// the Retry-After header.
var replies = map[sojourn.Code]api.Reply{
	sojourn.CodeInvalid:              {Status: http.StatusBadRequest, Code: "INVALID_REQUEST"},
	sojourn.CodeInvalidCursor:        {Status: http.StatusBadRequest, Code: "INVALID_CURSOR"},
	sojourn.CodeTooLarge:             {Status: http.StatusRequestEntityTooLarge, Code: "TOO_LARGE"},
	sojourn.CodeUnauthenticated:      {Status: http.StatusUnauthorized, Code: "UNAUTHENTICATED"},
	sojourn.CodeForbidden:            {Status: http.StatusForbidden, Code: "FORBIDDEN"},
	sojourn.CodeNotFound:             {Status: http.StatusNotFound, Code: "NOT_FOUND"},
	sojourn.CodeMethodNotAllowed:     {Status: http.StatusMethodNotAllowed, Code: "METHOD_NOT_ALLOWED"},
	sojourn.CodeIdempotencyConflict:  {Status: http.StatusConflict, Code: "IDEMPOTENCY_CONFLICT"},
	sojourn.CodeRateLimited:          {Status: http.StatusTooManyRequests, Code: "RATE_LIMITED", RetryAfter: time.Second},
	sojourn.CodeRunActive:            {Status: http.StatusConflict, Code: "SESSION_BUSY"},
	sojourn.CodeSessionArchived:      {Status: http.StatusConflict, Code: "INVALID_STATE"},
	sojourn.CodeResumeUnavailable:    {Status: http.StatusConflict, Code: "RESUME_UNAVAILABLE"},
	sojourn.CodeWorkspaceStarting:    {Status: http.StatusServiceUnavailable, Code: "SANDBOX_STARTING", RetryAfter: 2 * time.Second},
	sojourn.CodeWorkspaceUnavailable: {Status: http.StatusServiceUnavailable, Code: "SANDBOX_UNAVAILABLE"},
	sojourn.CodeWorkspaceExpired:     {Status: http.StatusConflict, Code: "SANDBOX_EXPIRED"},
	sojourn.CodeWorkspaceExpiring:    {Status: http.StatusConflict, Code: "SANDBOX_EXPIRING"},
	sojourn.CodeExecutionLost:        {Status: http.StatusConflict, Code: "SANDBOX_LOST"},
	sojourn.CodeComputeOutdated:      {Status: http.StatusConflict, Code: "COMPUTE_OUTDATED"},
	sojourn.CodeComputeMissing:       {Status: http.StatusServiceUnavailable, Code: "COMPUTE_NOT_CONFIGURED"},
	sojourn.CodeRuntimeUnavailable:   {Status: http.StatusConflict, Code: "RUNTIME_UNAVAILABLE"},
	sojourn.CodeInteractionAnswered:  {Status: http.StatusConflict, Code: "APPROVAL_RESOLVED"},
	sojourn.CodeInteractionExpired:   {Status: http.StatusConflict, Code: "APPROVAL_EXPIRED"},
	sojourn.CodeBudgetExceeded:       {Status: http.StatusConflict, Code: "BUDGET_EXCEEDED"},
	sojourn.CodeInvalidState:         {Status: http.StatusConflict, Code: "INVALID_STATE"},
	sojourn.CodeSessionBusy:          {Status: http.StatusConflict, Code: "SESSION_BUSY", RetryAfter: time.Second},
	sojourn.CodeClientInUse:          {Status: http.StatusConflict, Code: "CLIENT_ID_IN_USE"},
	sojourn.CodeIsolationUnavailable: {Status: http.StatusBadRequest, Code: "ISOLATION_UNAVAILABLE"},
	sojourn.CodeOutOfSpace:           {Status: http.StatusInsufficientStorage, Code: "OUT_OF_SPACE"},
	sojourn.CodeUnavailable:          {Status: http.StatusServiceUnavailable, Code: "UNAVAILABLE", RetryAfter: 2 * time.Second},
	sojourn.CodeInternal:             {Status: http.StatusInternalServerError, Code: "INTERNAL"},
}
