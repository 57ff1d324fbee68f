package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/sojourn-dev/sojourn/internal/terminal"
)

// defaultURL is where serve listens unless it is told otherwise.
const defaultURL = "http://127.0.0.1:7777"

// verb is one thing that a command of the client can do.
type verb struct {
	name    string
	args    string // the positional arguments, as help shows them
	summary string
	detail  string // what else help says; may be empty
	// min and max are how many positional arguments there may be; a negative
	// max stands for any number.
	min, max int
	// rest, if not 0, is behind how many words flags end: what follows is taken as
	// it stands.
	rest int
	// local says that no server is asked, so that there is none to name.
	local bool
	// prepare defines the verb's own flags and returns what runs it.
	prepare func(fs *flag.FlagSet) func(ctx context.Context, s *shell, args []string) error
}

// settings are the flags that every verb has.
type settings struct {
	url, key string
	json     bool
}

func (o *settings) define(fs *flag.FlagSet) {
	fs.StringVar(&o.url, "url", o.url, "`address` of the server (SOJOURN_URL; "+defaultURL+")")
	fs.StringVar(&o.key, "key", o.key, "API `key` (SOJOURN_KEY)")
	fs.BoolVar(&o.json, "json", o.json, "write JSON")
}

// runVerbs finds the verb that args name and runs it. The common flags may stand
// before the verb, before its arguments and after them.
func runVerbs(ctx context.Context, std stdio, command string, verbs []verb, args []string) error {
	var opts settings
	group := flagSet()
	opts.define(group)
	verbAt := firstWord(group, args)
	if err := group.Parse(args[:verbAt]); err != nil {
		return flagError(err, command, func() { groupHelp(std.out, command, verbs) })
	}
	if verbAt == len(args) {
		groupHelp(std.err, command, verbs)
		return usagef("%s: say what to do", command)
	}
	if args[verbAt] == "help" {
		groupHelp(std.out, command, verbs)
		return nil
	}
	i := slices.IndexFunc(verbs, func(v verb) bool { return v.name == args[verbAt] })
	if i < 0 {
		return usagef("there is no %s %q; see sojourn %s -h", command, terminal.Visible(args[verbAt], ""), command)
	}
	return runVerb(ctx, std, command, verbs[i], opts, args[verbAt+1:])
}

// runVerb runs one verb. opts are the common flags that stood before it.
func runVerb(ctx context.Context, std stdio, command string, v verb, opts settings, args []string) error {
	fs := flagSet()
	if v.local {
		fs.BoolVar(&opts.json, "json", opts.json, "write JSON")
	} else {
		opts.define(fs)
	}
	run := v.prepare(fs)
	words, err := parse(fs, args, v.rest)
	if err != nil {
		return flagError(err, strings.TrimSpace(command+" "+v.name), func() { verbHelp(std.out, command, v, fs) })
	}
	if err := v.count(command, words); err != nil {
		return err
	}
	sh, err := newShell(std, opts)
	if err != nil {
		return err
	}
	return run(ctx, sh, words)
}

// count checks how many arguments there are.
func (v verb) count(command string, words []string) error {
	switch {
	case len(words) < v.min:
		return usagef("usage: sojourn %s %s", strings.TrimSpace(command+" "+v.name), v.args)
	case v.max >= 0 && len(words) > v.max:
		return usagef("%s: there is a word too many: %q", strings.TrimSpace(command+" "+v.name), terminal.Visible(words[v.max], ""))
	}
	return nil
}

// flagSet makes a set that leaves all printing to us.
func flagSet() *flag.FlagSet {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	return fs
}

// flagError turns what went wrong with the flags into a usage error, unless help
// was what was asked for.
func flagError(err error, name string, help func()) error {
	if errors.Is(err, flag.ErrHelp) {
		help()
		return err
	}
	return usagef("%s: %s; see sojourn %s -h, and put -- before words that begin with a dash", name, terminal.Visible(err.Error(), ""), name)
}

// parse reads flags from anywhere among the words and returns the words. After
// "--" everything is a word; "-" always is. With a rest other than 0 everything is
// from the first word on behind so many.
func parse(fs *flag.FlagSet, args []string, rest int) (words []string, err error) {
	var flags []string
	for len(args) > 0 {
		i := firstWord(fs, args)
		flags = append(flags, args[:i]...)
		if i == len(args) {
			break
		}
		if args[i] == "--" {
			words = append(words, args[i+1:]...)
			break
		}
		if rest > 0 && len(words) == rest {
			words = append(words, args[i:]...)
			break
		}
		words = append(words, args[i])
		args = args[i+1:]
	}
	return words, fs.Parse(flags)
}

// firstWord returns the index of the first argument that is not a flag or the
// value of one; len(args) when there is none.
func firstWord(fs *flag.FlagSet, args []string) int {
	for i := 0; i < len(args); i++ {
		if len(args[i]) < 2 || args[i][0] != '-' || args[i] == "--" {
			return i
		}
		name, _, hasValue := strings.Cut(strings.TrimPrefix(args[i][1:], "-"), "=")
		f := fs.Lookup(name)
		if f == nil || hasValue {
			continue
		}
		if b, ok := f.Value.(interface{ IsBoolFlag() bool }); !ok || !b.IsBoolFlag() {
			i++
		}
	}
	return len(args)
}

// groupHelp describes a command.
func groupHelp(w io.Writer, command string, verbs []verb) {
	fmt.Fprintf(w, "Usage: sojourn %s VERB [flags]\n\n", command)
	width := 0
	for _, v := range verbs {
		width = max(width, len(v.name)+1+len(v.args))
	}
	for _, v := range verbs {
		fmt.Fprintf(w, "  %-*s  %s\n", width, strings.TrimSpace(v.name+" "+v.args), v.summary)
	}
	fmt.Fprintf(w, "\nsojourn %s VERB -h shows the flags of a verb.\n", command)
}

// verbHelp describes a verb.
func verbHelp(w io.Writer, command string, v verb, fs *flag.FlagSet) {
	fmt.Fprintf(w, "Usage: %s\n\n%s\n", strings.Join(strings.Fields("sojourn "+command+" "+v.name+" [flags] "+v.args), " "), sentence(v.summary))
	if v.detail != "" {
		fmt.Fprintf(w, "\n%s\n", v.detail)
	}
	fmt.Fprint(w, "\nFlags:\n")
	fs.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		name := "--" + f.Name
		if len(f.Name) <= 2 {
			name = "-" + f.Name
		}
		if value != "" {
			name += " " + strings.ToUpper(value)
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "0s" && !slices.Contains([]string{"url", "key"}, f.Name) {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(w, "  %-20s  %s\n", name, usage)
	})
}

// sentence makes a summary into one.
func sentence(s string) string { return strings.ToUpper(s[:1]) + s[1:] + "." }

// listFlag is a flag that may be given more than once.
type listFlag []string

func (l *listFlag) String() string { return strings.Join(*l, ",") }

// Set adds a value.
func (l *listFlag) Set(s string) error {
	*l = append(*l, s)
	return nil
}

// pairsFlag is a flag of key=value pairs that may be given more than once.
type pairsFlag map[string]string

func (p *pairsFlag) String() string { return "" }

// Set adds a pair.
func (p *pairsFlag) Set(s string) error {
	k, v, ok := strings.Cut(s, "=")
	if !ok || k == "" {
		return errors.New("want key=value")
	}
	if *p == nil {
		*p = pairsFlag{}
	}
	if _, twice := (*p)[k]; twice {
		return fmt.Errorf("%s is given twice", k)
	}
	(*p)[k] = v
	return nil
}

// orEnv returns the first of a flag's value, an environment variable and a
// default that is not empty.
func orEnv(value, name, otherwise string) string {
	for _, s := range []string{value, os.Getenv(name), otherwise} {
		if s != "" {
			return s
		}
	}
	return ""
}
