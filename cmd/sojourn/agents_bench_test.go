package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/gateway/modeltest"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/runtimes"
)

// lastWord ends what the model says in a measured turn.
const lastWord = "the-very-end"

// BenchmarkAgent is a turn of a real agent in a sandbox, from its submission to the
// arrival of its last word at a client that follows the log, beside the same agent on
// the host under a bare client of its protocol, which asks the model directly.
func BenchmarkAgent(b *testing.B) {
	layer := codexLayer(b)
	mock := &modeltest.Server{}
	url := mock.Start(b) + "/v1"
	for _, turn := range []struct{ name, prompt string }{
		{"paced", "@mock pace 5\n@mock say " + words(1000)},
		{"flood", "@mock say " + words(10000)},
	} {
		b.Run(turn.name, func(b *testing.B) {
			bare := newBareAgent(b, layer, url)
			c, id, f := agentSession(b, layer, url)
			bare.turn(b, "@mock say "+lastWord) // warms both
			f.until(b, ends(benchTurn(b, c, id, "@mock say "+lastWord)))
			var ours, theirs, sealed time.Duration
			updates := 0
			for b.Loop() {
				took, n := bare.turn(b, turn.prompt)
				theirs, updates = theirs+took, updates+n
				began := time.Now()
				run := benchTurn(b, c, id, turn.prompt)
				heard := ""
				f.until(b, func(e demoEvent) bool {
					if e.RunID == run {
						heard = lastOf(heard + strings.TrimSuffix(chunkText(e), "\n"))
					}
					if e.RunID == run && slices.Contains(runEnds, e.Type) {
						b.Fatalf("the run ended (%s %s) after %q", e.Type, e.Data, heard)
					}
					return strings.HasSuffix(heard, lastWord)
				})
				ours += time.Since(began)
				f.until(b, ends(run))
				sealed += time.Since(began)
			}
			n := float64(b.N)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(updates)/n, "updates/turn")
			b.ReportMetric(float64(theirs.Milliseconds())/n, "ms/turn-bare")
			b.ReportMetric(float64(ours.Milliseconds())/n, "ms/turn")
			b.ReportMetric(float64(sealed.Milliseconds())/n, "ms/turn-sealed")
			b.ReportMetric(ours.Seconds()/theirs.Seconds(), "x-bare")
			b.ReportMetric(float64((ours-theirs).Microseconds())/float64(updates), "µs-more/update")
		})
	}
}

// lastOf is enough of a text to see how it ends.
func lastOf(s string) string { return s[max(0, len(s)-2*len(lastWord)):] }

// words is text that the model gives in many pieces.
func words(n int) string {
	var t strings.Builder
	for i := range n {
		fmt.Fprintf(&t, "word%d ", i)
	}
	return t.String() + lastWord
}

// codexLayer is an installed Codex.
func codexLayer(b *testing.B) runtimes.Installed {
	b.Helper()
	if os.Getenv("SOJOURN_TEST_CODEX") != "1" {
		b.Skip("SKIPPED: a real agent is only measured with SOJOURN_TEST_CODEX=1, because npm has to fetch it")
	}
	dir := cmp.Or(os.Getenv("SOJOURN_TEST_LAYERS"), filepath.Join(os.TempDir(), "sojourn-test-layers"))
	if layers, err := runtimes.Layers(dir); err == nil && layers["codex"].Dir != "" {
		return layers["codex"]
	}
	i, err := runtimes.Installer{Dir: dir}.Install(b.Context(), "codex", "")
	if err != nil {
		b.Skipf("SKIPPED: npm cannot have codex: %v", err)
	}
	return i
}

// agentSession makes a session of Codex on a real server.
func agentSession(b *testing.B, layer runtimes.Installed, url string) (c *demoClient, id string, f *follower) {
	b.Helper()
	config := filepath.Join(b.TempDir(), "sojourn.yaml")
	text := fmt.Sprintf("defaultRuntime: codex\nmodels: {providers: [{name: mock, api: openai, baseURL: %q, models: [{name: mock-model}]}]}\n", url)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	_, c = benchServerWith(b, func(s *demoServer) error {
		s.flags = append(s.flags, "--config", config)
		data := filepath.Join(s.dir, "data")
		if err := os.MkdirAll(data, 0o700); err != nil {
			return err
		}
		return os.Symlink(filepath.Dir(filepath.Dir(layer.Dir)), layersDir(data))
	})
	id, f = benchSession(b, c)
	return c, id, f
}

// bareAgent is an agent under a client that only counts.
type bareAgent struct {
	in      io.Writer
	out     *bufio.Reader
	session string
	next    int
}

func newBareAgent(b *testing.B, layer runtimes.Installed, url string) *bareAgent {
	b.Helper()
	home, work := b.TempDir(), b.TempDir()
	row, _ := harness.RuntimeByID("codex")
	row, err := row.Fill(harness.Values{Model: "mock-model", ModelURL: "http://unused.test", Token: "token", Workspace: work, Home: home})
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range row.Files {
		text = strings.ReplaceAll(text, "http://unused.test/openai/v1", url)
		if err := os.MkdirAll(filepath.Dir(filepath.Join(home, name)), 0o700); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(layer.Dir, "bin", row.Command[0]))
	cmd.Dir, cmd.Env = work, []string{"HOME=" + home, "PATH=/usr/bin:/bin"}
	for name, value := range row.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // we have just killed it
	})
	a := &bareAgent{in: in, out: bufio.NewReaderSize(out, 1<<20)}
	a.call(b, "initialize", map[string]any{"protocolVersion": 1, "clientCapabilities": map[string]any{}}, nil)
	result := a.call(b, "session/new", map[string]any{"cwd": work, "mcpServers": []any{}}, nil)
	a.session, _ = result["sessionId"].(string)
	return a
}

// call makes a request and reads up to its answer.
func (a *bareAgent) call(b *testing.B, method string, params map[string]any, line func(string)) map[string]any {
	b.Helper()
	a.next++
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": a.next, "method": method, "params": params})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := a.in.Write(append(body, '\n')); err != nil {
		b.Fatal(err)
	}
	for {
		text, err := a.out.ReadString('\n')
		if err != nil {
			b.Fatalf("%s: %v", method, err)
		}
		var m struct {
			ID     int
			Result map[string]any
		}
		if json.Unmarshal([]byte(text), &m) == nil && m.ID == a.next && m.Result != nil {
			return m.Result
		}
		if line != nil {
			line(text)
		}
	}
}

// turn gives the agent a prompt and returns when its last word came, and how many
// updates did.
func (a *bareAgent) turn(b *testing.B, prompt string) (took time.Duration, updates int) {
	b.Helper()
	began := time.Now()
	heard := ""
	a.call(b, "session/prompt", map[string]any{
		"sessionId": a.session, "prompt": []any{map[string]any{"type": "text", "text": prompt}},
	}, func(line string) {
		updates++
		var m struct {
			Params struct {
				Update struct{ Content struct{ Text string } }
			}
		}
		if json.Unmarshal([]byte(line), &m) == nil {
			heard = lastOf(heard + m.Params.Update.Content.Text)
		}
		if took == 0 && strings.HasSuffix(heard, lastWord) {
			took = time.Since(began)
		}
	})
	if took == 0 {
		b.Fatal("the agent did not say its last word")
	}
	return took, updates
}
