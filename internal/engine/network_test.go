package engine_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// slowEgress is a way out whose opening can be held up.
type slowEgress struct {
	opening chan sojourn.NetworkPolicy // told when a gate is being opened
	open    chan struct{}              // one for each gate that may open

	mu     sync.Mutex
	policy sojourn.NetworkPolicy // of the latest gate
	report func([]sojourn.NetworkDecision)
	last   []sojourn.NetworkDecision // reported when a gate is closed
}

func newSlowEgress() *slowEgress {
	return &slowEgress{opening: make(chan sojourn.NetworkPolicy, 8), open: make(chan struct{}, 8)}
}

func (e *slowEgress) Check(sojourn.NetworkPolicy) error { return nil }

func (e *slowEgress) Open(ctx context.Context, s engine.EgressSpec) (engine.Gate, error) {
	e.opening <- s.Policy
	select {
	case <-e.open:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.policy, e.report = s.Policy, s.Report
	return &slowGate{e: e}, nil
}

func (e *slowEgress) mode() sojourn.NetworkMode {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.policy.Mode
}

type slowGate struct {
	e    *slowEgress
	once sync.Once
}

func (g *slowGate) SetPolicy(p sojourn.NetworkPolicy) {
	g.e.mu.Lock()
	defer g.e.mu.Unlock()
	g.e.policy = p
}

func (g *slowGate) Env() map[string]string {
	return map[string]string{"HTTP_PROXY": "http://the-way-out"}
}

// Close tells what was decided last, as the proxy does.
func (g *slowGate) Close() error {
	g.once.Do(func() {
		g.e.mu.Lock()
		report, last := g.e.report, g.e.last
		g.e.mu.Unlock()
		if len(last) > 0 {
			report(last)
		}
	})
	return nil
}

// TestNarrowingMeetsASandboxThatComesUp: a policy that is changed while the way out
// of a new sandbox is being opened is in force when the change is answered.
func TestNarrowingMeetsASandboxThatComesUp(t *testing.T) {
	e := newSlowEgress()
	s := begin(t, servertest.Config{Egress: e, Sandbox: sojourn.SandboxSpec{Network: sojourn.NetworkPolicy{Mode: sojourn.NetworkOpen}}})
	id := s.submit("@say hi")
	if p := <-e.opening; p.Mode != sojourn.NetworkOpen {
		t.Fatalf("the gate opens with mode %q", p.Mode)
	}
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		s.Try(http.MethodPut, s.operator("/network"), "", map[string]any{"mode": "none"}, nil)
	}()
	s.until("the change to be written", func() bool { return s.count("wamp.network.changed") == 1 })
	e.open <- struct{}{}
	<-changed
	s.want("mode in force", e.mode(), sojourn.NetworkNone)
	s.want("run", s.ended(id).State, "completed")
}

// TestShellsFindTheWayOut: what somebody runs in a sandbox reaches as much as the
// agent in it does.
func TestShellsFindTheWayOut(t *testing.T) {
	e := newSlowEgress()
	e.open <- struct{}{}
	s := begin(t, servertest.Config{Egress: e, Programs: map[string]keeper.Program{
		"proxy": func(_ context.Context, p keeper.Proc) int {
			fmt.Fprint(p.Stdout, slices.Contains(p.Env, "HTTP_PROXY=http://the-way-out"))
			return 0
		},
	}})
	ref := engine.Ref{Project: sojourn.DefaultProject, ID: sojourn.SessionID(s.id)}
	v, err := s.Server.Server.Engine.Visit(t.Context(), ref, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	shell, err := v.Shell(t.Context(), engine.OpenShell{Argv: []string{"proxy"}})
	if err != nil {
		t.Fatal(err)
	}
	out, _, _, err := shell.Next(t.Context())
	if err != nil || len(out) == 0 || string(out[0].Data) != "true" {
		t.Errorf("a shell with the variables of the way out: %v, %v", out, err)
	}
}

// TestLastNetworkDecisionsAreWrittenWhenTheServerStops: what a gate says while the
// engine ends is in the log, and does not hold the engine up.
func TestLastNetworkDecisionsAreWrittenWhenTheServerStops(t *testing.T) {
	e := newSlowEgress()
	e.last = []sojourn.NetworkDecision{{Host: "example.com", Port: 443, Allowed: true, Count: 1}}
	for range cap(e.open) {
		e.open <- struct{}{}
	}
	s := begin(t, servertest.Config{Egress: e})
	s.speaks(s.submit("@say hi", "@sleep 60000"), "hi")
	s.Restart()
	s.want("network decisions", s.count("wamp.network.decided"), 1)
}
