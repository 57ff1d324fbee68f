package sojourn

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// heldLease is a lease with the numbers of contract C, granted at noon and
// touched after the given time.
func heldLease(touched time.Duration) Lease {
	return Lease{
		Epoch: 1, State: LeaseHeld, GrantedAt: noon, TouchedAt: noon.Add(touched),
		Ceiling: DefaultCeiling, Hold: DefaultHold,
	}
}

func TestLeaseNumbersAreThoseOfTheContract(t *testing.T) {
	for name, c := range map[string]struct{ got, want time.Duration }{
		"the runaway ceiling":                   {DefaultCeiling, 24 * time.Hour},
		"the idle hold":                         {DefaultHold, 25 * time.Minute},
		"too close to the ceiling for new work": {ExpiringWithin, time.Minute},
	} {
		if c.got != c.want {
			t.Errorf("%s is %v, want %v", name, c.got, c.want)
		}
	}
}

func TestDeadlineIsTheEarlierOfCeilingAndHold(t *testing.T) {
	for _, c := range []struct {
		name    string
		touched time.Duration
		want    time.Duration // after noon
	}{
		{"never touched", 0, 25 * time.Minute},
		{"touched once", 10 * time.Minute, 35 * time.Minute},
		{"a nanosecond before the hold would pass the ceiling", 23*time.Hour + 35*time.Minute - 1, 24*time.Hour - 1},
		{"where hold and ceiling meet", 23*time.Hour + 35*time.Minute, 24 * time.Hour},
		{"the ceiling is not moved", 23*time.Hour + 35*time.Minute + 1, 24 * time.Hour},
		{"touched at the last moment", 24*time.Hour - 1, 24 * time.Hour},
	} {
		if got := heldLease(c.touched).Deadline().Sub(noon); got != c.want {
			t.Errorf("%s: the deadline is %v after the grant, want %v", c.name, got, c.want)
		}
	}
	if got := (Lease{State: LeaseRequested, Ceiling: time.Hour, Hold: time.Hour}).Deadline(); !got.IsZero() {
		t.Errorf("a lease that is not held has the deadline %v, want none", got)
	}
}

func TestLeaseIsLiveUntilItsDeadlineAndNotAtIt(t *testing.T) {
	l := heldLease(0)
	for after, want := range map[time.Duration]bool{
		-time.Hour: true, 0: true, DefaultHold - 1: true, DefaultHold: false, DefaultHold + 1: false,
	} {
		if got := l.Live(noon.Add(after)); got != want {
			t.Errorf("%v after the grant: Live = %v, want %v", after, got, want)
		}
	}
	for state := range leaseMoves {
		l := heldLease(0)
		l.State = state
		if got, want := l.Live(noon), state == LeaseHeld; got != want {
			t.Errorf("a %s lease: Live = %v, want %v", state, got, want)
		}
	}
}

func TestExpiringCountsToTheCeilingOnly(t *testing.T) {
	for _, c := range []struct {
		name    string
		touched time.Duration
		now     time.Duration
		want    bool
	}{
		{"a fresh lease", 0, 0, false},
		{"the hold is about to lapse: work would push it out", 0, DefaultHold - time.Second, false},
		{"the hold has lapsed", 0, DefaultHold, false},
		{"a minute and a nanosecond before the ceiling", 24*time.Hour - 2*time.Minute, 24*time.Hour - time.Minute - 1, false},
		{"a minute before the ceiling", 24*time.Hour - 2*time.Minute, 24*time.Hour - time.Minute, false},
		{"a nanosecond less", 24*time.Hour - 2*time.Minute, 24*time.Hour - time.Minute + 1, true},
		{"a nanosecond before the ceiling", 24*time.Hour - 2*time.Minute, 24*time.Hour - 1, true},
		{"at the ceiling: the lease is over", 24*time.Hour - 2*time.Minute, 24 * time.Hour, false},
	} {
		if got := heldLease(c.touched).Expiring(noon.Add(c.now)); got != c.want {
			t.Errorf("%s: Expiring = %v, want %v", c.name, got, c.want)
		}
	}
	short := heldLease(0)
	short.Ceiling = 30 * time.Second
	if !short.Expiring(noon) {
		t.Error("a ceiling below a minute: Expiring = false, want true from the grant on")
	}
}

func TestTouchMovesTheHoldForwardOnly(t *testing.T) {
	l := heldLease(10 * time.Minute)
	for _, c := range []struct {
		name string
		now  time.Duration
		want time.Duration // of TouchedAt, after noon
	}{
		{"later", 20 * time.Minute, 20 * time.Minute},
		{"at the same moment", 10 * time.Minute, 10 * time.Minute},
		{"earlier: a clock that went back", 5 * time.Minute, 10 * time.Minute},
		{"at the last moment", 35*time.Minute - 1, 35*time.Minute - 1},
		{"at the deadline: it cannot be revived", 35 * time.Minute, 10 * time.Minute},
		{"long after", 5 * time.Hour, 10 * time.Minute},
	} {
		if got := l.Touch(noon.Add(c.now)).TouchedAt.Sub(noon); got != c.want {
			t.Errorf("%s: touched %v after the grant, want %v", c.name, got, c.want)
		}
	}
	for state := range leaseMoves {
		l := heldLease(0)
		l.State = state
		moved := !l.Touch(noon.Add(time.Minute)).TouchedAt.Equal(noon)
		if moved != (state == LeaseHeld) {
			t.Errorf("a touch of a %s lease moved its hold: %v", state, moved)
		}
	}
}

// TestTouchesNeverPassTheCeiling touches leases of any numbers at any moments.
func TestTouchesNeverPassTheCeiling(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		span := rapid.Int64Range(1, int64(48*time.Hour))
		l := Lease{
			State: LeaseHeld, GrantedAt: noon, TouchedAt: noon,
			Ceiling: time.Duration(span.Draw(t, "ceiling")), Hold: time.Duration(span.Draw(t, "hold")),
		}
		now := noon
		for range rapid.IntRange(1, 50).Draw(t, "touches") {
			now = now.Add(time.Duration(rapid.Int64Range(-int64(time.Minute), int64(l.Hold)*2).Draw(t, "step")))
			before, next := l, l.Touch(now)
			if next.Deadline().Before(before.Deadline()) {
				t.Fatalf("a touch moved the deadline back: %v to %v", before.Deadline(), next.Deadline())
			}
			if next.Deadline().After(noon.Add(l.Ceiling)) {
				t.Fatalf("a touch moved the deadline past the ceiling: %v", next.Deadline())
			}
			if before.Live(now) != next.Live(now) {
				t.Fatalf("a touch made Live(now) %v of %v", next.Live(now), before.Live(now))
			}
			l = next
		}
	})
}
