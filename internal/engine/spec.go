package engine

import (
	"slices"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// walls are the kinds of isolation, weakest first. Those of one rank stand for
// each other.
var walls = [][]sandbox.Isolation{
	{sandbox.IsolationNone},
	{sandbox.IsolationProcess},
	{sandbox.IsolationContainer, sandbox.IsolationNamespace},
	{sandbox.IsolationGVisor},
	{sandbox.IsolationMicroVM},
}

// strength is the rank of a wall; -1 for one that is not known.
func strength(i sandbox.Isolation) int {
	return slices.IndexFunc(walls, func(same []sandbox.Isolation) bool { return slices.Contains(same, i) })
}

// spec is what the driver is asked for.
func (e *Engine) spec(s sojourn.Session, epoch int64) (sandbox.Spec, error) {
	if err := e.checkSandbox(s.Sandbox); err != nil {
		return sandbox.Spec{}, err
	}
	spec := specOf(s.Sandbox, e.cfg.Sandbox, e.cfg.Driver.Capabilities())
	spec.Session, spec.Epoch = string(s.ID), epoch
	if row, ok := e.runtime(s.Runtime); ok {
		spec.Layers = row.Layers
	}
	if e.policy(s).Raw {
		spec.Network = sandbox.NetworkNAT
	}
	return spec, nil
}

// PlainSpec is what the sandbox of a session is made from that asks for nothing,
// without the names of session and epoch.
func PlainSpec(def sojourn.SandboxSpec, caps sandbox.Capabilities) sandbox.Spec {
	return specOf(sojourn.SandboxSpec{}, def, caps)
}

// specOf takes from def what the session does not say, its limits as far as the
// driver enforces them.
func specOf(s, def sojourn.SandboxSpec, caps sandbox.Capabilities) sandbox.Spec {
	l, can, d := s.Limits, caps.Limits, def.Limits
	image := s.Image
	if image == "" {
		image = def.Image
	}
	return sandbox.Spec{Image: image, Limits: sandbox.Limits{
		MemoryBytes: either(l.MemoryBytes, d.MemoryBytes, can.Memory),
		DiskBytes:   either(l.DiskBytes, d.DiskBytes, can.Disk),
		MilliCPUs:   either(l.MilliCPUs, d.MilliCPUs, can.CPU),
		Processes:   either(l.Processes, d.Processes, can.Processes),
		OpenFiles:   either(l.OpenFiles, d.OpenFiles, can.OpenFiles),
	}}
}

func either[T int | int64](asked, fallback T, can bool) T {
	if asked == 0 && can {
		return fallback
	}
	return asked
}

// checkSandbox refuses a spec that the installation cannot carry out, with what
// would be needed: nothing is silently less than what was asked for.
func (e *Engine) checkSandbox(s sojourn.SandboxSpec) error {
	if err := e.checkNetwork(s.Network); err != nil {
		return err
	}
	if s.IsZero() || e.cfg.Driver == nil {
		return nil // without a driver every run is refused anyway
	}
	caps := e.cfg.Driver.Capabilities()
	if err := checkIsolation(s.Isolation, e.cfg.Driver.Name(), caps); err != nil {
		return err
	}
	for _, l := range []struct {
		name  string
		asked bool
		can   bool
	}{
		{"memoryBytes", s.Limits.MemoryBytes > 0, caps.Limits.Memory},
		{"diskBytes", s.Limits.DiskBytes > 0, caps.Limits.Disk},
		{"milliCPUs", s.Limits.MilliCPUs > 0, caps.Limits.CPU},
		{"processes", s.Limits.Processes > 0, caps.Limits.Processes},
		{"openFiles", s.Limits.OpenFiles > 0, caps.Limits.OpenFiles},
	} {
		if l.asked && !l.can {
			return sojourn.Errorf(sojourn.CodeInvalid,
				"sandbox.limits.%s: driver %s cannot enforce it here. %s", l.name, e.cfg.Driver.Name(), caps.Limits.How)
		}
	}
	if s.Network.Raw && !slices.Contains(caps.Networks, sandbox.NetworkNAT) {
		return sojourn.Errorf(sojourn.CodeInvalid, "sandbox.network.raw: driver %s has no interface for sandboxes here; it needs root.", e.cfg.Driver.Name())
	}
	if s.Idle == sojourn.IdleSnapshot && s.Network.Raw {
		return sojourn.Errorf(sojourn.CodeInvalid, "sandbox.idle: processes that have an interface of their own cannot be saved; ask for raw or for snapshot.")
	}
	if s.Idle == sojourn.IdleSnapshot {
		if err := e.checkProcesses("sandbox.idle"); err != nil {
			return err
		}
	}
	return e.checkImage(s.Image, caps)
}

func (e *Engine) checkImage(reference string, caps sandbox.Capabilities) error {
	switch {
	case reference == "" || reference == e.cfg.Sandbox.Image:
		return nil
	case !caps.Images:
		return sojourn.Errorf(sojourn.CodeInvalid, "sandbox.image: driver %s has no images.", e.cfg.Driver.Name())
	case e.cfg.CheckImage == nil:
		return sojourn.Errorf(sojourn.CodeInvalid, "sandbox.image: the operator has allowed no images.")
	}
	if err := e.cfg.CheckImage(reference); err != nil {
		return sojourn.Errorf(sojourn.CodeInvalid, "sandbox.image: %v.", err)
	}
	return nil
}

// checkIsolation refuses a wall that the driver does not have. A stronger one
// than asked for will do.
func checkIsolation(want, driver string, caps sandbox.Capabilities) error {
	if want == "" {
		return nil
	}
	asked := strength(sandbox.Isolation(want))
	switch {
	case asked < 0:
		return sojourn.Errorf(sojourn.CodeInvalid, "sandbox.isolation: container, gvisor or microvm.")
	case asked <= strength(caps.Isolation):
		return nil
	}
	fix := map[sandbox.Isolation]string{
		sandbox.IsolationMicroVM: "It needs /dev/kvm and a container engine with a microVM runtime such as Kata; start the server with --driver microvm.",
		sandbox.IsolationGVisor:  "Start the server with --driver gvisor.",
	}[sandbox.Isolation(want)]
	return sojourn.Errorf(sojourn.CodeIsolationUnavailable, "sandbox.isolation: %s is not available here: driver %s isolates with %s. %s", want, driver, caps.Isolation, fix)
}

// checkProcesses refuses what needs saved processes where they cannot be saved.
func (e *Engine) checkProcesses(field string) error {
	d := e.cfg.Driver
	if d != nil && d.Capabilities().ProcessSnapshot && e.cfg.Processes != nil {
		return nil
	}
	name, wall := "none", "none"
	if d != nil {
		name, wall = d.Name(), string(d.Capabilities().Isolation)
	}
	return sojourn.Errorf(sojourn.CodeInvalid, "%s: processes cannot be saved here: driver %s (isolation %s) has no process snapshots; gvisor has.", field, name, wall)
}

// checkNetwork refuses a policy that the installation cannot carry out.
func (e *Engine) checkNetwork(p sojourn.NetworkPolicy) error {
	if p.IsZero() || p.Mode == sojourn.NetworkNone && len(p.Credentials) == 0 {
		return nil
	}
	if e.cfg.Egress == nil {
		return sojourn.Errorf(sojourn.CodeInvalid, "network: this installation gives sandboxes no network.")
	}
	return e.cfg.Egress.Check(p)
}
