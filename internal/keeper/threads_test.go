package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"
)

func TestThreadsUnderLimits(t *testing.T) {
	for _, limit := range []int{0, 16, 20, 32, 64, 1000} {
		n := runningThreads(limit) + besideThreads + diskSlots(limit)
		if n > mostRunning+besideThreads+mostDiskSlots {
			t.Errorf("under a limit of %d the keeper takes %d threads", limit, n)
		}
		if limit > 0 && n > limit/2+1 {
			t.Errorf("under a limit of %d the keeper takes %d threads, more than half", limit, n)
		}
	}
}

func TestTakeThreads(t *testing.T) {
	count := func() int {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(tasks)
	}
	const n = 30
	takeThreads(n)
	if got := count(); got < n {
		t.Errorf("%d threads are there, want at least %d", got, n)
	}
	before := count()
	takeThreads(n)
	if got := count(); got > before+1 { // one may run the goroutine of the test itself
		t.Errorf("a second time made %d threads of %d", got, before)
	}
}

// gated is an end of a pipe that says when it is used and waits.
type gated struct{ used, goOn chan struct{} }

func (g gated) Read(b []byte) (int, error) {
	g.used <- struct{}{}
	<-g.goOn
	return 0, io.EOF
}

func (g gated) Write(b []byte) (int, error) {
	g.used <- struct{}{}
	<-g.goOn
	return len(b), nil
}

// TestSlotsWithin has a program that waits for everything a program can wait for, and
// another one that needs its slot meanwhile.
func TestSlotsWithin(t *testing.T) {
	s := make(slots, 1)
	g := gated{make(chan struct{}), make(chan struct{})}
	waits := s.within(func(ctx context.Context, p Proc) int {
		if len(s) != 1 {
			t.Error("a program runs without a slot")
		}
		_, _ = p.Stdin.Read(nil)
		_, _ = p.Stdout.Write(nil)
		_, _ = p.Stderr.Write(nil)
		leave, err := p.Gate(ctx)
		if err != nil || len(s) != 1 {
			t.Errorf("after its gate a program has %d slots: %v", len(s), err)
			return 1
		}
		leave()
		return 0
	})
	code := make(chan int)
	go func() {
		code <- waits(t.Context(), Proc{Stdin: g, Stdout: g, Stderr: g, Gate: func(context.Context) (func(), error) {
			g.used <- struct{}{}
			<-g.goOn
			return func() {}, nil
		}})
	}()
	for i := range 4 {
		<-g.used
		var out bytes.Buffer
		other := s.within(func(_ context.Context, p Proc) int { fmt.Fprint(p.Stdout, i); return 0 })
		if got := other(t.Context(), Proc{Stdout: &out}); got != 0 || out.String() != fmt.Sprint(i) {
			t.Errorf("beside a program that waits another one says %d, %q", got, out.String())
		}
		g.goOn <- struct{}{}
	}
	if got := <-code; got != 0 || len(s) != 0 {
		t.Errorf("the program says %d and leaves %d slots taken", got, len(s))
	}
}

func TestSlotsEnterCancelled(t *testing.T) {
	s := make(slots, 1)
	if err := s.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errNotRegular)
	defer cancel()
	if err := s.enter(ctx); !errors.Is(err, errNotRegular) {
		t.Errorf("enter = %v, want the cause", err)
	}
	ran := false
	if code := s.within(func(context.Context, Proc) int { ran = true; return 0 })(ctx, Proc{}); code == 0 || ran {
		t.Errorf("a program without a slot ran %v with code %d", ran, code)
	}
}
