package main

import (
	"context"
	"flag"
	"strings"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

// keysCommand is everything about API keys.
func keysCommand(ctx context.Context, std stdio, args []string) error {
	return runVerbs(ctx, std, "keys", keysVerbs, args)
}

var keysVerbs = []verb{
	{
		name: "create", summary: "make a key; its secret is shown this once", prepare: prepareKeyCreate,
		detail: "A key of the kind app may do what its scopes say, such as\nwamp.cloud.sessions:read. A key of the kind admin may do everything.",
	},
	{name: "list", summary: "list the keys, never their secrets", prepare: prepareKeyList},
	{name: "revoke", args: "KEY", summary: "end a key for good, and every stream that it opened", min: 1, max: 1, prepare: prepareKeyRevoke},
}

func prepareKeyCreate(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	kind := fs.String("kind", "app", "`kind` of the key: app, admin, environment, runner")
	name := fs.String("name", "", "a `name` for people")
	quiet := fs.Bool("quiet", false, "print the secret and nothing else")
	var scopes listFlag
	fs.Var(&scopes, "scope", "one `scope` of the key; may be repeated")
	return func(ctx context.Context, s *shell, _ []string) error {
		made, err := s.c.CreateKey(ctx, client.CreateKey{Kind: *kind, Name: *name, Scopes: scopes})
		if err != nil {
			return s.failure(err)
		}
		switch {
		case s.p.json:
			return s.p.value(made)
		case *quiet:
			s.p.printf("%s\n", made.Secret)
			return nil
		}
		s.p.fields([]field{
			{"key", made.Key.ID},
			{"kind", terminal.Line(made.Key.Kind, 0)},
			{"name", terminal.Line(made.Key.Name, 0)},
			{"scopes", terminal.Line(strings.Join(made.Key.Scopes, " "), 0)},
			{"secret", made.Secret},
		})
		s.p.printf("\nThe secret is not kept and cannot be shown again.\n")
		return nil
	}
}

func prepareKeyList(*flag.FlagSet) func(context.Context, *shell, []string) error {
	return func(ctx context.Context, s *shell, _ []string) error {
		keys, err := s.c.Keys(ctx)
		if err != nil {
			return s.failure(err)
		}
		if s.p.json {
			return s.p.value(map[string]any{"keys": keys})
		}
		rows := make([][]string, len(keys))
		for i, k := range keys {
			state := "valid"
			if k.RevokedAt != nil {
				state = "revoked " + s.p.when(*k.RevokedAt)
			}
			rows[i] = []string{
				k.ID, terminal.Line(k.Kind, 20), "…" + terminal.Line(k.Hint, 12), s.p.when(k.CreatedAt), state,
				terminal.Line(strings.Join(k.Scopes, ","), 0), terminal.Line(k.Name, 0),
			}
		}
		s.p.table([]string{"ID", "KIND", "SECRET", "CREATED", "STATE", "SCOPES", "NAME"}, rows)
		return nil
	}
}

func prepareKeyRevoke(*flag.FlagSet) func(context.Context, *shell, []string) error {
	return func(ctx context.Context, s *shell, args []string) error {
		keys, err := s.c.Keys(ctx)
		if err != nil {
			return s.failure(err)
		}
		k, err := named(keys, "key", args[0], func(k client.Key) string { return k.ID }, nil)
		if err == nil {
			err = s.c.RevokeKey(ctx, k.ID)
		}
		if err != nil {
			return s.failure(err)
		}
		if s.p.json {
			return s.p.value(map[string]any{"id": k.ID, "revoked": true})
		}
		s.p.printf("%s revoked\n", k.ID)
		return nil
	}
}
