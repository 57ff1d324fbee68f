package exec

import (
	"context"
	"net/http"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// StopBody is why a session is stopped.
type StopBody struct {
	Reason string `json:"reason,omitempty" maxLength:"1024" doc:"Kept with the session, for people."`
}

type stopInput struct {
	api.SessionPath
	Body *StopBody
}

func (h *handler) lifecycle(s *api.Service) {
	for _, op := range []struct {
		name, id, summary, description string
		status                         int
		do                             func(context.Context, *api.SessionPath) (*sessionOutput, error)
	}{
		{
			"start", "startSession", "Start a pending session",
			"Provisions its first sandbox and waits for it, at most 20 seconds; after that it comes up all the same, and executions wait for it.", 0, h.start,
		},
		{
			"pause", "pauseSession", "Hold a session",
			"No execution is accepted any more; the one that runs may finish. Then files and context are saved and the sandbox is given back. The duration clock stops.", 0, h.pause,
		},
		{"resume", "resumeSession", "Continue a paused session", "In a fresh sandbox that carries its files and its context.", 0, h.resume},
		{"cancel", "cancelSession", "End a session and kill what runs", "Its status becomes cancelled. A session that has ended comes back unchanged.", 0, h.cancel},
		{
			"rotate", "rotateSession", "Replace the sandbox now",
			"As at its timeout: hook, files, environment variables and context are carried, executions that arrive meanwhile wait. It does not wait: follow the events, or the status.", http.StatusAccepted, h.rotate,
		},
	} {
		api.Register(s, api.Operation{
			ID: op.id, Method: http.MethodPost, Path: sessionPath + "/" + op.name, Status: op.status,
			Scope: ScopeWrite, Summary: op.summary, Description: op.description,
		}, op.do)
	}
	api.Register(s, api.Operation{
		ID: "stopSession", Method: http.MethodPost, Path: sessionPath + "/stop",
		Scope: ScopeWrite, Summary: "End a session gracefully",
		Description: "What runs gets a signal and its grace. The status becomes completed. A session that has ended comes back unchanged.",
	}, h.stop)
}

func (h *handler) start(ctx context.Context, in *api.SessionPath) (*sessionOutput, error) {
	f, err := h.engine.StartSession(ctx, ref(ctx, in.SessionID), h.config.SandboxWait)
	return h.shown(ctx, f, err)
}

func (h *handler) pause(ctx context.Context, in *api.SessionPath) (*sessionOutput, error) {
	f, err := h.engine.PauseSession(ctx, ref(ctx, in.SessionID))
	return h.shown(ctx, f, err)
}

func (h *handler) resume(ctx context.Context, in *api.SessionPath) (*sessionOutput, error) {
	f, err := h.engine.ResumeSession(ctx, ref(ctx, in.SessionID), h.config.SandboxWait)
	return h.shown(ctx, f, err)
}

func (h *handler) cancel(ctx context.Context, in *api.SessionPath) (*sessionOutput, error) {
	f, err := h.engine.CancelSession(ctx, ref(ctx, in.SessionID))
	return h.shown(ctx, f, err)
}

func (h *handler) rotate(ctx context.Context, in *api.SessionPath) (*sessionOutput, error) {
	f, err := h.engine.RotateSession(ctx, ref(ctx, in.SessionID))
	return h.shown(ctx, f, err)
}

func (h *handler) stop(ctx context.Context, in *stopInput) (*sessionOutput, error) {
	var reason string
	if in.Body != nil {
		reason = in.Body.Reason
	}
	f, err := h.engine.StopSession(ctx, ref(ctx, in.SessionID), reason)
	return h.shown(ctx, f, err)
}

// HeartbeatBody is a session with the time of the next heartbeat.
type HeartbeatBody struct {
	Session         Session   `json:"session"`
	NextHeartbeatBy *api.Time `json:"nextHeartbeatBy" doc:"When the next one is expected; null for a session that has ended."`
}

type heartbeatOutput struct{ Body HeartbeatBody }

type reattachInput struct {
	Body ReattachBody
}

// ReattachBody names a client.
type ReattachBody struct {
	ClientID string `json:"clientId" minLength:"1" maxLength:"256"`
}

// ReattachedBody is the session of a client, with what it needs to go on.
type ReattachedBody struct {
	Session   Session   `json:"session"`
	Remaining Remaining `json:"remaining"`
	LastSeq   int64     `json:"lastSeq" doc:"The number of the session's last event."`
}

type reattachOutput struct{ Body ReattachedBody }

func (h *handler) presence(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "heartbeat", Method: http.MethodPost, Path: sessionPath + "/heartbeat",
		Scope: ScopeWrite, Summary: "Say that the client is there",
		Description: "Expected every 30 seconds from the first one on. When three stay away the event client.heartbeat_lost says so and attached is false; the session lives on, unless onAbandon says otherwise.",
	}, h.heartbeat)
	api.Register(s, api.Operation{
		ID: "reattach", Method: http.MethodPost, Path: sessionsPath + "/reattach",
		Scope: ScopeWrite, Summary: "Find the live session of a client",
		Description: "The newest one with that clientId that has not ended.",
	}, h.reattach)
}

func (h *handler) heartbeat(ctx context.Context, in *api.SessionPath) (*heartbeatOutput, error) {
	f, err := h.engine.Heartbeat(ctx, ref(ctx, in.SessionID))
	out, err := h.shown(ctx, f, err)
	if err != nil {
		return nil, err
	}
	return &heartbeatOutput{Body: HeartbeatBody{out.Body.Session, out.Body.Session.NextHeartbeatBy}}, nil
}

func (h *handler) reattach(ctx context.Context, in *reattachInput) (*reattachOutput, error) {
	f, err := h.engine.Reattach(ctx, ref(ctx, ""), in.Body.ClientID)
	out, err := h.shown(ctx, f, err)
	if err != nil {
		return nil, err
	}
	s := out.Body.Session
	return &reattachOutput{Body: ReattachedBody{s, s.Remaining, s.LastSeq}}, nil
}

// ApproveBody resolves an approval.
type ApproveBody struct {
	ApprovalID string `json:"approvalId,omitempty" maxLength:"64" doc:"May be absent when only one is open."`
	Decision   string `json:"decision" enum:"approve,reject"`
	Comment    string `json:"comment,omitempty" maxLength:"1024" doc:"Kept with the approval, for people; at most 1,024 bytes."`
}

type approveInput struct {
	api.SessionPath
	Body ApproveBody
}

// ApprovedBody is a session with the approval that was resolved.
type ApprovedBody struct {
	Session  Session  `json:"session"`
	Approval Approval `json:"approval"`
}

type approveOutput struct{ Body ApprovedBody }

func (h *handler) approvals(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "approve", Method: http.MethodPost, Path: sessionPath + "/approve",
		Scope: ScopeWrite, Summary: "Approve or reject a step that needs sign-off",
		Description: "An approved execution runs in its turn. The same decision again changes nothing, whatever its comment; another one is refused. An approval expires an hour after it was asked for.",
	}, h.approve)
}

func (h *handler) approve(ctx context.Context, in *approveInput) (*approveOutput, error) {
	at := ref(ctx, in.SessionID)
	id := sojourn.InteractionID(in.Body.ApprovalID)
	if id == "" {
		f, err := h.engine.Session(ctx, at)
		if err != nil {
			return nil, err
		}
		open := approvalsOf(f)
		switch len(open) {
		case 0:
			return nil, sojourn.Errorf(sojourn.CodeInvalidState, "No approval is open.")
		case 1:
			id = sojourn.InteractionID(open[0].ID)
		default:
			return nil, sojourn.Errorf(sojourn.CodeInvalid, "approvalId: %d approvals are open; say which.", len(open))
		}
	}
	i, err := h.engine.Answer(ctx, at, id, sojourn.Answer{OptionID: in.Body.Decision, Comment: in.Body.Comment})
	if err != nil {
		return nil, err
	}
	f, err := h.engine.Session(ctx, at)
	out, err := h.shown(ctx, f, err)
	if err != nil {
		return nil, err
	}
	return &approveOutput{Body: ApprovedBody{out.Body.Session, approvalOf(i)}}, nil
}
