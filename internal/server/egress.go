package server

import (
	"context"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/egress"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// EgressOf makes the engine's way out of a proxy.
func EgressOf(e *egress.Egress) engine.Egress { return way{e} }

type way struct{ e *egress.Egress }

func (w way) Check(p sojourn.NetworkPolicy) error { return w.e.Check(p) }

func (w way) Open(ctx context.Context, s engine.EgressSpec) (engine.Gate, error) {
	return w.e.Open(ctx, egress.Spec{
		Session: string(s.Session), Epoch: s.Epoch, Dir: s.Dir, Policy: s.Policy, Report: s.Report,
	})
}

// PlainSpec is what the sandbox of a session is made from that asks for nothing.
func PlainSpec(s sojourn.SandboxSpec, c sandbox.Capabilities) sandbox.Spec {
	return engine.PlainSpec(s, c)
}
