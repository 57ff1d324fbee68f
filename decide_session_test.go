package sojourn

import (
	"strings"
	"testing"
	"time"
)

// refused fails the test unless err bears code.
func refused(t *testing.T, what string, err error, code Code) *Error {
	t.Helper()
	if got := CodeOf(err); got != code {
		t.Errorf("%s: code %q (%v), want %q", what, got, err, code)
		return &Error{}
	}
	e, _ := err.(*Error)
	return e
}

func TestCreateProvisionsNothing(t *testing.T) {
	d, err := Create(noon, NewSession{ID: "s", Project: "p", Contract: ContractCloud, Title: "Title", Runtime: "script"})
	if err != nil {
		t.Fatal(err)
	}
	c := d.Change()
	if !c.Created || c.Session.State != SessionNew || len(c.Leases)+len(c.Runs)+len(c.Work) != 0 {
		t.Errorf("the change is %+v, want a new session and nothing else", c)
	}
	if len(c.Events) != 1 || c.Events[0].Type != EventSessionCreated {
		t.Errorf("events %+v, want one session.created", c.Events)
	}
	if got := d.Facts().Workspace(noon).State; got != WorkspaceUnavailable {
		t.Errorf("the workspace is %s, want unavailable", got)
	}
}

func TestCreateKeepsItsBounds(t *testing.T) {
	pairs := func(n int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[strings.Repeat("k", i+1)] = ""
		}
		return m
	}
	for _, c := range []struct {
		name string
		in   NewSession
		want Code
	}{
		{"the longest title", NewSession{Title: strings.Repeat("x", MaxTitleBytes)}, ""},
		{"a byte more", NewSession{Title: strings.Repeat("x", MaxTitleBytes+1)}, CodeInvalid},
		{"a title that is no text", NewSession{Title: "\xff"}, CodeInvalid},
		{"all metadata entries", NewSession{Metadata: pairs(MaxMetadataPairs)}, ""},
		{"one entry more", NewSession{Metadata: pairs(MaxMetadataPairs + 1)}, CodeInvalid},
		{"the longest entry", NewSession{Metadata: map[string]string{"k": strings.Repeat("v", MaxMetadataBytes-1)}}, ""},
		{"a byte more", NewSession{Metadata: map[string]string{"k": strings.Repeat("v", MaxMetadataBytes)}}, CodeInvalid},
	} {
		_, err := Create(noon, c.in)
		refused(t, c.name, err, c.want)
	}
}

func TestSubmitAcceptsATurnWithItsRun(t *testing.T) {
	d := scene(t, "", "").Decide(noon.Add(time.Minute))
	if err := d.Submit(theTurn, theRun, hello); err != nil {
		t.Fatal(err)
	}
	c, f := d.Change(), d.Facts()
	if len(c.Turns) != 1 || c.Turns[0].Number != 1 || !c.Turns[0].SubmittedAt.Equal(d.Now()) {
		t.Errorf("turns %+v, want the first, submitted now", c.Turns)
	}
	if len(c.Runs) != 1 || c.Runs[0].State != RunQueued || c.Runs[0].Turn != theTurn {
		t.Errorf("runs %+v, want one queued", c.Runs)
	}
	if f.Session.ActiveRun != theRun || f.Active == nil || f.Last == nil || f.Session.State != SessionOpen {
		t.Errorf("facts %+v do not show the run", f)
	}
	if f.Session.Worked {
		t.Error("the session worked already, before an agent had the prompt")
	}
	if len(c.Work) != 1 || c.Work[0] != (WorkOrder{Kind: WorkRun, Key: string(theRun), Due: d.Now()}) {
		t.Errorf("work %+v, want one run at once", c.Work)
	}
}

func TestSubmitRefusesWithTheCodeThatHelps(t *testing.T) {
	worked := scene(t, RunCompleted, LeaseHeld)
	deadline := worked.Lease.GrantedAt.Add(DefaultCeiling)
	for _, c := range []struct {
		name   string
		facts  func() Facts
		now    time.Time
		code   Code
		detail string
	}{
		{"a run is active", func() Facts { return scene(t, RunActive, LeaseHeld) }, noon.Add(time.Minute), CodeRunActive, ""},
		{"a run is queued", func() Facts { return scene(t, RunQueued, "") }, noon.Add(time.Minute), CodeRunActive, ""},
		{"the session is archived", func() Facts {
			return must(t, worked, noon.Add(time.Minute), (*Decision).Archive)
		}, noon.Add(time.Hour), CodeSessionArchived, ""},
		{"the session is closed", func() Facts {
			f := worked.clone()
			f.Session.State, f.Session.CloseReason = SessionClosed, CloseFailed
			return f
		}, noon.Add(time.Minute), CodeSessionArchived, ""},
		{"work ran and nothing was sealed", func() Facts {
			f := scene(t, RunActive, LeaseHeld)
			f = must(t, f, noon.Add(time.Minute), func(d *Decision) error { return d.EndRun(theRun, RunCrashed, StopWorkspaceLost, nil) })
			return must(t, f, noon.Add(time.Minute), func(d *Decision) error { return d.EndLease(1, LeaseLost, "killed") })
		}, noon.Add(time.Hour), CodeResumeUnavailable, string(ReasonCheckpointUnavailable)},
		{"the ceiling is near", func() Facts {
			f := worked.clone()
			f.Lease.TouchedAt = deadline.Add(-time.Minute)
			return f
		}, deadline.Add(-time.Second), CodeWorkspaceExpiring, ""},
		{"a minute before the ceiling", func() Facts {
			f := worked.clone()
			f.Lease.TouchedAt = deadline.Add(-time.Minute)
			return f
		}, deadline.Add(-time.Minute), "", ""},
		{"at the ceiling: a fresh lease follows", func() Facts {
			f := worked.clone()
			f.Lease.TouchedAt = deadline.Add(-time.Minute)
			return f
		}, deadline, "", ""},
		{"the lease lapsed and a checkpoint is there", func() Facts { return worked }, noon.Add(20 * time.Hour), "", ""},
	} {
		e := refused(t, c.name, c.facts().Decide(c.now).Submit("turn-2", "run-2", hello), c.code)
		if c.detail != "" && e.Details["reason"] != c.detail {
			t.Errorf("%s: reason %q, want %q", c.name, e.Details["reason"], c.detail)
		}
		if c.code == CodeWorkspaceExpiring && (e.RetryAfter <= 0 || e.RetryAfter > ExpiringWithin) {
			t.Errorf("%s: retry after %v, want when the lease has ended", c.name, e.RetryAfter)
		}
	}
}

func TestSubmitReadsEveryPart(t *testing.T) {
	text := func(n int) Part { return Part{Type: "text", Text: strings.Repeat("x", n)} }
	many := make([]Part, MaxInputParts)
	for i := range many {
		many[i] = text(1)
	}
	for _, c := range []struct {
		name  string
		input []Part
		want  Code
	}{
		{"no parts", nil, CodeInvalid},
		{"all parts", many, ""},
		{"a part more", append(many, text(1)), CodeInvalid},
		{"an empty text", []Part{{Type: "text"}}, CodeInvalid},
		{"a text with data", []Part{{Type: "text", Text: "x", Data: "eA=="}}, CodeInvalid},
		{"an image", []Part{{Type: "image", MimeType: "image/png", Data: "eA=="}}, ""},
		{"an image without data", []Part{{Type: "image", MimeType: "image/png"}}, CodeInvalid},
		{"a file without a type", []Part{{Type: "file", Data: "eA==", Name: "x"}}, CodeInvalid},
		{"an unknown type", []Part{{Type: "audio", Data: "eA=="}}, CodeInvalid},
		{"a good part and a bad one", []Part{text(1), {Type: "text"}}, CodeInvalid},
		{"the most bytes", []Part{text(MaxInputBytes)}, ""},
		{"a byte more, in two parts", []Part{text(MaxInputBytes), text(1)}, CodeTooLarge},
	} {
		refused(t, c.name, scene(t, "", "").Decide(noon).Submit(theTurn, theRun, c.input), c.want)
	}
}

func TestArchiveIsForGoodAndGivesTheLeaseBack(t *testing.T) {
	d := scene(t, RunCompleted, LeaseHeld).Decide(noon.Add(time.Minute))
	if err := d.Archive(); err != nil {
		t.Fatal(err)
	}
	f := d.Facts()
	if f.Lease.State != LeaseReleased || !f.Session.ArchivedAt.Equal(d.Now()) {
		t.Errorf("the lease is %s and the session archived at %v", f.Lease.State, f.Session.ArchivedAt)
	}
	if c := f.Continuation(d.Now()); c.Conversation != FidelityExact || c.Boundary != theRun || c.Reason != ReasonSessionArchived {
		t.Errorf("continuation %+v, want what it had and session_archived", c)
	}
	again := f.Decide(noon.Add(time.Hour))
	if err := again.Archive(); err != nil || len(again.Change().Events) != 0 {
		t.Errorf("archiving again: error %v, events %+v, want nothing", err, again.Change().Events)
	}
	_, err := again.RequestLease("fake", "none", Terms{})
	refused(t, "a lease for an archived session", err, CodeSessionArchived)
}

// TestAWorkspaceIsAdmittedWhereATurnWouldBe: asking for a workspace is refused
// for the same reasons, except that a run which is active has one on its way.
func TestAWorkspaceIsAdmittedWhereATurnWouldBe(t *testing.T) {
	lost := must(t, scene(t, RunActive, LeaseHeld), noon.Add(time.Minute), func(d *Decision) error {
		return d.EndRun(theRun, RunCrashed, StopWorkspaceLost, nil)
	})
	lost = must(t, lost, noon.Add(time.Minute), func(d *Decision) error { return d.EndLease(1, LeaseLost, "killed") })
	for _, c := range []struct {
		name  string
		facts Facts
		want  Code
	}{
		{"a fresh session", scene(t, "", ""), ""},
		{"a run is active", scene(t, RunActive, LeaseHeld), ""},
		{"sealed, the lease is gone", scene(t, RunCompleted, LeaseExpired), ""},
		{"nothing was sealed", lost, CodeResumeUnavailable},
		{"archived", must(t, scene(t, RunCompleted, LeaseHeld), noon.Add(time.Minute), (*Decision).Archive), CodeSessionArchived},
	} {
		refused(t, c.name, c.facts.Decide(noon.Add(time.Hour)).AdmitsWorkspace(), c.want)
	}
}

func TestNotedEventsChangeNothingElse(t *testing.T) {
	f := scene(t, RunActive, LeaseHeld)
	d := f.Decide(noon.Add(time.Hour))
	d.Note(EventDraft{Type: EventAgentUpdate, Turn: theTurn, Run: theRun}, EventDraft{Type: EventAgentLog, Turn: theTurn, Run: theRun})
	if got := effects(d.Change()); len(got) != 2 || !d.Facts().Session.UpdatedAt.Equal(d.Now()) {
		t.Errorf("the change is %v, updated at %v, want two events now", got, d.Facts().Session.UpdatedAt)
	}
}
