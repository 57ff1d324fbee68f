package exec

import (
	"math"
	"strconv"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// SandboxSpec is what each rotation's sandbox is created from. What is absent is
// the installation's choice; what is asked for is had or refused.
type SandboxSpec struct {
	CPUs           *float64 `json:"cpus,omitempty" minimum:"0.05" maximum:"1000" doc:"Cores; fractions are fine."`
	Memory         *Size    `json:"memory,omitempty"`
	Disk           *Size    `json:"disk,omitempty"`
	Isolation      string   `json:"isolation,omitempty" enum:"container,gvisor,microvm" doc:"The weakest wall that will do. What is not available here is refused, never replaced."`
	TimeoutSeconds *float64 `json:"timeoutSeconds,omitempty" minimum:"2" maximum:"2592000" doc:"How long one sandbox lives before it is replaced."`
	Image          string   `json:"image,omitempty" maxLength:"512" doc:"A reference that the operator has allowed."`
	Network        *Network `json:"network,omitempty"`
}

// Network is what sandboxes of a session may reach.
type Network struct {
	Mode        string   `json:"mode" enum:"none,allow,open"`
	Allow       []string `json:"allow,omitempty" maxItems:"256" doc:"HOST, HOST:PORT, *.DOMAIN, an address or a range of them; for the mode allow."`
	Credentials []string `json:"credentials,omitempty" maxItems:"64" doc:"Names of the installation's credentials that the broker may use for the session."`
	Raw         bool     `json:"raw,omitempty" doc:"An interface beside the proxy; needs the mode open."`
}

// Sandbox is the spec, and what is known of the sandbox that the session has now.
type Sandbox struct {
	SandboxSpec
	CurrentSandboxID string   `json:"currentSandboxId,omitempty" doc:"Absent when it has none."`
	ExpiresAt        api.Time `json:"expiresAt,omitempty" doc:"When the current sandbox reaches its timeout."`
}

func (s *SandboxSpec) spec() (out sojourn.SandboxSpec) {
	if s == nil {
		return out
	}
	out.Isolation, out.Image = s.Isolation, s.Image
	if s.CPUs != nil {
		out.Limits.MilliCPUs = int(math.Round(*s.CPUs * 1000))
	}
	if s.Memory != nil {
		out.Limits.MemoryBytes = s.Memory.bytes
	}
	if s.Disk != nil {
		out.Limits.DiskBytes = s.Disk.bytes
	}
	if s.TimeoutSeconds != nil {
		out.Timeout = inSeconds(*s.TimeoutSeconds)
	}
	if n := s.Network; n != nil {
		out.Network = sojourn.NetworkPolicy{Mode: sojourn.NetworkMode(n.Mode), Allow: n.Allow, Credentials: n.Credentials, Raw: n.Raw}
	}
	return out
}

// sandboxOf projects a session's spec and its sandbox at now.
func sandboxOf(f sojourn.Facts, now time.Time) Sandbox {
	s := f.Session.Sandbox
	out := Sandbox{SandboxSpec: SandboxSpec{Isolation: s.Isolation, Image: s.Image}}
	if s.Limits.MilliCPUs > 0 {
		out.CPUs = new(float64(s.Limits.MilliCPUs) / 1000)
	}
	if s.Limits.MemoryBytes > 0 {
		out.Memory = &Size{bytes: s.Limits.MemoryBytes}
	}
	if s.Limits.DiskBytes > 0 {
		out.Disk = &Size{bytes: s.Limits.DiskBytes}
	}
	if s.Timeout > 0 {
		out.TimeoutSeconds = new(s.Timeout.Seconds())
	}
	if n := s.Network; !n.IsZero() {
		out.Network = &Network{Mode: string(n.Mode), Allow: n.Allow, Credentials: n.Credentials, Raw: n.Raw}
	}
	if l := f.Lease; l != nil && l.Live(now) {
		out.CurrentSandboxID = string(l.Session) + "." + strconv.FormatInt(l.Epoch, 10)
		out.ExpiresAt = api.Instant(l.Deadline())
	}
	return out
}

// inSeconds is a number of seconds as a duration, to the millisecond.
func inSeconds(s float64) time.Duration {
	return time.Duration(math.Round(s*1000)) * time.Millisecond
}
