package operator

import (
	"context"
	"net/http"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// Sandbox is what a session asks of its sandboxes.
type Sandbox struct {
	Image     string         `json:"image,omitempty" maxLength:"512" doc:"A reference that the operator has allowed; the installation's own root file system when absent."`
	Isolation string         `json:"isolation,omitempty" enum:"container,gvisor,microvm" doc:"The weakest wall that will do. What is not available here is refused."`
	Limits    *SandboxLimits `json:"limits,omitempty"`
	Network   *Network       `json:"network,omitempty"`
	Timeout   float64        `json:"timeoutSeconds,omitempty" minimum:"0" doc:"Of a session without an agent: how long one sandbox may live before it is replaced; the installation's ceiling when absent."`
	Idle      string         `json:"idle,omitempty" enum:"destroy,snapshot" doc:"What becomes of a sandbox that nobody uses: with snapshot its processes are saved and go on at the next use."`
}

// SandboxLimits bounds what one sandbox may use. What the driver cannot enforce is refused.
type SandboxLimits struct {
	MemoryBytes int64 `json:"memoryBytes,omitempty" minimum:"0" doc:"0 takes the installation's default, as for the others."`
	DiskBytes   int64 `json:"diskBytes,omitempty" minimum:"0"`
	MilliCPUs   int   `json:"milliCPUs,omitempty" minimum:"0" doc:"1000 is one core."`
	Processes   int   `json:"processes,omitempty" minimum:"0" doc:"With their threads."`
	OpenFiles   int   `json:"openFiles,omitempty" minimum:"0" doc:"Of each process."`
}

// Network is what sandboxes of a session may reach.
type Network struct {
	Mode        string   `json:"mode" enum:"none,allow,open"`
	Allow       []string `json:"allow,omitempty" maxItems:"256" doc:"HOST, HOST:PORT, *.DOMAIN, an address or a range of them; for the mode allow."`
	Credentials []string `json:"credentials,omitempty" maxItems:"64" doc:"Names of the installation's credentials that the broker may use for the session."`
	Raw         bool     `json:"raw,omitempty" doc:"An interface beside the proxy; needs the mode open."`
}

func (s *Sandbox) spec() sojourn.SandboxSpec {
	if s == nil {
		return sojourn.SandboxSpec{}
	}
	out := sojourn.SandboxSpec{
		Image: s.Image, Isolation: s.Isolation, Network: s.Network.policy(), Idle: sojourn.IdleMode(s.Idle),
		Timeout: seconds(s.Timeout),
	}
	if l := s.Limits; l != nil {
		out.Limits = sojourn.SandboxLimits(*l)
	}
	return out
}

func (n *Network) policy() sojourn.NetworkPolicy {
	if n == nil {
		return sojourn.NetworkPolicy{}
	}
	return sojourn.NetworkPolicy{
		Mode: sojourn.NetworkMode(n.Mode), Allow: n.Allow, Credentials: n.Credentials, Raw: n.Raw,
	}
}

// sandboxOf shows what a session asks for; nil when it asks for nothing.
func sandboxOf(s sojourn.SandboxSpec) *Sandbox {
	if s.IsZero() {
		return nil
	}
	out := &Sandbox{Image: s.Image, Isolation: s.Isolation, Idle: string(s.Idle), Timeout: s.Timeout.Seconds()}
	if s.Limits != (sojourn.SandboxLimits{}) {
		out.Limits = new(SandboxLimits(s.Limits))
	}
	if n := s.Network; !n.IsZero() {
		out.Network = &Network{Mode: string(n.Mode), Allow: n.Allow, Credentials: n.Credentials, Raw: n.Raw}
	}
	return out
}

type setNetworkInput struct {
	api.SessionPath
	Body Network
}

type rotateInput struct {
	api.SessionPath
	Body *RotateBody
}

// RotateBody says what a rotation carries besides files and conversation.
type RotateBody struct {
	Processes bool `json:"processes,omitempty" doc:"Carry running processes, too. Refused where the isolation cannot."`
}

func (h *handler) sandboxes(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "setNetwork", Method: http.MethodPut, Path: "/operator/v1/sessions/{sessionId}/network",
		Summary:     "Change what a session's sandboxes may reach",
		Description: "It has taken effect when the call answers: connections that are no longer allowed are cut.",
	}, h.setNetwork)
	api.Register(s, api.Operation{
		ID: "suspendSession", Method: http.MethodPost, Path: "/operator/v1/sessions/{sessionId}/suspend",
		Summary: "Save what the sandbox holds and give it back",
		Description: "Files and conversation always, processes where the isolation can save them. The next use goes on from there. " +
			"A session without a sandbox comes back unchanged; one with an active run is refused.",
	}, h.suspend)
	api.Register(s, api.Operation{
		ID: "rotateSession", Method: http.MethodPost, Path: "/operator/v1/sessions/{sessionId}/rotate",
		Summary: "Replace the sandbox by a fresh one that carries the work",
		Description: "A session without an agent rotates behind this answer: its status is rotating, and execs that arrive meanwhile wait. " +
			"What it carries was said when it was created.",
	}, h.rotate)
}

func (h *handler) setNetwork(ctx context.Context, in *setNetworkInput) (*sessionOutput, error) {
	return h.sessionOutput(h.engine.SetNetwork(ctx, ref(ctx, in.SessionID), in.Body.policy()))
}

func (h *handler) suspend(ctx context.Context, in *api.SessionPath) (*sessionOutput, error) {
	return h.sessionOutput(h.engine.Suspend(ctx, ref(ctx, in.SessionID)))
}

func (h *handler) rotate(ctx context.Context, in *rotateInput) (*sessionOutput, error) {
	processes := in.Body != nil && in.Body.Processes
	f, err := h.engine.Session(ctx, ref(ctx, in.SessionID))
	switch {
	case err != nil:
		return nil, err
	case f.Session.Bare() && processes && !f.Session.Rotation.Processes:
		return nil, sojourn.Errorf(sojourn.CodeInvalid, "processes: this session was created without carrying processes.")
	case f.Session.Bare():
		return h.sessionOutput(h.engine.RotateSession(ctx, ref(ctx, in.SessionID)))
	}
	return h.sessionOutput(h.engine.Rotate(ctx, ref(ctx, in.SessionID), processes, h.config.WorkspaceWait))
}
