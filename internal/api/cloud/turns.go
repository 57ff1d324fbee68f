package cloud

import (
	"context"
	"net/http"
	"strconv"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

// SubmitTurnBody is what a turn is submitted with.
type SubmitTurnBody struct {
	Input api.Input `json:"input"`
}

type submitTurnInput struct {
	api.SessionPath
	api.Idempotent
	Body SubmitTurnBody
}

// SubmittedBody is an accepted turn and the run that will execute it.
type SubmittedBody struct {
	Turn Turn `json:"turn"`
	Run  Run  `json:"run"`
}

type submittedOutput struct{ Body SubmittedBody }

type turnInput struct {
	api.SessionPath
	TurnID string `path:"turnId"`
}

type runInput struct {
	api.SessionPath
	RunID string `path:"runId"`
}

type pageInput struct {
	api.SessionPath
	Limit  int    `query:"limit" minimum:"1" maximum:"100" default:"50"`
	Cursor string `query:"cursor" doc:"The nextCursor of the page before."`
}

// TurnBody is an answer with one turn.
type TurnBody struct {
	Turn Turn `json:"turn"`
}

type turnOutput struct{ Body TurnBody }

// TurnsBody is a page of turns, oldest first.
type TurnsBody struct {
	Turns      []Turn `json:"turns"`
	NextCursor string `json:"nextCursor,omitempty" doc:"Absent on the last page."`
}

type turnsOutput struct{ Body TurnsBody }

// RunBody is an answer with one run.
type RunBody struct {
	Run Run `json:"run"`
}

type runOutput struct{ Body RunBody }

// RunsBody is a page of runs, oldest first.
type RunsBody struct {
	Runs       []Run  `json:"runs"`
	NextCursor string `json:"nextCursor,omitempty" doc:"Absent on the last page."`
}

type runsOutput struct{ Body RunsBody }

func (h *handler) turns(s *api.Service) {
	const session = "/v1/sessions/{sessionId}"
	api.Register(s, api.Operation{
		ID: "submitTurn", Method: http.MethodPost, Path: session + "/turns", Status: http.StatusAccepted,
		Scope: ScopeTurnsSubmit, Summary: "Submit a turn",
		Description: "Answered before any compute exists: from here the run reaches exactly one end. One run at a time per session.",
	}, h.submitTurn)
	api.Register(s, api.Operation{
		ID: "listTurns", Method: http.MethodGet, Path: session + "/turns",
		Scope: ScopeSessionsRead, Summary: "List turns, oldest first",
	}, h.listTurns)
	api.Register(s, api.Operation{
		ID: "getTurn", Method: http.MethodGet, Path: session + "/turns/{turnId}",
		Scope: ScopeSessionsRead, Summary: "Read a turn",
	}, h.getTurn)
	api.Register(s, api.Operation{
		ID: "listRuns", Method: http.MethodGet, Path: session + "/runs",
		Scope: ScopeSessionsRead, Summary: "List runs, oldest first",
	}, h.listRuns)
	api.Register(s, api.Operation{
		ID: "getRun", Method: http.MethodGet, Path: session + "/runs/{runId}",
		Scope: ScopeSessionsRead, Summary: "Read a run",
	}, h.getRun)
	api.Register(s, api.Operation{
		ID: "cancelRun", Method: http.MethodPost, Path: session + "/runs/{runId}/cancel",
		Scope: ScopeTurnsSubmit, Summary: "Cancel a run",
		Description: "The answer may still show the run active; the log says when it has ended. Cancelling an ended run changes nothing.",
	}, h.cancelRun)
}

func (h *handler) submitTurn(ctx context.Context, in *submitTurnInput) (*submittedOutput, error) {
	idem, err := in.Of("cloud.submitTurn", in.SessionID, in.Body)
	if err != nil {
		return nil, err
	}
	done, err := h.engine.Submit(ctx, ref(ctx, in.SessionID), engine.Submit{Input: in.Body.Input.Parts(), Idempotency: idem})
	if err != nil {
		return nil, err
	}
	return &submittedOutput{Body: SubmittedBody{Turn: turn(done.Turn), Run: run(done.Run, done.Facts.Open)}}, nil
}

func (h *handler) listTurns(ctx context.Context, in *pageInput) (*turnsOutput, error) {
	var after int64
	if in.Cursor != "" {
		var err error
		if after, err = api.ParseSeq(in.Cursor); err != nil {
			return nil, err
		}
	}
	at := ref(ctx, in.SessionID)
	found, err := h.engine.Turns(ctx, at, after, in.Limit)
	if err != nil {
		return nil, err
	}
	f, err := h.engine.Session(ctx, at) // after the turns: it knows of each of them
	if err != nil {
		return nil, err
	}
	out := &turnsOutput{Body: TurnsBody{Turns: []Turn{}}}
	for _, t := range found {
		out.Body.Turns = append(out.Body.Turns, turn(t))
	}
	if n := len(found); n > 0 && found[n-1].Number < f.Session.Turns {
		out.Body.NextCursor = strconv.FormatInt(found[n-1].Number, 10)
	}
	return out, nil
}

func (h *handler) getTurn(ctx context.Context, in *turnInput) (*turnOutput, error) {
	t, err := h.engine.Turn(ctx, ref(ctx, in.SessionID), sojourn.TurnID(in.TurnID))
	if err != nil {
		return nil, err
	}
	return &turnOutput{Body: TurnBody{turn(t)}}, nil
}

func (h *handler) listRuns(ctx context.Context, in *pageInput) (*runsOutput, error) {
	at := ref(ctx, in.SessionID)
	f, err := h.engine.Session(ctx, at)
	if err != nil {
		return nil, err
	}
	found, err := h.engine.Runs(ctx, at, sojourn.RunID(in.Cursor), in.Limit+1)
	if err != nil {
		return nil, err
	}
	out := &runsOutput{Body: RunsBody{Runs: []Run{}}}
	for _, r := range found[:min(len(found), in.Limit)] {
		out.Body.Runs = append(out.Body.Runs, run(r, f.Open))
	}
	if len(found) > in.Limit {
		out.Body.NextCursor = string(found[in.Limit-1].ID)
	}
	return out, nil
}

func (h *handler) getRun(ctx context.Context, in *runInput) (*runOutput, error) {
	r, err := h.engine.RunByID(ctx, ref(ctx, in.SessionID), sojourn.RunID(in.RunID))
	return h.runOutput(ctx, in.SessionID, r, err)
}

func (h *handler) cancelRun(ctx context.Context, in *runInput) (*runOutput, error) {
	r, err := h.engine.Cancel(ctx, ref(ctx, in.SessionID), sojourn.RunID(in.RunID))
	return h.runOutput(ctx, in.SessionID, r, err)
}

// runOutput projects a run; only an active one can be waiting for an answer.
func (h *handler) runOutput(ctx context.Context, sessionID string, r sojourn.Run, err error) (*runOutput, error) {
	if err != nil {
		return nil, err
	}
	var open []sojourn.Interaction
	if r.State == sojourn.RunActive {
		if open, err = h.engine.Interactions(ctx, ref(ctx, sessionID), sojourn.InteractionOpen); err != nil {
			return nil, err
		}
	}
	return &runOutput{Body: RunBody{run(r, open)}}, nil
}
