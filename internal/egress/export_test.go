package egress

import (
	"context"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// Ledger is the ledger of a gate, for tests of its times.
type Ledger struct{ l *ledger }

// NewLedger returns one with the clock of the test.
func NewLedger(report func([]sojourn.NetworkDecision)) Ledger {
	return Ledger{newLedger(time.Now, report)}
}

// Add counts a decision.
func (l Ledger) Add(host string, port int, allowed bool, reason string) {
	l.l.add(host, port, allowed, reason)
}

// Start begins to report, and returns what ends that and waits.
func (l Ledger) Start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { l.l.run(ctx) })
	return func() { cancel(); wg.Wait() }
}
