package operator

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

var now = time.Date(2026, 8, 11, 9, 39, 0, 0, time.UTC)

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestSessionShowsWhatItStandsOn(t *testing.T) {
	f := sojourn.Facts{
		Session: sojourn.Session{
			ID: "s", Project: "p", Contract: sojourn.ContractExec, Runtime: "script", State: sojourn.SessionClosed,
			CloseReason: sojourn.CloseFailed, CreatedAt: now, UpdatedAt: now, Turns: 2, LastSeq: 9, Worked: true,
		},
		Lease: &sojourn.Lease{
			Epoch: 3, State: sojourn.LeaseHeld, Driver: "gvisor", Isolation: "kernel", RequestedAt: now, GrantedAt: now,
			TouchedAt: now.Add(time.Minute), Ceiling: 24 * time.Hour, Hold: 25 * time.Minute, Restored: "cp",
			Handle: json.RawMessage(`{"host":"path"}`), Conversation: "agents-own",
		},
		Head: &sojourn.Checkpoint{ID: "cp", Run: "r1", Epoch: 2, State: sojourn.CheckpointSealed, Format: sojourn.FormatV2, Conversation: sojourn.FidelityExact},
		Open: []sojourn.Interaction{{ID: "i", Run: "r2", State: sojourn.InteractionOpen, OpenedAt: now}},
	}
	got := session(f, now.Add(2*time.Minute))
	if got.Contract != "exec" || got.State != "closed" || got.CloseReason != "failed" || got.Turns != 2 || got.LastSequence != 9 {
		t.Errorf("session %s", asJSON(t, got))
	}
	if l := got.Lease; l.CeilingAt != "2026-08-12T09:39:00.000Z" || l.HoldUntil != "2026-08-11T10:05:00.000Z" || l.Restored != "cp" || l.EndedAt != "" {
		t.Errorf("lease %s", asJSON(t, l))
	}
	if got.Workspace.ExpiresAt != got.Lease.HoldUntil || got.Continuation.State != "live" || got.Checkpoint.RunID != "r1" || len(got.OpenInteractions) != 1 {
		t.Errorf("session %s", asJSON(t, got))
	}
	if text := asJSON(t, got); strings.Contains(text, "host") || strings.Contains(text, "agents-own") {
		t.Errorf("what only drivers and agents understand shows: %s", text)
	}
}

func TestEndedLeaseHasNoDeadlines(t *testing.T) {
	for _, state := range []sojourn.LeaseState{sojourn.LeaseReleased, sojourn.LeaseExpired, sojourn.LeaseLost} {
		l := lease(sojourn.Lease{State: state, GrantedAt: now, TouchedAt: now, EndedAt: now, EndReason: "why", Ceiling: time.Hour, Hold: time.Hour})
		if l.CeilingAt != "" || l.HoldUntil != "" || l.EndReason != "why" || l.EndedAt == "" {
			t.Errorf("%s: %s", state, asJSON(t, l))
		}
	}
	if l := lease(sojourn.Lease{State: sojourn.LeaseRequested, RequestedAt: now}); l.CeilingAt != "" || l.GrantedAt != "" {
		t.Errorf("requested: %s", asJSON(t, l))
	}
}

func TestRunStatesAreTheDomains(t *testing.T) {
	for _, state := range []sojourn.RunState{
		sojourn.RunQueued, sojourn.RunStarting, sojourn.RunActive, sojourn.RunSealing,
		sojourn.RunCompleted, sojourn.RunFailed, sojourn.RunCrashed, sojourn.RunCancelled,
	} {
		if got := run(sojourn.Run{State: state, Error: &sojourn.RunError{Code: "c"}}); got.State != string(state) || got.LastError.Code != "c" {
			t.Errorf("%s: %s", state, asJSON(t, got))
		}
	}
}

func TestEventIsShownAsItIsStored(t *testing.T) {
	for _, kind := range sojourn.EventTypes {
		got := event(sojourn.Event{Session: "s", Seq: 4, At: now, Type: kind, Data: json.RawMessage(`{"epoch":1}`)})
		if got.Type != string(kind) || string(got.Data) != `{"epoch":1}` {
			t.Errorf("%s: %s", kind, asJSON(t, got))
		}
	}
	if got := event(sojourn.Event{}); string(got.Data) != "{}" {
		t.Errorf("no payload: %s", got.Data)
	}
}

func TestKeyShowsNoHash(t *testing.T) {
	got := asJSON(t, apiKey(sojourn.Key{ID: "k", Kind: sojourn.KeyApp, Hash: [32]byte{1, 2, 3}, Scopes: []sojourn.Scope{"a"}, Hint: "wxyz", CreatedAt: now}))
	if want := `{"id":"k","project":"","kind":"app","scopes":["a"],"hint":"wxyz","createdAt":"2026-08-11T09:39:00.000Z"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestStatusSaysWhyThereIsNoCompute(t *testing.T) {
	got := status(engine.Capabilities{ComputeReason: "no user namespaces", Runtimes: []engine.RuntimeStatus{{ID: "codex", Reason: "not installed"}}})
	if got.Compute.Available || got.Compute.Reason != "no user namespaces" || got.Runtimes[0].Reason != "not installed" {
		t.Errorf("status %s", asJSON(t, got))
	}
}
