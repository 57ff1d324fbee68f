// Package servertest runs a whole server inside a test: real store, engine,
// contracts and HTTP, with the fake sandbox driver and the scripted agent as a
// program of the test's own process.
//
// A [Server] can be restarted on its data, which ends it as a crash would as far
// as the engine is concerned: drives and flights are cut, sandboxes live on.
package servertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"
	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/checkpoint"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/harness/acp"
	"github.com/sojourn-dev/sojourn/internal/harness/script"
	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/server"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/store/sqlite"
	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/fake"
)

// AdminKey is the admin key of every test server.
const AdminKey = "test-admin-key-0123456789"

// AllowedImage is the image that sessions of a test server may name.
const AllowedImage = "registry.test/agents:1"

// Config changes what a test server does. The zero value works.
type Config struct {
	Terms                sojourn.Terms // lease numbers; zero means those of the contract
	TurnDeadline         time.Duration
	CancelGrace          time.Duration // 0 means one second
	SweepEvery           time.Duration // 0 means 100 ms
	UnresponsiveAfter    time.Duration
	WorkspaceMaxBytes    int64
	ConversationMaxBytes int64
	Heartbeat            time.Duration
	// Sandbox is what sessions get that do not say otherwise, Egress their way out.
	Sandbox sojourn.SandboxSpec
	Egress  engine.Egress
	// Rates are what execs cost.
	Rates server.Rates
	// Models are those that runtimes may use; nil is none.
	Models engine.Models
	// NoCompute leaves the server without a sandbox driver.
	NoCompute bool
	// Env is added to the environment of the scripted agent.
	Env map[string]string
	// Runtimes replaces the one runtime, which is the scripted agent.
	Runtimes []harness.Runtime
	// Bucket replaces the blob store in the data directory.
	Bucket *blob.Bucket
	// Harness replaces the ACP harness.
	Harness harness.Harness
	// Dir is where the server keeps everything; "" means a directory of the test.
	Dir string
	// Programs are further programs that the sandboxes have, by argv[0].
	Programs map[string]keeper.Program
	// HostPrograms makes the sandboxes run the host's programs, and no others.
	HostPrograms bool
	// Isolation is the wall that the sandboxes claim to have; "" is none.
	Isolation string
	// WrapStore, if not nil, is put around the store at each start.
	WrapStore func(store.Store) store.Store
}

// Server is a running test server.
type Server struct {
	URL    string
	Fake   *fake.Driver // its knobs make sandboxes fail
	Server *server.Server
	Dir    string

	t      testing.TB
	cfg    Config
	bucket *blob.Bucket
	key    *age.X25519Identity
	addr   string
	cancel context.CancelFunc
	done   chan error
}

// Start runs a server until the test ends.
func Start(t testing.TB, c Config) *Server {
	t.Helper()
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	s := &Server{t: t, cfg: c, Dir: c.Dir, addr: loopback() + ":0", bucket: c.Bucket}
	programs := map[string]keeper.Program{sandbox.KeeperPath: script.Run}
	maps.Copy(programs, c.Programs)
	s.Fake = fake.New(fake.Config{
		Dir:      filepath.Join(s.Dir, "sandboxes"),
		Programs: programs,
		Host:     c.HostPrograms,

		Isolation: sandbox.Isolation(c.Isolation),
	})
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	s.key = key
	if s.bucket == nil {
		b, err := fileblob.OpenBucket(filepath.Join(s.Dir, "blobs"), &fileblob.Options{
			CreateDir: true, NoTempDir: true, Metadata: fileblob.MetadataDontWrite,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		s.bucket = b
	}
	t.Cleanup(func() {
		s.Stop()
		s.Fake.Shutdown()
	})
	s.start()
	return s
}

// Restart ends the server and starts it again on its data, at the same address.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.start()
}

// Kill ends a server whose store is already dead, and starts the next one. What
// the dying server complains of is not the test's concern.
func (s *Server) Kill() {
	s.cancel()
	<-s.done
	s.Server.Close()
	s.cancel = nil
	if err := s.open(); err != nil { // the caller may be a goroutine, which must not end the test
		s.t.Error(err)
	}
}

// Reconfigure restarts the server with a changed configuration.
func (s *Server) Reconfigure(change func(*Config)) {
	s.t.Helper()
	change(&s.cfg)
	s.Restart()
}

// Stop ends the server; sandboxes live on.
func (s *Server) Stop() {
	s.t.Helper()
	if s.cancel == nil {
		return
	}
	s.cancel()
	if err := <-s.done; err != nil {
		s.t.Errorf("server ended: %v", err)
	}
	if err := s.Server.Close(); err != nil {
		s.t.Errorf("close server: %v", err)
	}
	s.cancel = nil
}

// Start runs a stopped server again.
func (s *Server) Start() {
	s.t.Helper()
	s.start()
}

func (s *Server) start() {
	s.t.Helper()
	if err := s.open(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) open() error {
	ctx, cancel := context.WithCancel(context.Background())
	srv, err := server.Open(ctx, s.config())
	if err != nil {
		cancel()
		return fmt.Errorf("open server: %w", err)
	}
	l, err := listen(s.addr)
	if err != nil {
		cancel()
		srv.Close()
		return err
	}
	s.addr = l.Addr().String()
	s.URL, s.Server, s.cancel, s.done = "http://"+s.addr, srv, cancel, make(chan error, 1)
	go func() { s.done <- srv.Run(ctx, l) }()
	select {
	case <-srv.Engine.Ready():
		return nil
	case err := <-s.done:
		s.cancel = nil
		return fmt.Errorf("server ended while it started: %w", err)
	}
}

// loopback returns an address of this machine that hardly anybody else has. Outgoing
// connections come from 127.0.0.1: none of them takes the port of a server here between
// its end and its next start, and keeps it.
func loopback() string {
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.N(254), rand.N(256), 1+rand.N(254))
}

// listen listens on addr. What still has the port is waited for.
func listen(addr string) (l net.Listener, err error) {
	for range 100 {
		if l, err = net.Listen("tcp", addr); !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil, err
}

func (s *Server) config() server.Config {
	c := s.cfg
	log := slog.New(slog.NewTextHandler(testWriter{s.t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	cache, err := checkpoint.OpenCache(filepath.Join(s.Dir, "cache"), 0)
	if err != nil {
		s.t.Fatal(err)
	}
	outputs, err := output.Open(filepath.Join(s.Dir, "outputs"), output.Config{})
	if err != nil {
		s.t.Fatal(err)
	}
	sc := server.Config{
		Outputs: outputs, Rates: c.Rates,
		Bucket: s.bucket, Cache: cache, Harness: c.Harness, Runtimes: c.Runtimes, AdminKey: AdminKey,
		Terms: c.Terms, TurnDeadline: c.TurnDeadline, Heartbeat: c.Heartbeat, Log: log, Version: "test",
		WorkspaceMaxBytes: c.WorkspaceMaxBytes, ConversationMaxBytes: c.ConversationMaxBytes,
		CancelGrace: c.CancelGrace, SweepEvery: c.SweepEvery, UnresponsiveAfter: c.UnresponsiveAfter,
		Sandbox: c.Sandbox, Egress: c.Egress, Models: c.Models, ProcessKey: s.key, SnapshotDir: filepath.Join(s.Dir, "snapshots"),
		CheckImage: func(reference string) error {
			if reference != AllowedImage {
				return fmt.Errorf("%q is not one of the images of the test", reference)
			}
			return nil
		},
		OpenStore: func(ctx context.Context, onEvents func(sojourn.SessionID, []sojourn.Event)) (store.Store, error) {
			db, err := sqlite.Open(ctx, sqlite.Config{Dir: filepath.Join(s.Dir, "data"), OnEvents: onEvents, Log: log})
			if err != nil || c.WrapStore == nil {
				return db, err
			}
			return c.WrapStore(db), nil
		},
		OpenDriver: func(context.Context) (sandbox.Driver, string, error) {
			if c.NoCompute {
				return nil, "the test wants none", nil
			}
			return s.Fake, "the test wants it", nil
		},
	}
	if sc.CancelGrace == 0 {
		sc.CancelGrace = time.Second
	}
	if sc.SweepEvery == 0 {
		sc.SweepEvery = 100 * time.Millisecond
	}
	if sc.Harness == nil {
		sc.Harness = &acp.Harness{}
	}
	if sc.Runtimes == nil {
		row, _ := harness.RuntimeByID("script")
		row.Env = c.Env
		sc.Runtimes = []harness.Runtime{row}
	}
	return sc
}

// testWriter sends log lines to the test.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimRight(p, "\n"))
	return len(p), nil
}

// Call makes a request with the admin key and decodes a 2xx answer into out,
// which may be nil. It returns the status and, otherwise, the error's code.
func (s *Server) Call(method, path string, body, out any) (status int, code string) {
	s.t.Helper()
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			s.t.Fatal(err)
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequest(method, s.URL+path, in)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+AdminKey)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if res.StatusCode/100 != 2 {
		var e struct{ Error struct{ Code string } }
		if err := json.Unmarshal(b, &e); err != nil {
			s.t.Fatalf("%s %s: %d without an envelope: %s", method, path, res.StatusCode, b)
		}
		return res.StatusCode, e.Error.Code
	}
	if out != nil {
		if err := json.Unmarshal(b, out); err != nil {
			s.t.Fatalf("%s %s: %v in %s", method, path, err, b)
		}
	}
	return res.StatusCode, ""
}

// Try is Call for a server that may be down or dying: it reports whether the
// answer was a success. idempotency is sent as the Idempotency-Key, unless "".
func (s *Server) Try(method, path, idempotency string, body, out any) bool {
	b, err := json.Marshal(body)
	if err != nil {
		return false
	}
	if body == nil {
		b = nil
	}
	req, err := http.NewRequest(method, s.URL+path, bytes.NewReader(b))
	if err != nil {
		return false
	}
	req.Header.Set("Authorization", "Bearer "+AdminKey)
	req.Header.Set("Content-Type", "application/json")
	if idempotency != "" {
		req.Header.Set("Idempotency-Key", idempotency)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	return res.StatusCode/100 == 2 && json.NewDecoder(res.Body).Decode(out) == nil
}

// Must is Call for what must succeed.
func (s *Server) Must(method, path string, body, out any) {
	s.t.Helper()
	if status, code := s.Call(method, path, body, out); status/100 != 2 {
		s.t.Fatal(fmt.Errorf("%s %s: %d %s", method, path, status, code))
	}
}
