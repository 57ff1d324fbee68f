package keeper

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"
)

func TestASignalWaitsForTheBodyOfItsProcess(t *testing.T) {
	p := &process{}
	for range 2 * maxEarly {
		if err := p.signal(unix.SIGHUP, "", 1); err != nil {
			t.Fatal(err)
		}
	}
	if len(p.early) != maxEarly {
		t.Errorf("%d signals wait, want %d", len(p.early), maxEarly)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if p.attach(nil, &running{cancel: cancel, kill: make(chan struct{})}) {
		t.Error("a signal has doomed the process")
	}
	if ctx.Err() == nil || p.early != nil {
		t.Error("the signal was lost")
	}
}
