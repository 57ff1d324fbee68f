package store

import (
	"testing"
	"time"
)

func TestSignalsWakeOnlyWhenNeeded(t *testing.T) {
	s := NewSignals()
	raised := func() bool {
		select {
		case <-s.Scheduled:
			return true
		default:
			return false
		}
	}
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	schedule := func(due time.Time) bool {
		tx := NewTx(t.Context(), TxConfig{Signals: s, Now: noon})
		tx.wake(due)
		tx.Committed()
		return raised()
	}
	for _, c := range []struct {
		name  string
		sleep time.Time // zero: the engine is awake
		due   time.Time
		want  bool
	}{
		{"awake: it may have looked already", time.Time{}, noon.Add(24 * time.Hour), true},
		{"asleep, due before it wakes", noon.Add(time.Hour), noon.Add(time.Minute), true},
		{"asleep, due when it wakes", noon.Add(time.Hour), noon.Add(time.Hour), false},
		{"asleep, due later", noon.Add(time.Hour), noon.Add(2 * time.Hour), false},
	} {
		s.Awake()
		if !c.sleep.IsZero() {
			s.Sleep(c.sleep)
		}
		if got := schedule(c.due); got != c.want {
			t.Errorf("%s: raised %t, want %t", c.name, got, c.want)
		}
	}
}

func TestCancelledKeysAreBounded(t *testing.T) {
	s := NewSignals()
	for range 3 * maxCancelled {
		s.cancel([]WorkKey{{"kind", "id"}})
	}
	if n := len(s.TakeCancelled()); n != maxCancelled {
		t.Errorf("%d keys are kept, want %d", n, maxCancelled)
	}
	if n := len(s.TakeCancelled()); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}
