package sojourn

import (
	"strings"
	"time"
	"unicode/utf8"
)

// SandboxSpec is what a session asks of its sandboxes. A zero field leaves the
// choice to the installation. What was asked for is had or refused, never
// silently less.
type SandboxSpec struct {
	// Image is a reference to a root file system; "" is the installation's own.
	Image string `json:"image,omitempty"`
	// Isolation is the wall that the session insists on: container, gvisor,
	// microvm, …; "" takes what the installation has.
	Isolation string        `json:"isolation,omitempty"`
	Limits    SandboxLimits `json:"limits,omitzero"`
	Network   NetworkPolicy `json:"network,omitzero"`
	// Idle says what becomes of a sandbox whose hold has run out.
	Idle IdleMode `json:"idle,omitempty"`
	// Timeout is how long one sandbox of a bare session lives; 0 is the
	// installation's ceiling of a lease.
	Timeout time.Duration `json:"timeout,omitempty"`
}

// SandboxLimits bounds what one sandbox of a session may use. Zero takes the
// installation's default.
type SandboxLimits struct {
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	DiskBytes   int64 `json:"diskBytes,omitempty"`
	MilliCPUs   int   `json:"milliCPUs,omitempty"`
	Processes   int   `json:"processes,omitempty"`
	OpenFiles   int   `json:"openFiles,omitempty"`
}

// The smallest limits that a sandbox can live with.
const (
	MinMemoryBytes = 64 << 20
	MinDiskBytes   = 16 << 20
	MinProcesses   = 16
	MinMilliCPUs   = 50
	MinOpenFiles   = 64
)

// The largest limits that every kernel takes.
const (
	MaxMemoryBytes = 1 << 50
	MaxDiskBytes   = 8 << 40
	MaxProcesses   = 1 << 22
	MaxMilliCPUs   = 1_000_000
	MaxOpenFiles   = 1 << 20
)

// IdleMode says what becomes of a sandbox whose hold has run out.
type IdleMode string

// The idle modes.
const (
	// IdleDestroy ends its processes. Files and conversation are in the
	// checkpoint of the last run.
	IdleDestroy IdleMode = "destroy"
	// IdleSnapshot saves files, conversation and processes at one boundary, and
	// the next use goes on with them.
	IdleSnapshot IdleMode = "snapshot"
)

// MaxImageBytes bounds an image reference.
const MaxImageBytes = 512

// Validate reports what is wrong with a spec that a caller sent. Its code is
// invalid.
func (s SandboxSpec) Validate() error {
	if len(s.Image) > MaxImageBytes || !utf8.ValidString(s.Image) || strings.ContainsFunc(s.Image, notPrintable) {
		return Errorf(CodeInvalid, "sandbox.image: must be a reference of at most %d printable bytes.", MaxImageBytes)
	}
	switch s.Idle {
	case "", IdleDestroy, IdleSnapshot:
	default:
		return Errorf(CodeInvalid, "sandbox.idle: destroy or snapshot.")
	}
	for _, l := range []struct {
		name            string
		value, min, max int64
	}{
		{"memoryBytes", s.Limits.MemoryBytes, MinMemoryBytes, MaxMemoryBytes},
		{"diskBytes", s.Limits.DiskBytes, MinDiskBytes, MaxDiskBytes},
		{"milliCPUs", int64(s.Limits.MilliCPUs), MinMilliCPUs, MaxMilliCPUs},
		{"processes", int64(s.Limits.Processes), MinProcesses, MaxProcesses},
		{"openFiles", int64(s.Limits.OpenFiles), MinOpenFiles, MaxOpenFiles},
	} {
		switch {
		case l.value == 0:
		case l.value < l.min:
			return Errorf(CodeInvalid, "sandbox.limits.%s: at least %d.", l.name, l.min)
		case l.value > l.max:
			return Errorf(CodeInvalid, "sandbox.limits.%s: at most %d.", l.name, l.max)
		}
	}
	return s.Network.Validate()
}

func notPrintable(r rune) bool { return r <= ' ' || r == 0x7f }

// IsZero reports whether the spec asks for nothing.
func (s SandboxSpec) IsZero() bool {
	return s.Image == "" && s.Isolation == "" && s.Limits == SandboxLimits{} && s.Network.IsZero() && s.Idle == "" && s.Timeout == 0
}
