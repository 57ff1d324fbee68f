package operator

import (
	"context"
	"net/http"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

// StopBody is a caller's words for the record.
type StopBody struct {
	Reason string `json:"reason,omitempty" maxLength:"1024"`
}

type stopInput struct {
	api.SessionPath
	Body *StopBody
}

// ReattachBody names a client.
type ReattachBody struct {
	ClientID string `json:"clientId" minLength:"1" maxLength:"256"`
}

type reattachInput struct{ Body ReattachBody }

func (h *handler) lifecycle(s *api.Service) {
	const path = "/operator/v1/sessions/{sessionId}"
	bare := func(id, verb, summary, description string, handle func(context.Context, *api.SessionPath) (*sessionOutput, error)) {
		api.Register(s, api.Operation{
			ID: id, Method: http.MethodPost, Path: path + "/" + verb, Summary: summary, Description: description,
		}, handle)
	}
	const only = "Only of a session without an agent. "
	bare("startSession", "start", "Start a session",
		only+"Its sandbox is provided and the clock of its budget runs. Answers when the sandbox is there, or after a while; it comes up all the same.", h.start)
	bare("pauseSession", "pause", "Hold a session",
		only+"No exec is accepted, the one that runs may finish, then the sandbox is given back. The clock stands still.", h.pause)
	bare("resumeSession", "resume", "Let a paused session go on", only+"In a fresh sandbox that carries its work.", h.resume)
	bare("cancelSession", "cancel", "End a session and kill what runs", only+"One that has ended comes back unchanged.", h.cancelSession)
	bare("heartbeat", "heartbeat", "Say that the session's client is there", only, h.heartbeat)
	api.Register(s, api.Operation{
		ID: "stopSession", Method: http.MethodPost, Path: path + "/stop", Summary: "End a session in good order",
		Description: only + "What runs may take its grace. One that has ended comes back unchanged.",
	}, h.stop)
	api.Register(s, api.Operation{
		ID: "deleteSession", Method: http.MethodDelete, Path: path, Status: http.StatusNoContent,
		Summary: "Delete a session that has ended, with all that it has left", Description: only,
	}, h.deleteSession)
	api.Register(s, api.Operation{
		ID: "changeBudget", Method: http.MethodPatch, Path: path + "/budget", Summary: "Change what a session may use",
		Description: only + "What was used stays. A limit that is reached by this ends the session.",
	}, h.changeBudget)
	api.Register(s, api.Operation{
		ID: "reattach", Method: http.MethodPost, Path: "/operator/v1/sessions/reattach",
		Summary: "Find the live session of a client, and say that it is there",
	}, h.reattach)
}

func (h *handler) start(ctx context.Context, in *api.SessionPath) (*sessionOutput, error) {
	return h.sessionOutput(h.engine.StartSession(ctx, ref(ctx, in.SessionID), h.config.WorkspaceWait))
}

func (h *handler) pause(ctx context.Context, in *api.SessionPath) (*sessionOutput, error) {
	return h.sessionOutput(h.engine.PauseSession(ctx, ref(ctx, in.SessionID)))
}

func (h *handler) resume(ctx context.Context, in *api.SessionPath) (*sessionOutput, error) {
	return h.sessionOutput(h.engine.ResumeSession(ctx, ref(ctx, in.SessionID), h.config.WorkspaceWait))
}

func (h *handler) stop(ctx context.Context, in *stopInput) (*sessionOutput, error) {
	reason := ""
	if in.Body != nil {
		reason = in.Body.Reason
	}
	return h.sessionOutput(h.engine.StopSession(ctx, ref(ctx, in.SessionID), reason))
}

func (h *handler) cancelSession(ctx context.Context, in *api.SessionPath) (*sessionOutput, error) {
	return h.sessionOutput(h.engine.CancelSession(ctx, ref(ctx, in.SessionID)))
}

func (h *handler) heartbeat(ctx context.Context, in *api.SessionPath) (*sessionOutput, error) {
	return h.sessionOutput(h.engine.Heartbeat(ctx, ref(ctx, in.SessionID)))
}

func (h *handler) reattach(ctx context.Context, in *reattachInput) (*sessionOutput, error) {
	at := engine.Ref{Project: api.Caller(ctx).Project, Contract: sojourn.ContractExec}
	return h.sessionOutput(h.engine.Reattach(ctx, at, in.Body.ClientID))
}

func (h *handler) deleteSession(ctx context.Context, in *api.SessionPath) (*struct{}, error) {
	return nil, h.engine.DeleteSession(ctx, ref(ctx, in.SessionID))
}
