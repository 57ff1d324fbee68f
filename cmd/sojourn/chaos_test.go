package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestChaos kills server, sandboxes, keepers and agents of real sessions with
// SIGKILL at random moments and checks the guarantees G1 to G7 at the end.
// SOJOURN_KILLS says how many kills (default 8), SOJOURN_SEED
// repeats a run, SOJOURN_DRIVER names the driver.
func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: the chaos test starts real servers; run without -short")
	}
	driver := scriptDriver(t)
	if driver == "" {
		t.Skip("SKIPPED: no sandbox can be made here")
	}
	kills, seed := chaosNumber("SOJOURN_KILLS", 8), chaosNumber("SOJOURN_SEED", time.Now().UnixNano())
	t.Logf("driver %s, %d kills, SOJOURN_SEED=%d", driver, kills, seed)
	c := newChaos(t, driver, uint64(seed))
	var wg sync.WaitGroup
	workers, stop := context.WithCancel(t.Context())
	for range 4 {
		wg.Go(func() { c.work(workers) })
	}
	for range kills {
		time.Sleep(time.Duration(200+c.rng.IntN(1300)) * time.Millisecond)
		c.kill()
	}
	stop()
	wg.Wait()
	t.Logf("killed: %v", c.killed)
	c.settle()
}

func chaosNumber(name string, fallback int64) int64 {
	if n, err := strconv.ParseInt(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return fallback
}

// chaos is one server and the sessions on it.
type chaos struct {
	t      *testing.T
	rng    *mathrand.Rand // the killer's
	server *demoServer
	client *demoClient
	killed map[string]int

	mu       sync.Mutex
	sessions []*chaosSession
}

// chaosSession is a session, its reader, and the runs that were accepted.
type chaosSession struct {
	id     string
	follow *follower
	runs   []string // in order; run i appends the line i to the file log
}

func newChaos(t *testing.T, driver string, seed uint64) *chaos {
	exe, err := exec.LookPath("sojourn")
	if err != nil {
		t.Fatal(err)
	}
	key := make([]byte, 16)
	rand.Read(key)
	dir, err := os.MkdirTemp("", "sojourn-chaos-")
	if err != nil {
		t.Fatal(err)
	}
	s := &demoServer{exe: exe, dir: dir, key: hex.EncodeToString(key), listen: "127.1.0.1:0", flags: []string{"--driver", driver}}
	c := &chaos{
		t: t, rng: mathrand.New(mathrand.NewPCG(seed, 1)), server: s, client: &demoClient{server: s}, killed: map[string]int{},
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the server's log ends:\n%s", s.logTail())
		}
		s.stop()
		killSandboxes(dir)
		os.RemoveAll(dir)
	})
	if err := s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// kill kills one thing.
func (c *chaos) kill() {
	boxes := sandboxProcesses(c.server.dir, c.server.cmd.Process.Pid)
	what := "server"
	if len(boxes) > 0 && c.rng.IntN(2) == 0 {
		pid := boxes[c.rng.IntN(len(boxes))]
		what = processName(pid)
		if syscall.Kill(pid, syscall.SIGKILL) != nil {
			what = "nothing"
		}
	} else {
		c.server.kill()
		time.Sleep(time.Duration(c.rng.IntN(300)) * time.Millisecond)
		if err := c.server.start(c.t.Context()); err != nil {
			c.t.Fatal(err)
		}
	}
	c.killed[what]++
}

// processName is what a process of a sandbox is, for the record.
func processName(pid int) string {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return "gone"
	}
	args := strings.Split(string(b), "\x00")
	name := filepath.Base(args[0])
	if len(args) > 1 && name == "sojourn" {
		name += " " + args[1]
	}
	return name
}

// work submits turns to sessions of its own until ctx ends.
func (c *chaos) work(ctx context.Context) {
	var s *chaosSession
	for ctx.Err() == nil {
		if s == nil {
			s = c.newSession()
		}
		run, code := c.submit(s)
		switch code {
		case "":
			s.runs = append(s.runs, run)
			c.outlive(run, s)
		case "cloud_resume_unavailable": // its first run was lost: it says so
			s = nil
		default:
			c.t.Errorf("submit: %s", code)
			return
		}
	}
}

func (c *chaos) newSession() *chaosSession {
	var out struct{ Session struct{ ID string } }
	c.insist(http.MethodPost, "/v1/sessions", map[string]any{}, &out)
	s := &chaosSession{id: out.Session.ID}
	s.follow = newFollower(c.client, s.id, func(demoEvent) {})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.follow.run(ctx) }()
	c.t.Cleanup(func() { cancel(); <-done })
	c.mu.Lock()
	c.sessions = append(c.sessions, s)
	c.mu.Unlock()
	return s
}

func (c *chaos) submit(s *chaosSession) (run, code string) {
	n := len(s.runs)
	var out struct{ Run struct{ ID string } }
	code = c.insist(http.MethodPost, "/v1/sessions/"+s.id+"/turns", map[string]any{
		"input": fmt.Sprintf("@run echo %d >> log\n@remember last %d\n@work 400 40", n, n),
	}, &out)
	return out.Run.ID, code
}

// insist makes a call until it is answered, under one idempotency key: a client
// does not know whether a dead server took it. It returns the code of a refusal.
func (c *chaos) insist(method, path string, body, out any) (code string) {
	var raw []byte
	if body != nil {
		raw, _ = json.Marshal(body) // strings and maps always marshal
	}
	key := make([]byte, 16)
	rand.Read(key)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		req, err := http.NewRequest(method, c.server.url()+path, bytes.NewReader(raw))
		if err != nil {
			c.t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+c.server.key)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", hex.EncodeToString(key))
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			continue
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		switch {
		case err != nil, res.StatusCode >= 500:
			continue
		case res.StatusCode/100 != 2:
			var e struct{ Error struct{ Code string } }
			json.Unmarshal(b, &e)
			return e.Error.Code
		}
		if json.Unmarshal(b, out) == nil {
			return ""
		}
	}
	return "no answer within a minute"
}

// outlive waits until the run has ended, whatever dies meanwhile.
func (c *chaos) outlive(run string, s *chaosSession) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e, err := s.follow.await(ctx, "the end of run "+run, func(e demoEvent) bool {
		return e.RunID == run && slices.Contains(runEnds, e.Type)
	})
	if err != nil {
		c.t.Errorf("session %s: %v", s.id, err)
	}
	return e.Type
}

var runEnds = []string{"wamp.run.completed", "wamp.run.failed", "wamp.run.crashed", "wamp.run.cancelled"}

// settle checks every session, then that nothing is left.
func (c *chaos) settle() {
	runs, lost := 0, 0
	for _, s := range c.sessions {
		c.check(s)
		runs += len(s.runs)
		for _, r := range s.runs {
			if c.outlive(r, s) != "wamp.run.completed" {
				lost++
			}
		}
		var out struct{ Session demoSession }
		c.insist(http.MethodPost, "/v1/sessions/"+s.id+"/archive", nil, &out)
	}
	c.t.Logf("%d sessions, %d runs, %d of them lost to a kill and said so", len(c.sessions), runs, lost)
	c.nothingLeft()
}

// check checks one session: one end per run (G1), no gap and the same log for
// every reader (G2), and a next turn that has what the session promised (G5, G6).
func (c *chaos) check(s *chaosSession) {
	t := c.t
	view, err := c.client.session(t.Context(), s.id)
	if err != nil {
		t.Error(err)
		return
	}
	if view.Continuation.CanContinue != (view.Continuation.Reason == nil) && len(s.runs) > 0 && view.Continuation.State != "fresh" {
		t.Errorf("G6: session %s: %+v", s.id, view.Continuation)
	}
	if view.Continuation.State == "live" || view.Continuation.State == "restorable" {
		c.carries(s)
	}
	var log []demoEvent
	for {
		var page struct{ Events []demoEvent }
		path := fmt.Sprintf("/v1/sessions/%s/events?limit=1000&after=%d", s.id, len(log))
		if err := c.client.call(t.Context(), http.MethodGet, path, nil, &page); err != nil {
			t.Error(err)
			return
		}
		if len(page.Events) == 0 {
			break
		}
		log = append(log, page.Events...)
	}
	ends := map[string]int{}
	for i, e := range log {
		if e.Sequence != int64(i)+1 {
			t.Fatalf("G2: session %s: event %d at place %d", s.id, e.Sequence, i+1)
		}
		if slices.Contains(runEnds, e.Type) {
			ends[e.RunID]++
		}
	}
	for _, r := range s.runs {
		if ends[r] != 1 {
			t.Errorf("G1: session %s: run %s has %d ends", s.id, r, ends[r])
		}
	}
	seen, wrong, _ := s.follow.all()
	if wrong != "" {
		t.Errorf("G2: session %s: the reader saw a gap: %s", s.id, wrong)
	}
	for i, e := range seen {
		if i >= len(log) || string(log[i].Data) != string(e.Data) || log[i].Type != e.Type {
			t.Errorf("G2: session %s: event %d was delivered and is different now", s.id, e.Sequence)
			break
		}
	}
}

// carries checks that a turn has the work of every completed run.
func (c *chaos) carries(s *chaosSession) {
	var out struct{ Run struct{ ID string } }
	path := "/v1/sessions/" + s.id + "/turns"
	if code := c.insist(http.MethodPost, path, map[string]any{"input": "@cat log\n@recall last"}, &out); code != "" {
		c.t.Errorf("G6: session %s promised to carry, and refuses: %s", s.id, code)
		return
	}
	if end := c.outlive(out.Run.ID, s); end != "wamp.run.completed" {
		c.t.Errorf("session %s: the last run ended with %s", s.id, end)
		return
	}
	events, _, _ := s.follow.all()
	text := agentText(events, out.Run.ID)
	for n, r := range s.runs {
		if c.outlive(r, s) == "wamp.run.completed" && !strings.Contains("\n"+text, fmt.Sprintf("\n%d\n", n)) {
			c.t.Errorf("G5: session %s: the work of completed run %d is gone; the file is %q", s.id, n, text)
		}
	}
}
