package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

// shortestName is how many characters of an id stand for it at least.
const shortestName = 6

// pageSize is how many rows one call asks for.
const pageSize = 200

// session finds the session that a word names: by its id, by a unique beginning
// or end of it, or by "last". Ids begin with the time they were made at, so
// their ends tell them apart sooner.
func (s *shell) session(ctx context.Context, word string) (client.Session, error) {
	if word == "last" {
		list, _, err := s.sessions(ctx, client.SessionQuery{}, 1)
		if err == nil && len(list) == 0 {
			err = &exitError{exitNotFound, errors.New("there is no session yet; make one with: sojourn session create")}
		}
		if err != nil {
			return client.Session{}, err
		}
		return list[0], nil
	}
	v, err := s.c.Session(ctx, word)
	refused, ok := errors.AsType[*client.Error](err)
	if !ok || refused.Status != http.StatusNotFound || len(word) < shortestName {
		return v, err
	}
	all, _, listErr := s.sessions(ctx, client.SessionQuery{}, 0)
	if listErr != nil {
		return client.Session{}, listErr
	}
	return named(all, "session", word, func(v client.Session) string { return v.ID }, err)
}

// sessions reads up to limit sessions, newest first; 0 reads all. It reports
// whether there are more.
func (s *shell) sessions(ctx context.Context, q client.SessionQuery, limit int) (list []client.Session, more bool, err error) {
	for {
		q.Limit = pageSize
		if limit > 0 {
			q.Limit = min(pageSize, limit-len(list))
		}
		page, err := s.c.Sessions(ctx, q)
		if err != nil {
			return nil, false, err
		}
		list = append(list, page.Sessions...)
		q.Cursor = page.NextCursor
		if q.Cursor == "" || limit > 0 && len(list) >= limit {
			return list, q.Cursor != "", nil
		}
	}
}

// interaction finds the interaction of a session that a word names; "last" is
// the newest open one.
func (s *shell) interaction(ctx context.Context, session, word string) (client.Interaction, error) {
	list, err := s.c.Interactions(ctx, session, "")
	if err != nil {
		return client.Interaction{}, err
	}
	if word == "last" {
		for i := len(list) - 1; i >= 0; i-- {
			if list[i].State == "open" {
				return list[i], nil
			}
		}
		return client.Interaction{}, &exitError{exitNotFound, fmt.Errorf("session %s asks nothing now", session)}
	}
	return named(list, "interaction", word, func(v client.Interaction) string { return v.ID }, nil)
}

// runID finds the run of a session that a word names; "last" is its latest.
func (s *shell) runID(ctx context.Context, v client.Session, word string) (string, error) {
	switch {
	case word == "last" && v.LastRun != nil:
		return v.LastRun.ID, nil
	case word == "last":
		return "", &exitError{exitNotFound, fmt.Errorf("session %s had no run yet", v.ID)}
	}
	runs, err := s.c.Runs(ctx, v.ID)
	if err != nil {
		return "", err
	}
	r, err := named(runs, "run", word, func(r client.Run) string { return r.ID }, nil)
	return r.ID, err
}

// named picks the one of all whose id is word, or begins or ends with it. notFound
// is what the server said about the word as an id, if it was asked.
func named[T any](all []T, noun, word string, id func(T) string, notFound error) (T, error) {
	var found []T
	for _, v := range all {
		switch {
		case id(v) == word:
			return v, nil
		case len(word) >= shortestName && (strings.HasPrefix(id(v), word) || strings.HasSuffix(id(v), word)):
			found = append(found, v)
		}
	}
	var none T
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return none, usagef("%d %ss fit %q; give more of the id, or its end", len(found), noun, terminal.Visible(word, ""))
	case notFound != nil:
		return none, notFound
	default:
		return none, &exitError{exitNotFound, fmt.Errorf("there is no %s %q", noun, terminal.Visible(word, ""))}
	}
}
