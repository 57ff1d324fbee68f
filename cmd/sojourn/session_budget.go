package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

var (
	budgetVerb = verb{
		name: "budget", args: "ID", summary: "show what a session without an agent may use, or change it",
		detail: "What was used stays. A limit that is not above it ends the session.\n\n" + idHelp, min: 1, max: 1, prepare: prepareBudget,
	}
	contextVerb = verb{
		name: "context", args: "ID", summary: "show what the commands of a session start from, or change it",
		detail: "It is carried from sandbox to sandbox. Commands that run already do not see a change.\n\n" + idHelp, min: 1, max: 1, prepare: prepareContext,
	}
	toolsVerb = verb{
		name: "tools", args: "ID [NAME [--] CMD [ARGS...]]", summary: "list the tools of a session, or register one",
		detail: `A tool is called with sojourn exec ID --tool NAME --input JSON. A command gets the
input on its standard input; with --call the input is sent to an address instead.

` + idHelp,
		min: 1, max: -1, rest: 2, prepare: prepareTools,
	}
)

func prepareBudget(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	var cost costFlag
	fs.Var(&cost, "max-cost", "the most that it may cost in all, an `amount` such as 2.50")
	iterations := fs.Int64("max-iterations", 0, "how many commands it may run in all, a `number`")
	duration := fs.Duration("max-duration", 0, "how long it may be open in all, a `duration`")
	var unlimited listFlag
	fs.Var(&unlimited, "unlimited", "take `which` limit away: cost, iterations or duration; may be repeated")
	return func(ctx context.Context, s *shell, words []string) error {
		if given(fs, "max-iterations") && *iterations <= 0 || given(fs, "max-duration") && *duration <= 0 {
			return usagef("session budget: a limit must be more than 0; take one away with --unlimited")
		}
		v, err := s.session(ctx, words[0])
		if err != nil {
			return s.failure(err)
		}
		change := client.BudgetChange{
			BudgetLimits: client.BudgetLimits{CostMicroCents: int64(cost), Iterations: *iterations, DurationSeconds: duration.Seconds()},
			Unlimited:    unlimited,
		}
		if change.BudgetLimits != (client.BudgetLimits{}) || len(unlimited) > 0 {
			if v, err = s.c.ChangeBudget(ctx, v.ID, change); err != nil {
				return s.failure(err)
			}
		}
		if s.p.json {
			return s.p.value(map[string]any{"budget": v.Budget, "status": v.Status})
		}
		lines := budgetLines(v.Budget)
		if len(lines) == 0 {
			lines = []string{"nothing is limited, and nothing was used"}
		}
		s.p.printf("%s\n", strings.Join(lines, "\n"))
		return nil
	}
}

func prepareContext(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	dir := fs.String("dir", "", "where commands start, a `directory` in the workspace; \"\" is the workspace")
	var env, set pairsFlag
	var unset listFlag
	fs.Var(&env, "env", "set a variable, `name=value`; may be repeated")
	fs.Var(&unset, "unset", "forget the variable of this `name`; may be repeated")
	fs.Var(&set, "set", "keep something of your own, `key=JSON`; null forgets it; may be repeated")
	return func(ctx context.Context, s *shell, words []string) error {
		p := client.CarryoverPatch{Env: env, UnsetEnv: unset}
		if given(fs, "dir") {
			p.Dir = dir
		}
		for k, v := range set {
			if !json.Valid([]byte(v)) {
				return usagef("session context: --set %s: %q is not JSON; a text is written like '\"this\"'", terminal.Visible(k, ""), terminal.Visible(v, ""))
			}
			if p.Custom == nil {
				p.Custom = map[string]json.RawMessage{}
			}
			p.Custom[k] = json.RawMessage(v)
		}
		v, err := s.session(ctx, words[0])
		if err != nil {
			return s.failure(err)
		}
		var c client.Carryover
		if p.Dir != nil || len(p.Env)+len(p.UnsetEnv)+len(p.Custom) > 0 {
			c, err = s.c.ChangeCarryover(ctx, v.ID, p)
		} else {
			c, err = s.c.Carryover(ctx, v.ID)
		}
		switch {
		case err != nil:
			return s.failure(err)
		case s.p.json:
			return s.p.value(c)
		}
		s.describeContext(c)
		return nil
	}
}

func (s *shell) describeContext(c client.Carryover) {
	dir := c.Dir
	if dir == "" {
		dir = "the workspace"
	}
	fields := []field{{"directory", terminal.Line(dir, 0)}}
	for _, k := range slices.Sorted(maps.Keys(c.Env)) {
		fields = append(fields, field{"env", terminal.Line(k, 0) + "=" + terminal.Line(c.Env[k], lineRunes)})
	}
	for _, k := range slices.Sorted(maps.Keys(c.Custom)) {
		fields = append(fields, field{"kept", terminal.Line(k, 0) + "=" + terminal.Line(string(c.Custom[k]), lineRunes)})
	}
	if c.UpdatedAt != nil {
		fields = append(fields, field{"changed", s.p.when(*c.UpdatedAt)})
	}
	s.p.fields(fields)
}

func prepareTools(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	about := fs.String("description", "", "what it is for, in `words`")
	schema := fs.String("schema", "", "a `file` with the JSON Schema of its input")
	call := fs.String("call", "", "the `address` that gets the input as a POST from the sandbox, in place of CMD")
	approve := fs.Bool("requires-approval", false, "each call waits until somebody approves it")
	return func(ctx context.Context, s *shell, words []string) error {
		v, err := s.session(ctx, words[0])
		if err != nil {
			return s.failure(err)
		}
		if len(words) == 1 {
			return s.listTools(ctx, v.ID)
		}
		t := client.Tool{Name: words[1], Description: *about, Command: words[2:], URL: *call, RequiresApproval: *approve}
		if (len(t.Command) == 0) == (t.URL == "") {
			return usagef("session tools: give either a command or --call")
		}
		if *schema != "" {
			if t.InputSchema, err = os.ReadFile(*schema); err != nil {
				return fmt.Errorf("read the schema: %w", err)
			}
			if !json.Valid(t.InputSchema) {
				return usagef("session tools: %s is not JSON", terminal.Visible(*schema, ""))
			}
		}
		if t, err = s.c.RegisterTool(ctx, v.ID, t); err != nil {
			return s.failure(err)
		}
		if s.p.json {
			return s.p.value(t)
		}
		s.p.printf("tool %s registered\n", terminal.Line(t.Name, 80))
		return nil
	}
}

func (s *shell) listTools(ctx context.Context, session string) error {
	list, err := s.c.Tools(ctx, session)
	switch {
	case err != nil:
		return s.failure(err)
	case s.p.json:
		return s.p.value(map[string]any{"tools": list})
	}
	rows := make([][]string, len(list))
	for i, t := range list {
		what := commandLine(client.Execution{Command: t.Command})
		if t.URL != "" {
			what = "POST " + terminal.Line(t.URL, lineRunes)
		}
		approval := "-"
		if t.RequiresApproval {
			approval = "each call"
		}
		rows[i] = []string{terminal.Line(t.Name, 80), approval, what, terminal.Line(t.Description, lineRunes)}
	}
	s.p.table([]string{"NAME", "APPROVAL", "RUNS", "DESCRIPTION"}, rows)
	return nil
}

// spanSeconds shows a number of seconds.
func spanSeconds(n float64) string { return span(time.Duration(n * float64(time.Second))) }
