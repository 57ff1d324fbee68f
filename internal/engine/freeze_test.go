package engine

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// lasting is a sandbox that does not end.
type lasting struct {
	sandbox.Sandbox
	done chan struct{}
}

func (l lasting) Done() <-chan struct{} { return l.done }

// gated is a transport whose writes wait while the gate is shut.
type gated struct {
	link.Transport
	gate *atomic.Pointer[chan struct{}]
}

func (g gated) Write(b []byte) error {
	if open := g.gate.Load(); open != nil {
		<-*open
	}
	return g.Transport.Write(b)
}

// rig is an engine with the compute of one keeper, and a second line to it.
type rig struct {
	e     *Engine
	c     *compute
	other *link.Peer
	gate  atomic.Pointer[chan struct{}] // not nil while the engine's line is shut
}

func inRig(t *testing.T, f func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		k := keeper.New(keeper.Config{Epoch: 1, Programs: map[string]keeper.Program{
			"nothing": func(context.Context, keeper.Proc) int { return 0 },
		}})
		dial := func(wrap func(link.Transport) link.Transport) *link.Peer {
			return link.NewPeer(func(context.Context) (link.Transport, error) {
				near, far := net.Pipe()
				go k.Serve(context.Background(), link.Framed(far))
				return wrap(link.Framed(near)), nil
			}, link.Options{ClientName: "test", Epoch: 1})
		}
		r := &rig{e: &Engine{log: slog.New(slog.DiscardHandler)}}
		r.c = &compute{epoch: 1, box: lasting{done: make(chan struct{})}, peer: dial(func(t link.Transport) link.Transport {
			return gated{t, &r.gate}
		})}
		r.other = dial(func(t link.Transport) link.Transport { return t })
		f(t, r)
		r.c.peer.Close()
		r.other.Close()
		k.Close()
	})
}

// startsAfter returns how long a process waits to be started: not at all in a
// sandbox that is not frozen.
func (r *rig) startsAfter(t *testing.T) time.Duration {
	t.Helper()
	begun := time.Now()
	if err := r.other.Start(t.Context(), link.StartParams{ProcessID: time.Now().String(), Argv: []string{"nothing"}}); err != nil {
		t.Error(err)
	}
	return time.Since(begun)
}

// TestFreezeLastsUntilTheThaw: a capture may take longer than the minute after
// which a keeper ends a freeze that was forgotten.
func TestFreezeLastsUntilTheThaw(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		thaw, err := r.e.freeze(t.Context(), r.c)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(5*time.Minute, thaw)
		if got := r.startsAfter(t); got < 5*time.Minute {
			t.Errorf("the sandbox was frozen for %v, want five minutes", got)
		}
		if got := r.startsAfter(t); got != 0 {
			t.Errorf("the sandbox stayed frozen for %v after the thaw", got)
		}
	})
}

// TestFreezeThatFailedIsUndone: the order may have arrived all the same.
func TestFreezeThatFailedIsUndone(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		if _, err := r.c.peer.Info(t.Context()); err != nil {
			t.Fatal(err)
		}
		gate := make(chan struct{})
		r.gate.Store(&gate)
		if _, err := r.e.freeze(t.Context(), r.c); err == nil {
			t.Fatal("a freeze that was not answered succeeded")
		}
		r.gate.Store(nil)
		close(gate)
		synctest.Wait()
		if got := r.startsAfter(t); got != 0 {
			t.Errorf("the sandbox stayed frozen for %v", got)
		}
	})
}
