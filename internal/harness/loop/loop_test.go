package loop_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/harness/harnesstest"
	"github.com/sojourn-dev/sojourn/internal/harness/loop"
	"github.com/sojourn-dev/sojourn/internal/model"
)

// newBench is a session of the loop with a model that m plays.
func newBench(t testing.TB, m *mock, api model.API, change ...func(*loop.Config, *harness.Runtime)) *harnesstest.Bench {
	t.Helper()
	cfg := loop.Config{Models: func(string) (model.Endpoint, error) { return m.endpoint(api), nil }}
	row, _ := harness.RuntimeByID("loop")
	for _, f := range change {
		f(&cfg, &row)
	}
	h, err := loop.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return harnesstest.NewBench(t, h, row, nil)
}

func eachAPI(t *testing.T, f func(*testing.T, model.API)) {
	for _, api := range apis {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			f(t, api)
		})
	}
}

// asks makes calls need consent.
func asks(_ *loop.Config, r *harness.Runtime) {
	r.Approvals = harness.ApprovalsAsk
}

func file(t testing.TB, b *harnesstest.Bench, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(b.Sandbox.Workspace(), name))
	if err != nil {
		return "(" + err.Error() + ")"
	}
	return string(data)
}

// updates are the kinds of a run's updates, with their states.
func updates(b *harnesstest.Bench, run sojourn.RunID) []string {
	var out []string
	for _, e := range b.Ledger.Run(run).Events {
		var d struct {
			Update struct {
				Kind   string `json:"sessionUpdate"`
				Status string `json:"status"`
			} `json:"update"`
		}
		if e.Type == sojourn.EventAgentUpdate && json.Unmarshal(e.Data, &d) == nil {
			out = append(out, strings.TrimSuffix(d.Update.Kind+" "+d.Update.Status, " "))
		}
	}
	return out
}

const busy = `@think let me see
say Starting.
call write {"path":"a/f.txt","content":"one\ntwo\n"}
call list {}
call shell {"command":"echo out; echo err >&2; exit 3"}
--
call edit {"path":"a/f.txt","old_text":"two","new_text":"2 & <more>"}
call plan {"entries":[{"content":"look","status":"completed"},{"content":"do","status":"pending"}]}
--
call read {"path":"a/f.txt"}
call search {"pattern":"^2.*more","glob":"*.txt"}
--
say Done.`

func TestTurnWithManyCalls(t *testing.T) {
	t.Parallel()
	eachAPI(t, func(t *testing.T, api model.API) {
		m := newMock(t)
		b := newBench(t, m, api)
		out := b.Completed(t, "r1", busy)
		if out.StopReason != "end_turn" || out.Agent == "" {
			t.Errorf("outcome %+v, want end_turn by a named agent", out)
		}
		if got := file(t, b, "a/f.txt"); got != "one\n2 & <more>\n" {
			t.Errorf("the file is %q", got)
		}
		want := []string{
			"Wrote /workspace/a/f.txt: 8 bytes.", "a/", "out\nerr\n[exit status 3]",
			"Wrote /workspace/a/f.txt: 15 bytes.", "The plan has 2 entries, 1 of them completed.",
			"1\tone\n2\t2 & <more>", "a/f.txt:2:2 & <more>",
		}
		if got := results(m.last()); !slices.Equal(got, want) {
			t.Errorf("results\n got %q\nwant %q", got, want)
		}
		if got := b.Ledger.Texts("r1"); !slices.Equal(got, []string{"Starting.", "Done."}) {
			t.Errorf("said %q", got)
		}
		seen := updates(b, "r1")
		for _, u := range []string{"agent_thought_chunk", "tool_call pending", "tool_call_update in_progress", "tool_call_update completed", "plan", "usage_update"} {
			if !slices.Contains(seen, u) {
				t.Errorf("no update %q among %q", u, seen)
			}
		}
		b.Completed(t, "r2", "@say Again.")
		if n := b.Ledger.Run("r1").Activations; n != 1 {
			t.Errorf("activated %d times, want once", n)
		}
		if !bytes.Contains(m.last(), []byte("Done.")) || !bytes.Contains(m.last(), []byte("let me see")) {
			t.Errorf("the second turn lacks the first: %s", m.last())
		}
	})
}

func TestWhatToolsSayOfWrongCalls(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	b := newBench(t, m, model.Chat)
	if err := os.WriteFile(filepath.Join(b.Sandbox.Workspace(), "twice"), []byte("x\nx\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.Sandbox.Workspace(), "bin"), []byte("a\x00b"), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := []struct{ call, want string }{
		{`nosuch {}`, "There is no tool"},
		{`shell {"command":`, "not a JSON object"},
		{`shell {"command":7}`, "does not fit"},
		{`shell {"command":" "}`, "empty"},
		{`shell {"command":"true"}`, "[no output]"},
		{`shell {"command":"kill -9 $$"}`, "[ended by SIGKILL]"},
		{`shell {"command":"true","cwd":"/no/such"}`, "could not be run"},
		{`shell {"command":"printf 'a\\377b'"}`, "a\uFFFDb"},
		{`read {"path":"missing"}`, "no such file"},
		{`read {"path":"bin"}`, "not a text file"},
		{`read {"path":"twice","offset":2,"limit":1}`, "2\tx"},
		{`read {"path":"twice","offset":9}`, "only 2 lines"},
		{`edit {"path":"twice","old_text":"x","new_text":"y"}`, "2 times"},
		{`edit {"path":"twice","old_text":"z","new_text":"y"}`, "not in the file"},
		{`edit {"path":"missing","old_text":"z","new_text":"y"}`, "no such file"},
		{`edit {"path":"twice","old_text":"x","new_text":"y","replace_all":true}`, "Wrote"},
		{`write {"path":"/home/agent/.sojourn-loop/x","content":"y"}`, "cannot be changed"},
		{`write {"path":"twice/below","content":"y"}`, "twice/below"},
		{`write {"content":"y"}`, "lacks the path"},
		{`list {"path":"missing"}`, "no such file"},
		{`search {"pattern":"("}`, "not a regular expression"},
		{`search {"pattern":"nothing has this"}`, "[no matches]"},
		{`search {"pattern":"Y","ignore_case":true,"path":"twice"}`, "twice:1:y"},
	}
	var prompt strings.Builder
	prompt.WriteString("@")
	for i, c := range cases {
		if i > 0 {
			prompt.WriteString("\n--\n")
		}
		prompt.WriteString("call " + c.call)
	}
	b.Completed(t, "r1", prompt.String()+"\n--\nsay end")
	got := results(m.last())
	if len(got) != len(cases) {
		t.Fatalf("%d results of %d calls", len(got), len(cases))
	}
	for i, c := range cases {
		if !strings.Contains(got[i], c.want) {
			t.Errorf("%s gave %q, want something with %q", c.call, got[i], c.want)
		}
	}
}

func TestHugeOutputIsBounded(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	b := newBench(t, m, model.Anthropic)
	b.Completed(t, "r1", `@call shell {"command":"echo first; yes 0123456789 | head -c 12000000; echo last"}`+"\n--\nsay end")
	got := results(m.last())
	if len(got) != 1 || len(got[0]) > 40<<10 || !strings.HasPrefix(got[0], "first\n") || !strings.HasSuffix(got[0], "last") ||
		!strings.Contains(got[0], "bytes left out") {
		t.Errorf("a result of %d bytes: %.60q … %q", len(got[0]), got[0], got[0][max(0, len(got[0])-40):])
	}
	if n := len(b.Ledger.State()); n > 16<<10 {
		t.Errorf("the state has %d bytes", n)
	}
}

func TestSlowCommandIsEnded(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	b := newBench(t, m, model.Chat)
	b.Completed(t, "r1", `@call shell {"command":"echo begun; sleep 600","timeout_seconds":1}`+"\n--\nsay end")
	if got := results(m.last()); len(got) != 1 || !strings.Contains(got[0], "begun") || !strings.Contains(got[0], "longer than 1s") {
		t.Errorf("results %q, want what it said and why it was ended", got)
	}
}

func TestBackgroundProgramGoesOn(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	b := newBench(t, m, model.Chat)
	b.Completed(t, "r1", `@call shell {"command":"sleep 600 >/dev/null 2>&1 & echo $! > pid"}`+"\n--\nsay begun")
	b.Completed(t, "r2", `@call shell {"command":"kill -0 $(cat pid) && echo alive; kill $(cat pid)"}`+"\n--\nsay end")
	if got := results(m.last()); len(got) != 2 || got[1] != "alive" {
		t.Errorf("results %q, want a program that outlives its shell and its turn", got)
	}
}

func TestFailingServerIsAskedAgain(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	m.fault = func(n int, w http.ResponseWriter, _ *http.Request) bool {
		switch n {
		case 1:
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: %s\n\n", `{"type":"message_start","message":{}}`)
			fmt.Fprintf(w, "data: %s\n\n", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`)
			fmt.Fprintf(w, "data: %s\n\n", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"half a"}}`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case 2:
			w.Header().Set("Retry-After-Ms", "5")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}
		return false
	}
	b := newBench(t, m, model.Anthropic)
	b.Completed(t, "r1", "@say whole")
	if got := b.Ledger.Texts("r1"); !slices.Equal(got, []string{"half a", "whole"}) {
		t.Errorf("said %q", got)
	}
	if got := b.Ledger.Logs("r1"); len(got) != 2 || !strings.Contains(got[0], "cut") || !strings.Contains(got[1], "429") {
		t.Errorf("logged %q, want the cut stream and the 429", got)
	}
	all := m.requests()
	if !bytes.Equal(all[0], all[2]) {
		t.Error("the request that was repeated is another one")
	}
}

func TestModelThatRefusesFailsTheRun(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	m.fault = func(n int, w http.ResponseWriter, r *http.Request) bool {
		if n > 1 {
			return false
		}
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"error":{"message":"bad key %s"}}`, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		return true
	}
	b := newBench(t, m, model.Chat)
	out := b.Turn(t, "r1", "@say never")
	if out.State != sojourn.RunFailed || out.Error.Code != loop.CodeModelError || !strings.Contains(out.Error.Message, "401") {
		t.Errorf("outcome %s, want failed with the status", harnesstest.Describe(out))
	}
	if strings.Contains(out.Error.Message, "secret") {
		t.Errorf("the key is in %q", out.Error.Message)
	}
	if again := b.Turn(t, "r1", "@say never"); again.State != sojourn.RunFailed || len(m.requests()) != 1 {
		t.Errorf("the outcome was not remembered: %s", harnesstest.Describe(again))
	}
	b.Completed(t, "r2", "@say well")
}

func TestCancelAnywhereLeavesAGoodConversation(t *testing.T) {
	t.Parallel()
	t.Run("in the stream", func(t *testing.T) {
		t.Parallel()
		m := newMock(t)
		m.fault = func(n int, w http.ResponseWriter, r *http.Request) bool {
			if n == 1 {
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprintf(w, "data: %s\n\n", `{"choices":[{"delta":{"content":"half"}}]}`)
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}
			return n == 1
		}
		b := newBench(t, m, model.Chat)
		wait := b.Background(t, "r1", "@say whole")
		b.Await(t, "r1", said("half"))
		b.Ledger.Cancel("r1")
		cancelled(t, b, wait())
	})
	t.Run("in a command", func(t *testing.T) {
		t.Parallel()
		m := newMock(t)
		b := newBench(t, m, model.Anthropic)
		wait := b.Background(t, "r1", `@call shell {"command":"echo begun > begun; sleep 600"}`+"\ncall shell {\"command\":\"sleep 600\"}\ncall write {\"path\":\"later\",\"content\":\"x\"}\n--\nsay never")
		b.Await(t, "r1", said("in_progress"))
		b.Ledger.Cancel("r1")
		cancelled(t, b, wait())
		if got := results(m.last()); len(got) != 3 || !strings.Contains(got[0], "cancelled") || !strings.Contains(got[2], "cancelled") {
			t.Errorf("results %q, want three that say cancelled", got)
		}
		if got := file(t, b, "later"); !strings.HasPrefix(got, "(") {
			t.Errorf("a call was done after the cancel: %q", got)
		}
	})
	t.Run("in a question", func(t *testing.T) {
		t.Parallel()
		m := newMock(t)
		b := newBench(t, m, model.Responses, asks)
		wait := b.Background(t, "r1", `@call shell {"command":"echo x > ran"}`+"\n--\nsay never")
		b.Await(t, "r1", asked(1))
		b.Ledger.Cancel("r1")
		cancelled(t, b, wait())
		if got := b.Ledger.Run("r1").Withdrawn; len(got) != 1 {
			t.Errorf("withdrawn %q, want the open question", got)
		}
		if got := file(t, b, "ran"); !strings.HasPrefix(got, "(") {
			t.Errorf("the call was done without an answer: %q", got)
		}
	})
	t.Run("before the prompt", func(t *testing.T) {
		t.Parallel()
		m := newMock(t)
		b := newBench(t, m, model.Chat)
		b.Ledger.Cancel("r1")
		if out := b.Turn(t, "r1", "@say never"); out.State != sojourn.RunCancelled || len(m.requests()) != 0 {
			t.Errorf("outcome %s after %d requests", harnesstest.Describe(out), len(m.requests()))
		}
		b.Completed(t, "r2", "@say again")
	})
}

func said(text string) func(harnesstest.RunRecord) bool {
	return func(r harnesstest.RunRecord) bool {
		return slices.ContainsFunc(r.Events, func(e harness.Event) bool { return bytes.Contains(e.Data, []byte(text)) })
	}
}

func asked(n int) func(harnesstest.RunRecord) bool {
	return func(r harnesstest.RunRecord) bool { return len(r.Questions) == n }
}

func cancelled(t *testing.T, b *harnesstest.Bench, out harness.Outcome) {
	t.Helper()
	if out.State != sojourn.RunCancelled || out.StopReason != sojourn.StopCancelled || out.Killed {
		t.Errorf("outcome %s, want cancelled and not killed", harnesstest.Describe(out))
	}
	b.Completed(t, "next", "@say again") // the mock refuses a conversation with open calls
	if got := b.Ledger.Texts("next"); !slices.Equal(got, []string{"again"}) {
		t.Errorf("the next turn said %q", got)
	}
}

func TestDeadlineEndsTheTurn(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	b := newBench(t, m, model.Chat)
	b.Within = 300 * time.Millisecond
	out := b.Turn(t, "r1", `@call shell {"command":"sleep 600"}`+"\n--\nsay never")
	if out.State != sojourn.RunCrashed || out.StopReason != sojourn.StopTurnDeadline || out.Killed {
		t.Errorf("outcome %s, want crashed by the deadline, not killed", harnesstest.Describe(out))
	}
	b.Within = 0
	b.Completed(t, "r2", "@say again")
}

func TestStepsAreBounded(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	b := newBench(t, m, model.Chat, func(c *loop.Config, _ *harness.Runtime) { c.MaxSteps = 3 })
	out := b.Completed(t, "r1", "@"+strings.Repeat("call list {}\n--\n", 10)+"say never")
	if out.StopReason != "max_turn_requests" || len(m.requests()) != 3 {
		t.Errorf("stop reason %q after %d requests", out.StopReason, len(m.requests()))
	}
	b.Completed(t, "r2", "@say again")
}

func TestConsentIsAskedForWhatHasEffects(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	b := newBench(t, m, model.Anthropic, asks)
	prompt := `@call shell {"command":"echo x >> a"}` + "\n" + `call list {}` + "\n" + `call shell {"command":"echo x >> b"}` +
		"\n--\n" + `call shell {"command":"echo x >> c"}` + "\n--\nsay end"
	b.Port.DieAfter = 3 // the server dies while its questions are open
	if _, err := b.Drive(t, "r1", prompt); err == nil {
		t.Fatal("the drive ended while its questions are open")
	}
	b.Port = harnesstest.Port{}
	wait := b.Background(t, "r1", prompt)
	b.Await(t, "r1", asked(2))
	for i, q := range b.Ledger.Run("r1").Questions {
		if q.Kind != "permission" || len(q.Options) != 3 || !bytes.Contains(q.Request, []byte(">> "+string(rune('a'+i)))) {
			t.Errorf("question %+v does not say what is asked", q)
		}
		b.Ledger.Answer("r1", q.Ref, []string{"reject", "always"}[i], true)
	}
	if out := wait(); out.State != sojourn.RunCompleted {
		t.Fatalf("outcome %s", harnesstest.Describe(out))
	}
	if a, bb, c := file(t, b, "a"), file(t, b, "b"), file(t, b, "c"); !strings.HasPrefix(a, "(") || bb != "x\n" || c != "x\n" {
		t.Errorf("files %q, %q, %q: want none, and two written once", a, bb, c)
	}
	if n := len(b.Ledger.Run("r1").Questions); n != 2 {
		t.Errorf("asked %d times, want twice: a tool was allowed for good", n)
	}
	if got := results(m.last()); !strings.Contains(got[0], "did not allow") {
		t.Errorf("the model was told %q", got[0])
	}
}

func TestExpiredQuestionIsNoConsent(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	b := newBench(t, m, model.Chat, asks)
	wait := b.Background(t, "r1", `@call write {"path":"a","content":"x"}`+"\n--\nsay end")
	b.Await(t, "r1", asked(1))
	b.Ledger.Answer("r1", b.Ledger.Run("r1").Questions[0].Ref, "", false)
	if out := wait(); out.State != sojourn.RunCompleted {
		t.Fatalf("outcome %s", harnesstest.Describe(out))
	}
	if got := file(t, b, "a"); !strings.HasPrefix(got, "(") {
		t.Errorf("the call was done: %q", got)
	}
}

func TestRowChoosesModelAndInstructions(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	var asked []string
	b := newBench(t, m, model.Responses, func(c *loop.Config, r *harness.Runtime) {
		c.Models = func(name string) (model.Endpoint, error) {
			asked = append(asked, name)
			return m.endpoint(model.Responses), nil
		}
		r.Model = "large"
		r.Settings = []harness.Setting{{ID: "instructions", Value: "Speak like a sailor."}}
	})
	b.Completed(t, "r1", "@say ahoy")
	if !slices.Equal(asked, []string{"large"}) || !bytes.Contains(m.last(), []byte("Speak like a sailor.")) {
		t.Errorf("asked for the models %q with %s", asked, m.last())
	}
}

func TestUnknownModelFailsTheRun(t *testing.T) {
	t.Parallel()
	b := newBench(t, newMock(t), model.Chat, func(c *loop.Config, _ *harness.Runtime) {
		c.Models = func(name string) (model.Endpoint, error) {
			return model.Endpoint{}, errors.New("there is no model " + name)
		}
	})
	if out := b.Turn(t, "r1", "@say x"); out.State != sojourn.RunFailed || out.Error.Code != loop.CodeModelUnknown {
		t.Errorf("outcome %s", harnesstest.Describe(out))
	}
}
