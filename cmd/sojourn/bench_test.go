package main

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox/gvisor/gvisortest"
)

// benchServer starts the real program for a benchmark.
func benchServer(b *testing.B) (*demoServer, *demoClient) {
	b.Helper()
	return benchServerWith(b, func(*demoServer) error { return nil })
}

// benchServerWith is benchServer for one that needs more in its directory or flags.
func benchServerWith(b *testing.B, prepare func(*demoServer) error) (*demoServer, *demoClient) {
	b.Helper()
	exe, err := exec.LookPath("sojourn")
	if err != nil {
		b.Fatal(err)
	}
	name, why := probedDriver()
	if name == "" {
		b.Skipf("SKIPPED: no sandbox can be made here: %s", why)
	}
	dir, err := os.MkdirTemp("", "sojourn-bench-")
	if err != nil {
		b.Fatal(err)
	}
	s := &demoServer{exe: exe, dir: dir, key: "a-benchmark-key-0123456789", listen: "127.0.0.1:0", flags: []string{"--driver", name, "--log-level", "error"}}
	b.Cleanup(func() {
		s.stop()
		killSandboxes(dir)
		os.RemoveAll(dir)
	})
	if err := prepare(s); err != nil {
		b.Fatal(err)
	}
	if err := s.start(b.Context()); err != nil {
		b.Fatal(err)
	}
	return s, &demoClient{server: s}
}

// benchSession makes a session and follows it.
func benchSession(b *testing.B, c *demoClient) (id string, f *follower) {
	b.Helper()
	var out struct{ Session demoSession }
	if err := c.call(b.Context(), http.MethodPost, "/v1/sessions", map[string]any{}, &out); err != nil {
		b.Fatal(err)
	}
	f = newFollower(c, out.Session.ID, func(demoEvent) {})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f.run(ctx) }()
	b.Cleanup(func() { cancel(); <-done })
	return out.Session.ID, f
}

// benchTurn submits a turn and returns its run.
func benchTurn(b *testing.B, c *demoClient, session, input string) string {
	b.Helper()
	var out struct{ Run struct{ ID string } }
	if err := c.call(b.Context(), http.MethodPost, "/v1/sessions/"+session+"/turns", map[string]any{"input": input}, &out); err != nil {
		b.Fatal(err)
	}
	return out.Run.ID
}

// until waits for the first event that ok accepts.
func (f *follower) until(b *testing.B, ok func(demoEvent) bool) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	if _, err := f.await(ctx, "an event", ok); err != nil {
		b.Fatal(err)
	}
}

func ends(run string) func(demoEvent) bool {
	return func(e demoEvent) bool { return e.RunID == run && slices.Contains(runEnds, e.Type) }
}

func speaks(run string) func(demoEvent) bool {
	return func(e demoEvent) bool { return e.RunID == run && chunkText(e) != "" }
}

// durableRoundTrip is the limit of what a durable answer can take: one request
// over loopback and one write that is on the disk.
func durableRoundTrip(b *testing.B, c *demoClient, f *os.File) time.Duration {
	b.Helper()
	began := time.Now()
	res, err := c.http.Get(c.server.url() + "/healthz")
	if err != nil {
		b.Fatal(err)
	}
	res.Body.Close()
	if _, err := f.WriteAt(make([]byte, 4096), 0); err != nil {
		b.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}

// BenchmarkFirstEvent is the time from submitting a turn to the first word of
// the agent on a live sandbox, beside one loopback round trip with one durable
// write.
func BenchmarkFirstEvent(b *testing.B) {
	s, c := benchServer(b)
	id, f := benchSession(b, c)
	f.until(b, ends(benchTurn(b, c, id, "@say warm")))
	file, err := os.Create(filepath.Join(s.dir, "limit"))
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	var took, limit time.Duration
	b.ResetTimer()
	for range b.N {
		began := time.Now()
		run := benchTurn(b, c, id, "@say hello")
		f.until(b, speaks(run))
		took += time.Since(began)
		b.StopTimer()
		f.until(b, ends(run))
		limit += durableRoundTrip(b, c, file)
		b.StartTimer()
	}
	b.ReportMetric(float64(took.Milliseconds())/float64(b.N), "ms/first-event")
	b.ReportMetric(took.Seconds()/limit.Seconds(), "x-limit")
}

// BenchmarkTurn is a whole small turn on a live sandbox: submit to sealed.
func BenchmarkTurn(b *testing.B) {
	_, c := benchServer(b)
	id, f := benchSession(b, c)
	f.until(b, ends(benchTurn(b, c, id, "@say warm")))
	b.ResetTimer()
	for range b.N {
		f.until(b, ends(benchTurn(b, c, id, "@say hello")))
	}
}

// BenchmarkColdSession is the time from submitting the first turn of a session to
// the agent having the prompt, beside gVisor running /bin/true by hand.
func BenchmarkColdSession(b *testing.B) {
	s, c := benchServer(b)
	bare := gvisortest.NewBare(b, s.exe)
	bare.Run(b) // warms the caches for both
	var took, limit time.Duration
	for range b.N {
		id, f := benchSession(b, c)
		began := time.Now()
		run := benchTurn(b, c, id, "@say hello")
		f.until(b, func(e demoEvent) bool { return e.RunID == run && e.Type == "wamp.run.active" })
		took += time.Since(began)
		f.until(b, ends(run))
		var out struct{}
		if err := c.call(b.Context(), http.MethodPost, "/v1/sessions/"+id+"/archive", nil, &out); err != nil {
			b.Fatal(err)
		}
		for len(sandboxProcesses(s.dir, s.cmd.Process.Pid)) > 0 {
			time.Sleep(5 * time.Millisecond)
		}
		limit += bare.Run(b)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(took.Milliseconds())/float64(b.N), "ms/agent-ready")
	b.ReportMetric(took.Seconds()/limit.Seconds(), "x-bare-runsc")
}

// BenchmarkTakeUp is the time from the address of a restarted server to the next
// event of the run that its predecessor was driving when it was killed.
func BenchmarkTakeUp(b *testing.B) {
	s, c := benchServer(b)
	id, f := benchSession(b, c)
	b.ResetTimer()
	b.StopTimer()
	for range b.N {
		run := benchTurn(b, c, id, "@work 3000 50")
		f.until(b, speaks(run))
		s.kill()
		seen, _, _ := f.all()
		if err := s.start(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		f.until(b, func(e demoEvent) bool { return e.Sequence > seen[len(seen)-1].Sequence })
		b.StopTimer()
		f.until(b, ends(run))
	}
}
