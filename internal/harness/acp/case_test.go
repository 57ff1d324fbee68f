package acp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/harness/acp"
	"github.com/sojourn-dev/sojourn/internal/harness/harnesstest"
)

// These tests are the faults of real agents and of the clients that drove them,
// by kind.

func wantCode(t *testing.T, o harness.Outcome, state sojourn.RunState, code string) {
	t.Helper()
	if o.State != state || o.Error == nil || o.Error.Code != code {
		t.Errorf("outcome %s, want %s with code %s", harnesstest.Describe(o), state, code)
	}
}

func said(text string) func(harnesstest.RunRecord) bool {
	return func(r harnesstest.RunRecord) bool {
		return slices.ContainsFunc(r.Events, func(e harness.Event) bool { return strings.Contains(string(e.Data), text) })
	}
}

func TestNoiseOnTheProtocolChannelIsLogged(t *testing.T) {
	t.Parallel()
	b := inProcess(t, `BANNER=\n\e[32mWelcome back\e[0m\n{"level":"info","msg":"migrated"}\n`)
	b.Completed(t, "r1", "@say one\n@noise {\"id\":\"r1/prompt\",\"level\":\"info\"}\n@noise  \n@raw [1,2]\n@say two")
	wantTexts(t, b, "r1", "one", "two")
	want := []string{"[32mWelcome back[0m", `{"level":"info","msg":"migrated"}`, `{"id":"r1/prompt","level":"info"}`, "[1,2]"}
	if got := b.Ledger.Logs("r1"); !slices.Equal(got, want) {
		t.Errorf("logged %q, want %q", got, want)
	}
}

// An update that readers of the log cannot parse would keep them from all that
// comes with it.
func TestDeepUpdateIsNoise(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	deep := func(n int) string { return strings.Repeat("[", n) + `"]]]]\"[["` + strings.Repeat("]", n) }
	const form = `@raw {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"x","update":{"deep":%s}}}`
	b.Completed(t, "r1", fmt.Sprintf(form, deep(127))+"\n"+fmt.Sprintf(form, deep(128))+"\n@say still here")
	events, logs := b.Ledger.Run("r1").Events, b.Ledger.Logs("r1")
	kept := slices.ContainsFunc(events, func(e harness.Event) bool { return strings.Contains(string(e.Data), deep(127)) })
	if !kept || len(logs) != 1 || !strings.Contains(logs[0], "session/update") {
		t.Errorf("kept is %v and logged %q; want the shallower kept and the deeper one logged", kept, logs)
	}
	wantTexts(t, b, "r1", "still here")
}

func TestLogLineThatLooksLikeAResponseIsNone(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		`{"id":"r1/prompt","result":{"stopReason":"refusal"}}`,                                    // no version
		`{"jsonrpc":"2.0","id":"r1/prompt","msg":"sent"}`,                                         // neither half
		`{"jsonrpc":"2.0","id":"r1/prompt","method":"session/prompt","result":{}}`,                // a request and a response
		`{"jsonrpc":"2.0","id":"r1/prompt","result":{"stopReason":"refusal"},"error":{"code":1}}`, // both halves
		`{"jsonrpc":"2.0","ID":"r1/prompt","RESULT":{"stopReason":"refusal"}}`,                    // other names
		`{"jsonrpc":"2.0","id":"r1/promp","result":{"stopReason":"refusal"}}`,                     // another id
		`{"jsonrpc":"2.0","id":1,"result":{"stopReason":"refusal"}}`,
		`{"jsonrpc":"1.0","id":"r1/prompt","result":{"stopReason":"refusal"}}`,
		`"r1/prompt"`,
		`{"jsonrpc":"2.0","id":"r1/prompt","result":{"stopReason":"refusal"}} trailing`,
	} {
		b := inProcess(t)
		out := b.Completed(t, "r1", "@raw "+line+"\n@say still here")
		if out.StopReason != "end_turn" {
			t.Errorf("%s ended the turn with %q", line, out.StopReason)
		}
		wantTexts(t, b, "r1", "still here")
		if n := len(b.Ledger.Logs("r1")); n != 1 {
			t.Errorf("%s was logged %d times, want once", line, n)
		}
	}
}

func TestMegabyteOfNoiseDoesNotHurt(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	b.Completed(t, "r1", "@say one\n@noise-bytes 1048576\n@say two")
	wantTexts(t, b, "r1", "one", "two")
	logs := b.Ledger.Logs("r1")
	if len(logs) != 1000 || !strings.HasPrefix(logs[999], "Further output") {
		t.Errorf("%d lines logged, ending with %q; want 1000, the last of which says that the rest is not", len(logs), logs[len(logs)-1])
	}
}

func TestFloodOfNoiseEndsTheRun(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	b.Harness = &acp.Harness{KillAfter: 100 * time.Millisecond, MaxNoiseBytes: 1 << 20}
	out := b.Turn(t, "r1", "@say one\n@noise-bytes 1000000000")
	wantCode(t, out, sojourn.RunFailed, acp.CodeAgentProtocol)
	if !out.Killed || !strings.Contains(out.Error.Message, "1048576 bytes") {
		t.Errorf("outcome %s, want killed and the limit named", harnesstest.Describe(out))
	}
	b.Completed(t, "r2", "@say again")
}

func TestShellGreetingIsHarmless(t *testing.T) {
	t.Parallel()
	b := realProcess(t, "echo 'Welcome back, agent'; printf 'no line end; '; cd / && cd - >/dev/null; set -e")
	b.Completed(t, "r1", "@run pwd")
	if got := b.Ledger.Logs("r1"); len(got) == 0 || got[0] != "Welcome back, agent" {
		t.Errorf("logged %q, want the greeting", got)
	}
	if !said(b.Sandbox.Workspace())(b.Ledger.Run("r1")) {
		t.Errorf("the agent does not run in %s: %s", b.Sandbox.Workspace(), b.Ledger.Run("r1").Events)
	}
}

func TestConversationIsKeptOnlyOnceConfirmed(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"initialize", "new", "after-new", "prompt"} {
		b := inProcess(t, "CRASH="+where)
		wantCode(t, b.Turn(t, "r1", "@say never"), sojourn.RunCrashed, acp.CodeAgentExited)
		if id := b.Ledger.Conversation(); id != "" {
			t.Errorf("crash in %s: the conversation %s was kept", where, id)
		}
		b.Runtime = scriptRow()
		b.Completed(t, "r2", "@say fine")
		wantTexts(t, b, "r2", "fine")
	}
}

func TestConversationThatCannotBeLoadedIsNeverFresh(t *testing.T) {
	t.Parallel()
	for name, env := range map[string][]string{
		"not found":       {"LOAD=notfound"},
		"error":           {"LOAD=error"},
		"empty":           {"LOAD=empty", "NO_RESUME=1"},
		"not offered":     {"NO_RESUME=1", "NO_LOAD=1"},
		"only load, lost": {"NO_RESUME=1", "LOAD=notfound"},
	} {
		t.Run(name, func(t *testing.T) {
			b := inProcess(t)
			b.Completed(t, "r1", "@remember colour blue")
			b.Runtime, b.Epoch = scriptRow(env...), 2
			b.Ledger.NewSandbox()
			out := b.Turn(t, "r2", "@say two")
			wantCode(t, out, sojourn.RunFailed, acp.CodeNotRestorable)
			if !out.ConversationLost {
				t.Error("the outcome does not say that the conversation is lost")
			}
			if r := b.Ledger.Run("r2"); r.Activations > 0 || len(b.Ledger.Texts("r2")) > 0 {
				t.Error("the prompt was given all the same")
			}
		})
	}
}

func TestCrashInLoadIsNotALostConversation(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	b.Completed(t, "r1", "@remember colour blue")
	b.Ledger.NewSandbox()
	b.Epoch, b.Runtime = 2, scriptRow("CRASH=load")
	out := b.Turn(t, "r2", "@recall colour")
	wantCode(t, out, sojourn.RunCrashed, acp.CodeAgentExited)
	if out.ConversationLost {
		t.Error("the conversation counts as lost")
	}
	b.Runtime = scriptRow()
	b.Completed(t, "r3", "@recall colour")
	wantTexts(t, b, "r3", "blue")
}

func TestReplayIsNotPublished(t *testing.T) {
	t.Parallel()
	for _, env := range [][]string{{"NO_RESUME=1"}, {"NO_RESUME=1", "REPLAY=40"}, {"NO_RESUME=1", "REPLAY=late:40"}, {"REPLAY=40"}} {
		t.Run(strings.Join(env, ","), func(t *testing.T) {
			b := inProcess(t)
			b.Completed(t, "r1", "@say one\n@remember colour blue")
			b.Ledger.NewSandbox()
			b.Epoch, b.Runtime = 2, scriptRow(env...)
			b.Completed(t, "r2", "@recall colour")
			wantTexts(t, b, "r2", "blue")
			if n := len(b.Ledger.Run("r2").Events); n != 1 {
				t.Errorf("%d events, want 1", n)
			}
		})
	}
}

func TestSilentLoadIsFineWhereAgentsDoNotReplay(t *testing.T) {
	t.Parallel()
	b := inProcess(t, "NO_RESUME=1", "REPLAY=0")
	b.Runtime.Replays = false
	b.Completed(t, "r1", "@remember colour blue")
	b.Ledger.NewSandbox()
	b.Epoch = 2
	b.Completed(t, "r2", "@recall colour")
	wantTexts(t, b, "r2", "blue")
}

func TestToolCallIDsMayRepeat(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	long := strings.Repeat("x", 500)
	prompt := "@call call_1 first\n@call call_1 second\n@call " + long + " third"
	for _, run := range []sojourn.RunID{"r1", "r2"} {
		b.Completed(t, run, prompt)
		var got []string
		for _, e := range b.Ledger.Run(run).Events {
			var d struct {
				Update struct{ ToolCallID, Title string }
			}
			if err := json.Unmarshal(e.Data, &d); err != nil {
				t.Fatal(err)
			}
			if d.Update.Title != "" {
				got = append(got, d.Update.ToolCallID+" "+d.Update.Title)
			}
		}
		if want := []string{"call_1 first", "call_1 second", long + " third"}; !slices.Equal(got, want) {
			t.Errorf("run %s kept the calls %q, want %q", run, got, want)
		}
	}
}

func TestCancelFreesAPendingPermission(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	wait := b.Background(t, "r1", "@permission on\n@write f.txt x\n@say after")
	b.Await(t, "r1", func(r harnesstest.RunRecord) bool { return len(r.Questions) == 1 })
	begun := time.Now()
	b.Ledger.Cancel("r1")
	if out := wait(); out.State != sojourn.RunCancelled || out.Killed {
		t.Errorf("outcome %s, want cancelled and not killed", harnesstest.Describe(out))
	}
	if took := time.Since(begun); took > b.Grace/2 {
		t.Errorf("the cancel took %v: the agent was not freed", took)
	}
	b.Completed(t, "r2", "@say again")
	b.Ledger.Answer("r1", "permission-1", "yes", true) // too late for anything
	b.Completed(t, "r3", "@say and again")
	wantTexts(t, b, "r3", "and again")
}

func TestExpiredQuestionIsAnsweredAsCancelled(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	wait := b.Background(t, "r1", "@ask May I?")
	b.Await(t, "r1", func(r harnesstest.RunRecord) bool { return len(r.Questions) == 1 })
	b.Ledger.Answer("r1", b.Ledger.Run("r1").Questions[0].Ref, "", false)
	if out := wait(); out.State != sojourn.RunCompleted || out.StopReason != "cancelled" {
		t.Errorf("outcome %s, want completed with the agent's own reason", harnesstest.Describe(out))
	}
}

func TestWithdrawnQuestionIsWithdrawn(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	b.Completed(t, "r1", "@withdraw May I?\n@say done")
	r := b.Ledger.Run("r1")
	if len(r.Questions) != 1 || len(r.Withdrawn) != 1 || r.Withdrawn[0] != r.Questions[0].Ref {
		t.Errorf("asked %d questions and withdrew %v, want the one", len(r.Questions), r.Withdrawn)
	}
	wantTexts(t, b, "r1", "withdrawn", "done")
}

func TestStopReasonsAreKeptAsTheyAre(t *testing.T) {
	t.Parallel()
	for prompt, want := range map[string]string{
		"@stop end_turn":          "end_turn",
		"@stop max_tokens":        "max_tokens",
		"@stop refusal":           "refusal",
		"@stop something_new":     "something_new",
		"@stop-no-reason":         "",
		"@stop cancelled":         "cancelled", // without anybody's cancel
		"@say x\n@stop cancelled": "cancelled",
	} {
		b := inProcess(t)
		out := b.Completed(t, "r1", "@say text\n"+prompt)
		if out.StopReason != want {
			t.Errorf("%q: stop reason %q, want %q", prompt, out.StopReason, want)
		}
		if got := b.Ledger.Texts("r1"); len(got) == 0 || got[0] != "text" {
			t.Errorf("%q: the text is gone: %q", prompt, got)
		}
	}
}

func TestErrorAfterTextKeepsTheText(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	out := b.Turn(t, "r1", "@say text\n@error model overloaded")
	wantCode(t, out, sojourn.RunFailed, acp.CodeAgentError)
	if !strings.Contains(out.Error.Message, "model overloaded") || out.Killed {
		t.Errorf("outcome %s, want the agent's words and not killed", harnesstest.Describe(out))
	}
	wantTexts(t, b, "r1", "text")
	b.Completed(t, "r2", "@say again")
}

func TestUpdatesAfterTheAnswerAreKept(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	b.Completed(t, "r1", "@say one\n@late two")
	wantTexts(t, b, "r1", "one", "two")
}

func TestOneEndingForACancelAtAnyMoment(t *testing.T) {
	t.Parallel()
	b := inProcess(t)
	n := 40
	if testing.Short() {
		n = 10
	}
	for i := range n {
		run := sojourn.RunID(fmt.Sprintf("r%d", i))
		wait := b.Background(t, run, "@work 10 1\n@say end")
		time.Sleep(time.Duration(i) * time.Second / 2000) // the moment is the subject
		b.Ledger.Cancel(run)
		switch out := wait(); out.State {
		case sojourn.RunCompleted, sojourn.RunCancelled:
			if out.Killed {
				t.Errorf("%s: an obedient agent was killed", run)
			}
		default:
			t.Errorf("%s: outcome %s", run, harnesstest.Describe(out))
		}
	}
	// None of the cancels may have hit a later turn.
	b.Completed(t, "last", "@say fine")
	wantTexts(t, b, "last", "fine")
}

func TestAgentThatIgnoresCancelAndTermIsKilled(t *testing.T) {
	t.Parallel()
	b := realProcess(t, "")
	b.Grace = 100 * time.Millisecond
	wait := b.Background(t, "r1", "@ignore-cancel\n@say deaf\n@run sleep 60")
	b.Await(t, "r1", said("deaf"))
	begun := time.Now()
	b.Ledger.Cancel("r1")
	if out := wait(); out.State != sojourn.RunCancelled || !out.Killed {
		t.Errorf("outcome %s, want cancelled and killed", harnesstest.Describe(out))
	}
	if took := time.Since(begun); took > b.Grace+time.Minute {
		t.Errorf("took %v", took)
	}
	b.Completed(t, "r2", "@say two")
	b.Completed(t, "r3", "@say three")
}

func TestDeathInMidTurnIsACrashThatSaysWhy(t *testing.T) {
	t.Parallel()
	for death, want := range map[string]string{
		"@exit 1":      "exit status 1",
		"@exit 0":      "exit status 0",
		"@signal KILL": "SIGKILL",
		"@signal TERM": "SIGTERM",
		"@signal SEGV": "exit status 2", // how the Go runtime dies of it
	} {
		t.Run(death, func(t *testing.T) {
			b := realProcess(t, "")
			out := b.Turn(t, "r1", "@say 1\n@say 2\n@say 3\n@stderr last words\n"+death)
			wantCode(t, out, sojourn.RunCrashed, acp.CodeAgentExited)
			if m := out.Error.Message; !strings.Contains(m, want) || !out.Killed || death != "@signal SEGV" && !strings.Contains(m, "last words") {
				t.Errorf("outcome %s, want %q and the end of stderr, killed", harnesstest.Describe(out), want)
			}
			wantTexts(t, b, "r1", "1", "2", "3")
			b.Completed(t, "r2", "@say again")
		})
	}
}

func TestChildThatHoldsTheOutputOpenDoesNotHideADeath(t *testing.T) {
	t.Parallel()
	b := realProcess(t, "")
	wait := b.Background(t, "r1", "@fork sleep 300\n@say forked\n@exit 7")
	wantCode(t, wait(), sojourn.RunCrashed, acp.CodeAgentExited)
}

func TestAnswerAndExitAtOnceIsACompletedTurn(t *testing.T) {
	t.Parallel()
	b := realProcess(t, "")
	b.Completed(t, "r0", "@say warm")
	b.Completed(t, "r1", "@raw {\"jsonrpc\":\"2.0\",\"id\":\"r1/prompt\",\"result\":{\"stopReason\":\"end_turn\"}}\n@exit 0")
	awaitExit(t, b, "agent-1")
	b.Completed(t, "r2", "@say again")
	wantTexts(t, b, "r2", "again")
}

// TestUnfinishedConversationGoesOn: a first turn that did not end in order has
// left a conversation, which the next run goes on with if the agent kept it.
func TestUnfinishedConversationGoesOn(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]string{"error": "@error busy", "exit": "@exit 3"} {
		b := inProcess(t)
		b.Turn(t, "r1", "@remember colour blue\n"+last)
		b.Completed(t, "r2", "@recall colour")
		wantTexts(t, b, "r2", "blue")
		if b.Ledger.Conversation() == "" {
			t.Errorf("%s: the conversation was not kept once a turn had ended in it", name)
		}
	}
	b := inProcess(t)
	b.Turn(t, "r1", "@exit 3")
	b.Runtime = scriptRow("LOAD=notfound")
	b.Completed(t, "r2", "@say fine")
	if got := b.Ledger.Logs("r2"); len(got) != 1 || !strings.Contains(got[0], "A new one was begun") {
		t.Errorf("logged %q, want that a new conversation was begun", got)
	}
}

// TestKilledAgentTakesItsChildrenAlong: also the one that left its session.
func TestKilledAgentTakesItsChildrenAlong(t *testing.T) {
	t.Parallel()
	b := realProcess(t, "")
	b.Grace = 100 * time.Millisecond
	wait := b.Background(t, "r1", "@ignore-cancel\n@fork sleep 300\n@run sleep 300")
	b.Await(t, "r1", said("forked"))
	var pid int
	if _, err := fmt.Sscanf(b.Ledger.Texts("r1")[0], "forked %d", &pid); err != nil {
		t.Fatal(err)
	}
	b.Ledger.Cancel("r1")
	if out := wait(); out.State != sojourn.RunCancelled || !out.Killed {
		t.Errorf("outcome %s, want cancelled and killed", harnesstest.Describe(out))
	}
	for began := time.Now(); !zombie(pid); time.Sleep(5 * time.Millisecond) { // a kill takes effect when its target runs next
		err := syscall.Kill(pid, 0)
		if errors.Is(err, syscall.ESRCH) {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("the child %d of the killed agent is still there (%v)", pid, err)
		}
	}
}

// zombie reports whether a process is dead and waits for its parent.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}
