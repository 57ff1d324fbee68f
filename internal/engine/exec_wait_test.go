package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// TestWaitingCountsOnlyBusyTime: while the sandbox comes up nobody is late, however
// long that takes.
func TestWaitingCountsOnlyBusyTime(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	queued := func(id sojourn.ExecID, since, timeout float64) sojourn.Exec {
		return sojourn.Exec{ID: id, State: sojourn.ExecQueued, QueuedAt: at(since), Spec: sojourn.ExecSpec{Timeout: time.Duration(timeout * float64(time.Second))}}
	}
	var w waiting
	look := func(busy bool, now float64, next float64, late ...sojourn.ExecID) {
		t.Helper()
		gotNext, gotLate := w.look(busy, at(now))
		slices.Sort(gotLate)
		if !slices.Equal(gotLate, late) || next < 0 && !gotNext.IsZero() || next >= 0 && !gotNext.Equal(at(next)) {
			t.Errorf("at %v: late %v, next at %v; want %v and %v", now, gotLate, gotNext.Sub(start).Seconds(), late, next)
		}
	}
	w.note(queued("a", 0, 5))
	look(false, 0, -1)
	look(false, 100, -1)      // a sandbox that takes its time
	look(true, 100, 105)      // now another exec runs
	look(true, 102, 105)      // still
	look(false, 103, -1)      // its sandbox is replaced
	look(true, 200, 202)      // three seconds are gone
	w.note(queued("a", 0, 5)) // as after any change: it does not start anew
	w.note(queued("b", 201, 4))
	look(true, 201.5, 202)
	look(true, 202, 205, "a")
	refused := queued("a", 0, 5)
	refused.State = sojourn.ExecRefused
	w.note(refused)
	look(true, 203, 205)
	look(true, 205, -1, "b")
	detached := queued("c", 205, 1)
	detached.Spec.Detached = true
	w.note(detached)
	started := queued("b", 201, 4)
	started.State = sojourn.ExecRunning
	w.note(started)
	look(true, 300, -1)
	if len(w.all) != 0 {
		t.Errorf("%v is remembered", w.all)
	}
}

func TestShareRoundsUpAndDoesNotWrap(t *testing.T) {
	for _, c := range []struct {
		price   sojourn.Money
		n, unit int64
		want    sojourn.Money
	}{
		{1400, 2000, 1000, 2800},
		{1400, 50, 1000, 70},
		{1, 1, 1000, 1},
		{0, 9, 1, 0},
		{-5, 9, 1, 0},
		{5, -9, 1, 0},
		{450, 3 << 29, 1 << 30, 675},
		{1 << 62, 1 << 40, 1000, 1<<62 - 1},
		{1 << 40, 1 << 50, 1 << 30, 1 << 60},
	} {
		if got := share(c.price, c.n, c.unit); got < c.want-1 && c.want < 1<<60 || got != c.want && c.want < 1<<60 || got < 0 {
			t.Errorf("share(%d, %d, %d) = %d, want %d", c.price, c.n, c.unit, got, c.want)
		}
	}
	if s := share(1<<62, 1<<62, 1) + share(1<<62, 1<<62, 1); s <= 0 {
		t.Errorf("two shares wrap to %d", s)
	}
}
