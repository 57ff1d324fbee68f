package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

func prepareEvents(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	after := fs.Int64("after", 0, "only events behind this sequence `number`")
	follow := fs.Bool("follow", false, "go on with what happens, until Ctrl-C")
	patience := fs.Duration("patience", defaultPatience, "how long to wait for a server that went away, as a `duration`")
	return func(ctx context.Context, s *shell, args []string) error {
		if *after < 0 {
			return usagef("session events: --after must not be negative")
		}
		v, err := s.session(ctx, args[0])
		if err != nil {
			return s.failure(err)
		}
		if *follow {
			if err := s.wait(*patience); err != nil {
				return err
			}
			return s.followEvents(ctx, v.ID, *after)
		}
		return s.failure(s.listEvents(ctx, v.ID, *after))
	}
}

// listEvents prints the log as it is now.
func (s *shell) listEvents(ctx context.Context, session string, after int64) error {
	for more := true; more; {
		var events []client.Event
		var err error
		if events, more, err = s.c.Events(ctx, session, after, eventsPage); err != nil {
			return err
		}
		for _, e := range events {
			if err := s.event(e); err != nil {
				return err
			}
			after = e.Sequence
		}
	}
	return nil
}

// eventsPage is how many events one call asks for.
const eventsPage = 1000

// followEvents prints the log and what happens, until it is interrupted.
func (s *shell) followEvents(ctx context.Context, session string, after int64) error {
	last, err := s.follow(ctx, session, after, func(e client.Event) (bool, error) { return true, s.event(e) })
	if ctx.Err() != nil {
		fmt.Fprintf(s.err, "\nThe session goes on. Follow it again with\n  sojourn session events %s --after %d --follow\n", session, last)
		return context.Canceled
	}
	return s.failure(err)
}

// event prints one event of the log on one line.
func (s *shell) event(e client.Event) error {
	if s.p.json {
		return s.p.valueLine(e)
	}
	at := e.OccurredAt.Local().Format("2006-01-02 15:04:05.000")
	s.p.printf("%6d  %s  %-22s  %s\n", e.Sequence, s.p.styled(dim, at), terminal.Line(e.Type, 60), happening(e))
	return nil
}
