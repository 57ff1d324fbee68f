package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/harness/harnesstest"
	"github.com/sojourn-dev/sojourn/sandbox/gvisor"
)

// The test binary is the program under test: copied as "sojourn" it runs main,
// also where a sandbox runs it again as its keeper or its agent.
func TestMain(m *testing.M) {
	if gvisor.IsReexec(os.Args) {
		gvisor.Main()
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "relay-agent" { // of the benchmarks
		os.Exit(harnesstest.RelayMain())
	}
	testscript.Main(m, map[string]func(){"sojourn": main, "confined": confined})
}

// TestScripts runs the program from the outside. The scripts know, besides the
// commands of testscript:
//
//	serve [FLAG...]     starts the script's server, or starts it again on the same port
//	server kill|stop    ends it by SIGKILL, or in good order
//	killsandboxes       ends every process of its sandboxes by SIGKILL
//	await TYPE          waits for the next event of that type of the newest session
//	code N COMMAND...   runs a command that must end with that exit code
//	whole N FILE        checks that FILE is a log without gap from event N on
//	terminal FILE CMD...  runs a command on a terminal as FILE says
//
// and the condition "sandbox": that a sandbox can be made here. SOJOURN_DRIVER
// names the driver; set around the test, it is the only one that is tried.
func TestScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: the scripts start real servers; run without -short")
	}
	if dynamic() {
		t.Skip("SKIPPED: this test binary is linked dynamically, which sandboxes cannot use; set CGO_ENABLED=0")
	}
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: *updateGolden,
		Setup:         func(e *testscript.Env) error { return setupScript(t, e) },
		Condition: func(cond string) (bool, error) {
			if cond == "sandbox" {
				return scriptDriver(t) != "", nil
			}
			return false, fmt.Errorf("there is no condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"serve": serveInScript, "server": endServer, "killsandboxes": killInScript,
			"await": awaitEvent, "code": exitsWith, "whole": wholeLog,
			"terminal": onTerminal,
		},
	})
}

// scriptDriver is the strongest driver that works here, found out once.
func scriptDriver(t *testing.T) string {
	name, why := probedDriver()
	if name == "" {
		t.Logf("SKIPPED: no sandbox can be made here, so scripts that need one do not run: %s", why)
	}
	return name
}

var probedDriver = sync.OnceValues(func() (name, why string) {
	dir, err := os.MkdirTemp("", "sojourn-probe-")
	if err != nil {
		return "", err.Error()
	}
	defer os.RemoveAll(dir)
	exe, err := exec.LookPath("sojourn") // the copy that testscript made
	if err != nil {
		return "", err.Error()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	only := os.Getenv("SOJOURN_DRIVER")
	for _, row := range drivers {
		if only != "" && only != row.name {
			continue
		}
		report := row.probe(ctx, filepath.Join(dir, row.name), exe, driverOptions{})
		if report.Available {
			return row.name, ""
		}
		why += row.name + ": " + report.Reason + " " + report.Fix + "\n"
	}
	return "", why
})

// scriptServer is the value under which a script keeps its server.
type scriptServer struct {
	demoServer
	session string // the one that await looks at
	seen    int64  // the last event that it saw
}

type serverKey struct{}

func setupScript(t *testing.T, e *testscript.Env) error {
	// Sockets have short names: the directory must be near the root.
	dir, err := os.MkdirTemp("", "sjs")
	if err != nil {
		return err
	}
	exe, err := exec.LookPath("sojourn")
	if err != nil {
		return err
	}
	s := &scriptServer{demoServer: demoServer{
		exe: exe, dir: dir, key: "a-key-for-this-test-0123456789", listen: "127.1.0.1:0",
	}}
	e.Values[serverKey{}] = s
	e.Setenv("SOJOURN_KEY", s.key)
	e.Setenv("SOJOURN_URL", "http://127.0.0.1:1")
	e.Setenv("SOJOURN_DRIVER", scriptDriver(t))
	e.Setenv("DATA", filepath.Join(dir, "data"))
	e.Setenv("TZ", "UTC")
	e.Defer(func() {
		if t.Failed() && s.cmd != nil {
			t.Logf("the log of a server in %s ends with:\n%s", e.WorkDir, s.logTail())
		}
		if err := s.stop(); err != nil {
			t.Errorf("stop the server: %v", err)
		}
		killSandboxes(dir)
		for len(sandboxProcesses(dir)) > 0 {
			time.Sleep(10 * time.Millisecond)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the data: %v", err)
		}
	})
	return nil
}

func serverOf(ts *testscript.TestScript) *scriptServer {
	return ts.Value(serverKey{}).(*scriptServer)
}

func serveInScript(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("serve cannot be negated; use code N sojourn serve")
	}
	s := serverOf(ts)
	driver := ts.Getenv("SOJOURN_DRIVER")
	if driver == "" {
		driver = "none"
	}
	s.flags = append([]string{"--driver", driver}, args...)
	ts.Check(s.start(context.Background()))
	ts.Setenv("SOJOURN_URL", s.url())
}

func endServer(ts *testscript.TestScript, _ bool, args []string) {
	switch {
	case len(args) == 1 && args[0] == "kill":
		serverOf(ts).kill()
	case len(args) == 1 && args[0] == "stop":
		ts.Check(serverOf(ts).stop())
	default:
		ts.Fatalf("usage: server kill|stop")
	}
}

func killInScript(ts *testscript.TestScript, _ bool, _ []string) {
	s := serverOf(ts)
	if killSandboxes(s.dir, s.cmd.Process.Pid) == 0 {
		ts.Fatalf("there is no sandbox to kill")
	}
}

func awaitEvent(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: await TYPE")
	}
	s := serverOf(ts)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.New(client.Config{URL: s.url(), Key: s.key})
	ts.Check(err)
	page, err := c.Sessions(ctx, client.SessionQuery{Limit: 1})
	ts.Check(err)
	if len(page.Sessions) == 0 {
		ts.Fatalf("there is no session")
	}
	if id := page.Sessions[0].ID; id != s.session {
		s.session, s.seen = id, 0
	}
	s.seen, err = c.Follow(ctx, client.Follow{Session: s.session, After: s.seen}, func(e client.Event) (bool, error) {
		return e.Type != args[0], nil
	})
	if err != nil {
		ts.Fatalf("await %s behind event %d: %v", args[0], s.seen, err)
	}
}

func exitsWith(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: code N COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func wholeLog(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: whole N FILE")
	}
	next, err := strconv.ParseInt(args[0], 10, 64)
	ts.Check(err)
	for text := range bytes.Lines([]byte(ts.ReadFile(args[1]))) {
		var e client.Event
		if err := json.Unmarshal(text, &e); err != nil || e.Sequence != next {
			ts.Fatalf("event %d is: %.1000s (%v)", next, text, err)
		}
		next++
	}
}
