package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"filippo.io/age"
	"gocloud.dev/blob"
	"golang.org/x/sync/errgroup"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/api/cloud"
	"github.com/sojourn-dev/sojourn/internal/api/exec"
	"github.com/sojourn-dev/sojourn/internal/api/operator"
	"github.com/sojourn-dev/sojourn/internal/auth"
	"github.com/sojourn-dev/sojourn/internal/checkpoint"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/hub"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/snapshot"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// Config is what a server is made from.
type Config struct {
	// OpenStore opens the store and has it tell about committed events.
	OpenStore func(ctx context.Context, onEvents func(sojourn.SessionID, []sojourn.Event)) (store.Store, error)
	Bucket    *blob.Bucket // of checkpoints; the caller closes it
	// Cache remembers which files a capture need not read again; nil reads all.
	Cache *checkpoint.Cache

	// OpenDriver chooses and opens the sandbox driver, and says why it is this
	// one. It is called after the store was opened: only one process at a time
	// works on the data. No driver means that there is nowhere to run.
	OpenDriver func(ctx context.Context) (d sandbox.Driver, reason string, err error)
	// Sandbox is what the sandboxes of sessions get that do not say otherwise,
	// and CheckImage refuses images that sessions may not name; nil refuses all.
	Sandbox    sojourn.SandboxSpec
	CheckImage func(reference string) error
	// Tidy is called once a day, for what is not the engine's; nil is nothing.
	Tidy func(context.Context) error
	// Egress is the way of sandboxes to the network; nil means none.
	Egress engine.Egress
	// Models are those that agents may use; nil means none. A [Way] is both.
	Models engine.Models
	// MCPServers are given to every agent, each as the Agent Client Protocol
	// writes it.
	MCPServers []json.RawMessage
	// ProcessKey encrypts saved processes, which are unpacked in SnapshotDir,
	// absolute; without it none are saved.
	ProcessKey  *age.X25519Identity
	SnapshotDir string
	// Outputs keeps what execs write, and Rates are what they cost.
	Outputs  *output.Store
	Rates    Rates
	Harness  harness.Harness
	Runtimes []harness.Runtime

	Terms        sojourn.Terms
	TurnDeadline time.Duration
	CancelGrace  time.Duration
	SweepEvery   time.Duration
	// UnresponsiveAfter is how long a sandbox may answer nothing before it is ended.
	UnresponsiveAfter time.Duration

	WorkspaceMaxBytes    int64
	ConversationMaxBytes int64

	// AdminKey is the first admin key; "" makes one.
	AdminKey  string
	Version   string
	Rate      CallRate
	Heartbeat time.Duration
	Log       *slog.Logger
}

// CallRate bounds how often one key may call.
type CallRate = api.Rate

// Rates are what the execs of sessions without an agent cost.
type Rates = engine.Rates

// Server is one server process without its listener.
type Server struct {
	Engine *engine.Engine
	Keys   *auth.Keys
	// AdminKey is the secret of the admin key that Open made; "" when one
	// existed. It is shown once and kept nowhere.
	AdminKey string
	// Driver makes the sandboxes, nil when there is none; DriverReason says
	// why it is this one.
	Driver       sandbox.Driver
	DriverReason string

	store   store.Store
	handler http.Handler
	log     *slog.Logger
	stop    context.CancelFunc // ends every stream
	stopped context.Context
}

// Open puts a server together. It serves nothing yet.
func Open(ctx context.Context, c Config) (*Server, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	var h *hub.Hub
	st, err := c.OpenStore(ctx, func(id sojourn.SessionID, events []sojourn.Event) { h.Publish(id, events) })
	if err != nil {
		return nil, err
	}
	h = hub.New(hub.Config{Store: st})
	s := &Server{store: st, log: c.Log}
	s.stopped, s.stop = context.WithCancel(context.Background())
	if err := s.assemble(ctx, c, h); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Server) assemble(ctx context.Context, c Config, h *hub.Hub) (err error) {
	if s.Driver, s.DriverReason, err = c.OpenDriver(ctx); err != nil {
		return err
	}
	var processes engine.ProcessStore
	if c.ProcessKey != nil {
		processes = snapshot.New(c.Bucket, c.ProcessKey)
	}
	s.Engine, err = engine.New(engine.Config{
		Sandbox: c.Sandbox, CheckImage: c.CheckImage, Egress: c.Egress, Models: c.Models, MCPServers: c.MCPServers, Tidy: c.Tidy, Processes: processes, SnapshotDir: c.SnapshotDir,
		Store: s.store, Hub: h, Checkpoints: checkpoint.New(c.Bucket, checkpoint.Config{}), Cache: c.Cache,
		Outputs: c.Outputs, Rates: c.Rates,
		Driver: s.Driver, DriverReason: s.DriverReason, Harness: c.Harness, Runtimes: c.Runtimes,
		Terms: c.Terms, TurnDeadline: c.TurnDeadline, CancelGrace: c.CancelGrace, SweepEvery: c.SweepEvery, UnresponsiveAfter: c.UnresponsiveAfter,
		WorkspaceMaxBytes: c.WorkspaceMaxBytes, ConversationMaxBytes: c.ConversationMaxBytes, Log: c.Log,
	})
	if err != nil {
		return err
	}
	if w, ok := c.Egress.(*Way); ok {
		w.bind(s.Engine)
	}
	s.Keys = auth.Open(s.store)
	secret, created, err := s.Keys.EnsureAdmin(ctx, c.AdminKey)
	if err != nil {
		return fmt.Errorf("make the first admin key: %w", err)
	}
	if created {
		s.AdminKey = secret
	}
	settings := api.Settings{Rate: c.Rate, Heartbeat: c.Heartbeat, Stop: s.stopped, Log: c.Log}
	mux := http.NewServeMux()
	mux.Handle("/v1/", cloud.New(s.Engine, s.Keys, cloud.Config{Settings: settings}))
	mux.Handle("/api/", exec.New(s.Engine, s.Keys, exec.Config{Settings: settings})) // and what is not there, in its words
	mux.Handle("/operator/v1/", operator.New(s.Engine, s.Keys, operator.Config{
		Settings: settings, Version: c.Version, Scopes: slices.Concat(cloud.Scopes, exec.Scopes),
	}))
	mux.HandleFunc("GET /healthz", s.health)
	mux.HandleFunc("GET /readyz", s.ready)
	s.handler = mux
	return nil
}

// health answers while the process lives.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintln(w, "ok")
}

// ready answers 200 once recovery is done, and 503 before and while stopping.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	select {
	case <-s.Engine.Ready():
		if s.stopped.Err() == nil {
			fmt.Fprintln(w, "ready")
			return
		}
	default:
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	fmt.Fprintln(w, "not ready")
}

// Handler serves every contract.
func (s *Server) Handler() http.Handler { return s.handler }

// Run serves on l until ctx ends: then it stops taking requests, ends streams,
// and leaves runs where they are. Sandboxes keep running; the next process on
// the same data goes on with them. Run closes l.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	hs := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.Engine.Run(ctx) })
	g.Go(func() error {
		// Nothing is answered from facts that recovery is about to correct.
		select {
		case <-s.Engine.Ready():
		case <-ctx.Done():
			return l.Close()
		}
		if err := hs.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		s.stop()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := hs.Shutdown(grace); err != nil {
			hs.Close()
		}
		return nil
	})
	err := g.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// Close gives driver and store back. It is called after Run has returned.
func (s *Server) Close() error {
	s.stop()
	var err error
	if s.Driver != nil {
		err = s.Driver.Close()
	}
	return errors.Join(err, s.store.Close())
}
