package sandboxtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// patience bounds every single operation of the suite on a busy machine.
const patience = 60 * time.Second

// Suite says how the driver is opened and what can be tried on it.
type Suite struct {
	// Open opens the driver on a directory. A second call with the same one is a
	// restart of the server; the first driver may still be open then, as a killed
	// server would leave it. The suite closes what it opens.
	Open Open
	// InProcess says that the sandboxes live and die with the test's process, so
	// that it makes no sense to kill a server.
	InProcess bool
	// Pool says that the driver makes sandboxes ready by itself, so that it cannot
	// be told how many there are.
	Pool bool
	// Only are the names of the tests to run, when not all are.
	Only []string
}

// Open opens a driver on a directory.
type Open func(dir string) (sandbox.Driver, error)

// Run tries the whole contract.
func Run(t *testing.T, s Suite) {
	tests := []struct {
		name string
		run  func(*testing.T, *Suite)
	}{
		{"Life", testLife},
		{"Dirs", testDirs},
		{"Layers", testLayers},
		{"Recover", testRecover},
		{"RecoverRefuses", testRecoverRefuses},
		{"Directories", testTwoDirectories},
		{"KeeperDeath", testKeeperDeath},
		{"CreateIdempotent", testCreateIdempotent},
		{"CreateBrokenOff", testCreateBrokenOff},
		{"DestroyIdempotent", testDestroyIdempotent},
		{"Reconnect", testReconnect},
		{"Dial", testDial},
		{"Timeout", testTimeout},
		{"Crash", testCrash},
		{"Warm", testWarm},
		{"WarmFits", testWarmFits},
		{"WarmRace", testWarmRace},
		{"WarmRestart", testWarmRestart},
		{"WarmSnapshot", testWarmSnapshot},
		{"WarmCrash", testWarmCrash},
		{"Remains", testRemains},
		{"Kill", testKill},
		{"Snapshot", testSnapshot},
		{"SnapshotRefused", testSnapshotRefused},
		{"SnapshotBrokenOff", testSnapshotBrokenOff},
		{"SnapshotCrash", testSnapshotCrash},
		{"Removal", testRemoval},
		{"Walls", testWalls},
		{"Escapes", testEscapes},
		{"EscapeByCapture", testEscapeByCapture},
		{"SetUserID", testSetUserID},
		{"Egress", testEgress},
		{"EgressTools", testEgressTools},
		{"Limits", testLimits},
	}
	for _, test := range tests {
		if len(s.Only) > 0 && !slices.Contains(s.Only, test.name) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // each has directories of its own, and much of the time is waiting
			test.run(t, &s)
		})
	}
}

// open opens the driver on a directory and closes it with the test.
func (s *Suite) open(t testing.TB, dir string) sandbox.Driver {
	t.Helper()
	d, err := s.Open(dir)
	if err != nil {
		t.Fatalf("open driver: %v", err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	})
	return d
}

// newDir returns a directory whose sandboxes are destroyed with the test.
func (s *Suite) newDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		d := s.open(t, dir)
		for _, h := range list(t, d) {
			if err := d.Remove(context.Background(), h); err != nil {
				t.Errorf("Remove(%s) = %v", h.Session, err)
			}
		}
	})
	return dir
}

// cell is a sandbox with a client.
type cell struct {
	sandbox.Sandbox
	t      testing.TB
	client *link.Client
}

// start makes a sandbox and connects to it.
func start(t testing.TB, d sandbox.Driver, session string, epoch int64) *cell {
	t.Helper()
	return connect(t, create(t, d, session, epoch))
}

func create(t testing.TB, d sandbox.Driver, session string, epoch int64) sandbox.Sandbox {
	t.Helper()
	sb, err := d.Create(within(t), sandbox.Spec{Session: session, Epoch: epoch})
	if err != nil {
		t.Fatalf("Create(%s, %d) = %v", session, epoch, err)
	}
	return sb
}

// connect opens a client on a new connection.
func connect(t testing.TB, sb sandbox.Sandbox) *cell {
	t.Helper()
	client, err := dial(within(t), sb)
	if err != nil {
		t.Fatalf("connect to keeper of %s: %v", sb.Handle().Session, err)
	}
	t.Cleanup(func() { client.Close() })
	return &cell{Sandbox: sb, t: t, client: client}
}

func dial(ctx context.Context, sb sandbox.Sandbox) (*link.Client, error) {
	conn, err := sb.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return link.Open(ctx, link.Framed(conn), link.Options{Epoch: sb.Handle().Epoch})
}

// run runs a program to its end and returns its output, both streams together.
func (c *cell) run(argv ...string) (output string, code int) {
	c.t.Helper()
	id := "run-" + rand.Text()
	c.launch(id, argv...)
	return c.follow(id)
}

// follow reads the output of a process to its end.
func (c *cell) follow(id string) (output string, code int) {
	c.t.Helper()
	var out bytes.Buffer
	var after int64
	for {
		r, err := c.client.Read(within(c.t), link.ReadParams{ProcessID: id, AfterSeq: after, Wait: link.MaxWait})
		if err != nil {
			c.t.Fatalf("read output of %s: %v", id, err)
		}
		for _, chunk := range r.Chunks {
			out.Write(chunk.Data)
		}
		after = r.NextSeq - 1
		if !r.Closed {
			continue
		}
		if r.ExitCode == nil {
			return out.String() + r.Failure + r.Signal, -1
		}
		return out.String() + r.Failure, *r.ExitCode
	}
}

// must runs a program that has to succeed.
func (c *cell) must(argv ...string) string {
	c.t.Helper()
	out, code := c.run(argv...)
	if code != 0 {
		c.t.Fatalf("%.300q exited with %d: %s", argv, code, out)
	}
	return out
}

// sh runs a shell script that has to succeed.
func (c *cell) sh(script string) string {
	c.t.Helper()
	return c.must("sh", "-c", script)
}

// env is the environment of all programs: a keeper adds nothing to what it is given.
var env = map[string]string{"HOME": sandbox.HomePath, "PATH": "/usr/local/bin:/usr/bin:/bin"}

// launch starts a process and leaves it alone.
func (c *cell) launch(id string, argv ...string) {
	c.t.Helper()
	p := link.StartParams{ProcessID: id, Argv: argv, Cwd: sandbox.WorkspacePath, Env: env}
	if err := c.client.Start(within(c.t), p); err != nil {
		c.t.Fatalf("start %.300q: %v", argv, err)
	}
}

// alive reports whether a process that launch started still runs.
func (c *cell) alive(id string) bool {
	c.t.Helper()
	ps, err := c.client.Processes(within(c.t))
	if err != nil {
		c.t.Fatalf("list processes: %v", err)
	}
	for _, p := range ps {
		if p.ProcessID == id {
			return !p.Exited
		}
	}
	return false
}

// ended waits until the sandbox says that it has ended and checks what it says.
func ended(t testing.TB, sb sandbox.Sandbox) {
	t.Helper()
	select {
	case <-sb.Done():
	case <-within(t).Done():
		t.Fatalf("sandbox %s: Done is still open", sb.Handle().Session)
	}
	if err := sb.Err(); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Err = %v, want ErrGone", err)
	}
	if conn, err := sb.Dial(within(t)); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Dial = %v, %v, want ErrGone", conn, err)
	}
}

func list(t testing.TB, d sandbox.Driver) []sandbox.Handle {
	t.Helper()
	hs, err := d.List(context.Background())
	if err != nil {
		t.Fatalf("List = %v", err)
	}
	return hs
}

// stored is a handle as a database gives it back.
func stored(t testing.TB, h sandbox.Handle) sandbox.Handle {
	t.Helper()
	b, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	var back sandbox.Handle
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	return back
}

// within returns a context that outlasts no single operation; it ends with the test.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, fmt.Errorf("nothing for %v", patience))
	t.Cleanup(cancel)
	return ctx
}

// glob returns what is in a host directory.
func glob(t testing.TB, parts ...string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return names
}
