package engine

import (
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// FollowFromOldFacts has the bench of an exec's session follow it as if it still ran,
// and returns when that has ended: a bench may act on facts that were true when it
// read them.
func (e *Engine) FollowFromOldFacts(t testing.TB, x sojourn.Exec) {
	t.Helper()
	x.State, x.Ending = sojourn.ExecRunning, ""
	e.mu.Lock()
	b := e.benches[x.Session]
	e.mu.Unlock()
	if b == nil {
		t.Fatal("nobody drives the session")
	}
	b.take(x)
	for end := time.Now().Add(time.Minute); e.followed(x) != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("an exec that is over is still followed")
		}
	}
}
