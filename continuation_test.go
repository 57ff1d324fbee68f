package sojourn

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

type continuationCase struct {
	name  string
	facts Facts
	now   time.Time
}

// continuationCases enumerates every combination of the facts that a
// continuation could depend on, with every lease and moment of leaseCases: also
// those that no sequence of decisions leads to, because a projection has to
// answer for them too.
func continuationCases() []continuationCase {
	heads := headCases()
	leases := someLeases()
	var cases []continuationCase
	for _, archived := range []bool{false, true} {
		for _, worked := range []bool{false, true} {
			for _, base := range []string{"", "c0ffee"} {
				for _, h := range heads {
					for _, l := range leases {
						f := Facts{Session: Session{ID: "s", State: SessionOpen, Worked: worked, Base: base}, Lease: l.lease, Head: h.head}
						if archived {
							f.Session.ArchivedAt = noon.Add(-time.Hour)
						}
						if h.head != nil {
							f.Session.Head = h.head.ID
						}
						name := fmt.Sprintf("archived %v, worked %v, base %q; %s; %s", archived, worked, base, h.name, l.name)
						cases = append(cases, continuationCase{name, f, l.now})
					}
				}
			}
		}
	}
	return cases
}

type headCase struct {
	name string
	head *Checkpoint
}

func headCases() []headCase {
	cases := []headCase{{"no checkpoint", nil}}
	for _, state := range slices.Sorted(maps.Keys(checkpointMoves)) {
		for _, conversation := range []Fidelity{FidelityExact, FidelityResultOnly, FidelityNone} {
			for _, workspace := range []Fidelity{FidelityPortableTree, FidelityNone} {
				for _, format := range []string{FormatV1, FormatV2} {
					for _, base := range []string{"", "c0ffee"} {
						cases = append(cases, headCase{
							fmt.Sprintf("checkpoint %s %s/%s %s on %q", state, conversation, workspace, format, base),
							&Checkpoint{
								ID: "c", Run: "r1", State: state, Format: format, Base: base,
								Conversation: conversation, Workspace: workspace,
							},
						})
					}
				}
			}
		}
	}
	return cases
}

// someLeases is leaseCases without repeats: one case for each lease state, with
// the moment before and the moment at its deadline.
func someLeases() []leaseCase {
	cases := []leaseCase{{"no lease", nil, noon}}
	for _, state := range slices.Sorted(maps.Keys(leaseMoves)) {
		l := heldLease(0)
		l.State = state
		requested := Lease{Epoch: 1, State: state, RequestedAt: noon, Ceiling: DefaultCeiling, Hold: DefaultHold}
		cases = append(
			cases,
			leaseCase{"lease " + string(state) + " before its deadline", &l, noon.Add(DefaultHold - 1)},
			leaseCase{"lease " + string(state) + " at its deadline", &l, noon.Add(DefaultHold)},
			leaseCase{"lease " + string(state) + " never granted", &requested, noon},
		)
	}
	return cases
}

// admitted is the contract's table of continuation states: whether another turn
// is accepted, and which reasons may come with it ("" for an absent reason).
var admitted = map[ContinuationState]struct {
	canContinue bool
	reasons     []ContinuationReason
}{
	ContinuationLive:       {true, []ContinuationReason{""}},
	ContinuationFresh:      {true, []ContinuationReason{ReasonNoPriorWork}},
	ContinuationRestorable: {true, []ContinuationReason{""}},
	ContinuationUnavailable: {false, []ContinuationReason{
		ReasonCheckpointUnavailable, ReasonConversationNotRestorable, ReasonWorkspaceNotRestorable, ReasonSessionArchived,
	}},
}

// TestContinuationReasonIsAbsentIffWorkIsCarried is guarantee G6, over the whole
// input space: the reason is absent if and only if the next turn carries the
// previous work.
func TestContinuationReasonIsAbsentIffWorkIsCarried(t *testing.T) {
	for _, c := range continuationCases() {
		s, h := c.facts.Session, c.facts.Head
		inPlace := c.facts.Lease != nil && c.facts.Lease.Live(c.now)
		fromCheckpoint := h != nil && h.State == CheckpointSealed && h.Format == FormatV2 &&
			h.Conversation == FidelityExact && h.Workspace == FidelityPortableTree && h.Base == s.Base
		worked := s.Worked || h != nil && h.State == CheckpointSealed
		carried := !s.Archived() && worked && (inPlace || fromCheckpoint)
		got := c.facts.Continuation(c.now)
		if (got.Reason == "") != carried {
			t.Errorf("%s: reason %q, and the next turn carries the work: %v", c.name, got.Reason, carried)
		}
	}
}

// TestContinuationKeepsTheTable checks state, canContinue, reason, fidelities
// and boundary against each other, over the whole input space.
func TestContinuationKeepsTheTable(t *testing.T) {
	seen := map[string]int{}
	for _, c := range continuationCases() {
		got := c.facts.Continuation(c.now)
		seen[string(got.State)+" "+string(got.Reason)]++
		row, ok := admitted[got.State]
		if !ok {
			t.Fatalf("%s: state %q is not in the vocabulary", c.name, got.State)
		}
		if got.CanContinue != row.canContinue || !slices.Contains(row.reasons, got.Reason) {
			t.Errorf("%s: %s with canContinue %v and reason %q is not in the table", c.name, got.State, got.CanContinue, got.Reason)
		}
		live := got.State == ContinuationLive
		if (got.Conversation == FidelityLive) != live || (got.Workspace == FidelityLive) != live {
			t.Errorf("%s: %s with fidelities %s and %s", c.name, got.State, got.Conversation, got.Workspace)
		}
		if got.State == ContinuationRestorable && (got.Conversation != FidelityExact || got.Workspace != FidelityPortableTree) {
			t.Errorf("%s: restorable with fidelities %s and %s", c.name, got.Conversation, got.Workspace)
		}
		if !slices.Contains([]Fidelity{FidelityLive, FidelityExact, FidelityResultOnly, FidelityNone}, got.Conversation) {
			t.Errorf("%s: conversation fidelity %q is not in the vocabulary", c.name, got.Conversation)
		}
		if !slices.Contains([]Fidelity{FidelityLive, FidelityPortableTree, FidelityNone}, got.Workspace) {
			t.Errorf("%s: workspace fidelity %q is not in the vocabulary", c.name, got.Workspace)
		}
		sealed := c.facts.Head != nil && c.facts.Head.State == CheckpointSealed
		switch {
		case got.Boundary != "" && !sealed:
			t.Errorf("%s: boundary %q without a sealed checkpoint", c.name, got.Boundary)
		case got.Boundary == "" && sealed:
			t.Errorf("%s: no boundary, and a checkpoint is sealed", c.name)
		case got.State == ContinuationRestorable && got.Boundary == "":
			t.Errorf("%s: restorable without a boundary", c.name)
		}
	}
	for state, row := range admitted {
		for _, reason := range row.reasons {
			if seen[string(state)+" "+string(reason)] == 0 {
				t.Errorf("no case is %s with reason %q", state, reason)
			}
		}
	}
}

// TestContinuationReasonsAreAsked checks each reason against its own sentence.
func TestContinuationReasonsAreAsked(t *testing.T) {
	for _, c := range continuationCases() {
		got, h, s := c.facts.Continuation(c.now), c.facts.Head, c.facts.Session
		sealed := h != nil && h.State == CheckpointSealed
		var ok bool
		switch got.Reason {
		case "":
			ok = got.CanContinue
		case ReasonSessionArchived:
			ok = s.Archived()
		case ReasonNoPriorWork:
			ok = !s.Worked && !sealed
		case ReasonCheckpointUnavailable:
			ok = s.Worked && !sealed
		case ReasonConversationNotRestorable:
			ok = sealed && h.Conversation != FidelityExact
		case ReasonWorkspaceNotRestorable:
			ok = sealed && h.Conversation == FidelityExact &&
				(h.Workspace != FidelityPortableTree || h.Format != FormatV2 || h.Base != s.Base)
		}
		if !ok {
			t.Errorf("%s: reason %q does not hold", c.name, got.Reason)
		}
	}
}

// TestArchivedSessionKeepsItsFidelities: the session "keeps whatever fidelities
// it had; it will never admit another turn".
func TestArchivedSessionKeepsItsFidelities(t *testing.T) {
	for _, c := range continuationCases() {
		if !c.facts.Session.Archived() {
			continue
		}
		got := c.facts.Continuation(c.now)
		before := c.facts.clone()
		before.Session.ArchivedAt = time.Time{}
		before.Lease = nil // archiving gives it back
		want := before.Continuation(c.now)
		want.CanContinue, want.State, want.Reason = false, ContinuationUnavailable, ReasonSessionArchived
		if got != want {
			t.Errorf("%s: %+v, want %+v", c.name, got, want)
		}
	}
}

// TestContinuationTable is the projection as a table to read.
func TestContinuationTable(t *testing.T) {
	head := func(change func(*Checkpoint)) *Checkpoint {
		c := Checkpoint{
			ID: "c1", Run: "r1", State: CheckpointSealed, Format: FormatV2,
			Conversation: FidelityExact, Workspace: FidelityPortableTree,
		}
		if change != nil {
			change(&c)
		}
		return &c
	}
	lease := heldLease(0)
	type row struct {
		what string
		f    Facts
	}
	rows := []row{
		{"just created", Facts{}},
		{"created, a lease is held, nothing ran", Facts{Lease: &lease}},
		{"ran, the lease is live, nothing sealed yet", Facts{Session: Session{Worked: true}, Lease: &lease}},
		{"ran, the lease is live, sealed", Facts{Session: Session{Worked: true}, Lease: &lease, Head: head(nil)}},
		{"ran, compute is gone, sealed", Facts{Session: Session{Worked: true}, Head: head(nil)}},
		{"ran, compute is gone, never sealed", Facts{Session: Session{Worked: true}}},
		{"ran, compute is gone, the capture is unfinished", Facts{Session: Session{Worked: true}, Head: head(func(c *Checkpoint) { c.State = CheckpointCapturing })}},
		{"the conversation was over its cap", Facts{Session: Session{Worked: true}, Head: head(func(c *Checkpoint) { c.Conversation = FidelityResultOnly })}},
		{"the tree was over its cap", Facts{Session: Session{Worked: true}, Head: head(func(c *Checkpoint) { c.Workspace = FidelityNone })}},
		{"neither was captured", Facts{Session: Session{Worked: true}, Head: head(func(c *Checkpoint) { c.Conversation, c.Workspace = FidelityNone, FidelityNone })}},
		{"sealed in the first format", Facts{Session: Session{Worked: true}, Head: head(func(c *Checkpoint) { c.Format = FormatV1 })}},
		{"sealed on another repository base", Facts{Session: Session{Worked: true, Base: "c0ffee"}, Head: head(nil)}},
		{"archived after a sealed run", Facts{Session: Session{Worked: true, ArchivedAt: noon}, Head: head(nil)}},
		{"archived, the conversation was over its cap", Facts{Session: Session{Worked: true, ArchivedAt: noon}, Head: head(func(c *Checkpoint) { c.Conversation = FidelityResultOnly })}},
		{"archived before anything ran", Facts{Session: Session{ArchivedAt: noon}}},
	}
	var b strings.Builder
	b.WriteString("# Written by TestContinuationTable.\n")
	for _, r := range rows {
		c := r.f.Continuation(noon)
		line := fmt.Sprintf("%-48s %-12s canContinue %-6v conversation %-12s workspace %-14s boundary %-3s reason %s",
			r.what, c.State, c.CanContinue, c.Conversation, c.Workspace, orDash(string(c.Boundary)), orDash(string(c.Reason)))
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	checkGolden(t, "continuation.golden", b.String())
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
