package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sojourn-dev/sojourn/client"
)

// defaultPatience is how long a follower waits for a server that went away.
const defaultPatience = 5 * time.Minute

// follow calls each with the events of a session behind after, each once and in
// order, until each wants no more. A server that goes away is waited for; that,
// and its return, are said once on standard error. It returns the number of the
// last event.
func (s *shell) follow(ctx context.Context, session string, after int64, each func(client.Event) (bool, error)) (int64, error) {
	var away time.Time
	last, err := s.c.Follow(ctx, client.Follow{
		Session: session, After: after, Patience: s.patience,
		OnCut: func(error) {
			if away.IsZero() {
				away = time.Now()
				fmt.Fprintf(s.err, "sojourn: the server is away; waiting up to %s for it\n", span(s.patience))
			}
		},
	}, func(e client.Event) (bool, error) {
		if !away.IsZero() {
			fmt.Fprintf(s.err, "sojourn: the server answers again after %s; going on behind event %d\n", span(time.Since(away)), e.Sequence-1)
			away = time.Time{}
		}
		return each(e)
	})
	if ctx.Err() != nil {
		return last, ctx.Err()
	}
	var refused *client.Error
	if err != nil && !errors.As(err, &refused) && unreachable(err) {
		return last, &exitError{exitUnreachable, fmt.Errorf("the server at %s went away and did not come back within %s", s.url, span(s.patience))}
	}
	return last, err
}
