package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

func prepareExecAttach(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	stdin := fs.Bool("i", false, "send it what is read here, if it reads what is sent")
	from := fs.Int64("from", 0, "leave out so many `bytes` of its output, of both streams")
	patience := fs.Duration("patience", defaultPatience, "how long to wait for a server that went away, as a `duration`")
	return func(ctx context.Context, s *shell, words []string) error {
		if *from < 0 {
			return usagef("exec attach: --from must not be negative")
		}
		v, x, err := s.executionOf(ctx, words)
		if err != nil {
			return s.failure(err)
		}
		return s.carry(ctx, carried{session: v, started: x, from: *from, stdin: *stdin, tty: x.Execution.TTY, patience: *patience})
	}
}

// executionOf finds the session and its execution that two words name.
func (s *shell) executionOf(ctx context.Context, words []string) (session string, x client.StartedExecution, err error) {
	v, err := s.session(ctx, words[0])
	if err != nil {
		return "", x, err
	}
	x, err = s.execution(ctx, v.ID, words[1])
	return v.ID, x, err
}

func prepareExecList(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	limit := fs.Int("limit", 50, "at most this `number`; 0 lists all")
	return func(ctx context.Context, s *shell, words []string) error {
		if *limit < 0 {
			return usagef("exec list: --limit must not be negative")
		}
		v, err := s.session(ctx, words[0])
		if err != nil {
			return s.failure(err)
		}
		list, more, err := s.executionList(ctx, v.ID, *limit)
		if err != nil {
			return s.failure(err)
		}
		if s.p.json {
			return s.p.value(map[string]any{"executions": list, "more": more})
		}
		rows := make([][]string, len(list))
		for i, x := range list {
			rows[i] = []string{
				strconv.FormatInt(x.Number, 10), x.ID, outcome(x), s.p.when(x.QueuedAt), ran(x), money(x.CostMicroCents), commandLine(x),
			}
		}
		s.p.table([]string{"#", "ID", "OUTCOME", "ACCEPTED", "RAN", "COST", "COMMAND"}, rows)
		if more {
			fmt.Fprintf(s.err, "there are more; --limit 0 lists all\n")
		}
		return nil
	}
}

func (s *shell) executionList(ctx context.Context, session string, limit int) (list []client.Execution, more bool, err error) {
	for cursor := ""; ; {
		size := pageSize
		if limit > 0 {
			size = min(pageSize, limit-len(list))
		}
		page, err := s.c.Executions(ctx, session, cursor, size)
		if err != nil {
			return nil, false, err
		}
		list = append(list, page.Executions...)
		cursor = page.NextCursor
		if cursor == "" || limit > 0 && len(list) >= limit {
			return list, cursor != "", nil
		}
	}
}

// outcome says in a word or two how an execution stands.
func outcome(x client.Execution) string {
	switch x.Outcome {
	case "":
		text := terminal.Line(x.State, 20)
		if x.Detached {
			text += ", detached"
		}
		if x.Ending != "" {
			text += bracketed("ending: " + x.Ending)
		}
		return text
	case "exit":
		if x.ExitCode != nil {
			return "code " + strconv.Itoa(*x.ExitCode) + bracketed(x.Reason)
		}
	case "signal":
		return terminal.Line(x.Signal, 20) + bracketed(x.Reason)
	}
	text := strings.ReplaceAll(terminal.Line(x.Outcome, 20), "_", " ")
	if x.Reason == x.Outcome {
		return text
	}
	return text + bracketed(x.Reason)
}

// ran is how long an execution ran, or has run by now.
func ran(x client.Execution) string {
	switch {
	case x.StartedAt == nil, x.Outcome == "not_started":
		return "-"
	case x.Over():
		return span(time.Duration(x.DurationMs) * time.Millisecond)
	}
	return span(time.Since(*x.StartedAt))
}

// money shows millionths of a cent in units of a hundred cents.
func money(microCents int64) string { return fmt.Sprintf("%.6f", float64(microCents)/1e8) }

func prepareExecShow(*flag.FlagSet) func(context.Context, *shell, []string) error {
	return func(ctx context.Context, s *shell, words []string) error {
		_, x, err := s.executionOf(ctx, words)
		if err != nil {
			return s.failure(err)
		}
		if s.p.json {
			return s.p.value(x)
		}
		s.describeExecution(x.Execution)
		if x.Approval != nil {
			s.howToAnswer(x.Execution.SessionID, []client.Interaction{*x.Approval})
		}
		return nil
	}
}

// describeExecution shows an execution to people.
func (s *shell) describeExecution(x client.Execution) {
	fields := []field{
		{"execution", x.ID + " (" + strconv.FormatInt(x.Number, 10) + ")"},
		{"command", commandLine(x)},
		{"outcome", outcome(x)},
		{"error", terminal.Line(x.Error, 1000)},
		{"directory", terminal.Line(x.Dir, 0)},
		{"variables", terminal.Line(strings.Join(x.Variables, " "), 0)},
		{"accepted", s.p.when(x.QueuedAt)},
	}
	if x.StartedAt != nil {
		fields = append(fields, field{"started", s.p.when(*x.StartedAt)}, field{"ran", ran(x)})
	}
	if x.EndedAt != nil {
		fields = append(fields, field{"ended", s.p.when(*x.EndedAt)})
	}
	if x.TimeoutMs > 0 {
		fields = append(fields, field{"timeout", span(time.Duration(x.TimeoutMs) * time.Millisecond)})
	}
	if x.Over() && x.StartedAt != nil {
		fields = append(fields, field{"processor", span(time.Duration(x.CPUMs) * time.Millisecond)},
			field{"output", size(x.StdoutBytes) + " on stdout, " + size(x.StderrBytes) + " on stderr"})
		if x.MaxRSSBytes > 0 {
			fields = append(fields, field{"memory", size(x.MaxRSSBytes) + " at most"})
		}
	}
	if x.KeptNote != "" {
		fields = append(fields, field{"kept", size(x.KeptBytes) + bracketed(x.KeptNote)})
	}
	s.p.fields(append(fields, field{"cost", money(x.CostMicroCents)}))
}

func prepareExecOutput(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	stream := fs.String("stream", "all", "`which` bytes: stdout, stderr, or all as they came")
	offset := fs.Int64("offset", 0, "begin at this `byte` of that stream")
	follow := fs.Bool("follow", false, "go on until the execution is over")
	patience := fs.Duration("patience", defaultPatience, "how long to wait for a server that went away, as a `duration`")
	return func(ctx context.Context, s *shell, words []string) error {
		if *offset < 0 || !slices.Contains([]string{"stdout", "stderr", "all"}, *stream) {
			return usagef("exec output: --offset must not be negative, and --stream is stdout, stderr or all")
		}
		v, x, err := s.executionOf(ctx, words)
		if err != nil {
			return s.failure(err)
		}
		q := client.OutputQuery{
			Session: v, Execution: x.Execution.ID, Stream: *stream, Offset: *offset, Follow: *follow, Patience: max(*patience, time.Nanosecond),
		}
		lines, to := &jsonLines{p: s.p}, s.out
		if s.p.json {
			to = lines.stream(*stream)
		}
		if _, err := s.c.CopyOutput(ctx, q, to); err != nil {
			return s.failure(err)
		}
		return lines.flush()
	}
}

func prepareExecSignal(*flag.FlagSet) func(context.Context, *shell, []string) error {
	return func(ctx context.Context, s *shell, words []string) error {
		v, x, err := s.executionOf(ctx, words)
		name := signalName(words[2])
		if err == nil {
			err = s.c.SignalExecution(ctx, v, x.Execution.ID, name)
		}
		if err != nil {
			return s.failure(err)
		}
		if s.p.json {
			return s.p.value(x)
		}
		s.p.printf("%s has got %s\n", x.Execution.ID, terminal.Line(name, 40))
		return nil
	}
}

// signalName is the name of a signal that may be written as kill(1) takes it: with or
// without SIG, in any case, or as a number.
func signalName(word string) string {
	if n, err := strconv.Atoi(word); err == nil {
		return cmp.Or(unix.SignalName(unix.Signal(n)), word)
	}
	name := strings.ToUpper(word)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	return name
}

func prepareExecCancel(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	kill := fs.Bool("kill", false, "SIGKILL at once")
	return func(ctx context.Context, s *shell, words []string) error {
		v, x, err := s.executionOf(ctx, words)
		var got client.Execution
		if err == nil {
			got, err = s.c.CancelExecution(ctx, v, x.Execution.ID, *kill)
		}
		if err != nil {
			return s.failure(err)
		}
		if s.p.json {
			return s.p.value(got)
		}
		if !got.Over() {
			s.p.printf("%s is being ended\n", got.ID)
			return nil
		}
		s.p.printf("%s: %s\n", got.ID, outcome(got))
		return nil
	}
}
