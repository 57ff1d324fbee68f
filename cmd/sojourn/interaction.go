package main

import (
	"context"
	"flag"
	"fmt"
	"strings"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

// interactionCommand is everything about what runs ask.
func interactionCommand(ctx context.Context, std stdio, args []string) error {
	return runVerbs(ctx, std, "interaction", interactionVerbs, args)
}

var interactionVerbs = []verb{
	{
		name: "list", args: "SESSION", summary: "list what the runs of a session have asked",
		detail: idHelp, min: 1, max: 1, prepare: prepareInteractions,
	},
	{
		name: "answer", args: "SESSION INTERACTION [OPTION]", summary: "answer a question, once and for all",
		detail: `OPTION is the id of an offered option or its kind (such as allow_once), if only
one option is of that kind. With --text the answer is in words. An interaction
is named like a session, "last" being the newest open one.

` + idHelp,
		min: 2, max: 3, prepare: prepareAnswer,
	},
}

func prepareInteractions(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	open := fs.Bool("open", false, "only those that wait for an answer")
	return func(ctx context.Context, s *shell, args []string) error {
		v, err := s.session(ctx, args[0])
		if err != nil {
			return s.failure(err)
		}
		state := ""
		if *open {
			state = "open"
		}
		list, err := s.c.Interactions(ctx, v.ID, state)
		if err != nil {
			return s.failure(err)
		}
		if s.p.json {
			return s.p.value(map[string]any{"interactions": list})
		}
		rows := make([][]string, len(list))
		for i, in := range list {
			rows[i] = []string{in.ID, terminal.Line(in.State, 20), terminal.Line(in.Kind, 20), s.p.when(in.RequestedAt), summary(in)}
		}
		s.p.table([]string{"ID", "STATE", "KIND", "ASKED", "QUESTION"}, rows)
		s.howToAnswer(v.ID, list)
		return nil
	}
}

// howToAnswer prints the commands that answer the open interactions.
func (s *shell) howToAnswer(session string, list []client.Interaction) {
	for _, in := range list {
		if in.State != "open" {
			continue
		}
		s.p.printf("\n%s\n", s.p.styled(yellow, "? "+asked(in.Kind, in.Request)))
		for _, c := range choices(session, in.ID, in.Options) {
			s.p.printf("    %s\n      %s\n", c.name, c.command)
		}
	}
}

// summary says in one line what was asked and what came of it.
func summary(in client.Interaction) string {
	text := asked(in.Kind, in.Request)
	switch {
	case in.Answer != nil && in.Answer.OptionID != "":
		text += " -> " + terminal.Line(in.Answer.OptionID, 60)
	case in.Answer != nil:
		text += " -> " + terminal.Line(in.Answer.Text, 60)
	case in.Reason != "":
		text += bracketed(in.Reason)
	}
	return text
}

func prepareAnswer(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	text := fs.String("text", "", "the answer in `words`")
	return func(ctx context.Context, s *shell, args []string) error {
		if (len(args) == 3) == (*text != "") {
			return usagef("interaction answer: give either an OPTION or --text")
		}
		v, err := s.session(ctx, args[0])
		if err != nil {
			return s.failure(err)
		}
		in, err := s.interaction(ctx, v.ID, args[1])
		if err != nil {
			return s.failure(err)
		}
		answer := client.Answer{Text: *text}
		if len(args) == 3 {
			if answer.OptionID, err = chosen(in, args[2]); err != nil {
				return err
			}
		}
		in, err = s.c.AnswerInteraction(ctx, v.ID, in.ID, answer)
		if err != nil {
			return s.failure(err)
		}
		if s.p.json {
			return s.p.value(in)
		}
		s.p.printf("%s %s\n", in.ID, terminal.Line(in.State, 0))
		return nil
	}
}

// chosen finds the option that a word names: by its id, else by a kind that no
// other option has.
func chosen(in client.Interaction, word string) (string, error) {
	var ofKind []string
	for _, o := range in.Options {
		if o.OptionID == word {
			return word, nil
		}
		if o.Kind == word {
			ofKind = append(ofKind, o.OptionID)
		}
	}
	switch len(ofKind) {
	case 1:
		return ofKind[0], nil
	case 0:
		return "", usagef("interaction %s offers no option %q; it offers %s", in.ID, terminal.Visible(word, ""), offered(in.Options))
	default:
		return "", usagef("interaction %s offers more than one option of the kind %s: %s", in.ID, word, offered(in.Options))
	}
}

func offered(options []client.Option) string {
	if len(options) == 0 {
		return "none; answer it with --text"
	}
	words := make([]string, len(options))
	for i, o := range options {
		words[i] = fmt.Sprintf("%s (%s: %s)", quoted(o.OptionID), terminal.Line(o.Kind, 40), terminal.Line(o.Name, 60))
	}
	return strings.Join(words, ", ")
}
