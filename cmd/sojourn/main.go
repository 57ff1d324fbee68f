// Command sojourn is the one binary: the server, every part of it that runs
// elsewhere, and the command line.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/sojourn-dev/sojourn/internal/harness/script"
	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/sandbox/gvisor"
	"github.com/sojourn-dev/sojourn/sandbox/namespace"
	"github.com/sojourn-dev/sojourn/sandbox/process"
)

// The exit codes of the command line; docs/cli.md lists them.
const (
	exitOK          = 0
	exitFailure     = 1   // it was tried and did not work; or a run did not complete
	exitUsage       = 2   // the words are off
	exitNotFound    = 3   // there is no such thing
	exitRefused     = 4   // the server refuses it in this state, or for this key
	exitUnreachable = 5   // no server answers
	exitInterrupted = 130 // ended by the user
)

// command is one verb of the command line.
type command struct {
	name    string
	summary string
	run     func(ctx context.Context, io stdio, args []string) error
}

// stdio is where a command reads and writes.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

// commands is the command table, in the order that help shows.
func commands() []command {
	return []command{
		{"serve", "run the server", serve},
		{"demo", "see a session survive the loss of its sandbox and of its server", demo},
		{"session", "create, list, show, turn, watch, events, cancel, shell, cp, port-forward, archive and more", sessionCommand},
		{"exec", "run commands in the sandbox of a session without an agent", execCommand},
		{"interaction", "list and answer what runs and execs ask", interactionCommand},
		{"keys", "create, list and revoke API keys", keysCommand},
		{"runtimes", "list, show, install and remove the agents that sessions use", runtimesCommand},
		{"doctor", "say what this machine can do and what to install for more", doctor},
		{"version", "print the version", version},
	}
}

func main() {
	// Several parts of the sandbox are this executable under another name. They
	// are told apart before anything else happens.
	if gvisor.IsReexec(os.Args) {
		gvisor.Main()
		return
	}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "keeper":
			os.Exit(keeper.Main(os.Args[2:]))
		case "script-agent":
			os.Exit(script.Main(os.Args[2:]))
		case "namespace-init":
			os.Exit(namespace.Init(os.Args[2:]))
		case "process-guard":
			os.Exit(process.Guard(os.Args[2:]))
		case "process-confine":
			os.Exit(process.Confine(os.Args[2:]))
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(runCommand(ctx, stdio{os.Stdin, os.Stdout, os.Stderr}, os.Args[1:]))
}

// runCommand runs one command line and returns its exit code.
func runCommand(ctx context.Context, io stdio, args []string) int {
	if len(args) == 0 {
		usage(io.err)
		return exitUsage
	}
	if slices.Contains([]string{"help", "-h", "-help", "--help"}, args[0]) {
		usage(io.out)
		return exitOK
	}
	for _, c := range commands() {
		if c.name == args[0] {
			out := &output{w: io.out}
			io.out = out
			err := c.run(ctx, io, args[1:])
			if err == nil {
				err = out.failure()
			}
			return exitCode(ctx, io, err)
		}
	}
	fmt.Fprintf(io.err, "sojourn: there is no command %q; see sojourn help\n", args[0])
	return exitUsage
}

func usage(w io.Writer) {
	fmt.Fprint(w, "Sojourn keeps AI-agent sessions alive across the loss of their sandboxes.\n\nUsage: sojourn COMMAND [flags]\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-12s %s\n", c.name, c.summary)
	}
	fmt.Fprint(w, "\nsojourn COMMAND -h shows a command's flags.\n")
}

// exitError is an error that has its own exit code. An empty text prints nothing.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usagef makes an error for words that are off.
func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// exitCode prints err and returns the code that it ends with.
func exitCode(ctx context.Context, io stdio, err error) int {
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	code := exitFailure
	if e, ok := errors.AsType[*exitError](err); ok {
		code = e.code
	}
	if text := err.Error(); text != "" {
		fmt.Fprintf(io.err, "sojourn: %s\n", text)
	}
	return code
}
