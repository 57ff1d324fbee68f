package engine_test

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/internal/servertest"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/sandbox/fake"
)

// fullStore writes nothing while it is full.
type fullStore struct {
	store.Store
	full *atomic.Bool
}

func (f fullStore) Update(ctx context.Context, fn func(*store.Tx) error) error {
	if f.full.Load() {
		return errors.New("no space left")
	}
	return f.Store.Update(ctx, fn)
}

// lease returns the session's latest lease.
func (s *story) lease() *sojourn.Lease {
	s.Helper()
	f, err := s.Server.Server.Engine.Session(s.Context(), engine.Ref{Project: sojourn.DefaultProject, ID: sojourn.SessionID(s.id)})
	if err != nil {
		s.Fatal(err)
	}
	return f.Lease
}

// TestLeaseThatNobodyProvidesEnds: when the sandbox does not come up and that
// cannot be written down either, the next sweep does (G7).
func TestLeaseThatNobodyProvidesEnds(t *testing.T) {
	var full atomic.Bool
	s := begin(t, servertest.Config{WrapStore: func(inner store.Store) store.Store { return fullStore{inner, &full} }})
	s.Fake.SetFaults(fake.Faults{CreateDelay: 500 * time.Millisecond, CreateErr: errors.New("no room"), CreateHalf: true})
	answered := make(chan int)
	go func() {
		status, _ := s.Call(http.MethodPut, s.path("/workspace"), nil, nil)
		answered <- status
	}()
	s.until("the lease", func() bool { return s.lease() != nil })
	full.Store(true)
	s.want("status", <-answered, http.StatusServiceUnavailable)
	full.Store(false)
	s.until("the lease to end", func() bool { return s.lease().State == sojourn.LeaseLost })
	s.until("what is left to be removed", func() bool { return s.sandboxes() == 0 })
}

// cutOff is a harness whose line to the sandbox is lost for good while the
// sandbox lives.
type cutOff struct{}

func (cutOff) Drive(ctx context.Context, _ harness.Job, port harness.Port) (harness.Outcome, error) {
	if err := port.Activate(ctx); err != nil {
		return harness.Outcome{}, err
	}
	return harness.Outcome{}, link.ErrGone
}

// TestRunInASandboxThatIsLostAliveEnds (G1).
func TestRunInASandboxThatIsLostAliveEnds(t *testing.T) {
	s := begin(t, servertest.Config{Harness: cutOff{}})
	r := s.ended(s.submit("@say hi"))
	s.want("run", r.State, "crashed")
	s.want("stopReason", r.StopReason, "workspace_lost")
	s.want("workspace", s.session().Workspace.State, "expired")
	s.until("the sandbox to be destroyed", func() bool { return s.sandboxes() == 0 })
}

// blindStore reads nothing while it is blind.
type blindStore struct {
	store.Store
	blind *atomic.Bool
}

func (b blindStore) View(ctx context.Context, fn func(*store.Tx) error) error {
	if b.blind.Load() {
		return errors.New("cannot read now")
	}
	return b.Store.View(ctx, fn)
}

// TestCancelIsSeenAfterAFailedRead: the wake-up that a failed read has spent
// comes again.
func TestCancelIsSeenAfterAFailedRead(t *testing.T) {
	var blind atomic.Bool
	s := begin(t, servertest.Config{WrapStore: func(inner store.Store) store.Store { return blindStore{inner, &blind} }})
	id := s.submit("@say working", "@sleep 60000")
	s.speaks(id, "working")
	blind.Store(true)
	ref := engine.Ref{Project: sojourn.DefaultProject, ID: sojourn.SessionID(s.id)}
	if _, err := s.Server.Server.Engine.Cancel(t.Context(), ref, sojourn.RunID(id)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	blind.Store(false)
	s.want("run", s.ended(id).State, "cancelled")
}

// TestLeaseThatEndsWhileTheAgentStarts: the run gets other sandboxes, as after
// the loss of one, and then an end.
func TestLeaseThatEndsWhileTheAgentStarts(t *testing.T) {
	s := begin(t, servertest.Config{
		Env:   map[string]string{"SCRIPT_AGENT_HANG": "session/new"},
		Terms: sojourn.Terms{Ceiling: 400 * time.Millisecond},
	})
	r := s.ended(s.submit("@say hi"))
	s.want("run", r.State, "failed")
	s.want("code", r.LastError.Code, "workspace_unavailable")
	s.want("sandboxes made", len(s.Fake.Created()), 3)
	s.want("taken up", s.count("wamp.run.recovered"), 0)
	s.want("continuation", s.session().Continuation.State, "fresh")
}
