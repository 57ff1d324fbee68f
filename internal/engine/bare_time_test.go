package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

// bareIn makes and starts a bare session in the bubble.
func (b *bubble) bareIn(in engine.Create) {
	b.Helper()
	in.Project, in.Contract, in.Runtime = sojourn.DefaultProject, sojourn.ContractExec, sojourn.RuntimeNone
	made, err := b.e.CreateSession(b.Context(), in)
	if err != nil {
		b.Fatal(err)
	}
	b.ref.ID = made.Facts.Session.ID
	if _, err := b.e.StartSession(b.Context(), b.ref, time.Minute); err != nil {
		b.Fatal(err)
	}
}

// later lets time pass, and everybody do what is due.
func (b *bubble) later(d time.Duration) sojourn.Facts {
	b.Helper()
	time.Sleep(d)
	synctest.Wait()
	return b.facts()
}

// TestAbandonedSessions: three heartbeats that stay away make a client lost, and the
// session does what was asked for.
func TestAbandonedSessions(t *testing.T) {
	inBubble(t, func(b *bubble) {
		for _, c := range []struct {
			mode  sojourn.AbandonMode
			state sojourn.SessionState
		}{{sojourn.AbandonKeep, sojourn.SessionOpen}, {sojourn.AbandonPause, sojourn.SessionPaused}, {sojourn.AbandonStop, sojourn.SessionClosed}} {
			b.bareIn(engine.Create{Presence: sojourn.Presence{Client: "client " + string(c.mode), OnAbandon: c.mode}})
			for range 5 {
				b.later(sojourn.HeartbeatEvery)
				if _, err := b.e.Heartbeat(b.Context(), b.ref); err != nil {
					b.Fatal(err)
				}
			}
			if f := b.later(89 * time.Second); f.Session.State != sojourn.SessionOpen || !f.Session.Presence.LostAt.IsZero() {
				b.Errorf("%q: the client is lost too early: %s", c.mode, f.Session.State)
			}
			f := b.later(2 * time.Second)
			if f.Session.State != c.state || f.Session.Presence.LostAt.IsZero() {
				b.Errorf("%q: the session is %s, its client lost at %v", c.mode, f.Session.State, f.Session.Presence.LostAt)
			}
			if held := f.Lease.State == sojourn.LeaseHeld; held != (c.mode == sojourn.AbandonKeep) {
				b.Errorf("%q: the lease is %s", c.mode, f.Lease.State)
			}
			if c.mode == sojourn.AbandonKeep {
				if f, err := b.e.Reattach(b.Context(), b.ref, "client "); err != nil || !f.Session.Presence.LostAt.IsZero() {
					b.Errorf("reattached: %v, %+v", err, f.Session.Presence)
				}
			}
		}
	})
}

// TestSandboxOfABareSessionLivesToItsTimeout: it has no idle hold, and is replaced half
// a minute before its end, again and again.
func TestSandboxOfABareSessionLivesToItsTimeout(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.bareIn(engine.Create{Sandbox: sojourn.SandboxSpec{Timeout: 2 * time.Hour}})
		if f := b.later(2*time.Hour - 31*time.Second); f.Lease.Epoch != 1 || f.Lease.State != sojourn.LeaseHeld {
			b.Fatalf("before its time: epoch %d is %s", f.Lease.Epoch, f.Lease.State)
		}
		if f := b.later(5 * time.Second); f.Lease.Epoch != 2 || f.Lease.State != sojourn.LeaseHeld || f.Session.Rotation.Count != 1 {
			b.Fatalf("in its time: epoch %d is %s after %d rotations", f.Lease.Epoch, f.Lease.State, f.Session.Rotation.Count)
		}
		if f := b.later(4 * time.Hour); f.Session.Rotation.Count != 3 || len(b.fake.Created()) != 4 {
			b.Errorf("there were %d rotations, %d sandboxes", f.Session.Rotation.Count, len(b.fake.Created()))
		}
	})
}

// TestDurationLimitIsExact, and a pause does not count.
func TestDurationLimitIsExact(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.bareIn(engine.Create{Limits: sojourn.Limits{Duration: 10 * time.Minute}})
		b.later(4 * time.Minute)
		if _, err := b.e.PauseSession(b.Context(), b.ref); err != nil {
			b.Fatal(err)
		}
		b.later(time.Hour)
		if _, err := b.e.ResumeSession(b.Context(), b.ref, time.Minute); err != nil {
			b.Fatal(err)
		}
		if f := b.later(6*time.Minute - 5*time.Second); f.Session.State != sojourn.SessionOpen {
			b.Fatalf("too early: %s", f.Session.State)
		}
		f := b.later(10 * time.Second)
		if f.Session.Ending.Reason != sojourn.StopBudget || f.Session.Ending.Limit != sojourn.LimitDuration {
			b.Errorf("the session is %s (%+v)", f.Session.State, f.Session.Ending)
		}
	})
}
