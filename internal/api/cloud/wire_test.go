package cloud

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

var now = time.Date(2026, 8, 11, 9, 39, 0, 0, time.UTC)

// asJSON is v as it goes over the wire.
func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The three rows of the table of workspace states, with when expiresAt is there.
func TestWorkspaceIsAsDocumented(t *testing.T) {
	lease := func(granted time.Duration) *sojourn.Lease {
		at := now.Add(-granted)
		return &sojourn.Lease{
			State: sojourn.LeaseHeld, GrantedAt: at, TouchedAt: at, Ceiling: sojourn.DefaultCeiling, Hold: sojourn.DefaultHold,
		}
	}
	for name, c := range map[string]struct {
		lease *sojourn.Lease
		want  string
	}{
		"unavailable": {nil, `{"state":"unavailable"}`},
		"starting":    {&sojourn.Lease{State: sojourn.LeaseRequested}, `{"state":"unavailable"}`},
		"attached":    {lease(0), `{"state":"attached","expiresAt":"2026-08-11T10:04:00.000Z"}`},
		"expired":     {lease(time.Hour), `{"state":"expired","expiresAt":"2026-08-11T09:04:00.000Z"}`},
		"long ago":    {lease(72 * time.Hour), `{"state":"unavailable"}`},
	} {
		got := asJSON(t, workspace(sojourn.Facts{Lease: c.lease}.Workspace(now)))
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// The documented examples and rows of continuation, byte for byte.
func TestContinuationIsAsDocumented(t *testing.T) {
	const fresh = `{"canContinue":true,"state":"fresh","conversation":{"fidelity":"none"},"workspace":{"fidelity":"none"},"reason":"no_prior_work"}`
	const restorable = `{"canContinue":true,"state":"restorable","conversation":{"fidelity":"exact"},"workspace":{"fidelity":"portable_tree"},"boundaryRunId":"9a8b7c6d"}`
	head := func(conversation, tree sojourn.Fidelity, format, base string) *sojourn.Checkpoint {
		return &sojourn.Checkpoint{
			State: sojourn.CheckpointSealed, Run: "9a8b7c6d", Conversation: conversation, Workspace: tree, Format: format, Base: base,
		}
	}
	lost := func(conversation, tree, reason string) string {
		return fmt.Sprintf(`{"canContinue":false,"state":"unavailable","conversation":{"fidelity":%q},"workspace":{"fidelity":%q},"boundaryRunId":"9a8b7c6d","reason":%q}`, conversation, tree, reason)
	}
	worked := sojourn.Session{Worked: true, Base: "b"}
	archived := worked
	archived.ArchivedAt = now
	live := &sojourn.Lease{State: sojourn.LeaseHeld, GrantedAt: now, TouchedAt: now, Ceiling: time.Hour, Hold: time.Hour}
	exact := head(sojourn.FidelityExact, sojourn.FidelityPortableTree, sojourn.FormatV2, "b")
	for name, c := range map[string]struct {
		facts sojourn.Facts
		want  string
	}{
		"fresh":      {sojourn.Facts{}, fresh},
		"restorable": {sojourn.Facts{Session: worked, Head: exact}, restorable},
		"live": {
			sojourn.Facts{Session: worked, Head: exact, Lease: live},
			`{"canContinue":true,"state":"live","conversation":{"fidelity":"live"},"workspace":{"fidelity":"live"},"boundaryRunId":"9a8b7c6d"}`,
		},
		"no checkpoint": {
			sojourn.Facts{Session: worked},
			`{"canContinue":false,"state":"unavailable","conversation":{"fidelity":"none"},"workspace":{"fidelity":"none"},"reason":"checkpoint_unavailable"}`,
		},
		"conversation not captured": {
			sojourn.Facts{Session: worked, Head: head(sojourn.FidelityResultOnly, sojourn.FidelityPortableTree, sojourn.FormatV2, "b")},
			lost("result_only", "portable_tree", "conversation_not_restorable"),
		},
		"tree not captured": {
			sojourn.Facts{Session: worked, Head: head(sojourn.FidelityExact, sojourn.FidelityNone, sojourn.FormatV2, "b")},
			lost("exact", "none", "workspace_not_restorable"),
		},
		"another repository base": {
			sojourn.Facts{Session: worked, Head: head(sojourn.FidelityExact, sojourn.FidelityPortableTree, sojourn.FormatV2, "old")},
			lost("exact", "portable_tree", "workspace_not_restorable"),
		},
		"a stored wamp.workspace.v1 checkpoint": {
			sojourn.Facts{Session: worked, Head: head(sojourn.FidelityExact, sojourn.FidelityPortableTree, sojourn.FormatV1, "b")},
			lost("exact", "portable_tree", "workspace_not_restorable"),
		},
		"archived": {
			sojourn.Facts{Session: archived, Head: exact},
			lost("exact", "portable_tree", "session_archived"),
		},
	} {
		if got := asJSON(t, continuation(c.facts.Continuation(now))); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
	}
}

func TestRunStatesAreThoseOfTheContract(t *testing.T) {
	waiting := []sojourn.Interaction{{Run: "r", State: sojourn.InteractionOpen}}
	other := []sojourn.Interaction{{Run: "other", State: sojourn.InteractionOpen}, {Run: "r", State: sojourn.InteractionAnswered}}
	for _, c := range []struct {
		state sojourn.RunState
		open  []sojourn.Interaction
		want  string
	}{
		{sojourn.RunQueued, waiting, "queued"},
		{sojourn.RunStarting, waiting, "provisioning"},
		{sojourn.RunActive, nil, "running"},
		{sojourn.RunActive, other, "running"},
		{sojourn.RunActive, waiting, "awaiting_interaction"},
		{sojourn.RunSealing, nil, "running"},
		{sojourn.RunSealing, waiting, "running"},
		{sojourn.RunCompleted, waiting, "completed"},
		{sojourn.RunFailed, nil, "failed"},
		{sojourn.RunCrashed, nil, "crashed"},
		{sojourn.RunCancelled, nil, "cancelled"},
	} {
		if got := run(sojourn.Run{ID: "r", State: c.state}, c.open).State; got != c.want {
			t.Errorf("%s with %v: %s, want %s", c.state, c.open, got, c.want)
		}
	}
}

// "optional fields are absent": only activeRun is there with null.
func TestSessionLeavesOutWhatItHasNot(t *testing.T) {
	f := sojourn.Facts{Session: sojourn.Session{ID: "s", Runtime: "script", CreatedAt: now, UpdatedAt: now}}
	want := `{"id":"s","runtime":"script","createdAt":"2026-08-11T09:39:00.000Z","updatedAt":"2026-08-11T09:39:00.000Z",` +
		`"workspace":{"state":"unavailable"},"continuation":{"canContinue":true,"state":"fresh","conversation":{"fidelity":"none"},` +
		`"workspace":{"fidelity":"none"},"reason":"no_prior_work"},"activeRun":null}`
	if got := asJSON(t, session(f, now)); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}

func TestSessionShowsItsRuns(t *testing.T) {
	active := sojourn.Run{ID: "r2", Session: "s", Turn: "t2", State: sojourn.RunActive, QueuedAt: now, StopReason: "end_turn"}
	failed := sojourn.Run{
		ID: "r1", Session: "s", Turn: "t1", State: sojourn.RunFailed, QueuedAt: now, EndedAt: now, StopReason: "x",
		Error: &sojourn.RunError{Code: "compute_not_configured", Message: "No."},
	}
	for name, c := range map[string]struct {
		facts                      sojourn.Facts
		active, last, code, reason string
	}{
		"active": {sojourn.Facts{Active: &active, Last: &active}, "r2", "r2", "", ""},
		"failed": {sojourn.Facts{Last: &failed}, "", "r1", "compute_not_configured", "x"},
	} {
		got := session(c.facts, now)
		var a, code string
		if got.ActiveRun.Run != nil {
			a = got.ActiveRun.ID
		}
		if got.LastError != nil {
			code = got.LastError.Code
		}
		if a != c.active || got.LastRun.ID != c.last || code != c.code || got.LastRun.StopReason != c.reason {
			t.Errorf("%s: %s, want %+v", name, asJSON(t, got), c)
		}
	}
}

func TestInteractionShowsHowItEnded(t *testing.T) {
	i := sojourn.Interaction{
		ID: "i", Session: "s", Run: "r", Kind: "permission", State: sojourn.InteractionAnswered, Ref: "secret-ref", OpenedAt: now, EndedAt: now,
		Request: json.RawMessage(`{"q":1}`), Options: []sojourn.Option{{ID: "yes", Name: "Allow", Kind: "allow_once"}},
		Answer: &sojourn.Answer{OptionID: "yes"},
	}
	want := `{"id":"i","sessionId":"s","runId":"r","kind":"permission","state":"answered","request":{"q":1},` +
		`"options":[{"optionId":"yes","name":"Allow","kind":"allow_once"}],"requestedAt":"2026-08-11T09:39:00.000Z",` +
		`"endedAt":"2026-08-11T09:39:00.000Z","answer":{"optionId":"yes"}}`
	if got := asJSON(t, interaction(i)); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}

func TestEventTypesCarryThePrefixAndNoSandbox(t *testing.T) {
	payload := json.RawMessage(`{"epoch":3,"isolation":"gvisor","driver":"x","handle":{},"expiresAt":"E","reason":"R","checkpointId":"C","boundaryRunId":"B"}`)
	for _, kind := range sojourn.EventTypes {
		got := event(sojourn.Event{Session: "s", Seq: 7, Type: kind, At: now, Data: payload})
		if got.Type != "wamp."+string(kind) || got.ID != "s:7" || got.Sequence != 7 {
			t.Errorf("%s: %s", kind, asJSON(t, got))
		}
		if strings.HasPrefix(string(kind), "workspace.") {
			if want := `{"boundaryRunId":"B","checkpointId":"C","expiresAt":"E","reason":"R"}`; string(got.Data) != want {
				t.Errorf("%s shows %s, want %s", kind, got.Data, want)
			}
		} else if kind != sojourn.EventModelCalled && string(got.Data) != string(payload) {
			t.Errorf("%s shows %s, want all", kind, got.Data)
		}
	}
}

func TestModelCallShowsNoProvider(t *testing.T) {
	payload := json.RawMessage(`{"api":"openai","costMicroCents":12,"inputTokens":3,"model":"large","provider":"reseller"}`)
	got := event(sojourn.Event{Session: "s", Seq: 7, Type: sojourn.EventModelCalled, At: now, Data: payload})
	if want := `{"api":"openai","costMicroCents":12,"inputTokens":3,"model":"large"}`; string(got.Data) != want {
		t.Errorf("it shows %s, want %s", got.Data, want)
	}
}

func TestEventWithoutPayloadHasAnEmptyOne(t *testing.T) {
	for _, kind := range []sojourn.EventType{sojourn.EventRunQueued, sojourn.EventWorkspaceLost, sojourn.EventModelCalled} {
		for _, payload := range []string{"", "{}"} {
			if got := event(sojourn.Event{Type: kind, Data: json.RawMessage(payload)}); string(got.Data) != "{}" {
				t.Errorf("%s with %q: %s", kind, payload, got.Data)
			}
		}
	}
}

func TestFrameIsOneLineAndKeepsItsPlace(t *testing.T) {
	for _, payload := range []string{`{"a":"x\ny"}`, "{\n  \"a\": 1\n}", `not json`, ``} {
		got := string(frame(sojourn.Event{Session: "s", Seq: 5, Type: sojourn.EventAgentUpdate, At: now, Data: json.RawMessage(payload)}))
		parts := strings.Split(strings.TrimSuffix(got, "\n\n"), "\n")
		if len(parts) != 3 || parts[0] != "id: 5" || parts[1] != "event: wamp.agent.update" || !strings.HasPrefix(parts[2], `data: {"id":"s:5","sequence":5,`) {
			t.Errorf("%q becomes %q", payload, got)
		}
	}
}

func TestPageSaysWhetherThereIsMore(t *testing.T) {
	events := []sojourn.Event{{Seq: 11}, {Seq: 12}}
	if got := page(events, 13); len(got.Events) != 2 || got.NextAfter == nil || *got.NextAfter != 12 {
		t.Errorf("a page in the middle: %s, want to go on behind 12", asJSON(t, got))
	}
	if got := page(events, 12); got.NextAfter != nil {
		t.Errorf("the last page: %s, want no next", asJSON(t, got))
	}
	if got := asJSON(t, page(nil, 12)); got != `{"events":[]}` {
		t.Errorf("behind the end: %s", got)
	}
}

// The table of labels, word for word.
func TestLabelsAreAsDocumented(t *testing.T) {
	for _, c := range []struct {
		compute   bool
		placement Placement
		label     string
		state     string
	}{
		{true, "", "WAMP managed sandbox", "available"},
		{true, Managed, "WAMP managed sandbox", "available"},
		{true, SelfHosted, "Organization self-hosted runner", "available"},
		{true, Owned, "Organization-owned managed sandbox", "available"},
		{false, "", "No compute configured", "not_configured"},
		{false, Managed, "No compute configured", "not_configured"},
		{false, SelfHosted, "No compute configured", "not_configured"},
		{false, Owned, "No compute configured", "not_configured"},
	} {
		got := capabilities(engine.Capabilities{Compute: c.compute}, c.placement)
		if len(got.Environments) != 1 || got.Environments[0].Label != c.label || got.Environments[0].Availability.State != c.state {
			t.Errorf("%v %q: %s, want exactly %q, %s", c.compute, c.placement, asJSON(t, got.Environments), c.label, c.state)
		}
	}
}

// The documented example, byte for byte.
func TestEnvironmentIsAsDocumented(t *testing.T) {
	got := capabilities(engine.Capabilities{
		Compute: true, WorkspaceMaxBytes: 268435456, ConversationMaxBytes: 268435456,
		Driver: "gvisor", Isolation: "gvisor", ComputeReason: "because",
		Runtimes: []engine.RuntimeStatus{
			{ID: "wamp", Label: "W", Available: true, Exact: true, Default: true},
			{ID: "claude-code", Label: "C", Available: true, Exact: true},
			{ID: "codex", Label: "X", Reason: "not installed"},
		},
	}, Managed)
	const want = `[{"id":"managed","label":"WAMP managed sandbox","availability":{"state":"available"},"default":true,` +
		`"runtimes":["wamp","claude-code"],"workspace":{"checkpoint":"portable_tree","maxCheckpointBytes":268435456}}]`
	if asJSON(t, got.Environments) != want {
		t.Errorf("\n got %s\nwant %s", asJSON(t, got.Environments), want)
	}
	const runtimes = `[{"id":"wamp","label":"W","availability":{"state":"available"},"conversation":"exact","default":true},` +
		`{"id":"claude-code","label":"C","availability":{"state":"available"},"conversation":"exact"},` +
		`{"id":"codex","label":"X","availability":{"state":"not_configured"},"conversation":"none"}]`
	if asJSON(t, got.Runtimes) != runtimes {
		t.Errorf("\n got %s\nwant %s", asJSON(t, got.Runtimes), runtimes)
	}
	const artifacts = `{"conversationCheckpointMaxBytes":268435456,"workspaceCheckpointMaxBytes":268435456}`
	if asJSON(t, got.Artifacts) != artifacts {
		t.Errorf("artifacts: %s", asJSON(t, got.Artifacts))
	}
	// "The control URL, pool identity, provider, and image behind any of them are
	// never exposed."
	if strings.Contains(asJSON(t, got), "gvisor") || strings.Contains(asJSON(t, got), "because") {
		t.Errorf("the provider shows: %s", asJSON(t, got))
	}
}

func TestEventCatalogueIsWhatWasPublished(t *testing.T) {
	var b strings.Builder
	for _, kind := range sojourn.EventTypes {
		fmt.Fprintln(&b, event(sojourn.Event{Type: kind}).Type)
	}
	golden(t, "testdata/events.golden", []byte(b.String()))
}
