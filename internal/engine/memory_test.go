package engine_test

import (
	"net/http"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/harness/acp"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// TestTurnOfManyUpdatesIsInBoundedMemory: a turn may say more than the memory of the
// server, the keeper and the agent, which here are one process, ever holds. What an
// agent has written and nobody has read yet waits in the keeper, up to the longest
// line: with a short one, what is left is what all others hold. It runs alone, because
// the heap is everybody's.
func TestTurnOfManyUpdatesIsInBoundedMemory(t *testing.T) {
	const bound = 32 << 20
	updates := 100_000
	if testing.Short() {
		updates = 10_000
	}
	s := &story{T: t, Server: servertest.Start(t, servertest.Config{Harness: &acp.Harness{MaxLineBytes: 1 << 20}})}
	s.id = s.create()
	s.completes("@say warm")
	runtime.GC()
	high := watchHeap()
	run := s.submit("@flood " + itoa(int64(updates)) + " 300")
	for s.run(run).State != "completed" { // longer than a story's patience
		if s.session().ActiveRun == nil && s.run(run).State != "completed" {
			t.Fatalf("run is %s", s.run(run).State)
		}
		time.Sleep(100 * time.Millisecond)
	}
	live, most := high()

	seen, said := 0, 0
	for after := int64(0); ; {
		var page struct{ Events []event }
		s.Must(http.MethodGet, s.path("/events?limit=1000&after="+itoa(after)), nil, &page)
		if len(page.Events) == 0 {
			break
		}
		for _, e := range page.Events {
			if e.Type == "wamp.agent.update" && e.RunID == run {
				seen++
				said += len(e.Data)
			}
		}
		after += int64(len(page.Events))
	}
	if seen != updates {
		t.Errorf("the log has %d updates, want %d", seen, updates)
	}
	t.Logf("%d updates of %d bytes together; at most %d live bytes on the heap, %d with garbage", seen, said, live, most)
	if live > bound {
		t.Errorf("%d bytes were live on the heap, want at most %d", live, bound)
	}
}

// watchHeap looks at the heap until the returned function is called, which returns
// the most bytes that a collection has left, and the most that there were at all.
func watchHeap() (high func() (live, all uint64)) {
	stop, done := make(chan struct{}), make(chan struct{})
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}}
	var live, all uint64
	go func() {
		defer close(done)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			metrics.Read(sample)
			live, all = max(live, sample[0].Value.Uint64()), max(all, sample[1].Value.Uint64())
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	return func() (uint64, uint64) {
		close(stop)
		<-done
		return live, all
	}
}
