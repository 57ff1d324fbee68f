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
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestExecChaos kills server, sandboxes and keepers of budgeted sessions with SIGKILL at
// random moments, and breaks off their callers, while execs run and sandboxes rotate. At
// the end every exec has one true outcome or says that it is unknown, every charge was
// booked once, and no file is lost that a checkpoint has. SOJOURN_KILLS, SOJOURN_SEED and
// SOJOURN_DRIVER are those of TestChaos.
func TestExecChaos(t *testing.T) {
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
	workers, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	all := make([]*execChaos, 3)
	for i := range all {
		all[i] = &execChaos{chaos: c, rng: mathrand.New(mathrand.NewPCG(uint64(seed), uint64(i)+2)), client: fmt.Sprintf("worker-%d", i)}
		wg.Go(func() { all[i].work(workers) })
	}
	for range kills {
		time.Sleep(time.Duration(200+c.rng.IntN(1300)) * time.Millisecond)
		c.kill()
	}
	stop()
	wg.Wait()
	t.Logf("killed: %v", c.killed)
	for _, x := range all {
		x.check()
	}
	c.nothingLeft()
}

// execChaos is one budgeted session and what its caller knows.
type execChaos struct {
	*chaos
	rng    *mathrand.Rand
	client string
	id     string
	execs  []string // ids, in the order of the calls; exec i appends the line i to the file log
	broken int      // calls that were broken off and repeated
}

// chaosExec is what is read of an exec.
type chaosExec struct {
	ExecutionID    string
	Status         string
	Outcome        string
	ExitCode       *int
	Reason         string
	Stdout         string
	CostMicroCents int64
	EndedAt        *time.Time
}

const execSessions = "/api/v1/agent/sessions"

// ask makes a call under one idempotency key until it is answered, and breaks some of
// the tries off. It returns the code of a refusal.
func (x *execChaos) ask(method, path string, body, out any) (code string) {
	var raw []byte
	if body != nil {
		raw, _ = json.Marshal(body) // strings and maps always marshal
	}
	key := make([]byte, 16)
	rand.Read(key)
	for deadline := time.Now().Add(90 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		patience := 30 * time.Second
		if method == http.MethodPost && x.rng.IntN(4) == 0 {
			patience = time.Duration(1+x.rng.IntN(60)) * time.Millisecond
		}
		status, b, err := x.once(method, path, raw, hex.EncodeToString(key), patience)
		switch {
		case err != nil:
			x.broken++
			continue
		case status >= 500:
			continue
		case status/100 != 2:
			var e struct{ Code string }
			json.Unmarshal(b, &e)
			return e.Code
		}
		if err := json.Unmarshal(b, out); err != nil {
			return "an answer that is not JSON: " + string(b)
		}
		return ""
	}
	return "no answer within 90 seconds"
}

func (x *execChaos) once(method, path string, raw []byte, key string, patience time.Duration) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, x.server.url()+execSessions+path, bytes.NewReader(raw))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "ApiKey "+x.server.key)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, b, err
}

// work runs execs in a session of its own, whose sandboxes live for a few seconds.
func (x *execChaos) work(ctx context.Context) {
	var made struct{ Session struct{ ID string } }
	if code := x.ask(http.MethodPost, "", map[string]any{
		"name": "chaos", "clientId": x.client, "autoStart": true,
		"sandbox":  map[string]any{"timeoutSeconds": 6},
		"rotation": map[string]any{"preRotateBufferSeconds": 2},
		"budget":   map[string]any{"costCapCents": 1000000, "iterationLimit": 1000000},
	}, &made); code != "" {
		x.t.Errorf("create a session: %s", code)
		return
	}
	x.id = made.Session.ID
	for ctx.Err() == nil {
		n := len(x.execs)
		var out chaosExec
		code := x.ask(http.MethodPost, "/"+x.id+"/exec", map[string]any{
			"command":   []string{"sh", "-c", fmt.Sprintf("echo %d >> log; sleep 0.%d; echo out %d", n, x.rng.IntN(3), n)},
			"timeoutMs": 30000,
		}, &out)
		if code != "" {
			x.t.Errorf("session %s: exec %d: %s", x.id, n, code)
			return
		}
		x.execs = append(x.execs, out.ExecutionID)
	}
}

// check looks at all that the session says at its end.
func (x *execChaos) check() {
	t := x.t
	if x.id == "" {
		return
	}
	var log struct{ Stdout string }
	if code := x.ask(http.MethodPost, "/"+x.id+"/exec", map[string]any{"command": []string{"cat", "log"}, "timeoutMs": 30000}, &log); code != "" {
		t.Errorf("session %s: read the file: %s", x.id, code)
	}
	since := x.events()
	cost, counted, unknown := int64(0), 0, 0
	for n, id := range x.execs {
		var out struct{ Execution chaosExec }
		if code := x.ask(http.MethodGet, "/"+x.id+"/executions/"+id, nil, &out); code != "" {
			t.Errorf("session %s: exec %d: %s", x.id, n, code)
			continue
		}
		e := out.Execution
		cost += e.CostMicroCents
		counted++
		times := strings.Count("\n"+log.Stdout, fmt.Sprintf("\n%d\n", n))
		switch {
		case times > 1:
			t.Errorf("session %s: exec %d ran %d times", x.id, n, times)
		case e.Outcome == "unknown":
			unknown++
		case e.Outcome == "exit" && *e.ExitCode == 0:
			if e.Stdout != "" && e.Stdout != fmt.Sprintf("out %d\n", n) {
				t.Errorf("session %s: exec %d wrote %q", x.id, n, e.Stdout)
			}
			lost := slices.ContainsFunc(since, func(at time.Time) bool { return e.EndedAt != nil && !e.EndedAt.Before(at.Add(-5*time.Second)) })
			if times == 0 && !lost {
				t.Errorf("session %s: what exec %d wrote is gone, and nobody says so (lost since %v)", x.id, n, since)
			}
		case e.Outcome == "signal" && e.Reason == "":
			// the killer took its process
		case e.Outcome == "" || e.Status == "":
			t.Errorf("session %s: exec %d has no outcome: %+v", x.id, n, e)
		}
	}
	var view struct {
		Session struct {
			Usage struct{ Iterations, CostMicroCents int64 }
		}
	}
	if code := x.ask(http.MethodGet, "/"+x.id, nil, &view); code != "" {
		t.Errorf("session %s: %s", x.id, code)
	}
	if got := view.Session.Usage.Iterations; got != int64(counted)+1 { // and the one that read the file
		t.Errorf("G8: session %s: %d iterations were charged for %d execs", x.id, got, counted+1)
	}
	if got := view.Session.Usage.CostMicroCents; got < cost {
		t.Errorf("G8: session %s: %d micro-cents were charged, and its execs cost %d", x.id, got, cost)
	}
	t.Logf("session %s: %d execs, %d of unknown outcome, %d calls broken off, lost since %v", x.id, counted, unknown, x.broken, since)
	var ended struct{ Session struct{ Status string } }
	if code := x.ask(http.MethodPost, "/"+x.id+"/cancel", map[string]any{}, &ended); code != "" || ended.Session.Status != "cancelled" {
		t.Errorf("session %s: cancel: %s, status %q", x.id, code, ended.Session.Status)
	}
}

// events checks that the log has no gap and that no exec ended twice. It returns from
// when on files were said to be lost.
func (x *execChaos) events() (lostSince []time.Time) {
	ends := map[string]int{}
	for last := int64(0); ; {
		var page struct {
			Events []struct {
				Seq  int64
				Type string
				Data struct {
					ExecutionID string
					Lost        *struct{ Since time.Time }
				}
			}
		}
		if code := x.ask(http.MethodGet, fmt.Sprintf("/%s/events?limit=1000&after=%d", x.id, last), nil, &page); code != "" {
			x.t.Errorf("session %s: events: %s", x.id, code)
			return lostSince
		}
		if len(page.Events) == 0 {
			break
		}
		for _, e := range page.Events {
			if e.Seq != last+1 {
				x.t.Errorf("G2: session %s: event %d follows %d", x.id, e.Seq, last)
			}
			last = e.Seq
			if e.Type == "execution.completed" || e.Type == "execution.rejected" {
				ends[e.Data.ExecutionID]++
			}
			if e.Data.Lost != nil {
				lostSince = append(lostSince, e.Data.Lost.Since)
			}
		}
	}
	for _, id := range x.execs {
		if ends[id] != 1 {
			x.t.Errorf("G1: session %s: exec %s has %d ends", x.id, id, ends[id])
		}
	}
	return lostSince
}

// nothingLeft waits until no process of a sandbox is left.
func (c *chaos) nothingLeft() {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		left := sandboxProcesses(c.server.dir, c.server.cmd.Process.Pid)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			c.t.Errorf("G7: %d processes of sandboxes are left: %v", len(left), left)
			return
		}
	}
}
