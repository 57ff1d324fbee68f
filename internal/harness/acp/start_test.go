package acp_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/harness/acp"
	"github.com/sojourn-dev/sojourn/internal/harness/harnesstest"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// awaitExit waits until a process is known to have ended.
func awaitExit(t *testing.T, b *harnesstest.Bench, process string) {
	t.Helper()
	peer := b.Sandbox.Peer(t)
	for seq := int64(0); ; {
		r, err := peer.Read(t.Context(), link.ReadParams{ProcessID: process, AfterSeq: seq, Wait: link.MaxWait})
		if err != nil {
			t.Fatal(err)
		}
		if r.Exited {
			return
		}
		seq = r.NextSeq - 1
	}
}

func TestMissingProgramIsAnUnavailableRuntime(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{{"no-such-agent"}, {"/bin/sh", "-c", "no-such-agent"}, {"/bin/sh", "-c", "/etc/passwd"}, {""}} {
		b := realProcess(t, "")
		b.Runtime.Command, b.Runtime.Label = command, "Codex"
		out := b.Turn(t, "r1", "@say never")
		wantCode(t, out, sojourn.RunFailed, acp.CodeUnavailable)
		if out.Error != nil && !strings.Contains(out.Error.Message, "Codex") {
			t.Errorf("message %q does not name the runtime", out.Error.Message)
		}
	}
}

func TestSilentAgentEndsTheRun(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"initialize", "session/new"} {
		b := inProcess(t, "HANG="+method)
		b.Harness = &acp.Harness{StartWithin: 50 * time.Millisecond, KillAfter: 50 * time.Millisecond}
		wantCode(t, b.Turn(t, "r1", "@say never"), sojourn.RunFailed, acp.CodeAgentSilent)
	}
}

func TestOtherProtocolVersionIsRefused(t *testing.T) {
	t.Parallel()
	b := inProcess(t, "PROTOCOL=2")
	wantCode(t, b.Turn(t, "r1", "@say never"), sojourn.RunFailed, acp.CodeAgentProtocol)
}

func TestInputThatTheAgentDoesNotTakeIsRefused(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	out, err := b.DriveParts(t, "r1", []sojourn.Part{{Type: "hologram"}})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, out, sojourn.RunFailed, acp.CodeUnsupported)
	if n := b.Ledger.Run("r1").Activations; n != 0 {
		t.Errorf("activated %d times, want 0", n)
	}
	out, err = b.DriveParts(t, "r2", []sojourn.Part{
		{Type: "image", MimeType: "image/png", Data: "AAAA"},
		{Type: "file", MimeType: "text/plain", Name: "a.txt", Data: "aGk="},
		{Type: "text", Text: "@say seen"},
	})
	if err != nil || out.State != sojourn.RunCompleted {
		t.Errorf("outcome %s (%v), want completed", harnesstest.Describe(out), err)
	}
}

func TestNoEnvironmentValueIsPublishedByUs(t *testing.T) {
	t.Parallel()
	b := inProcess(t, "CRASH=prompt")
	b.Runtime.Env["MODEL_KEY"] = "sk-very-secret"
	out := b.Turn(t, "r1", "@say hello")
	text := fmt.Sprint(harnesstest.Describe(out), b.Ledger.Run("r1").Events, string(b.Ledger.State()))
	if strings.Contains(text, "sk-very-secret") {
		t.Errorf("a value of the environment is in %s", text)
	}
}

func TestStateOfAnotherSandboxMeansNothing(t *testing.T) {
	t.Parallel()
	// The same run, started again in another sandbox after its conversation
	// was not to be had in the first.
	b := inProcess(t)
	b.Completed(t, "r1", "@remember colour blue")
	b.Runtime = scriptRow("LOAD=notfound")
	b.Ledger.NewSandbox()
	b.Epoch = 2
	wantCode(t, b.Turn(t, "r2", "@recall colour"), sojourn.RunFailed, acp.CodeNotRestorable)
	b.Runtime, b.Epoch = scriptRow(), 3 // its state of epoch 2 is still there
	b.Completed(t, "r2", "@recall colour")
	wantTexts(t, b, "r2", "blue")
}

func TestUnreadableStateEndsTheRun(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	job := harness.Job{Run: "r1", Epoch: 1, Runtime: b.Runtime, State: []byte(`{"v":99,"run":"r1","epoch":1}`)}
	out, err := b.Harness.Drive(t.Context(), job, &harnesstest.Port{Ledger: b.Ledger, Run: "r1", Peer: b.Sandbox.Peer(t)})
	if err != nil || out.State != sojourn.RunCrashed || !out.Killed {
		t.Errorf("outcome %s (%v), want crashed", harnesstest.Describe(out), err)
	}
}

func TestRuntimeWithoutACommandIsUnavailable(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	b.Runtime, _ = harness.RuntimeByID("custom")
	wantCode(t, b.Turn(t, "r1", "@say never"), sojourn.RunFailed, acp.CodeUnavailable)
}

func TestSettingsAreWrittenAndApplied(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	b.Runtime.Files = map[string]string{".config/agent/settings.json": `{"a":1}`}
	b.Completed(t, "r1", "@cat /home/agent/.config/agent/settings.json")
	wantTexts(t, b, "r1", `{"a":1}`)

	b = inProcess(t)
	b.Runtime.Files = map[string]string{"../outside": "x"}
	wantCode(t, b.Turn(t, "r1", "@say never"), sojourn.RunFailed, acp.CodeUnavailable)

	b = inProcess(t)
	b.Runtime.Settings = []harness.Setting{{Method: "session/set_mode", Value: "yolo"}}
	out := b.Turn(t, "r1", "@say never") // the script agent has no modes
	wantCode(t, out, sojourn.RunFailed, acp.CodeAgentError)
}
