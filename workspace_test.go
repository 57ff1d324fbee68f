package sojourn

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// leaseCase is one lease and one moment, with words for both.
type leaseCase struct {
	name  string
	lease *Lease
	now   time.Time
}

// leaseCases enumerates every lease that a store could hold, and some that it
// could not: all states × never granted or granted × bound by hold or ceiling ×
// never ended or ended before, at or after the deadline × now on both sides of
// every instant that matters.
func leaseCases() []leaseCase {
	cases := []leaseCase{{"no lease", nil, noon}}
	for _, state := range slices.Sorted(maps.Keys(leaseMoves)) {
		for _, granted := range []bool{false, true} {
			for _, bound := range []string{"hold", "ceiling"} {
				for _, ended := range []string{"never", "early", "at its deadline", "late"} {
					cases = append(cases, leaseMoments(state, granted, bound, ended)...)
				}
			}
		}
	}
	return cases
}

func leaseMoments(state LeaseState, granted bool, bound, ended string) []leaseCase {
	l := Lease{Epoch: 3, State: state, RequestedAt: noon, Ceiling: time.Hour, Hold: 10 * time.Minute}
	if granted {
		l.GrantedAt, l.TouchedAt = noon, noon
		if bound == "ceiling" {
			l.TouchedAt = noon.Add(55 * time.Minute)
		}
	}
	deadline := noon.Add(map[string]time.Duration{"hold": l.Hold, "ceiling": l.Ceiling}[bound])
	switch ended {
	case "early":
		l.EndedAt = deadline.Add(-time.Minute)
	case "at its deadline":
		l.EndedAt = deadline
	case "late":
		l.EndedAt = deadline.Add(time.Minute)
	}
	var cases []leaseCase
	for _, at := range []time.Time{noon, deadline, deadline.Add(-time.Minute), deadline.Add(time.Minute), deadline.Add(ExpiredShown), deadline.Add(ExpiredShown - time.Minute)} {
		for _, off := range []time.Duration{-1, 0, 1} {
			name := fmt.Sprintf("%s, granted %v, bound by its %s, ended %s, now %v after noon", state, granted, bound, ended, at.Add(off).Sub(noon))
			cases = append(cases, leaseCase{name, &l, at.Add(off)})
		}
	}
	return cases
}

// TestWorkspaceOverEveryLeaseAndMoment checks what the contract says of
// workspace.state and workspace.expiresAt, over the whole input space.
func TestWorkspaceOverEveryLeaseAndMoment(t *testing.T) {
	cases := leaseCases()
	seen := map[WorkspaceState]int{}
	for _, c := range cases {
		got := Facts{Lease: c.lease}.Workspace(c.now)
		seen[got.State]++
		live := c.lease != nil && c.lease.State == LeaseHeld && !c.lease.GrantedAt.IsZero() && c.now.Before(c.lease.Deadline())
		switch got.State {
		case WorkspaceAttached:
			if !live {
				t.Errorf("%s: attached without a live lease", c.name)
			}
			if !got.ExpiresAt.Equal(c.lease.Deadline()) || !got.ExpiresAt.After(c.now) {
				t.Errorf("%s: attached until %v, want the deadline %v", c.name, got.ExpiresAt, c.lease.Deadline())
			}
		case WorkspaceExpired:
			if live {
				t.Errorf("%s: expired under a live lease", c.name)
			}
			if c.lease == nil || c.lease.GrantedAt.IsZero() {
				t.Errorf("%s: expired, and no sandbox ever existed", c.name)
				continue
			}
			if got.ExpiresAt.After(c.now) || got.ExpiresAt.IsZero() {
				t.Errorf("%s: expired at %v, which is not past at %v", c.name, got.ExpiresAt, c.now)
			}
			if got.ExpiresAt.After(c.lease.Deadline()) {
				t.Errorf("%s: expired at %v, after its deadline", c.name, got.ExpiresAt)
			}
			if c.now.Sub(got.ExpiresAt) >= ExpiredShown {
				t.Errorf("%s: still expired %v after its end", c.name, c.now.Sub(got.ExpiresAt))
			}
		case WorkspaceUnavailable:
			if live {
				t.Errorf("%s: unavailable under a live lease", c.name)
			}
			if !got.ExpiresAt.IsZero() {
				t.Errorf("%s: unavailable with expiresAt %v, want none", c.name, got.ExpiresAt)
			}
		default:
			t.Errorf("%s: state %q is not in the vocabulary", c.name, got.State)
		}
	}
	for _, state := range []WorkspaceState{WorkspaceUnavailable, WorkspaceAttached, WorkspaceExpired} {
		if seen[state] == 0 {
			t.Errorf("none of the %d cases is %s", len(cases), state)
		}
	}
}

// TestWorkspaceDependsOnTheLeaseOnly changes everything else.
func TestWorkspaceDependsOnTheLeaseOnly(t *testing.T) {
	for _, c := range leaseCases() {
		want := Facts{Lease: c.lease}.Workspace(c.now)
		other := Facts{
			Session: Session{Worked: true, ArchivedAt: noon, State: SessionOpen},
			Lease:   c.lease, Active: &Run{State: RunActive}, Head: &Checkpoint{State: CheckpointSealed},
		}
		if got := other.Workspace(c.now); got != want {
			t.Errorf("%s: %+v with other facts, %+v without", c.name, got, want)
		}
	}
}

// TestWorkspaceNeverComesBack follows each lease through time: attached, then
// expired, then unavailable, in that order only.
func TestWorkspaceNeverComesBack(t *testing.T) {
	rank := map[WorkspaceState]int{WorkspaceAttached: 0, WorkspaceExpired: 1, WorkspaceUnavailable: 2}
	byLease := map[*Lease][]leaseCase{}
	for _, c := range leaseCases() {
		if c.lease != nil {
			byLease[c.lease] = append(byLease[c.lease], c)
		}
	}
	for lease, cases := range byLease {
		slices.SortFunc(cases, func(a, b leaseCase) int { return a.now.Compare(b.now) })
		last := -1
		for _, c := range cases {
			got := Facts{Lease: lease}.Workspace(c.now).State
			if rank[got] < last {
				t.Errorf("%s: %s, after a later state", c.name, got)
			}
			last = rank[got]
		}
	}
}

func TestProjectionsDoNotChangeTheFacts(t *testing.T) {
	for _, c := range continuationCases() {
		before := c.facts.clone()
		c.facts.Workspace(c.now)
		c.facts.Continuation(c.now)
		if !reflect.DeepEqual(before, c.facts) {
			t.Fatalf("%s: a projection changed the facts", c.name)
		}
	}
}

// TestWorkspaceTable is the projection as a table to read.
func TestWorkspaceTable(t *testing.T) {
	type row struct {
		what  string
		lease *Lease
		after time.Duration
	}
	with := func(state LeaseState, touched, ended time.Duration) *Lease {
		l := heldLease(touched)
		l.State = state
		if ended >= 0 {
			l.EndedAt = noon.Add(ended)
		}
		return &l
	}
	requested := &Lease{Epoch: 1, State: LeaseRequested, RequestedAt: noon, Ceiling: DefaultCeiling, Hold: DefaultHold}
	neverUp := &Lease{Epoch: 1, State: LeaseLost, RequestedAt: noon, EndedAt: noon.Add(time.Second), Ceiling: DefaultCeiling, Hold: DefaultHold}
	var b strings.Builder
	b.WriteString("# Leases are granted at 12:00; ceiling 24 h, hold 25 min. Written by TestWorkspaceTable.\n")
	for _, r := range []row{
		{"no lease yet", nil, 0},
		{"requested: the sandbox is being made", requested, 3 * time.Second},
		{"lost before it was held: the sandbox never came up", neverUp, 3 * time.Second},
		{"held, just granted", with(LeaseHeld, 0, -1), 0},
		{"held, 10 min untouched", with(LeaseHeld, 0, -1), 10 * time.Minute},
		{"held, touched after 10 min", with(LeaseHeld, 10*time.Minute, -1), 10 * time.Minute},
		{"held, 1 ns before the hold lapses", with(LeaseHeld, 0, -1), DefaultHold - 1},
		{"held, the hold lapsed, not yet reaped", with(LeaseHeld, 0, -1), DefaultHold},
		{"held, touched to the end, 1 ns before the ceiling", with(LeaseHeld, DefaultCeiling-time.Minute, -1), DefaultCeiling - 1},
		{"held, touched to the end, at the ceiling", with(LeaseHeld, DefaultCeiling-time.Minute, -1), DefaultCeiling},
		{"draining before its deadline", with(LeaseDraining, 0, -1), 10 * time.Minute},
		{"released early", with(LeaseReleased, 0, 5*time.Minute), 10 * time.Minute},
		{"lost early: the sandbox was killed", with(LeaseLost, 0, 5*time.Minute), 10 * time.Minute},
		{"expired and reaped late", with(LeaseExpired, 0, 26*time.Minute), time.Hour},
		{"expired a nanosecond less than a day ago", with(LeaseExpired, 0, 26*time.Minute), DefaultHold + ExpiredShown - 1},
		{"expired a day ago", with(LeaseExpired, 0, 26*time.Minute), DefaultHold + ExpiredShown},
	} {
		w := Facts{Lease: r.lease}.Workspace(noon.Add(r.after))
		expires := "absent"
		if !w.ExpiresAt.IsZero() {
			expires = w.ExpiresAt.Sub(noon).String() + " after the grant"
		}
		fmt.Fprintf(&b, "%-52s now +%-24s %-12s expiresAt %s\n", r.what, r.after, w.State, expires)
	}
	checkGolden(t, "workspace.golden", b.String())
}
