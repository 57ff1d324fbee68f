package exec

import (
	"context"
	"net/http"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// ExecutionPath names an execution of a session.
type ExecutionPath struct {
	api.SessionPath
	ExecutionID string `path:"executionId"`
}

const (
	executionsPath = sessionPath + "/executions"
	executionPath  = executionsPath + "/{executionId}"
)

type executionsInput struct {
	api.SessionPath
	Before int64 `query:"before" minimum:"0" doc:"The nextBefore of the page before."`
	Limit  int   `query:"limit" minimum:"1" maximum:"200" default:"50"`
}

// ExecutionsBody is a page of executions, newest first.
type ExecutionsBody struct {
	Executions []Execution `json:"executions"`
	NextBefore *int64      `json:"nextBefore,omitempty" doc:"Absent on the last page."`
}

type executionsOutput struct{ Body ExecutionsBody }

type executionInput struct {
	ExecutionPath
	WaitMs         int64  `query:"waitMs" minimum:"0" maximum:"60000" default:"0" doc:"How long to wait for its end."`
	MaxOutputBytes int64  `query:"maxOutputBytes" minimum:"0" maximum:"16777216" default:"1048576" doc:"Of each stream, from its beginning."`
	Encoding       string `query:"encoding" enum:"auto,base64"`
}

// WholeExecution is an execution with what it wrote so far.
type WholeExecution struct {
	Execution
	Output
}

// ExecutionBody is an answer with one execution.
type ExecutionBody struct {
	Execution WholeExecution `json:"execution"`
}

type executionOutput struct{ Body ExecutionBody }

type cancelInput struct {
	ExecutionPath
	Body *CancelBody
}

// CancelBody says how an execution is to end.
type CancelBody struct {
	Signal string `json:"signal,omitempty" maxLength:"32" doc:"Only send this signal, such as SIGINT, to its process group."`
	Kill   bool   `json:"kill,omitempty" doc:"End it at once, without a grace."`
}

// CancelledBody is the execution as the call left it.
type CancelledBody struct {
	Execution Execution `json:"execution"`
}

type cancelOutput struct{ Body CancelledBody }

func (h *handler) executions(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "listExecutions", Method: http.MethodGet, Path: executionsPath,
		Scope: ScopeRead, Summary: "List executions, newest first",
	}, h.listExecutions)
	api.Register(s, api.Operation{
		ID: "getExecution", Method: http.MethodGet, Path: executionPath,
		Scope: ScopeRead, Summary: "Read an execution, or wait for its end",
	}, h.getExecution)
	api.Register(s, api.Operation{
		ID: "cancelExecution", Method: http.MethodPost, Path: executionPath + "/cancel",
		Scope: ScopeWrite, Summary: "End an execution",
		Description: "SIGTERM, and SIGKILL after its grace, to everything that it has started. It does not wait: the execution says when it has ended. One that waits never runs. One that is over comes back unchanged.",
	}, h.cancelExecution)
}

func (h *handler) listExecutions(ctx context.Context, in *executionsInput) (*executionsOutput, error) {
	found, err := h.engine.Execs(ctx, ref(ctx, in.SessionID), in.Before, in.Limit)
	if err != nil {
		return nil, err
	}
	out := &executionsOutput{Body: ExecutionsBody{Executions: []Execution{}}}
	now := h.engine.Now()
	for _, x := range found {
		out.Body.Executions = append(out.Body.Executions, executionOf(x, now))
	}
	if n := len(found); n > 0 && found[n-1].Number > 1 {
		out.Body.NextBefore = new(found[n-1].Number)
	}
	return out, nil
}

func (h *handler) getExecution(ctx context.Context, in *executionInput) (*executionOutput, error) {
	at, id := ref(ctx, in.SessionID), sojourn.ExecID(in.ExecutionID)
	x, err := h.engine.ExecByID(ctx, at, id)
	if err != nil {
		return nil, err
	}
	if in.WaitMs > 0 && !x.State.Terminal() {
		if x, err = h.waited(ctx, x, at.ID, time.Duration(in.WaitMs)*time.Millisecond); err != nil {
			return nil, err
		}
	}
	out := WholeExecution{Execution: executionOf(x, h.engine.Now())}
	out.Output, err = h.captured(ctx, x, shape{most: in.MaxOutputBytes, always64: in.Encoding == asBase64}, &out.Outcome)
	if err != nil {
		return nil, err
	}
	out.Truncated = out.Truncated || x.Result.KeptNote != ""
	return &executionOutput{Body: ExecutionBody{out}}, nil
}

// waited returns an exec when it is over, or as it is after so long.
func (h *handler) waited(ctx context.Context, x sojourn.Exec, session sojourn.SessionID, wait time.Duration) (sojourn.Exec, error) {
	lasting, end := api.Lasting(ctx)
	defer end()
	limited, cancel := context.WithTimeout(lasting, wait)
	defer cancel()
	at := ref(ctx, string(session))
	_, over, err := h.engine.WaitExecOver(limited, at, x.ID)
	switch {
	case err == nil:
		return over, nil
	case lasting.Err() != nil:
		return x, api.Ended(context.Cause(lasting))
	case limited.Err() != nil:
		return h.engine.ExecByID(ctx, at, x.ID)
	}
	return x, err
}

func (h *handler) cancelExecution(ctx context.Context, in *cancelInput) (*cancelOutput, error) {
	if in.Body == nil {
		in.Body = &CancelBody{}
	}
	at, id := ref(ctx, in.SessionID), sojourn.ExecID(in.ExecutionID)
	var x sojourn.Exec
	var err error
	switch b := in.Body; {
	case b.Signal != "" && b.Kill:
		return nil, sojourn.Errorf(sojourn.CodeInvalid, "Either a signal or kill.")
	case b.Signal != "":
		if err = h.engine.SignalExec(ctx, at, id, b.Signal); err == nil {
			x, err = h.engine.ExecByID(ctx, at, id)
		}
	default:
		x, err = h.engine.CancelExec(ctx, at, id, b.Kill)
	}
	if err != nil {
		return nil, err
	}
	return &cancelOutput{Body: CancelledBody{executionOf(x, h.engine.Now())}}, nil
}
