package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/egress"
	"github.com/sojourn-dev/sojourn/internal/gateway"
	"github.com/sojourn-dev/sojourn/internal/gateway/modeltest"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/harness/harnesstest"
	"github.com/sojourn-dev/sojourn/internal/harness/script"
	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/server"
	"github.com/sojourn-dev/sojourn/internal/servertest"
	"github.com/sojourn-dev/sojourn/sandbox/namespace"
)

// harnessTurn is one turn that is measured. Its agent is the scripted one, or the one
// that passes on what its model says.
type harnessTurn struct {
	name, runtime, prompt string
}

// pieces makes the model say n pieces of 32 bytes.
func pieces(n int) string {
	return "@mock say " + strings.Repeat("some words that a model would say", n)[:32*n]
}

var harnessTurns = []harnessTurn{
	{"least", "script", "@say hello"},
	{"flood", "script", "@flood 5000 100"},
	{"model-flood", "relay", pieces(5000)},
	{"model-paced", "relay", "@mock pace 10\n" + pieces(300)},
}

// BenchmarkHarness measures turns through the whole server beside the same turns of
// the same agent that a bare client of the protocol drives, which asks its model
// directly: in one process, and with processes in a sandbox of the namespace driver.
// Turns are measured from the submit to run.completed in a client's event stream,
// with the checkpoint in between. Each figure is of the median turns.
//
//	added-µs/update   what each update costs more
//	added-ms/turn     what a turn takes longer
//	overhead-%        the same as a part of the bare turn
//	delay-ms          from the agent's write to the client, at the median; bare-delay-ms
//	                  to the bare client. The log's batches are in it.
//	heap-MiB          the most that was on the heap of the process at once, with the
//	                  garbage of the server, the agent, the model and the client
func BenchmarkHarness(b *testing.B) {
	for name, open := range map[string]func(*testing.B, string) *harnessStage{
		"one-process": inOneProcess, "sandbox": inSandbox,
	} {
		b.Run(name, func(b *testing.B) {
			mock := &modeltest.Server{Key: relayProviderKey}
			stage := open(b, mock.Start(b)+"/v1")
			for _, turn := range harnessTurns {
				b.Run(turn.name, func(b *testing.B) { stage.compare(b, turn) })
				mock.Reset()
			}
		})
	}
}

const relayProviderKey = "provider-key-0123456789"

// harnessStage is a server, and a way to start the agents of its sandboxes outside.
type harnessStage struct {
	client *client.Client
	// bare starts an agent by its runtime and returns a client that drives it.
	bare func(b *testing.B, runtime string) *harnesstest.Bare
	// whole says that server and agents are in this process.
	whole bool
}

// inOneProcess is the fake driver's stage.
func inOneProcess(b *testing.B, model string) *harnessStage {
	g, err := gateway.New(gateway.Config{Providers: []gateway.Provider{{
		Name: "mock", API: gateway.OpenAI, BaseURL: model, Key: relayProviderKey, Models: []gateway.Model{{Name: "best"}},
	}}})
	if err != nil {
		b.Fatal(err)
	}
	e, err := egress.New(egress.Config{})
	if err != nil {
		b.Fatal(err)
	}
	way := server.NewWay(e, g, []byte("the key of the tokens"))
	row, _ := harness.RuntimeByID("script")
	relay := harnesstest.RelayRow("relay")
	relay.Env["RELAY_SOCKET"] = "1"
	s := servertest.Start(b, servertest.Config{
		Egress: way, Models: way, Runtimes: []harness.Runtime{row, relay},
		Programs: map[string]keeper.Program{"relay": harnesstest.Relay},
	})
	programs := map[string]keeper.Program{"script": script.Run, "relay": harnesstest.Relay}
	return &harnessStage{
		whole: true, client: benchClient(b, s.URL, servertest.AdminKey),
		bare: func(b *testing.B, runtime string) *harnesstest.Bare {
			dir := b.TempDir()
			in, stdin := io.Pipe()
			stdout, out := io.Pipe()
			ended := make(chan int, 1)
			go func() {
				ended <- programs[runtime](context.Background(), keeper.Proc{
					Stdin: in, Stdout: out, Stderr: io.Discard, Dir: dir, Env: relayEnv(model, dir),
					MapPath: func(p string) string { return p },
				})
			}()
			b.Cleanup(func() { stdin.Close(); stdout.Close(); <-ended })
			return openBare(b, stdin, stdout, dir)
		},
	}
}

// inSandbox is the stage of the real program.
func inSandbox(b *testing.B, model string) *harnessStage {
	exe, err := exec.LookPath("sojourn")
	if err != nil {
		b.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "sojourn-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	if r := namespace.Probe(b.Context(), namespace.Config{Dir: filepath.Join(dir, "probe"), Executable: exe}); !r.Available {
		b.Skipf("SKIPPED: no sandbox of the namespace driver can be made here: %s", r.Reason)
	}
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, relayConfig, model), 0o600); err != nil {
		b.Fatal(err)
	}
	b.Setenv("SOJOURN_BENCH_PROVIDER_KEY", relayProviderKey)
	s := &demoServer{
		exe: exe, dir: dir, key: "a-benchmark-key-0123456789", listen: "127.0.0.1:0",
		flags: []string{"--driver", "namespace", "--log-level", "error", "--config", config},
	}
	b.Cleanup(func() {
		if err := s.stop(); err != nil {
			b.Error(err)
		}
		killSandboxes(dir)
	})
	if err := s.start(b.Context()); err != nil {
		b.Fatal(err)
	}
	return &harnessStage{
		client: benchClient(b, s.url(), s.key),
		bare: func(b *testing.B, runtime string) *harnesstest.Bare {
			dir := b.TempDir()
			cmd := exec.Command(exe, runtime+"-agent")
			cmd.Dir, cmd.Env = dir, append(os.Environ(), relayEnv(model, dir)...)
			stdin, err := cmd.StdinPipe()
			if err != nil {
				b.Fatal(err)
			}
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				stdin.Close()
				if err := cmd.Wait(); err != nil {
					b.Errorf("the bare agent: %v", err)
				}
			})
			return openBare(b, stdin, stdout, dir)
		},
	}
}

const relayConfig = `
models:
  providers:
    - name: mock
      api: openai
      baseURL: %s
      valueEnv: SOJOURN_BENCH_PROVIDER_KEY
      models: [{name: best}]
runtimes:
  relay:
    label: Relay
    command: [/.sojourn/sojourn, relay-agent]
    api: openai
    env: {RELAY_URL: "{{model_url}}", RELAY_KEY: "{{token}}", RELAY_MODEL: "{{model}}"}
`

func relayEnv(model, home string) []string {
	return []string{"HOME=" + home, "RELAY_URL=" + model, "RELAY_KEY=" + relayProviderKey, "RELAY_MODEL=best"}
}

func openBare(b *testing.B, stdin io.Writer, stdout io.Reader, dir string) *harnesstest.Bare {
	b.Helper()
	bare, err := harnesstest.NewBare(stdin, stdout, dir)
	if err != nil {
		b.Fatal(err)
	}
	return bare
}

func benchClient(b *testing.B, url, key string) *client.Client {
	b.Helper()
	c, err := client.New(client.Config{URL: url, Key: key})
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// measured is what came of turns.
type measured struct {
	took    []time.Duration // by turn
	updates int
	delays  []time.Duration // of updates that say when they were written
}

func (m *measured) update(data json.RawMessage) {
	m.updates++
	if at, ok := harnesstest.At(data); ok {
		m.delays = append(m.delays, time.Since(at))
	}
}

// compare runs a turn both ways, in turn, after one each that is not measured.
func (s *harnessStage) compare(b *testing.B, turn harnessTurn) {
	made, err := s.client.CreateSession(b.Context(), client.CreateSession{Runtime: turn.runtime})
	if err != nil {
		b.Fatal(err)
	}
	agent := s.bare(b, turn.runtime)
	last := int64(0)
	direct, through := &measured{}, &measured{}
	both := func(direct, through *measured) {
		began := time.Now()
		if err := agent.Prompt(turn.prompt, direct.update); err != nil {
			b.Fatal(err)
		}
		direct.took = append(direct.took, time.Since(began))
		last = s.turn(b, made.Session.ID, last, turn.prompt, through)
	}
	both(&measured{}, &measured{})
	heap := watchHeap()
	for b.Loop() {
		both(direct, through)
	}
	high := heap()
	if direct.updates == 0 || direct.updates != through.updates {
		b.Fatalf("%d updates directly and %d through the server", direct.updates, through.updates)
	}
	if _, err := s.client.ArchiveSession(b.Context(), made.Session.ID); err != nil {
		b.Fatal(err)
	}
	updates := float64(through.updates) / float64(len(through.took)) // of one turn
	added := median(through.took) - median(direct.took)
	b.ReportMetric(0, "ns/op") // both ways together mean nothing
	b.ReportMetric(added.Seconds()*1e6/updates, "added-µs/update")
	b.ReportMetric(added.Seconds()*1e3, "added-ms/turn")
	b.ReportMetric(100*added.Seconds()/median(direct.took).Seconds(), "overhead-%")
	if len(through.delays) > 0 {
		b.ReportMetric(median(through.delays).Seconds()*1e3, "delay-ms")
		b.ReportMetric(median(direct.delays).Seconds()*1e3, "bare-delay-ms")
	}
	if s.whole {
		b.ReportMetric(float64(high)/(1<<20), "heap-MiB")
	}
}

// turn runs one turn of a session whose log is known up to the event last.
func (s *harnessStage) turn(b *testing.B, session string, last int64, prompt string, m *measured) int64 {
	b.Helper()
	began := time.Now()
	ended := make(chan error, 1)
	go func() {
		var err error
		last, err = s.client.Follow(b.Context(), client.Follow{Session: session, After: last}, func(e client.Event) (bool, error) {
			switch e.Type {
			case "agent.update":
				var d struct{ Update json.RawMessage }
				if err := json.Unmarshal(e.Data, &d); err != nil {
					return false, err
				}
				m.update(d.Update)
			case "run.completed":
				return false, nil
			case "run.failed", "run.crashed", "run.cancelled":
				return false, fmt.Errorf("%s: %s", e.Type, e.Data)
			}
			return true, nil
		})
		ended <- err
	}()
	if _, err := s.client.SubmitTurn(b.Context(), session, client.TurnInput{Input: client.Text(prompt)}); err != nil {
		b.Fatal(err)
	}
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	m.took = append(m.took, time.Since(began))
	return last
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// watchHeap looks at the heap until the returned function is called, which returns
// the most bytes that it had.
func watchHeap() (high func() uint64) {
	stop, most := make(chan struct{}), make(chan uint64)
	go func() {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		peak := uint64(0)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			metrics.Read(sample)
			peak = max(peak, sample[0].Value.Uint64())
			select {
			case <-tick.C:
			case <-stop:
				most <- peak
				return
			}
		}
	}()
	return func() uint64 { close(stop); return <-most }
}
