package link_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
)

// mute is a far side that can fall silent: it goes on accepting connections and
// answers nobody.
type mute struct {
	*link.Peer
	dials, pings atomic.Int32
	silent       atomic.Bool
	stuck        atomic.Bool // the connection that there is stays silent, a new one does not
	over         chan struct{}
}

func inMute(t *testing.T, f func(t *testing.T, m *mute)) {
	synctest.Test(t, func(t *testing.T) {
		m := &mute{over: make(chan struct{})}
		m.Peer = link.NewPeer(func(context.Context) (link.Transport, error) {
			m.dials.Add(1)
			m.stuck.Store(false)
			near, far := net.Pipe()
			go m.methods().serve(link.Framed(far))
			return link.Framed(near), nil
		}, link.Options{})
		f(t, m)
		close(m.over)
		m.Close()
	})
}

func (m *mute) methods() server {
	unless := func(f func(link.Message) link.Message) func(link.Message) link.Message {
		return func(in link.Message) link.Message {
			if m.silent.Load() || m.stuck.Load() {
				<-m.over
			}
			return f(in)
		}
	}
	return server{
		link.MethodInitialize: unless(hello), link.MethodStats: unless(ok),
		link.MethodEnvironmentInfo: unless(func(in link.Message) link.Message { m.pings.Add(1); return ok(in) }),
		link.MethodSync:            func(in link.Message) link.Message { <-m.over; return ok(in) }, // takes for ever
	}
}

// await calls AwaitSilence for a minute's patience beside the test. result waits for what
// it returns.
func (m *mute) await(t *testing.T) (result func() error) {
	done := make(chan error, 1)
	go func() { done <- m.AwaitSilence(t.Context(), time.Minute) }()
	return func() error { return <-done }
}

// must makes a call that is answered.
func (m *mute) must(t *testing.T) {
	t.Helper()
	if _, err := m.Stats(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// ask makes a call and gives it up after a while.
func (m *mute) ask(t *testing.T, patience time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := m.Stats(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call to nobody = %v", err)
	}
}

// within wants a silence to be found out after a minute, or a sixth of it more.
func within(t *testing.T, took time.Duration) {
	t.Helper()
	if took < time.Minute || took > 70*time.Second {
		t.Errorf("found out after %v, want between 60 and 70 seconds", took)
	}
}

func TestSilenceIsFoundOut(t *testing.T) {
	for name, patience := range map[string]time.Duration{"one call waits": time.Hour, "calls are given up": 50 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			inMute(t, func(t *testing.T, m *mute) {
				m.must(t)
				m.silent.Store(true)
				result := m.await(t)
				time.Sleep(24 * time.Hour) // nobody asks for anything
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				go func() { _, _ = m.Stats(ctx) }()
				if err := result(); err != nil {
					t.Fatal(err)
				}
				within(t, time.Since(began))
				if n := m.dials.Load(); n < 2 {
					t.Errorf("%d connections were tried, want a second one", n)
				}
			})
		})
	}
}

// TestQuietIsNotSilent: an answer may take for ever on a line that lives.
func TestQuietIsNotSilent(t *testing.T) {
	inMute(t, func(t *testing.T, m *mute) {
		result := m.await(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := m.Sync(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if n := m.pings.Load(); n < 150 || n > 400 {
			t.Errorf("asked %d times in an hour for a sign of life", n)
		}
		before := m.pings.Load()
		time.Sleep(24 * time.Hour) // nobody waits any more
		if n := m.pings.Load() - before; n > 1 {
			t.Errorf("asked %d times while nobody wanted anything", n)
		}
		if n := m.dials.Load(); n != 1 {
			t.Errorf("%d connections, want one", n)
		}
		m.Close()
		if result() == nil {
			t.Error("a far side that lives was taken for silent")
		}
	})
}

// TestStuckConnectionIsNotSilence: the far side is there, only the way to it was not.
func TestStuckConnectionIsNotSilence(t *testing.T) {
	inMute(t, func(t *testing.T, m *mute) {
		m.must(t)
		result := m.await(t)
		m.stuck.Store(true)
		began := time.Now()
		m.must(t) // on the second connection
		if d := time.Since(began); d < 30*time.Second || d > 45*time.Second || m.dials.Load() != 2 {
			t.Errorf("answered after %v on connection %d", d, m.dials.Load())
		}
		time.Sleep(time.Hour)
		m.Close()
		if result() == nil {
			t.Error("a far side that answers was taken for silent")
		}
	})
}

// TestExcuseForSilence: what was silent with an excuse has a whole minute after it.
func TestExcuseForSilence(t *testing.T) {
	inMute(t, func(t *testing.T, m *mute) {
		m.must(t)
		result := m.await(t)
		m.silent.Store(true)
		m.ask(t, 50*time.Second)
		stop := m.Excuse()
		time.Sleep(time.Hour)
		began := time.Now()
		stop()
		stop() // counts once
		if err := result(); err != nil {
			t.Fatal(err)
		}
		within(t, time.Since(began))
	})
}

func TestAwaitSilenceEnds(t *testing.T) {
	inMute(t, func(t *testing.T, m *mute) {
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(stop) })
		if err := m.AwaitSilence(ctx, time.Minute); !errors.Is(err, stop) {
			t.Errorf("AwaitSilence = %v, want the cause of its context", err)
		}
		result := m.await(t)
		m.Close()
		if result() == nil {
			t.Error("a closed peer counts as silent")
		}
	})
}
