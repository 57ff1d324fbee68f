package operator

import (
	"context"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

// stub is an engine with one session; a call that a test does not set up panics.
type stub struct {
	Engine
	facts  sojourn.Facts
	err    error
	caps   engine.Capabilities
	events []sojourn.Event
	asked  engine.Ref
	turn   engine.Submit
	create engine.Create
}

func (s *stub) Now() time.Time { return time.Date(2026, 8, 11, 9, 39, 0, 0, time.UTC) }

func (s *stub) Session(_ context.Context, r engine.Ref) (sojourn.Facts, error) {
	s.asked = r
	if s.err == nil && r.ID != s.facts.Session.ID {
		return sojourn.Facts{}, sojourn.Errorf(sojourn.CodeNotFound, "There is no such session.")
	}
	return s.facts, s.err
}

func (s *stub) CreateSession(_ context.Context, c engine.Create) (engine.Created, error) {
	s.create = c
	return engine.Created{Facts: s.facts}, s.err
}

func (s *stub) Submit(_ context.Context, r engine.Ref, in engine.Submit) (engine.Submitted, error) {
	s.asked, s.turn = r, in
	return engine.Submitted{Facts: s.facts}, s.err
}

func (s *stub) Capabilities(context.Context) (engine.Capabilities, error) { return s.caps, s.err }

func (s *stub) Events(_ context.Context, _ engine.Ref, after int64, limit int) ([]sojourn.Event, int64, error) {
	head := int64(len(s.events))
	if after > head {
		return nil, head, sojourn.Errorf(sojourn.CodeInvalidCursor, "The cursor is beyond the end of the log.")
	}
	return s.events[after:min(head, after+int64(limit))], head, s.err
}

func (s *stub) EnsureWorkspace(_ context.Context, r engine.Ref, _ time.Duration) (sojourn.Facts, error) {
	s.asked = r
	return s.facts, s.err
}

// doorman knows an admin key and an app key.
type doorman struct{ Keys }

func (doorman) Authenticate(_ context.Context, header string) (sojourn.Principal, error) {
	switch header {
	case "Bearer admin":
		return sojourn.Principal{Key: "a", Project: "p", Kind: sojourn.KeyAdmin}, nil
	case "Bearer reader":
		return sojourn.Principal{Key: "r", Project: "p", Kind: sojourn.KeyApp, Scopes: []sojourn.Scope{"all"}}, nil
	case "Bearer executor":
		return sojourn.Principal{Key: "e", Project: "p", Kind: sojourn.KeyEnvironment}, nil
	}
	return sojourn.Principal{}, sojourn.Errorf(sojourn.CodeUnauthenticated, "Send a valid key.")
}

func (doorman) Watch(sojourn.KeyID) context.Context        { return context.Background() }
func (doorman) Valid(context.Context, sojourn.KeyID) error { return nil }

func (s *stub) SetNetwork(_ context.Context, r engine.Ref, p sojourn.NetworkPolicy) (sojourn.Facts, error) {
	s.asked = r
	f := s.facts
	f.Session.Sandbox.Network = p
	return f, s.err
}

func (s *stub) Suspend(_ context.Context, r engine.Ref) (sojourn.Facts, error) {
	s.asked = r
	return s.facts, s.err
}

func (s *stub) Rotate(_ context.Context, r engine.Ref, _ bool, _ time.Duration) (sojourn.Facts, error) {
	s.asked = r
	return s.facts, s.err
}
