package engine

import (
	"context"
	"slices"

	"github.com/sojourn-dev/sojourn"
)

// sessionWatch tells a caller of the changes of a bare session until stop is called.
type sessionWatch struct {
	changed chan struct{} // of one

	e   *Engine
	id  sojourn.SessionID
	err error // why the session was closed by its bench; under Engine.mu
}

// watchSession must be called before the session is read that the caller waits to
// change.
func (e *Engine) watchSession(id sojourn.SessionID) *sessionWatch {
	w := &sessionWatch{changed: make(chan struct{}, 1), e: e, id: id}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.awaited[id] = append(e.awaited[id], w)
	return w
}

func (w *sessionWatch) stop() {
	w.e.mu.Lock()
	defer w.e.mu.Unlock()
	all := slices.DeleteFunc(w.e.awaited[w.id], func(o *sessionWatch) bool { return o == w })
	if w.e.awaited[w.id] = all; len(all) == 0 {
		delete(w.e.awaited, w.id)
	}
}

// failure is why the session was closed while it was watched, if it has failed.
func (w *sessionWatch) failure() error {
	w.e.mu.Lock()
	defer w.e.mu.Unlock()
	return w.err
}

// failWatches says why a session is about to be closed to those who watch it.
func (e *Engine) failWatches(id sojourn.SessionID, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.awaited[id] {
		w.err = err
	}
}

// awaitBench waits until the bench of an open session has a sandbox at hand, and does
// not replace it. Nobody else makes one.
func (e *Engine) awaitBench(ctx context.Context, ref Ref) (sojourn.Facts, error) {
	w := e.watchSession(ref.ID)
	defer w.stop()
	f, err := e.awaitSandbox(ctx, ref, w)
	if err == nil && f.Session.State != sojourn.SessionOpen {
		return f, sojourn.Errorf(sojourn.CodeInvalidState, "The session has ended or was paused.")
	}
	return f, err
}
