package apitest

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/servertest"
	"github.com/sojourn-dev/sojourn/sandbox/fake"
)

// Run runs every script of a directory, each against a server of its own. With
// update their golden files are rewritten instead of compared.
func Run(t *testing.T, dir string, update bool) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in %s (%v)", dir, err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txtar"), func(t *testing.T) {
			t.Parallel()
			s := &script{t: t, names: map[string]string{}, seen: map[string]int64{}, log: cloudLog, scheme: "Bearer"}
			testscript.Run(t, testscript.Params{
				Files: []string{f}, UpdateScripts: update, Cmds: s.commands(), RequireUniqueNames: true,
			})
		})
	}
}

// script is the state of one script.
type script struct {
	t      *testing.T
	server *servertest.Server
	names  map[string]string // of values, by value
	last   any               // the last answer
	seen   map[string]int64  // the last awaited event, by session
	log    log
	scheme string // before the key
}

// log is where a contract keeps the events of a session, and the name that their
// number has.
type log struct{ before, after, number string }

// The logs of the contracts, which an admin key may read.
var (
	cloudLog = log{"/v1/sessions/", "/events", "sequence"}
	execLog  = log{"/api/v1/agent/sessions/", "/events", "seq"}
)

func (l log) path(session string) string { return l.before + session + l.after }

type command = func(ts *testscript.TestScript, neg bool, args []string)

func (s *script) commands() map[string]command {
	return map[string]command{
		"serve": s.serve, "http": s.http, "set": s.set, "is": s.is, "near": s.near, "later": s.later,
		"await": s.await, "log": s.printLog, "faults": s.faults,
		"lose":    s.sandboxes((*fake.Driver).Kill),
		"freeze":  s.sandboxes((*fake.Driver).Freeze),
		"thaw":    s.sandboxes((*fake.Driver).Thaw),
		"restart": s.restart,
	}
}

// serve starts the server of the script.
func (s *script) serve(ts *testscript.TestScript, neg bool, args []string) {
	if neg || s.server != nil {
		ts.Fatalf("serve starts one server a script")
	}
	c := servertest.Config{Env: map[string]string{}}
	if len(args) > 0 && args[0] == "exec" {
		s.log, s.scheme, c.HostPrograms, args = execLog, "ApiKey", true, args[1:]
	}
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		switch name {
		case "hold":
			c.Terms.Hold = duration(ts, value)
		case "ceiling":
			c.Terms.Ceiling = duration(ts, value)
		case "heartbeat":
			c.Heartbeat = duration(ts, value)
		case "workspacemax":
			c.WorkspaceMaxBytes = number(ts, value)
		case "conversationmax":
			c.ConversationMaxBytes = number(ts, value)
		case "fee":
			c.Rates.Exec = sojourn.Money(number(ts, value))
		case "isolation":
			c.Isolation = value
		case "nocompute":
			c.NoCompute = true
		case "env":
			k, v, _ := strings.Cut(value, "=")
			c.Env[k] = v
		default:
			ts.Fatalf("serve has no setting %s", name)
		}
	}
	s.server = servertest.Start(s.t, c)
	ts.Setenv("URL", s.server.URL)
	ts.Setenv("ADMIN", servertest.AdminKey)
}

func duration(ts *testscript.TestScript, text string) time.Duration {
	d, err := time.ParseDuration(text)
	ts.Check(err)
	return d
}

func number(ts *testscript.TestScript, text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	ts.Check(err)
	return n
}

// sandboxes does something to the sandboxes of a session.
func (s *script) sandboxes(do func(d *fake.Driver, session string) int) command {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) != 1 {
			ts.Fatalf("give one session")
		}
		if do(s.server.Fake, args[0]) == 0 {
			ts.Fatalf("session %s has no sandbox", args[0])
		}
	}
}

func (s *script) faults(ts *testscript.TestScript, neg bool, args []string) {
	var f fake.Faults
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		switch name {
		case "slow":
			f.CreateDelay = duration(ts, value)
		case "fail":
			f.CreateErr = sojourn.Errorf(sojourn.CodeWorkspaceUnavailable, "The test wants no sandbox.")
		default:
			ts.Fatalf("there is no fault %s", name)
		}
	}
	s.server.Fake.SetFaults(f)
}

func (s *script) restart(ts *testscript.TestScript, neg bool, args []string) {
	s.server.Restart()
}
