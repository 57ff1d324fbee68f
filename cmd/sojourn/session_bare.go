package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

var (
	startVerb = verb{
		name: "start", args: "ID", summary: "start a session without an agent: its sandbox comes up, its clock runs",
		detail: idHelp, min: 1, max: 1, prepare: bareVerb((*client.Client).StartSession),
	}
	pauseVerb = verb{
		name: "pause", args: "ID", summary: "hold a session without an agent: its sandbox and its clock rest",
		detail: "The command that runs may finish first.\n\n" + idHelp, min: 1, max: 1, prepare: bareVerb((*client.Client).PauseSession),
	}
	resumeVerb = verb{
		name: "resume", args: "ID", summary: "let a paused session go on, in a sandbox that carries its work",
		detail: idHelp, min: 1, max: 1, prepare: bareVerb((*client.Client).ResumeSession),
	}
	heartbeatVerb = verb{
		name: "heartbeat", args: "ID", summary: "say that the session's client is there",
		detail: "With --every it goes on saying so until Ctrl-C, or the end of the session.\n\n" + idHelp, min: 1, max: 1, prepare: prepareHeartbeat,
	}
	stopVerb = verb{
		name: "stop", args: "ID", summary: "end a session without an agent in good order",
		detail: "What runs in it gets SIGTERM, and SIGKILL after its grace.\n\n" + idHelp, min: 1, max: 1, prepare: prepareStop,
	}
	deleteVerb = verb{
		name: "delete", args: "ID", summary: "delete an ended session without an agent, with all that it has left",
		detail: idHelp, min: 1, max: 1, prepare: prepareDelete,
	}
	reattachVerb = verb{
		name: "reattach", args: "CLIENT-ID", summary: "find the live session of a client by its own handle",
		min: 1, max: 1, prepare: prepareReattach,
	}
)

// bareVerb makes a verb of a call that answers with the session.
func bareVerb(call func(*client.Client, context.Context, string) (client.Session, error)) func(*flag.FlagSet) func(context.Context, *shell, []string) error {
	return func(*flag.FlagSet) func(context.Context, *shell, []string) error {
		return func(ctx context.Context, s *shell, words []string) error {
			v, err := s.session(ctx, words[0])
			if err == nil {
				v, err = call(s.c, ctx, v.ID)
			}
			return s.stands(v, err)
		}
	}
}

// stands shows how a session stands after it was changed.
func (s *shell) stands(v client.Session, err error) error {
	switch {
	case err != nil:
		return s.failure(err)
	case s.p.json:
		return s.p.value(v)
	}
	s.p.printf("%s %s\n", v.ID, s.status(v))
	return nil
}

func prepareStop(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	reason := fs.String("reason", "", "your `words` for the record")
	return func(ctx context.Context, s *shell, words []string) error {
		v, err := s.session(ctx, words[0])
		if err == nil {
			v, err = s.c.StopSession(ctx, v.ID, *reason)
		}
		return s.stands(v, err)
	}
}

// cancelBare ends a session without an agent.
func (s *shell) cancelBare(ctx context.Context, v client.Session, more []string) error {
	if len(more) > 0 {
		return usagef("session cancel: session %s has no runs; end an execution with sojourn exec cancel", v.ID)
	}
	v, err := s.c.CancelSession(ctx, v.ID)
	return s.stands(v, err)
}

func prepareDelete(*flag.FlagSet) func(context.Context, *shell, []string) error {
	return func(ctx context.Context, s *shell, words []string) error {
		v, err := s.session(ctx, words[0])
		if err == nil {
			err = s.c.DeleteSession(ctx, v.ID)
		}
		switch {
		case err != nil:
			return s.failure(err)
		case s.p.json:
			return s.p.value(map[string]any{"id": v.ID, "deleted": true})
		}
		s.p.printf("%s deleted\n", v.ID)
		return nil
	}
}

func prepareReattach(*flag.FlagSet) func(context.Context, *shell, []string) error {
	return func(ctx context.Context, s *shell, words []string) error {
		v, err := s.c.Reattach(ctx, words[0])
		switch {
		case err != nil:
			return s.failure(err)
		case s.p.json:
			return s.p.value(v)
		}
		s.describe(v)
		return nil
	}
}

func prepareHeartbeat(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	every := fs.Duration("every", 0, "say it again after this `duration`; the server expects 30s at most")
	return func(ctx context.Context, s *shell, words []string) error {
		if *every < 0 || given(fs, "every") && *every < time.Second {
			return usagef("session heartbeat: --every must be a second or more")
		}
		v, err := s.session(ctx, words[0])
		if err != nil {
			return s.failure(err)
		}
		for {
			if v, err = s.c.Heartbeat(ctx, v.ID); err != nil {
				return s.failure(err)
			}
			if *every == 0 || v.State == "closed" {
				return s.beaten(v)
			}
			if err := pause(ctx, *every); err != nil {
				return err
			}
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// beaten shows when the next heartbeat is expected.
func (s *shell) beaten(v client.Session) error {
	if s.p.json {
		return s.p.value(v)
	}
	text := s.status(v)
	if v.Client != nil && v.Client.NextHeartbeatBy != nil {
		text += "; the next heartbeat is expected by " + s.p.when(*v.Client.NextHeartbeatBy)
	}
	s.p.printf("%s %s\n", v.ID, text)
	return nil
}

// rotated waits until a session without an agent has its fresh sandbox, and shows
// it. after is the number of the last event before the rotation.
func (s *shell) rotated(ctx context.Context, v client.Session, after int64) error {
	failed := ""
	_, err := s.follow(ctx, v.ID, after, func(e client.Event) (bool, error) {
		var d struct {
			Error    string
			Retrying bool
		}
		switch sojourn.EventType(e.Type) {
		case sojourn.EventRotationCompleted:
			return false, nil
		case sojourn.EventRotationFailed:
			unpack(e.Data, &d)
			failed = terminal.Line(d.Error, 1000)
			if d.Retrying {
				fmt.Fprintf(s.err, "sojourn: a try has failed: %s\n", failed)
				failed = ""
			}
			return d.Retrying, nil
		case sojourn.EventSessionCompleted, sojourn.EventSessionFailed, sojourn.EventSessionCancelled:
			failed = "the session has ended"
			return false, nil
		}
		return true, nil
	})
	switch {
	case err != nil:
		return s.failure(err)
	case failed != "":
		return &exitError{exitFailure, errors.New("the sandbox was not replaced: " + failed)}
	}
	v, err = s.c.Session(ctx, v.ID)
	return s.stands(v, err)
}
