package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/terminal"
)

func TestTurnIsNarrated(t *testing.T) {
	f := newFake(t)
	f.onTurn = func() {
		f.emit(
			"turn.submitted", object{},
			"run.queued", object{},
			"run.started", object{},
			"workspace.restored", object{"checkpointId": "cp-1"},
			"workspace.attached", object{"epoch": 2, "isolation": "gvisor"},
			"run.active", object{},
			"agent.update", update("agent_thought_chunk", object{"content": object{"type": "text", "text": "let me see"}}),
			"agent.update", says("Hello, "),
			"agent.update", says("world."),
			"agent.update", update("tool_call", object{"toolCallId": "1", "title": "Write notes.txt", "kind": "edit", "status": "pending"}),
			"agent.update", update("tool_call_update", object{"toolCallId": "1", "status": "completed"}),
			"agent.update", update("tool_call", object{"toolCallId": "2", "title": "Run make", "status": "pending"}),
			"agent.update", update("tool_call_update", object{"toolCallId": "2", "status": "failed"}),
			"agent.log", object{"stream": "stderr", "text": "warning: x"},
			"interaction.requested", object{
				"interactionId": fakeAsk, "kind": "permission",
				"request": object{"toolCall": object{"title": "Delete everything"}},
				"options": []object{
					{"optionId": "yes", "name": "Allow", "kind": "allow_once"},
					{"optionId": "it's -no", "name": "Reject", "kind": "reject"},
				},
			},
			"interaction.answered", object{"interactionId": fakeAsk, "answer": object{"optionId": "yes"}},
			"agent.update", says("Done.\n"),
			"checkpoint.sealed", object{"conversation": "exact", "workspace": "portable_tree", "entries": 12, "bytes": 4096, "storedBytes": 100},
			"run.completed", object{"stopReason": "end_turn"},
		)
	}
	got := f.run(t, "session", "turn", fakeSession, "write", "notes")
	const want = `· run 01f0aaaa-0000-7000-8000-00000000b001
· turn submitted
· run queued
· run starting
· workspace and conversation restored from checkpoint cp-1
· workspace attached: lease 2, isolation gvisor, until an unknown time
· the agent has the prompt
(thinking) let me see
Hello, world.
→ Write notes.txt
→ Run make
✗ Run make failed
| warning: x
? the agent asks for permission: Delete everything
    Allow
      sojourn interaction answer 01f0aaaa-0000-7000-8000-00000000a001 01f0aaaa-0000-7000-8000-00000000d001 allow_once
    Reject
      sojourn interaction answer 01f0aaaa-0000-7000-8000-00000000a001 01f0aaaa-0000-7000-8000-00000000d001 'it'\''s -no'
· answered: yes
Done.
· checkpoint sealed: conversation exact, workspace portable_tree, 12 entries, 4.1 kB (100 B new)
✓ completed (end_turn)
`
	if got.code != 0 || got.err != "" || got.out != want {
		t.Errorf("code %d, errors %q, output\n%s\nwant\n%s", got.code, got.err, got.out, want)
	}
	if text := fmt.Sprint(f.bodies); !strings.Contains(text, "write notes") {
		t.Errorf("submitted %s", text)
	}
}

func TestOutcomeIsTheExitCode(t *testing.T) {
	for _, tt := range []struct {
		event string
		data  object
		code  int
		want  string
	}{
		{"run.completed", object{"stopReason": "max_tokens"}, 0, "✓ completed (max_tokens)\n"},
		{"run.failed", object{"error": object{"code": "runtime_unavailable", "message": "No such program."}, "code": "runtime_unavailable"}, 1, "✗ failed: runtime_unavailable: No such program.\n"},
		{"run.crashed", object{"stopReason": "workspace_lost", "error": object{"code": "workspace_lost", "message": "The sandbox was lost."}}, 1, "✗ crashed (workspace_lost): The sandbox was lost.\n"},
		{"run.cancelled", object{"stopReason": "cancelled"}, 1, "✗ cancelled\n"},
	} {
		f := newFake(t)
		f.onTurn = func() { f.emit(tt.event, tt.data) }
		got := f.run(t, "session", "turn", fakeSession, "x")
		if got.code != tt.code || !strings.HasSuffix(got.out, tt.want) || got.err != "" {
			t.Errorf("%s: code %d, errors %q, output %q; want %d and %q", tt.event, got.code, got.err, got.out, tt.code, tt.want)
		}
	}
}

func TestForeignTextIsInertEverywhere(t *testing.T) {
	const evil = "\x1b]0;owned\a\u202eevil\u009b2J"
	f := newFake(t)
	f.sessions[0]["title"], f.sessions[0]["metadata"] = evil, object{evil: evil}
	f.sessions[0]["lastRun"] = runObject(fakeRun, "failed")
	f.sessions[0]["lastRun"].(object)["lastError"] = object{"code": evil, "message": evil}
	f.interactions = []object{{
		"id": fakeAsk, "sessionId": fakeSession, "runId": fakeRun, "kind": evil, "state": "open", "requestedAt": fakeTime,
		"request": object{"toolCall": object{"title": evil}},
		"options": []object{{"optionId": evil, "name": evil, "kind": evil}},
	}}
	f.keys = []object{{"id": fakeKey, "kind": "app", "name": evil, "scopes": []string{evil}, "hint": evil, "createdAt": fakeTime}}
	f.onTurn = func() {
		f.emit(
			"agent.update", says(evil), "agent.log", object{"text": evil}, evil, object{},
			"agent.update", update("tool_call", object{"toolCallId": evil, "title": evil}),
			"agent.update", update(evil, object{}),
			"interaction.requested", object{"interactionId": evil, "kind": evil, "options": []object{{"optionId": evil, "name": evil}}},
			"run.failed", object{"error": object{"code": evil, "message": evil}},
		)
	}
	for _, args := range [][]string{
		{"session", "turn", fakeSession, "x"},
		{"session", "turn", fakeSession, "x", "--json"},
		{"session", "events", fakeSession},
		{"session", "events", fakeSession, "--json"},
		{"session", "list"},
		{"session", "list", "--json"},
		{"session", "show", fakeSession},
		{"session", "show", fakeSession, "--json"},
		{"session", "show", evil},
		{"session", evil},
		{"session", "show", "--" + evil},
		{"interaction", "list", fakeSession},
		{"interaction", "list", fakeSession, "--json"},
		{"interaction", "answer", fakeSession, fakeAsk, "nothing"},
		{"interaction", "answer", fakeSession, fakeAsk, evil},
		{"keys", "list"},
		{"keys", "create"},
		{"keys", "revoke", evil},
	} {
		got := f.run(t, args...)
		for _, r := range got.out + got.err {
			if terminal.Visible(string(r), "") != string(r) && r != '\n' && r != '\t' {
				t.Errorf("%q prints %q:\n%q", args, r, got.out+got.err)
				break
			}
		}
	}
}

func TestFollowerMissesAndRepeatsNothing(t *testing.T) {
	f := newFake(t)
	const n = 300
	for _, seq := range []int{1, 2, 50, 51, 52, 120, n - 1} {
		f.cuts[seq] = seq % 3
	}
	f.onTurn = func() {
		for i := range n - 1 {
			f.emit("agent.update", says(fmt.Sprint(i)))
		}
		f.emit("run.completed", object{})
	}
	got := f.run(t, "session", "turn", fakeSession, "x", "--json")
	if got.code != 0 {
		t.Errorf("code %d, errors %s", got.code, got.err)
	}
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	if len(lines) != n {
		t.Errorf("%d events, want %d", len(lines), n)
	}
	for i, text := range lines {
		var e struct{ Sequence int }
		if err := json.Unmarshal([]byte(text), &e); err != nil || e.Sequence != i+1 {
			t.Fatalf("line %d is %s (%v)", i+1, text, err)
		}
	}
}

func TestFollowerSaysOnceThatTheServerIsAway(t *testing.T) {
	f := newFake(t)
	f.cuts[1] = 3
	f.onTurn = func() { f.emit("run.queued", object{}, "run.completed", object{}) }
	got := f.run(t, "session", "turn", fakeSession, "x")
	if got.code != 0 || strings.Count(got.err, "\n") != 2 || !strings.Contains(got.err, "the server is away") || !strings.Contains(got.err, "again") {
		t.Errorf("code %d, output %q, errors %q", got.code, got.out, got.err)
	}
}

func TestFollowerGivesUpInTheEnd(t *testing.T) {
	f := newFake(t)
	f.cuts[1] = 1 << 30
	f.onTurn = func() { f.emit("run.queued", object{}) }
	got := f.run(t, "session", "turn", fakeSession, "x", "--patience", "300ms")
	if got.code != exitUnreachable || !strings.Contains(got.err, "the outcome of the run is unknown") || !strings.Contains(got.err, "sojourn session watch "+fakeSession) {
		t.Errorf("code %d, errors %q", got.code, got.err)
	}
}

func TestLargeEventsArrive(t *testing.T) {
	f := newFake(t)
	sizes := []int{65_535, 65_537, 1_100_000, 5_000_000}
	f.onTurn = func() {
		for _, n := range sizes {
			f.emit("agent.update", says(strings.Repeat("x", n)))
		}
		f.emit("run.completed", object{})
	}
	got := f.run(t, "session", "turn", fakeSession, "x")
	total := 0
	for _, n := range sizes {
		total += n
	}
	if n := strings.Count(got.out, "x"); got.code != 0 || n != total {
		t.Errorf("code %d, %d bytes of text, want %d; errors %q", got.code, n, total, got.err)
	}
}

func TestInterruptLeavesTheRunAlone(t *testing.T) {
	f := newFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f.onTurn = func() { f.emit("run.queued", object{}, "agent.update", says("half a line")) }
	t.Setenv("SOJOURN_URL", f.URL)
	out, errs := &scriptScreen{more: make(chan struct{}, 1)}, &lockedBuffer{}
	go func() {
		out.await("half a line")
		cancel()
	}()
	code := runCommand(ctx, stdio{strings.NewReader(""), out, errs}, []string{"session", "turn", fakeSession, "x"})
	got := result{code, string(out.text()), errs.String()}
	if got.code != exitInterrupted || !strings.Contains(got.err, "The run goes on") ||
		!strings.Contains(got.err, "sojourn session watch "+fakeSession+"\n") {
		t.Errorf("code %d, errors %q", got.code, got.err)
	}
	if !strings.HasSuffix(got.out, "half a line\n") {
		t.Errorf("the last line is left open: %q", got.out)
	}
	for _, call := range f.calls {
		if strings.Contains(call, "cancel") {
			t.Errorf("called %s", call)
		}
	}
}

func TestTurnFromStandardInput(t *testing.T) {
	f := newFake(t)
	f.onTurn = func() { f.emit("run.completed", object{}) }
	t.Setenv("SOJOURN_URL", f.URL)
	got := runLine(t.Context(), "line one\n-- line two\n", "session", "turn", fakeSession, "-")
	if text := fmt.Sprint(f.bodies); got.code != 0 || !strings.Contains(text, "line one\n-- line two") {
		t.Errorf("code %d, errors %q, submitted %q", got.code, got.err, text)
	}
	for _, in := range []string{"", " \n", "\xff"} {
		if got := runLine(t.Context(), in, "session", "turn", fakeSession, "-"); got.code != exitUsage {
			t.Errorf("a turn %q: code %d, errors %q", in, got.code, got.err)
		}
	}
}

func TestNoFollowOnlySubmits(t *testing.T) {
	f := newFake(t)
	got := f.run(t, "session", "turn", fakeSession, "--no-follow", "x")
	if got.code != 0 || !strings.Contains(got.out, "turn 1 accepted, run "+fakeRun) {
		t.Errorf("code %d, output %q, errors %q", got.code, got.out, got.err)
	}
	if last := f.calls[len(f.calls)-1]; !strings.HasPrefix(last, "POST ") {
		t.Errorf("the last call is %s", last)
	}
}

func TestEventsAreListed(t *testing.T) {
	f := newFake(t)
	for range 250 {
		f.emit("agent.update", says("hi"))
	}
	f.sessions[0]["lastSequence"] = 250
	got := f.run(t, "session", "events", fakeSession)
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	if got.code != 0 || len(lines) != 250 || !strings.Contains(lines[249], "agent.update") || !strings.HasPrefix(strings.TrimSpace(lines[249]), "250 ") {
		t.Errorf("code %d, %d lines, the last is %q", got.code, len(lines), lines[len(lines)-1])
	}
	got = f.run(t, "session", "events", fakeSession, "--after", "248", "--json")
	if n := strings.Count(got.out, "\n"); got.code != 0 || n != 2 {
		t.Errorf("code %d, %d lines", got.code, n)
	}
	if got = f.run(t, "session", "events", fakeSession, "--after", "-1"); got.code != exitUsage {
		t.Errorf("--after -1: code %d", got.code)
	}
}

func TestSubmitWithoutAnAnswerIsNotSuccess(t *testing.T) {
	f := newFake(t)
	f.cutSubmits = 2
	f.onTurn = func() { f.emit("run.completed", object{}) }
	got := f.run(t, "session", "turn", fakeSession, "x")
	if got.code != 0 || !strings.Contains(got.out, "completed") {
		t.Errorf("a submit that was lost twice: code %d, output %q, errors %q", got.code, got.out, got.err)
	}
	f.cutSubmits = 1 << 30
	got = f.run(t, "session", "turn", fakeSession, "x", "--patience", "200ms")
	if got.code != exitUnreachable || !strings.Contains(got.err, "sojourn session show "+fakeSession) {
		t.Errorf("a submit that was lost for good: code %d, errors %q", got.code, got.err)
	}
}

func TestWatchTellsOneRunFromItsBeginning(t *testing.T) {
	f := newFake(t)
	f.runs = []object{runObject(fakeRun, "crashed"), runObject("another-run", "completed")}
	f.sessions[0]["lastRun"] = f.runs[1]
	f.emit("session.created", object{}, "turn.submitted", object{}, "agent.update", says("one"), "run.crashed", object{"stopReason": "workspace_lost"})
	f.emit("workspace.lost", object{}, "turn.submitted", object{}, "agent.update", says("two"), "run.completed", object{})
	for _, e := range f.events[5:] {
		e["runId"] = "another-run"
	}
	got := f.run(t, "session", "watch", fakeSession, fakeRun)
	want := "· run " + fakeRun + "\n· turn submitted\none\n✗ crashed (workspace_lost)\n"
	if got.code != exitFailure || got.out != want {
		t.Errorf("the first run: code %d, output %q, want %q; errors %q", got.code, got.out, want, got.err)
	}
	got = f.run(t, "session", "watch", "last")
	want = "· run another-run\n· turn submitted\ntwo\n✓ completed\n"
	if got.code != 0 || got.out != want {
		t.Errorf("the last run: code %d, output %q, want %q; errors %q", got.code, got.out, want, got.err)
	}
}

func TestLosingTheKeyIsNotSuccess(t *testing.T) {
	f := newFake(t)
	f.cuts[1] = 0
	f.onTurn = func() {
		f.emit("run.queued", object{})
		f.mu.Lock()
		defer f.mu.Unlock()
		f.refuse, f.status = &object{"code": "unauthenticated", "message": "No."}, 401
	}
	got := f.run(t, "session", "turn", fakeSession, "x")
	if got.code != exitRefused || !strings.Contains(got.err, "the outcome of the run is unknown: No.") {
		t.Errorf("code %d, errors %q", got.code, got.err)
	}
}
