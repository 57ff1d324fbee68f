package acp_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/harness/acp"
	"github.com/sojourn-dev/sojourn/internal/harness/harnesstest"
	"github.com/sojourn-dev/sojourn/internal/harness/script"
	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// recorder is a link that remembers what it was asked for.
type recorder struct {
	harness.Link
	mu      sync.Mutex
	calls   []string
	written strings.Builder
	started link.StartParams
}

func (r *recorder) Start(ctx context.Context, p link.StartParams) error {
	r.mu.Lock()
	r.calls, r.started = append(r.calls, "start"), p
	r.mu.Unlock()
	return r.Link.Start(ctx, p)
}

func (r *recorder) Write(ctx context.Context, process, id string, data []byte) error {
	r.mu.Lock()
	r.written.Write(data)
	r.mu.Unlock()
	return r.Link.Write(ctx, process, id, data)
}

func (r *recorder) CloseStdin(ctx context.Context, process string) error {
	r.note("eof")
	return r.Link.CloseStdin(ctx, process)
}

func (r *recorder) note(call string) {
	r.mu.Lock()
	r.calls = append(r.calls, call)
	r.mu.Unlock()
}

// driveRecorded drives a run over a link that remembers.
func driveRecorded(t *testing.T, b *harnesstest.Bench, job harness.Job) (*recorder, harness.Outcome) {
	t.Helper()
	peer := b.Sandbox.Peer(t)
	rec := &recorder{Link: peer}
	job.Session, job.Epoch, job.Runtime = "ses", b.Epoch, b.Runtime
	job.Conversation, job.Worked, job.State = b.Ledger.Conversation(), b.Ledger.Worked(), b.Ledger.State()
	if job.Input == nil {
		job.Input = []sojourn.Part{{Type: "text", Text: "@say hello"}}
	}
	out, err := b.Harness.Drive(t.Context(), job, &harnesstest.Port{Ledger: b.Ledger, Run: job.Run, Peer: rec})
	if err != nil {
		t.Fatal(err)
	}
	return rec, out
}

func TestTemplatesAreFilledForTheSandbox(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	b.Runtime.API = harness.APIOpenAI
	b.Runtime.Env = map[string]string{"URL": "{{model_url}}", "KEY": "{{token}}", "AT": "{{workspace}} {{home}}"}
	b.Runtime.Files = map[string]string{".agent/settings": "model={{model}}"}
	b.Runtime.Path = []string{"/agents/x/bin"}
	rec, out := driveRecorded(t, b, harness.Job{
		Run: "r1", Model: "m", ModelURL: "http://gate/model", Token: "tok", Env: map[string]string{"KEY": "session's", "OWN": "1"},
		Input: []sojourn.Part{{Type: "text", Text: "@cat /home/agent/.agent/settings"}},
	})
	if out.State != sojourn.RunCompleted {
		t.Fatalf("outcome %s, want completed", harnesstest.Describe(out))
	}
	wantTexts(t, b, "r1", "model=m")
	for name, want := range map[string]string{
		"URL": "http://gate/model/openai/v1", "KEY": "tok", "AT": "/workspace /home/agent", "OWN": "1", "HOME": sandbox.HomePath,
	} {
		if got := rec.started.Env[name]; got != want {
			t.Errorf("%s=%q, want %q", name, got, want)
		}
	}
	if got := rec.started.Env["PATH"]; !strings.HasPrefix(got, "/agents/x/bin:/") || !rec.started.Inherit {
		t.Errorf("PATH=%q and inherit %v; want the row's directory first, and the image's environment below", got, rec.started.Inherit)
	}
	if state := string(b.Ledger.State()); strings.Contains(state, "tok") {
		t.Errorf("the token is in the stored state: %s", state)
	}
}

func TestRuntimeWithoutItsModelIsUnavailable(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	b.Runtime.API, b.Runtime.Env = harness.APIOpenAI, map[string]string{"URL": "{{model_url}}"}
	out := b.Turn(t, "r1", "@say never")
	wantCode(t, out, sojourn.RunFailed, acp.CodeUnavailable)
	if out.Error != nil && !strings.Contains(out.Error.Message, "models") {
		t.Errorf("message %q does not say what to configure", out.Error.Message)
	}
}

func TestMissingProgramNamesWhatInstallsIt(t *testing.T) {
	t.Parallel()
	b := realProcess(t, "")
	b.Runtime.Command, b.Runtime.Install = []string{"no-such-agent"}, "sojourn runtimes install codex"
	out := b.Turn(t, "r1", "@say never")
	wantCode(t, out, sojourn.RunFailed, acp.CodeUnavailable)
	if out.Error != nil && !strings.HasSuffix(out.Error.Message, "Install it with: sojourn runtimes install codex") {
		t.Errorf("message %q does not name the command", out.Error.Message)
	}
}

// An agent that is replaced is ended as its row says: by the end of its input, or by
// TERM.
func TestAgentIsStoppedAsItsRowSays(t *testing.T) {
	t.Parallel()
	for _, eof := range []bool{true, false} {
		var signals sync.Map
		b := inProcess(t)
		b.Sandbox = harnesstest.NewSandbox(t, harnesstest.Programs{sandbox.KeeperPath: func(ctx context.Context, p keeper.Proc) int {
			defer context.AfterFunc(ctx, func() { signals.Store("term", true) })()
			return script.Run(ctx, p)
		}})
		b.Runtime.Stop.EOF = eof
		b.Completed(t, "r1", "@say one")
		// A cancel that came too late makes the agent unfit for another turn.
		b.Runtime.Stop = harness.Stop{EOF: eof}
		state := strings.Replace(string(b.Ledger.State()), `"conversation"`, `"unfit":true,"conversation"`, 1)
		peer := b.Sandbox.Peer(t)
		rec := &recorder{Link: peer}
		out, err := b.Harness.Drive(t.Context(), harness.Job{
			Session: "ses", Run: "r2", Epoch: b.Epoch, Runtime: b.Runtime, Conversation: b.Ledger.Conversation(),
			Worked: true, State: []byte(state), Input: []sojourn.Part{{Type: "text", Text: "@say two"}},
		}, &harnesstest.Port{Ledger: b.Ledger, Run: "r2", Peer: rec})
		if err != nil || out.State != sojourn.RunCompleted {
			t.Fatalf("eof %v: outcome %s, %v", eof, harnesstest.Describe(out), err)
		}
		_, termed := signals.Load("term")
		if asked := slices.Contains(rec.calls, "eof"); asked != eof || termed == eof {
			t.Errorf("eof %v: calls %v, terminated %v", eof, rec.calls, termed)
		}
	}
}

func TestServersAreNamedWheneverAConversationIsOpened(t *testing.T) {
	t.Parallel()
	program := `{"name":"files","command":"/bin/files","args":[],"env":[]}`
	remote := `{"type":"http","name":"remote","url":"http://mcp.test/","headers":[]}`
	b := inProcess(t)
	job := harness.Job{Run: "r1", MCPServers: []json.RawMessage{[]byte(program), []byte(remote)}}
	rec, out := driveRecorded(t, b, job)
	if out.State != sojourn.RunCompleted {
		t.Fatalf("outcome %s, want completed", harnesstest.Describe(out))
	}
	if !strings.Contains(rec.written.String(), `"mcpServers":[`+program+`]`) {
		t.Errorf("session/new did not get the program: %s", rec.written.String())
	}
	if logs := b.Ledger.Logs("r1"); len(logs) != 1 || !strings.Contains(logs[0], "remote was left out") {
		t.Errorf("logged %q; want that the agent takes no server of that type", logs)
	}
	// In another sandbox the conversation is opened anew.
	b.Ledger.NewSandbox()
	b.Epoch = 2
	job.Run = "r2"
	rec, _ = driveRecorded(t, b, job)
	if got := rec.written.String(); !strings.Contains(got, "session/resume") || !strings.Contains(got, `"mcpServers":[`+program+`]`) {
		t.Errorf("session/resume did not get the program: %s", got)
	}
}

// placed is a link to a sandbox that shares the host's paths.
type placed struct {
	*recorder
	places map[string]string
	files  map[string]string
}

func (p *placed) Info(context.Context) (link.Info, error) {
	return link.Info{Places: p.places, Path: "/bin"}, nil
}

func (p *placed) WriteFile(ctx context.Context, path string, data []byte) error {
	p.files[path] = string(data)
	return p.Link.WriteFile(ctx, path, data)
}

// Where sandboxes share the host's paths, files name those, and the keeper itself
// translates arguments and variables: it must not be given what it has translated.
func TestPathsAreTranslatedOnce(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	b.Runtime.Env = map[string]string{"AT": "{{home}}/x"}
	b.Runtime.Files = map[string]string{".agent/settings": "{{workspace}} {{home}}"}
	l := &placed{
		recorder: &recorder{Link: b.Sandbox.Peer(t)}, files: map[string]string{},
		places: map[string]string{sandbox.HomePath: "/data/home/agent", sandbox.WorkspacePath: "/data/workspace"},
	}
	out, err := b.Harness.Drive(t.Context(), harness.Job{
		Session: "ses", Run: "r1", Epoch: b.Epoch, Runtime: b.Runtime, Input: []sojourn.Part{{Type: "text", Text: "@say hello"}},
	}, &harnesstest.Port{Ledger: b.Ledger, Run: "r1", Peer: l})
	if err != nil || out.State != sojourn.RunCompleted {
		t.Fatalf("outcome %s, %v", harnesstest.Describe(out), err)
	}
	if got := l.started.Env["AT"]; got != sandbox.HomePath+"/x" {
		t.Errorf("AT=%q, want the sandbox's path", got)
	}
	if got := l.files[sandbox.HomePath+"/.agent/settings"]; got != "/data/workspace /data/home/agent" {
		t.Errorf("settings %q, want the host's paths", got)
	}
	if !strings.Contains(l.written.String(), `"cwd":"/data/workspace"`) {
		t.Errorf("the conversation is not at the host's path: %s", l.written.String())
	}
}
