package operator

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// sortedKeys returns the names of a map, nil for none.
func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// messageOf is the sentence of a refusal.
func messageOf(err error) string {
	if e, ok := errors.AsType[*sojourn.Error](err); ok {
		return e.Message
	}
	return ""
}

type startExecutionInput struct {
	api.SessionPath
	api.Idempotent
	Body StartExecutionBody
}

// ExecutionBody is an answer with one execution.
type ExecutionBody struct {
	Execution Execution    `json:"execution"`
	Approval  *Interaction `json:"approval,omitempty" doc:"The question that a parked one waits for."`
}

type executionOutput struct{ Body ExecutionBody }

// ExecutionPath is the path of an execution.
type ExecutionPath struct {
	api.SessionPath
	ExecutionID string `path:"executionId"`
}

func (p ExecutionPath) id() sojourn.ExecID { return sojourn.ExecID(p.ExecutionID) }

type getExecutionInput struct {
	ExecutionPath
	WaitSeconds float64 `query:"waitSeconds" minimum:"0" maximum:"60" doc:"How long to wait until it is over, or parked."`
}

type listExecutionsInput struct {
	api.SessionPath
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50"`
	Cursor string `query:"cursor" doc:"The nextCursor of the page before."`
}

// ExecutionsBody is a page of executions, newest first.
type ExecutionsBody struct {
	Executions []Execution `json:"executions"`
	NextCursor string      `json:"nextCursor,omitempty" doc:"Absent on the last page."`
}

type executionsOutput struct{ Body ExecutionsBody }

// CancelExecutionBody says how an execution is ended.
type CancelExecutionBody struct {
	Kill bool `json:"kill,omitempty" doc:"With SIGKILL at once; else SIGTERM first, and SIGKILL after the grace."`
}

type cancelExecutionInput struct {
	ExecutionPath
	Body *CancelExecutionBody
}

// SignalBody names a signal.
type SignalBody struct {
	Signal string `json:"signal" pattern:"^SIG[A-Z0-9+]{2,12}$" doc:"Such as SIGINT; the whole process group gets it."`
}

type signalInput struct {
	ExecutionPath
	Body SignalBody
}

func (h *handler) executions(s *api.Service) {
	const path = "/operator/v1/sessions/{sessionId}/executions"
	api.Register(s, api.Operation{
		ID: "startExecution", Method: http.MethodPost, Path: path, Status: http.StatusAccepted,
		Summary: "Run a command in the sandbox",
		Description: "Answers once it is accepted, which is for good: it will reach exactly one end. One runs at a time, those that are detached beside it; " +
			"the others wait their turn, at most for their timeout.",
	}, h.startExecution)
	api.Register(s, api.Operation{
		ID: "listExecutions", Method: http.MethodGet, Path: path, Summary: "List executions, newest first",
	}, h.listExecutions)
	api.Register(s, api.Operation{
		ID: "getExecution", Method: http.MethodGet, Path: path + "/{executionId}", Summary: "Read an execution, or wait for its end",
	}, h.getExecution)
	api.Register(s, api.Operation{
		ID: "cancelExecution", Method: http.MethodPost, Path: path + "/{executionId}/cancel", Summary: "End an execution",
		Description: "One that is over comes back unchanged.",
	}, h.cancelExecution)
	api.Register(s, api.Operation{
		ID: "signalExecution", Method: http.MethodPost, Path: path + "/{executionId}/signal", Status: http.StatusNoContent, Summary: "Send a signal to an execution",
	}, h.signalExecution)
	h.executionOutput(s)
}

func executionBody(f sojourn.Facts, x sojourn.Exec) ExecutionBody {
	out := ExecutionBody{Execution: execution(x)}
	for _, i := range f.Open {
		if i.Exec == x.ID {
			out.Approval = new(interaction(i))
		}
	}
	return out
}

func (h *handler) startExecution(ctx context.Context, in *startExecutionInput) (*executionOutput, error) {
	request, err := in.Body.request()
	if err != nil {
		return nil, err
	}
	if request.Idempotency, err = in.Of("operator.startExecution", in.SessionID, in.Body); err != nil {
		return nil, err
	}
	f, x, err := h.engine.StartExec(ctx, ref(ctx, in.SessionID), request)
	if err != nil {
		return nil, err
	}
	return &executionOutput{Body: executionBody(f, x)}, nil
}

func (h *handler) listExecutions(ctx context.Context, in *listExecutionsInput) (*executionsOutput, error) {
	before, err := int64(0), error(nil)
	if in.Cursor != "" {
		if before, err = api.ParseSeq(in.Cursor); err != nil {
			return nil, err
		}
	}
	found, err := h.engine.Execs(ctx, ref(ctx, in.SessionID), before, in.Limit)
	if err != nil {
		return nil, err
	}
	out := &executionsOutput{Body: ExecutionsBody{Executions: []Execution{}}}
	for _, x := range found {
		out.Body.Executions = append(out.Body.Executions, execution(x))
	}
	if n := len(found); n == in.Limit && found[n-1].Number > 1 {
		out.Body.NextCursor = strconv.FormatInt(found[n-1].Number, 10)
	}
	return out, nil
}

func (h *handler) getExecution(ctx context.Context, in *getExecutionInput) (*executionOutput, error) {
	at := ref(ctx, in.SessionID)
	if in.WaitSeconds > 0 {
		waiting, cancel := context.WithTimeout(ctx, time.Duration(in.WaitSeconds*float64(time.Second)))
		defer cancel()
		f, x, err := h.engine.WaitExec(waiting, at, in.id())
		if err == nil {
			return &executionOutput{Body: executionBody(f, x)}, nil
		}
		if waiting.Err() == nil || ctx.Err() != nil {
			return nil, err
		}
	}
	x, err := h.engine.ExecByID(ctx, at, in.id())
	if err != nil {
		return nil, err
	}
	f := sojourn.Facts{}
	if x.State == sojourn.ExecParked {
		if f, err = h.engine.Session(ctx, at); err != nil {
			return nil, err
		}
	}
	return &executionOutput{Body: executionBody(f, x)}, nil
}

func (h *handler) cancelExecution(ctx context.Context, in *cancelExecutionInput) (*executionOutput, error) {
	x, err := h.engine.CancelExec(ctx, ref(ctx, in.SessionID), in.id(), in.Body != nil && in.Body.Kill)
	if err != nil {
		return nil, err
	}
	return &executionOutput{Body: ExecutionBody{Execution: execution(x)}}, nil
}

func (h *handler) signalExecution(ctx context.Context, in *signalInput) (*struct{}, error) {
	return nil, h.engine.SignalExec(ctx, ref(ctx, in.SessionID), in.id(), in.Body.Signal)
}
