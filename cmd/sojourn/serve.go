package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/checkpoint"
	"github.com/sojourn-dev/sojourn/internal/config"
	execs "github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/server"
	"github.com/sojourn-dev/sojourn/internal/snapshot"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/store/sqlite"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// serveFlags are the settings of a server. A flag goes over its environment
// variable, which goes over the default.
type serveFlags struct {
	listen, data, driver, logLevel, config string
	ceiling, hold, turnDeadline            time.Duration
	printConfig                            bool
}

func parseServe(io stdio, args []string) (f serveFlags, err error) {
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	fs.SetOutput(io.err)
	fs.StringVar(&f.listen, "listen", env("SOJOURN_LISTEN", "127.0.0.1:7777"), "address `HOST:PORT` to listen on; port 0 takes a free one")
	fs.StringVar(&f.data, "data", env("SOJOURN_DATA", defaultData()), "`directory` of all that the server keeps")
	fs.StringVar(&f.driver, "driver", env("SOJOURN_DRIVER", "auto"), "sandbox driver: auto, gvisor, namespace, docker, microvm, process or none")
	fs.StringVar(&f.config, "config", env("SOJOURN_CONFIG", ""), "configuration `file`; sojourn serve --print-config prints a commented one")
	fs.BoolVar(&f.printConfig, "print-config", false, "print a configuration file with all that there is, commented, and exit")
	fs.StringVar(&f.logLevel, "log-level", env("SOJOURN_LOG_LEVEL", "info"), "debug, info, warn or error; the log goes to standard error")
	fs.DurationVar(&f.ceiling, "lease-ceiling", sojourn.DefaultCeiling, "hard bound of a lease")
	fs.DurationVar(&f.hold, "idle-hold", sojourn.DefaultHold, "how long an unused sandbox is kept")
	fs.DurationVar(&f.turnDeadline, "turn-deadline", 0, "bound of one turn; 0 leaves the lease's ceiling as the bound")
	if err := fs.Parse(args); err != nil {
		return f, asUsage(err)
	}
	switch {
	case fs.NArg() > 0:
		return f, usagef("serve takes no arguments; there is %q", fs.Arg(0))
	case f.ceiling <= 0 || f.hold <= 0 || f.turnDeadline < 0:
		return f, usagef("-lease-ceiling and -idle-hold must be above zero, -turn-deadline must not be negative")
	case f.data == "":
		return f, usagef("there is no home directory; say where to keep the data with -data")
	}
	f.data, err = filepath.Abs(f.data)
	return f, err
}

func env(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

// defaultData is the data directory when none is named: the system's for root,
// the user's own otherwise.
func defaultData() string {
	if os.Geteuid() == 0 {
		return "/var/lib/sojourn"
	}
	if d := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "sojourn")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "share", "sojourn")
	}
	return ""
}

// serve runs the server until it is told to stop.
func serve(ctx context.Context, io stdio, args []string) error {
	f, err := parseServe(io, args)
	if err != nil {
		return err
	}
	if f.printConfig {
		_, err := fmt.Fprint(io.out, config.Sample)
		return err
	}
	if err := becomeStatic(ctx, io); err != nil {
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return usagef("-log-level: %q is none of debug, info, warn, error", f.logLevel)
	}
	log := slog.New(slog.NewTextHandler(io.err, &slog.HandlerOptions{Level: level}))
	if err := os.MkdirAll(f.data, 0o700); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	bucket, err := openBlobs(f.data)
	if err != nil {
		return err
	}
	defer bucket.Close()
	cache, err := checkpoint.OpenCache(filepath.Join(f.data, "cache"), 0)
	if err != nil {
		return err
	}
	outputs, err := execs.Open(filepath.Join(f.data, "outputs"), execs.Config{})
	if err != nil {
		return err
	}
	cfg, err := config.Load(f.config)
	if err != nil {
		return err
	}
	set, err := newSetup(cfg, f.data, log)
	if err != nil {
		return err
	}
	defer set.close()
	processKey, err := snapshot.OpenKey(filepath.Join(f.data, "keys", "processes.key"))
	if err != nil {
		return err
	}
	drives, err := set.harnesses()
	if err != nil {
		return err
	}
	chosenKey := os.Getenv("SOJOURN_ADMIN_KEY")
	os.Unsetenv("SOJOURN_ADMIN_KEY") // what this process starts must not inherit it
	var l net.Listener
	s, err := server.Open(ctx, server.Config{
		Bucket: bucket, Cache: cache, Harness: drives, Runtimes: set.table, Log: log, Version: buildVersion(),
		Terms: sojourn.Terms{Ceiling: f.ceiling, Hold: f.hold}, TurnDeadline: f.turnDeadline, AdminKey: chosenKey,
		UnresponsiveAfter: time.Duration(cfg.Sandbox.UnresponsiveAfter),
		Sandbox:           set.sandbox, CheckImage: set.images.Check, Egress: set.way, Models: set.way, MCPServers: set.mcpServers(), Tidy: set.tidy,
		Outputs: outputs, Rates: ratesOf(cfg.Rates), Rate: server.CallRate{PerSecond: cfg.Calls.PerSecond, Burst: cfg.Calls.Burst},
		ProcessKey: processKey, SnapshotDir: filepath.Join(f.data, "snapshots"),
		OpenStore: func(ctx context.Context, onEvents func(sojourn.SessionID, []sojourn.Event)) (store.Store, error) {
			st, err := sqlite.Open(ctx, sqlite.Config{Dir: f.data, OnEvents: onEvents, Log: log})
			if err != nil {
				return nil, err
			}
			// After the lock on the data, whose holder is likely to have the port, too,
			// and before the first key is made, which only greet shows.
			if l, err = net.Listen("tcp", f.listen); err != nil {
				return nil, errors.Join(fmt.Errorf("listen: %w", err), st.Close())
			}
			set.listensAt(l.Addr())
			return st, nil
		},
		OpenDriver: func(ctx context.Context) (sandbox.Driver, string, error) {
			return set.openDriver(ctx, f.driver)
		},
	})
	if err != nil {
		if l != nil {
			l.Close()
		}
		return err
	}
	defer s.Close()
	set.meter.server.Store(s)
	greet(io, l, s, set.sandbox.Network, chosenKey != "")
	return s.Run(ctx, l)
}

// ratesOf is what the configuration says that execs cost.
func ratesOf(r config.Rates) server.Rates {
	cpu, memory, exec := r.Effective()
	return server.Rates{VCPUSecond: sojourn.Money(cpu), GiBSecond: sojourn.Money(memory), Exec: sojourn.Money(exec)}
}

func openBlobs(data string) (*blob.Bucket, error) {
	b, err := fileblob.OpenBucket(filepath.Join(data, "blobs"), &fileblob.Options{
		CreateDir: true, DirFileMode: 0o700, NoTempDir: true, Metadata: fileblob.MetadataDontWrite,
	})
	if err != nil {
		return nil, fmt.Errorf("open the blob store: %w", err)
	}
	return b, nil
}

// limitSummary says in one line what sandboxes can be kept within.
func limitSummary(l sandbox.LimitSupport) string {
	switch has, not := limitWords(l); {
	case not == "":
		return has + "."
	case has == "":
		return "none; sojourn doctor says what is missing."
	default:
		return has + "; not " + not + ", and sojourn doctor says what is missing."
	}
}

// networkSummary says in one line what sandboxes reach that nobody has said more about.
func networkSummary(p sojourn.NetworkPolicy, c sandbox.Capabilities) string {
	says := map[sojourn.NetworkMode]string{
		sojourn.NetworkNone:  "Nothing, unless a session asks for more.",
		sojourn.NetworkAllow: fmt.Sprintf("Through the proxy, what %d rules allow, unless a session says otherwise.", len(p.Allow)),
		sojourn.NetworkOpen:  "Through the proxy, every public address, unless a session says otherwise.",
	}[cmp.Or(p.Mode, sojourn.NetworkNone)]
	if slices.Contains(c.Networks, sandbox.NetworkNAT) {
		says += " Sessions may ask for an interface of their own (network.raw)."
	}
	return says
}

// greet prints where the server is and what to type next. The address is in the
// first line; programs read it there.
func greet(io stdio, l net.Listener, s *server.Server, network sojourn.NetworkPolicy, keyChosen bool) {
	url := "http://" + l.Addr().String()
	fmt.Fprintf(io.out, "Sojourn %s listens on %s\n", buildVersion(), url)
	if s.Driver != nil {
		caps := s.Driver.Capabilities()
		fmt.Fprintf(io.out, "Sandboxes: %s (isolation %s): %s\n", s.Driver.Name(), caps.Isolation, s.DriverReason)
		fmt.Fprintf(io.out, "Limits: %s\n", limitSummary(caps.Limits))
		fmt.Fprintf(io.out, "Network: %s\n", networkSummary(network, caps))
	} else {
		fmt.Fprintf(io.out, "Sandboxes: none: %s\n", s.DriverReason)
	}
	key := "YOUR_KEY"
	switch {
	case keyChosen:
		key = "$SOJOURN_ADMIN_KEY"
	case s.AdminKey != "":
		key = s.AdminKey
		fmt.Fprintf(io.out, "\nAdmin key, shown this once:\n\n  %s\n", key)
	}
	fmt.Fprintf(io.out, `
Next, in another terminal:

  export SOJOURN_URL=%s SOJOURN_KEY=%s
  sojourn session create --title first
  sojourn session turn last "@say hello"

`, url, key)
}
