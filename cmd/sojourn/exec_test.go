package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/client"
)

func TestEndOfAnExecutionIsTheExitCode(t *testing.T) {
	for _, c := range []struct {
		x    client.Execution
		code int
		says string
	}{
		{client.Execution{State: "ended", Outcome: "exit", ExitCode: new(0)}, 0, ""},
		{client.Execution{State: "ended", Outcome: "exit", ExitCode: new(7)}, 7, ""},
		{client.Execution{State: "ended", Outcome: "signal", Signal: "SIGKILL"}, 137, "SIGKILL"},
		{client.Execution{State: "ended", Outcome: "signal", Signal: "SIGKILL", Reason: "out_of_memory"}, 137, "out_of_memory"},
		{client.Execution{State: "ended", Outcome: "signal", Signal: "SIGTERM", Reason: "timeout", TimeoutMs: 2000}, 124, "2.0s"},
		{client.Execution{State: "ended", Outcome: "exit", ExitCode: new(0), Reason: "timeout"}, 124, "allowed"},
		{client.Execution{State: "ended", Outcome: "exit", ExitCode: new(0), Reason: "cancelled"}, 1, "cancelled"},
		{client.Execution{State: "ended", Outcome: "exit", ExitCode: new(3), Reason: "rotated"}, 3, "rotated"},
		{client.Execution{State: "ended", Outcome: "not_started", ExitCode: new(127), Error: "no such program"}, 127, "no such program"},
		{client.Execution{State: "ended", Outcome: "not_started", Error: "no such directory"}, 126, "no such directory"},
		{client.Execution{State: "lost", Outcome: "unknown", Reason: "sandbox_lost"}, 125, "not known"},
		{client.Execution{State: "refused", Outcome: "not_started", Reason: "busy", Error: "Another ran."}, 4, "Another ran."},
		{client.Execution{State: "refused", Outcome: "not_started", Reason: "expired", Error: "The exec was not started (expired)."}, 4, "it was not started (expired)"},
		{client.Execution{State: "ended", Outcome: "exit"}, 125, "does not say"},
	} {
		c2 := &carrying{s: &shell{}}
		err := c2.ended(c.x)
		code, text := 0, ""
		if e, ok := errors.AsType[*exitError](err); ok {
			code, text = e.code, e.Error()
		}
		if code != c.code || !strings.Contains(text, c.says) {
			t.Errorf("%+v: code %d and %q, want %d and %q", c.x, code, text, c.code, c.says)
		}
	}
}

func TestWordsBehindTheSessionAreTheProgram(t *testing.T) {
	for line, want := range map[string]string{
		"s true":                     "true",
		"s -- ls -la":                "ls -la",
		"s ls -la --json":            "ls -la --json",
		"-w /tmp s -e A=1 ls -w x":   "ls -w x",
		"s -w /tmp -- -w":            "-w",
		"s env -- --":                "env -- --",
		"--timeout 2s -i s cat -- x": "cat -- x",
	} {
		fs := flagSet()
		execRun.prepare(fs)
		words, err := parse(fs, strings.Fields(line), execRun.rest)
		if err != nil || len(words) == 0 || words[0] != "s" || strings.Join(words[1:], " ") != want {
			t.Errorf("%q: words %q, %v", line, words, err)
		}
	}
}

func TestWordsOfExecThatAreOff(t *testing.T) {
	f := newFake(t)
	for _, args := range [][]string{
		{"exec"},
		{"exec", fakeSession},
		{"exec", fakeSession, "--tool", "t", "--", "x"},
		{"exec", fakeSession, "--input", "{}", "--", "x"},
		{"exec", fakeSession, "--tool", "t", "--input", "{"},
		{"exec", "--detach", "-i", fakeSession, "cat"},
		{"exec", "--timeout", "-1s", fakeSession, "x"},
		{"exec", fakeSession, "\xff"},
		{"exec", "list"},
		{"exec", "list", "a", "b"},
		{"exec", "attach", fakeSession},
		{"exec", "output", fakeSession, "x", "--stream", "y"},
		{"exec", "--bogus", fakeSession, "x"},
		{"session", "create", "--client-id", "c"},
		{"session", "create", "--no-agent", "--runtime", "codex"},
		{"session", "create", "--no-agent", "--max-iterations", "0"},
		{"session", "create", "--no-agent", "--max-duration", "-1s"},
		{"session", "create", "--no-agent", "--timeout", "0"},
		{"session", "budget", fakeSession, "--max-iterations", "0"},
		{"session", "context", fakeSession, "--set", "k=v"},
		{"session", "heartbeat", fakeSession, "--every", "1ms"},
	} {
		if got := f.run(t, args...); got.code != exitUsage || got.err == "" || got.out != "" {
			t.Errorf("%q: code %d, output %q, errors %q", args, got.code, got.out, got.err)
		}
	}
	if len(f.bodies) > 0 {
		t.Errorf("something was sent: %v", f.bodies)
	}
}

func TestFlagsOfABareSessionAreSent(t *testing.T) {
	f := newFake(t)
	got := f.run(t, strings.Fields("session create --no-agent --max-cost 2.50 --max-iterations 5 --max-duration 2h --timeout 1h --rotate-buffer 30s "+
		"--carry-processes --checkpoint-every 1m --client-id me --on-abandon stop --cpus 2 --memory 1G --env A=b --dir sub --hook x")...)
	if got.code != 0 || len(f.bodies) != 1 {
		t.Fatalf("code %d, errors %q", got.code, got.err)
	}
	const want = `{"budget":{"costMicroCents":250000000,"durationSeconds":7200,"iterations":5},"clientId":"me","context":{"dir":"sub","env":{"A":"b"}},` +
		`"contract":"exec","onAbandon":"stop","rotation":{"bufferSeconds":30,"checkpointSeconds":60,"hook":["sh","-c","x"],"processes":true},` +
		`"sandbox":{"limits":{"memoryBytes":1073741824,"milliCPUs":2000},"timeoutSeconds":3600}}`
	if text, err := json.Marshal(f.bodies[0]); err != nil || string(text) != want {
		t.Errorf("sent %s\nwant %s", text, want)
	}
}

func TestOutputAsJSONCutsNoCharacter(t *testing.T) {
	text := "aä€😀\xff" + strings.Repeat("😀", 100) + "\xf0\x9f"
	for step := 1; step < 9; step++ {
		var out bytes.Buffer
		lines := &jsonLines{p: newPrinter(&out, true)}
		w := lines.stream("stdout")
		for rest := text; rest != ""; {
			n := min(step, len(rest))
			if _, err := w.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := lines.end(client.Execution{ID: "x"}); err != nil {
			t.Fatal(err)
		}
		got, raw := "", 0
		all := strings.Split(strings.TrimSpace(out.String()), "\n")
		for _, line := range all[:len(all)-1] {
			var l outputLine
			if err := json.Unmarshal([]byte(line), &l); err != nil || l.Type != "stdout" {
				t.Fatalf("line %q: %v", line, err)
			}
			if l.Data != nil {
				got += *l.Data
			} else {
				got, raw = got+string(l.Raw), raw+1
			}
		}
		if got != text || raw == 0 || step < 4 && raw > 3 {
			t.Errorf("in steps of %d: %d pieces that are no text, and %q", step, raw, got)
		}
	}
}

func TestSignalsAreNamedAsForKill(t *testing.T) {
	for word, want := range map[string]string{
		"SIGHUP": "SIGHUP", "HUP": "SIGHUP", "term": "SIGTERM", "sigint": "SIGINT", "9": "SIGKILL", "0": "0", "77": "77", "": "SIG",
	} {
		if got := signalName(word); got != want {
			t.Errorf("signalName(%q) = %q, want %q", word, got, want)
		}
	}
}
