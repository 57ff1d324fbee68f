package cloud

import (
	"net/http"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// contract is how this API answers.
var contract = api.Contract{
	Name: "cloud", Replies: replies, Envelope: api.Envelope, ErrorBody: api.ErrorBody{},
}

// replies says how this contract answers each domain code. A retry hint goes
// into the Retry-After header; only a 429 has it in the body too.
var replies = map[sojourn.Code]api.Reply{
	sojourn.CodeInvalid:              {Status: http.StatusUnprocessableEntity, Code: "cloud_invalid_request"},
	sojourn.CodeInvalidCursor:        {Status: http.StatusBadRequest, Code: "cloud_invalid_cursor"},
	sojourn.CodeTooLarge:             {Status: http.StatusRequestEntityTooLarge, Code: "cloud_too_large"},
	sojourn.CodeUnauthenticated:      {Status: http.StatusUnauthorized, Code: "cloud_unauthenticated"},
	sojourn.CodeForbidden:            {Status: http.StatusForbidden, Code: "cloud_forbidden"},
	sojourn.CodeNotFound:             {Status: http.StatusNotFound, Code: "cloud_not_found"},
	sojourn.CodeMethodNotAllowed:     {Status: http.StatusMethodNotAllowed, Code: "cloud_method_not_allowed"},
	sojourn.CodeIdempotencyConflict:  {Status: http.StatusConflict, Code: "cloud_idempotency_conflict"},
	sojourn.CodeRateLimited:          {Status: http.StatusTooManyRequests, Code: "cloud_rate_limited", RetryAfter: time.Second},
	sojourn.CodeRunActive:            {Status: http.StatusConflict, Code: "cloud_run_active"},
	sojourn.CodeSessionArchived:      {Status: http.StatusConflict, Code: "cloud_session_archived"},
	sojourn.CodeResumeUnavailable:    {Status: http.StatusConflict, Code: "cloud_resume_unavailable"},
	sojourn.CodeWorkspaceStarting:    {Status: http.StatusServiceUnavailable, Code: "cloud_workspace_starting", RetryAfter: 2 * time.Second},
	sojourn.CodeWorkspaceUnavailable: {Status: http.StatusServiceUnavailable, Code: "cloud_workspace_unavailable"},
	sojourn.CodeWorkspaceExpired:     {Status: http.StatusConflict, Code: "cloud_workspace_expired"},
	sojourn.CodeWorkspaceExpiring:    {Status: http.StatusConflict, Code: "cloud_workspace_expiring"},
	sojourn.CodeExecutionLost:        {Status: http.StatusConflict, Code: "cloud_turn_execution_lost"},
	sojourn.CodeComputeOutdated:      {Status: http.StatusConflict, Code: "cloud_compute_outdated"},
	sojourn.CodeComputeMissing:       {Status: http.StatusConflict, Code: "cloud_compute_not_configured"},
	sojourn.CodeRuntimeUnavailable:   {Status: http.StatusConflict, Code: "cloud_runtime_unavailable"},
	sojourn.CodeInteractionAnswered:  {Status: http.StatusConflict, Code: "cloud_interaction_answered"},
	sojourn.CodeInteractionExpired:   {Status: http.StatusConflict, Code: "cloud_interaction_expired"},
	sojourn.CodeBudgetExceeded:       {Status: http.StatusConflict, Code: "cloud_budget_exceeded"},
	sojourn.CodeInvalidState:         {Status: http.StatusConflict, Code: "cloud_invalid_state"},
	sojourn.CodeSessionBusy:          {Status: http.StatusConflict, Code: "cloud_session_busy", RetryAfter: time.Second},
	sojourn.CodeClientInUse:          {Status: http.StatusConflict, Code: "cloud_client_in_use"},
	sojourn.CodeIsolationUnavailable: {Status: http.StatusUnprocessableEntity, Code: "cloud_invalid_request"},
	sojourn.CodeOutOfSpace:           {Status: http.StatusInsufficientStorage, Code: "cloud_out_of_space"},
	sojourn.CodeUnavailable:          {Status: http.StatusServiceUnavailable, Code: "cloud_unavailable", RetryAfter: 2 * time.Second},
	sojourn.CodeInternal:             {Status: http.StatusInternalServerError, Code: "cloud_internal"},
}
