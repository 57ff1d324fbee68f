package sojourn

import (
	"testing"
	"time"
)

func TestSealMakesTheHeadAndEndsTheRunInOneChange(t *testing.T) {
	for _, final := range []RunState{RunCompleted, RunCancelled} {
		f := scene(t, RunActive, LeaseHeld)
		f = must(t, f, noon.Add(time.Minute), func(d *Decision) error { return d.FinishRun(theRun, final, "end_turn") })
		var c Checkpoint
		f = must(t, f, noon.Add(time.Minute), func(d *Decision) (err error) { c, err = d.BeginCheckpoint("checkpoint-1", theRun, 1); return err })
		c.Conversation, c.Workspace = FidelityExact, FidelityPortableTree
		d := decideOn(t, f, func(d *Decision) error { return d.Seal(c, CaptureNotes{}) })
		got := d.Facts()
		if got.Head == nil || got.Head.State != CheckpointSealed || got.Session.Head != c.ID || !got.Head.SealedAt.Equal(d.Now()) {
			t.Errorf("the head is %+v", got.Head)
		}
		if got.Last.State != final || got.Last.StopReason != "end_turn" {
			t.Errorf("the run is %+v, want %s", got.Last, final)
		}
		got.Lease = nil
		if n := got.Continuation(d.Now()); n.State != ContinuationRestorable || n.Boundary != theRun {
			t.Errorf("continuation %+v, want restorable at the run", n)
		}
	}
}

// TestASealThatCarriesNothingSaysWhy: a completed run is recoverable, or its
// events say why not.
func TestASealThatCarriesNothingSaysWhy(t *testing.T) {
	f := scene(t, RunSealing, LeaseHeld)
	for _, c := range []struct {
		conversation, workspace Fidelity
		want                    EventType
		reason                  ContinuationReason
	}{
		{FidelityExact, FidelityPortableTree, EventCheckpointSealed, ""},
		{FidelityResultOnly, FidelityPortableTree, EventCheckpointFailed, ReasonConversationNotRestorable},
		{FidelityExact, FidelityNone, EventCheckpointFailed, ReasonWorkspaceNotRestorable},
		{FidelityNone, FidelityNone, EventCheckpointFailed, ReasonConversationNotRestorable},
	} {
		x := capture(f, c.conversation, c.workspace)
		x.ConversationReason, x.WorkspaceReason = "over_cap", "over_cap"
		d := decideOn(t, f, func(d *Decision) error { return d.Seal(x, CaptureNotes{}) })
		events := d.Change().Events
		if len(events) != 2 || events[0].Type != c.want || events[1].Type != EventRunCompleted {
			t.Fatalf("%s/%s: events %+v, want %s, then run.completed", c.conversation, c.workspace, events, c.want)
		}
		if c.want == EventCheckpointFailed && payload(t, events[0])["conversationReason"] != "over_cap" {
			t.Errorf("%s/%s: the event does not say why: %s", c.conversation, c.workspace, events[0].Data)
		}
		after := d.Facts()
		after.Lease = nil
		if got := after.Continuation(d.Now()).Reason; got != c.reason {
			t.Errorf("%s/%s: reason %q, want %q", c.conversation, c.workspace, got, c.reason)
		}
	}
}

func TestLateAndStrangeCheckpointsAreFencedOff(t *testing.T) {
	f := scene(t, RunSealing, LeaseHeld)
	next := f.clone()
	next.Session.LastEpoch, next.Lease.Epoch = 2, 2
	for _, c := range []struct {
		name   string
		facts  Facts
		change func(*Checkpoint)
	}{
		{"of another run", f, func(c *Checkpoint) { c.Run = "run-0" }},
		{"of an older epoch", next, func(c *Checkpoint) { c.Epoch = 1 }},
		{"of an epoch to come", f, func(c *Checkpoint) { c.Epoch = 2 }},
		{"with another parent", f, func(c *Checkpoint) { c.Parent = "checkpoint-0" }},
		{"already sealed", f, func(c *Checkpoint) { c.State = CheckpointSealed }},
		{"abandoned", f, func(c *Checkpoint) { c.State = CheckpointAbandoned }},
		{"of no state", f, func(c *Checkpoint) { c.State = "" }},
	} {
		x := capture(c.facts, FidelityExact, FidelityPortableTree)
		c.change(&x)
		d := c.facts.Decide(noon.Add(time.Minute))
		refused(t, c.name, d.Seal(x, CaptureNotes{}), CodeExecutionLost)
		if d.Facts().Head != nil || d.Facts().Active == nil {
			t.Errorf("%s: it became the head, or the run ended", c.name)
		}
	}
}

// TestASealAfterTheLeaseEndedCounts: what was captured before the sandbox went
// is not thrown away, as long as no newer lease is granted.
func TestASealAfterTheLeaseEndedCounts(t *testing.T) {
	f := scene(t, RunSealing, LeaseExpired)
	refused(t, "seal", f.Decide(noon.Add(time.Minute)).Seal(capture(f, FidelityExact, FidelityPortableTree), CaptureNotes{}), "")
}

func TestCheckpointsFormAChain(t *testing.T) {
	f := scene(t, RunCompleted, LeaseHeld)
	for _, step := range []func(*Decision) error{
		func(d *Decision) error { return d.Submit("turn-2", "run-2", hello) },
		func(d *Decision) error { return d.StartRun("run-2") },
		func(d *Decision) error { return d.ActivateRun("run-2", 1) },
		func(d *Decision) error { return d.FinishRun("run-2", RunCompleted, "end_turn") },
	} {
		f = must(t, f, noon.Add(time.Minute), step)
	}
	d := f.Decide(noon.Add(time.Minute))
	c, err := d.BeginCheckpoint("checkpoint-2", "run-2", 1)
	if err != nil {
		t.Fatal(err)
	}
	if c.Parent != "checkpoint-1" || c.State != CheckpointCapturing || c.Format != FormatV2 {
		t.Errorf("the checkpoint is %+v, want a child of the head", c)
	}
	d.AbandonCheckpoint(c)
	rows := d.Change().Checkpoints
	if last := rows[len(rows)-1]; last.State != CheckpointAbandoned {
		t.Errorf("the checkpoint is %s, want abandoned", last.State)
	}
	if d.Facts().Head.ID != "checkpoint-1" {
		t.Error("an abandoned checkpoint moved the head")
	}
	sealed := *f.Head
	n := len(d.Change().Checkpoints)
	d.AbandonCheckpoint(sealed)
	if len(d.Change().Checkpoints) != n {
		t.Error("a sealed checkpoint was abandoned")
	}
}

func TestAReplacedHeadKeepsTheBoundaryAndIsNotRestorable(t *testing.T) {
	for name, c := range map[string]struct {
		replace   func(*Decision) error
		workspace Fidelity
	}{
		"refused":   {func(d *Decision) error { return d.RefuseHead("checkpoint-2") }, FidelityPortableTree},
		"condemned": {func(d *Decision) error { return d.CondemnHead("checkpoint-2") }, FidelityNone},
	} {
		t.Run(name, func(t *testing.T) {
			f := scene(t, RunCompleted, LeaseReleased)
			d := decideOn(t, f, c.replace)
			after := d.Facts()
			got := after.Continuation(d.Now())
			want := Continuation{
				State: ContinuationUnavailable, Conversation: FidelityResultOnly, Workspace: c.workspace,
				Boundary: theRun, Reason: ReasonConversationNotRestorable,
			}
			if got != want {
				t.Errorf("continuation %+v, want %+v", got, want)
			}
			if after.Head.Parent != "checkpoint-1" || after.Session.Head != "checkpoint-2" || f.Head.Conversation != FidelityExact {
				t.Errorf("the head is %+v", after.Head)
			}
			if events := d.Change().Events; len(events) != 1 || events[0].Type != EventCheckpointFailed {
				t.Errorf("events %+v, want one checkpoint.failed", events)
			}
			refused(t, "without a head", c.replace(scene(t, "", "").Decide(noon)), CodeInternal)
		})
	}
}

func TestRestorableNeedsEveryPart(t *testing.T) {
	good := Checkpoint{State: CheckpointSealed, Conversation: FidelityExact, Workspace: FidelityPortableTree, Format: FormatV2}
	if !good.Restorable("") {
		t.Error("a whole checkpoint is not restorable")
	}
	for name, change := range map[string]func(*Checkpoint){
		"not sealed":             func(c *Checkpoint) { c.State = CheckpointCapturing },
		"no exact conversation":  func(c *Checkpoint) { c.Conversation = FidelityResultOnly },
		"no tree":                func(c *Checkpoint) { c.Workspace = FidelityNone },
		"the first format":       func(c *Checkpoint) { c.Format = FormatV1 },
		"another base":           func(c *Checkpoint) { c.Base = "c0ffee" },
		"a format of the future": func(c *Checkpoint) { c.Format = "workspace.v3" },
	} {
		c := good
		change(&c)
		if c.Restorable("") {
			t.Errorf("%s: restorable", name)
		}
	}
}

// TestFailedDrainCondemnsOnlyWhatIsLost: a session in which nothing was done yet has
// lost nothing when its sandbox cannot be captured; with files in it, it has.
func TestFailedDrainCondemnsOnlyWhatIsLost(t *testing.T) {
	for _, visited := range []bool{false, true} {
		f := scene(t, "", LeaseHeld)
		now := noon.Add(time.Minute)
		if visited {
			f = must(t, f, now, func(d *Decision) error { d.VisitLease(1); return nil })
		}
		var c Checkpoint
		f = must(t, f, now, func(d *Decision) error { return d.DrainLease(1, "suspended", false) })
		f = must(t, f, now, func(d *Decision) (err error) { c, err = d.BeginDrain("checkpoint-1", 1); return err })
		c.Conversation, c.Workspace = FidelityResultOnly, FidelityNone
		f = must(t, f, now, func(d *Decision) error { return d.SealDrain(c, CaptureNotes{}, LeaseReleased) })
		if got := f.Continuation(now); got.CanContinue == visited {
			t.Errorf("visited %v: continuation %+v", visited, got)
		}
	}
}

// TestVisitDuringACaptureIsUnsaved: the boundary of a checkpoint is where its capture
// began, not where it was sealed.
func TestVisitDuringACaptureIsUnsaved(t *testing.T) {
	f := scene(t, RunSealing, LeaseHeld)
	began := noon.Add(time.Minute)
	f = must(t, f, began.Add(-time.Second), func(d *Decision) error { d.VisitLease(1); return nil })
	var c Checkpoint
	f = must(t, f, began, func(d *Decision) (err error) { c, err = d.BeginCheckpoint("checkpoint-1", theRun, 1); return err })
	c.Conversation, c.Workspace = FidelityExact, FidelityPortableTree
	seal := func(f Facts) Facts {
		return must(t, f, began.Add(2*time.Second), func(d *Decision) error { return d.Seal(c, CaptureNotes{}) })
	}
	if seal(f).Unsaved() {
		t.Error("what was there when the capture began is taken for unsaved")
	}
	f = must(t, f, began.Add(time.Second), func(d *Decision) error { d.VisitLease(1); return nil })
	if !seal(f).Unsaved() {
		t.Error("what a visit has left while files were captured is taken for saved")
	}
}
