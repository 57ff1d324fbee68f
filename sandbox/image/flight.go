package image

import (
	"context"
	"fmt"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// flight is the making of an image that several callers wait for.
type flight struct {
	done   chan struct{} // closed when image and err are set
	cancel context.CancelCauseFunc
	users  int // callers that wait; under Store.mu
	image  sandbox.Image
	err    error
}

// share runs f, or waits for the one that runs for the same key. What runs ends early when
// all who wait for it have gone, or the store is closed.
func (s *Store) share(ctx context.Context, key string, f func(context.Context) (sandbox.Image, error)) (sandbox.Image, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return sandbox.Image{}, errClosed
	}
	fl := s.flights[key]
	if fl == nil {
		fl = &flight{done: make(chan struct{})}
		var life context.Context
		life, fl.cancel = context.WithCancelCause(s.life)
		s.flights[key] = fl
		s.work.Go(func() {
			fl.image, fl.err = f(life)
			s.mu.Lock()
			s.forgetLocked(key, fl)
			s.mu.Unlock()
			fl.cancel(nil)
			close(fl.done)
		})
	}
	fl.users++
	s.mu.Unlock()

	select {
	case <-fl.done:
		return fl.image, fl.err
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if fl.users--; fl.users == 0 {
		s.forgetLocked(key, fl) // who comes now starts anew
		fl.cancel(context.Cause(ctx))
	}
	return sandbox.Image{}, fmt.Errorf("wait for it: %w", context.Cause(ctx))
}

func (s *Store) forgetLocked(key string, fl *flight) {
	if s.flights[key] == fl {
		delete(s.flights, key)
	}
}
