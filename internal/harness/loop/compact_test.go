package loop_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/harness/harnesstest"
	"github.com/sojourn-dev/sojourn/internal/harness/loop"
	"github.com/sojourn-dev/sojourn/internal/model"
)

// long is a turn that says much.
func long(word string) string { return "@say " + strings.Repeat(word+" ", 400) }

func TestFullContextIsSummarised(t *testing.T) {
	t.Parallel()
	eachAPI(t, func(t *testing.T, api model.API) {
		m := newMock(t)
		b := newBench(t, m, api, func(c *loop.Config, _ *harness.Runtime) {
			c.Models = func(string) (model.Endpoint, error) {
				e := m.endpoint(api)
				e.ContextTokens = 6_000 // the mock counts a token for four bytes
				return e, nil
			}
		})
		words := []string{"alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"}
		for _, w := range words {
			b.Completed(t, sojourn.RunID(w), long(w))
		}
		b.Completed(t, "end", "@say end")
		if !m.holds("SUMMARY of ") {
			t.Fatal("nothing was summarised")
		}
		last := m.last()
		if bytes.Contains(last, []byte("alpha alpha")) || !bytes.Contains(last, []byte("SUMMARY of")) || !bytes.Contains(last, []byte("theta theta")) {
			t.Errorf("the last request has not a summary and the end of the conversation: %d bytes", len(last))
		}
		logged := 0
		for _, run := range append(words, "end") {
			for _, l := range b.Ledger.Logs(sojourn.RunID(run)) {
				if strings.Contains(l, "compacted") {
					logged++
				}
			}
		}
		if logged == 0 {
			t.Error("no event says so")
		}
		if n := len(segments(t, b)); n >= 2*len(words) {
			t.Errorf("%d segments remain; those before the summary are of no use", n)
		}
		// What was summarised is restored as it is.
		move(t, b)
		b.Completed(t, "after", "@say after")
		if !bytes.Contains(m.last(), []byte("SUMMARY of")) {
			t.Error("the summary was not restored")
		}
	})
}

func TestContextErrorIsAnsweredWithASummary(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	m.limit = 12_000
	b := newBench(t, m, model.Chat)
	for _, w := range []string{"alpha", "beta", "gamma", "delta", "epsilon"} {
		b.Completed(t, sojourn.RunID(w), long(w))
	}
	if got := b.Ledger.Texts("epsilon"); len(got) == 0 || !strings.HasPrefix(strings.Join(got, ""), "epsilon ") {
		t.Errorf("the turn over the limit said %.60q", got)
	}
	if !bytes.Contains(m.last(), []byte("SUMMARY of")) {
		t.Error("the last request has no summary")
	}
}

func TestTooLongEvenSummarisedFailsTheRun(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	m.limit = 8_000 // less than the tools and the prompt
	b := newBench(t, m, model.Chat)
	out := b.Turn(t, "r1", "@"+strings.Repeat("x", 20_000))
	if out.State != sojourn.RunFailed || out.Error.Code != loop.CodeContextFull {
		t.Errorf("outcome %s, want failed with %s", harnesstest.Describe(out), loop.CodeContextFull)
	}
}

func TestCompactionInMidTurnGoesOnWithTheWork(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	m.limit = 60_000
	b := newBench(t, m, model.Anthropic)
	var prompt strings.Builder
	prompt.WriteString("@")
	for range 4 {
		prompt.WriteString(`call shell {"command":"yes 0123456789 | head -c 20000; echo x >> marks"}` + "\n--\n")
	}
	prompt.WriteString("say end")
	b.Completed(t, "r1", prompt.String())
	if !m.holds("SUMMARY of") || !m.holds("word for word:") {
		t.Error("the request was not kept word for word")
	}
}

// meter is a session's account.
type meter struct {
	mu     sync.Mutex
	refuse error
	calls  []loop.ModelCall
	admits int
}

func (m *meter) Admit(context.Context, harness.Job) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.admits++
	return m.refuse
}

func (m *meter) Report(_ context.Context, _ harness.Job, c loop.ModelCall) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, c)
	return nil
}

func TestMeterSeesEachRequest(t *testing.T) {
	t.Parallel()
	m, account := newMock(t), &meter{}
	b := newBench(t, m, model.Chat, func(c *loop.Config, _ *harness.Runtime) { c.Meter = account })
	b.Completed(t, "r1", "@call list {}\n--\nsay end")
	if len(account.calls) != 2 || account.admits != 2 || account.calls[0].Usage.Output != 7 || account.calls[0].Err != nil {
		t.Errorf("reported %+v after %d admissions", account.calls, account.admits)
	}
	account.refuse = &sojourn.Error{Code: sojourn.CodeBudgetExceeded, Message: "The budget is used up."}
	out := b.Turn(t, "r2", "@say never")
	if out.State != sojourn.RunFailed || out.Error.Code != string(sojourn.CodeBudgetExceeded) || len(m.requests()) != 2 {
		t.Errorf("outcome %s after %d requests, want the refusal and no third", harnesstest.Describe(out), len(m.requests()))
	}
	account.refuse = errors.New("the database is away")
	if _, err := b.Drive(t, "r3", "@say never"); err == nil {
		t.Error("trouble of ours is an outcome; another drive might do")
	}
}

// steered is a port to which input came in mid-turn.
type steered struct {
	*harnesstest.Port
	inputs []harness.Steer
}

func (s *steered) Steering(_ context.Context, after int64) ([]harness.Steer, error) {
	at := slices.IndexFunc(s.inputs, func(i harness.Steer) bool { return i.Number > after })
	if at < 0 {
		return nil, nil
	}
	return s.inputs[at:], nil
}

func TestSteeringIsTakenInOnce(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	b := newBench(t, m, model.Chat)
	peer := b.Sandbox.Peer(t)
	port := &steered{
		Port:   &harnesstest.Port{Ledger: b.Ledger, Run: "r1", Peer: peer, Die: func() {}},
		inputs: []harness.Steer{{Number: 1, Input: []sojourn.Part{{Type: "text", Text: "mind the gap"}}}, {Number: 2, Input: []sojourn.Part{{Type: "text", Text: "and hurry"}}}},
	}
	job := harness.Job{Session: "ses", Run: "r1", Epoch: 1, Runtime: b.Runtime, Input: []sojourn.Part{{Type: "text", Text: "@call list {}\n--\nsay on\n--\nsay end"}}}
	out, err := b.Harness.Drive(t.Context(), job, port)
	if err != nil || out.State != sojourn.RunCompleted {
		t.Fatalf("%s, %v", harnesstest.Describe(out), err)
	}
	last := m.last()
	if bytes.Count(last, []byte("mind the gap")) != 1 || bytes.Count(last, []byte("and hurry")) != 1 {
		t.Errorf("the last request has not each input once: %s", last)
	}
	if n := len(m.requests()); n != 2 {
		t.Errorf("%d requests, want 2: the inputs go along with the results", n)
	}
}
