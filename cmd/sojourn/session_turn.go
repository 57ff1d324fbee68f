package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/client"
)

const turnHelp = `TEXT is what the agent gets; "-" reads it from standard input to its end. What
the agent says is printed as it comes, its tool calls as a line each, and its
questions with the commands that answer them.

The exit code is 0 if the run completed and 1 if it failed, crashed or was
cancelled. Ctrl-C ends the watching and not the run (130); session watch takes it
up again. When the server goes away the command waits for it to come back; when
it gives up, the outcome is unknown (5).`

// maxTurnBytes bounds a turn read from standard input; the server has its own
// bound below that.
const maxTurnBytes = 32 << 20

func prepareTurn(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	noFollow := fs.Bool("no-follow", false, "submit only")
	patience := fs.Duration("patience", defaultPatience, "how long to wait for a server that went away, as a `duration`")
	return func(ctx context.Context, s *shell, args []string) error {
		text, err := s.turnText(args[1:])
		if err != nil {
			return err
		}
		if err := s.wait(*patience); err != nil {
			return err
		}
		v, err := s.session(ctx, args[0])
		if err != nil {
			return s.failure(err)
		}
		made, err := s.c.SubmitTurn(ctx, v.ID, client.TurnInput{Input: client.Text(text)})
		if err != nil {
			return s.submitFailure(v.ID, err)
		}
		if *noFollow {
			if s.p.json {
				return s.p.value(made)
			}
			s.p.printf("turn %d accepted, run %s\nwatch it with\n  sojourn session watch %s\n", made.Turn.Number, made.Run.ID, v.ID)
			return nil
		}
		return s.watchRun(ctx, v.ID, made.Run.ID, v.LastSequence)
	}
}

func prepareWatch(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	patience := fs.Duration("patience", defaultPatience, "how long to wait for a server that went away, as a `duration`")
	return func(ctx context.Context, s *shell, args []string) error {
		if err := s.wait(*patience); err != nil {
			return err
		}
		v, err := s.session(ctx, args[0])
		if err != nil {
			return s.failure(err)
		}
		word := "last"
		if len(args) > 1 {
			word = args[1]
		}
		id, err := s.runID(ctx, v, word)
		if err != nil {
			return s.failure(err)
		}
		return s.watchRun(ctx, v.ID, id, 0)
	}
}

// turnText is what the words of the command line stand for.
func (s *shell) turnText(words []string) (string, error) {
	text := strings.Join(words, " ")
	if text == "-" {
		b, err := io.ReadAll(io.LimitReader(s.in, maxTurnBytes+1))
		if err != nil {
			return "", fmt.Errorf("read the turn from standard input: %w", err)
		}
		if len(b) > maxTurnBytes {
			return "", usagef("the turn on standard input is longer than %s", size(maxTurnBytes))
		}
		text = strings.TrimSuffix(string(b), "\n")
	}
	switch {
	case strings.TrimSpace(text) == "":
		return "", usagef("the turn is empty")
	case !utf8.ValidString(text):
		return "", usagef("the turn is not valid UTF-8")
	}
	return text, nil
}

// submitFailure explains why a turn was not submitted, or that nobody knows.
func (s *shell) submitFailure(session string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, client.ErrLost) {
		fmt.Fprintf(s.err, "sojourn: there is no answer to the submit; look whether the turn is there with: sojourn session show %s\n", session)
	}
	return s.failure(err)
}

// watchRun narrates one run to its end and reports how it ended. All that
// belongs to the run is in the log behind after.
func (s *shell) watchRun(ctx context.Context, session, run string, after int64) error {
	n := newNarrator(s.p, session)
	if !s.p.json {
		n.note(dim, "·", "run %s", run)
	}
	begun := false
	var end *client.Event
	_, err := s.follow(ctx, session, after, func(e client.Event) (bool, error) {
		begun = begun || e.RunID == run
		if !begun || e.RunID != "" && e.RunID != run {
			return true, nil // of another run
		}
		if endsRun(e) {
			end = &e
		}
		if s.p.json {
			return end == nil, s.p.valueLine(e)
		}
		n.tell(e)
		return end == nil, nil
	})
	n.text.Fresh()
	switch {
	case end != nil && end.Type == string(sojourn.EventRunCompleted):
		return nil
	case end != nil:
		return &exitError{exitFailure, errors.New("")} // the narration has said it
	case ctx.Err() != nil:
		fmt.Fprintf(s.err, "\nThe run goes on. Watch it again with\n  sojourn session watch %s\nor end it with\n  sojourn session cancel %s\n", session, session)
		return context.Canceled
	}
	return s.unknownOutcome(session, err)
}

// endsRun reports whether e says how a run ended.
func endsRun(e client.Event) bool {
	switch sojourn.EventType(e.Type) {
	case sojourn.EventRunCompleted, sojourn.EventRunFailed, sojourn.EventRunCrashed, sojourn.EventRunCancelled:
		return true
	}
	return false
}

// unknownOutcome explains that the watching ended before the run did: that is
// never success.
func (s *shell) unknownOutcome(session string, err error) error {
	code := exitFailure
	err = s.failure(err)
	if coded, ok := errors.AsType[*exitError](err); ok {
		code = coded.code
	}
	return &exitError{code, fmt.Errorf("the outcome of the run is unknown: %w; see how it ended with: sojourn session watch %s", err, session)}
}
