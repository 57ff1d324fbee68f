package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/config"
)

const networkHelp = `A rule is HOST, HOST:PORT, *.DOMAIN, an address or a range of addresses, for
example: sojourn session network last allow github.com '*.npmjs.org' 10.0.0.7:5432`

// sandboxFlag holds what session create is told about sandboxes.
type sandboxFlag struct {
	client.Sandbox
	limits  client.SandboxLimits
	network string
	allow   listFlag
	creds   listFlag
	raw     bool
}

// sandboxFlags are the flags of a session's sandboxes.
func sandboxFlags(fs *flag.FlagSet) *sandboxFlag {
	f := &sandboxFlag{}
	fs.StringVar(&f.Image, "image", "", "root file system of the sandboxes: a `reference` that the operator allows")
	fs.StringVar(&f.Isolation, "isolation", "", "the weakest `wall` that will do: container, gvisor or microvm")
	fs.StringVar(&f.Idle, "idle", "", "`destroy` or snapshot: whether processes of an unused sandbox are saved")
	fs.Var((*sizeFlag)(&f.limits.MemoryBytes), "memory", "memory limit, such as `512M` or 2G")
	fs.Var((*sizeFlag)(&f.limits.DiskBytes), "disk", "disk limit, such as `4G`")
	fs.Var((*coresFlag)(&f.limits.MilliCPUs), "cpus", "processor limit in `cores`, such as 0.5")
	fs.IntVar(&f.limits.Processes, "processes", 0, "limit of processes and threads, a `number`")
	fs.IntVar(&f.limits.OpenFiles, "open-files", 0, "limit of open files of each process, a `number`")
	fs.StringVar(&f.network, "network", "", "`mode` of the network: none, allow or open")
	fs.Var(&f.allow, "allow", "`rule` of what may be reached; makes the mode allow; may be repeated")
	fs.Var(&f.creds, "credential", "`name` of a credential that the broker may use; may be repeated")
	fs.BoolVar(&f.raw, "raw-network", false, "an interface beside the proxy, for what speaks neither HTTP nor TLS")
	return f
}

// sandbox is what the flags ask for; nil for nothing.
func (f *sandboxFlag) sandbox() *client.Sandbox {
	out := f.Sandbox
	if f.limits != (client.SandboxLimits{}) {
		out.Limits = &f.limits
	}
	mode := f.network
	if mode == "" && len(f.allow) > 0 {
		mode = "allow"
	}
	if mode != "" || len(f.creds) > 0 || f.raw {
		out.Network = &client.Network{Mode: mode, Allow: f.allow, Credentials: f.creds, Raw: f.raw}
	}
	if out == (client.Sandbox{}) {
		return nil
	}
	return &out
}

// sizeFlag is a number of bytes: digits, and K, M, G or T for powers of 1024.
type sizeFlag int64

// String shows the bytes.
func (f *sizeFlag) String() string { return strconv.FormatInt(int64(*f), 10) }

// Set parses a size.
func (f *sizeFlag) Set(s string) error {
	n, err := config.ParseSize(s)
	*f = sizeFlag(n)
	return err
}

// coresFlag is a number of cores, kept in thousandths.
type coresFlag int

// String shows the cores.
func (f *coresFlag) String() string { return strconv.FormatFloat(float64(*f)/1000, 'g', -1, 64) }

// Set parses a number of cores.
func (f *coresFlag) Set(s string) error {
	v, err := config.ParseCores(s)
	*f = coresFlag(v)
	return err
}

// costFlag is an amount of money in millionths of a cent.
type costFlag int64

// String shows the amount.
func (f *costFlag) String() string { return strconv.FormatFloat(float64(*f)/1e8, 'f', -1, 64) }

// Set parses an amount.
func (f *costFlag) Set(s string) error {
	v, err := config.ParseMoney(s)
	if err == nil && v == 0 {
		err = errors.New("nothing could be done for nothing")
	}
	*f = costFlag(v)
	return err
}

// limits are the limits of a budget; nil for none.
func (f costFlag) limits() *client.BudgetLimits {
	if f == 0 {
		return nil
	}
	return &client.BudgetLimits{CostMicroCents: int64(f)}
}

// costOf is one line about what a session has cost; "" when that is nothing.
func costOf(b *client.Budget) string {
	if b == nil {
		return ""
	}
	text := fmt.Sprintf("%.4f", float64(b.CostMicroCents)/1e8)
	if b.Limits.CostMicroCents > 0 {
		text += fmt.Sprintf(" of %.4f", float64(b.Limits.CostMicroCents)/1e8)
	}
	if b.Reached != "" {
		text += "; the limit is reached"
	}
	return text
}

func prepareNetwork(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	var creds listFlag
	fs.Var(&creds, "credential", "`name` of a credential that the broker may use; may be repeated")
	return func(ctx context.Context, s *shell, args []string) error {
		v, err := s.session(ctx, args[0])
		if err != nil {
			return s.failure(err)
		}
		got, err := s.c.SetNetwork(ctx, v.ID, client.Network{Mode: args[1], Allow: args[2:], Credentials: creds})
		if err != nil {
			return s.failure(err)
		}
		if s.p.json {
			return s.p.value(got)
		}
		s.p.printf("%s may reach: %s\n", got.ID, describeNetwork(got.Sandbox))
		return nil
	}
}

// describeNetwork is one line about what a session's sandboxes may reach.
func describeNetwork(s *client.Sandbox) string {
	if s == nil || s.Network == nil {
		return "what the installation lets all sessions reach"
	}
	switch n := s.Network; n.Mode {
	case "allow":
		return strings.Join(n.Allow, ", ")
	case "open":
		return "every public address"
	default:
		return "nothing"
	}
}

func prepareSuspend(*flag.FlagSet) func(context.Context, *shell, []string) error {
	return func(ctx context.Context, s *shell, args []string) error {
		v, err := s.session(ctx, args[0])
		if err != nil {
			return s.failure(err)
		}
		got, err := s.c.Suspend(ctx, v.ID)
		return s.released(got, err, "has given its sandbox back")
	}
}

func prepareRotate(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	processes := fs.Bool("with-processes", false, "carry running processes, too; refused where the isolation cannot")
	noWait := fs.Bool("no-wait", false, "do not wait for the fresh sandbox of a session without an agent")
	return func(ctx context.Context, s *shell, args []string) error {
		v, err := s.session(ctx, args[0])
		if err != nil {
			return s.failure(err)
		}
		got, err := s.c.Rotate(ctx, v.ID, *processes)
		switch {
		case err == nil && v.Status != "" && *noWait:
			return s.stands(got, nil)
		case err == nil && v.Status != "":
			s.patience = defaultPatience
			return s.rotated(ctx, got, v.LastSequence)
		}
		return s.released(got, err, "has a fresh sandbox")
	}
}

// released shows a session after its sandbox was given back or replaced.
func (s *shell) released(got client.Session, err error, what string) error {
	switch {
	case err != nil:
		return s.failure(err)
	case s.p.json:
		return s.p.value(got)
	}
	s.p.printf("%s %s; next turn: %s\n", got.ID, what, got.Continuation.State)
	return nil
}
