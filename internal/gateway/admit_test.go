package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/gateway"
)

func TestWhatIsNotAdmittedIsRefusedInTheAPIsForm(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		for _, c := range []struct {
			err    error
			status int
			text   string
		}{
			{sojourn.Errorf(sojourn.CodeBudgetExceeded, "The budget is used up."), 402, "The budget is used up."},
			{&sojourn.Error{Code: sojourn.CodeRateLimited, Message: "Slower.", RetryAfter: 1500 * time.Millisecond}, 429, "Slower."},
			{sojourn.Errorf(sojourn.CodeWorkspaceExpired, "The lease has ended."), 403, "The lease has ended."},
			{sojourn.Errorf(sojourn.CodeUnavailable, "Stopping."), 503, "Stopping."},
			{errors.New("disk broken at /secret"), 500, "could not be admitted"},
		} {
			r := newRig(t, nil, func(_ *gateway.Config, b *gateway.Binding) {
				b.Admit = func(context.Context) error { return fmt.Errorf("ask: %w", c.err) }
			})
			resp, body := r.do(r.ask(d.with("best", "say hi")))
			if resp.StatusCode != c.status || !strings.Contains(body, c.text) || strings.Contains(body, "/secret") {
				t.Errorf("%v: %d %s, want %d", c.err, resp.StatusCode, body, c.status)
			}
			if got := resp.Header.Get("Retry-After"); (got == "2") != (c.status == 429) {
				t.Errorf("%v: Retry-After %q", c.err, got)
			}
			r.do(r.ask(d.with("best", "say hi"))) // an agent in a loop
			if call := r.only(); call.Failure != sojourn.ModelRefused || call.Status != 0 || call.Model != "best" || call.CostMicroCents != 0 {
				t.Errorf("%+v: want one refused call", call)
			}
			if len(r.mock.Records()) != 0 {
				t.Error("the provider was asked all the same")
			}
		}
	})
}

// TestCallIsReportedBeforeTheAgentHasItsEnd: what it does next may depend on it.
func TestCallIsReportedBeforeTheAgentHasItsEnd(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		var mu sync.Mutex
		var has strings.Builder
		var atReport string
		r := newRig(t, nil, func(_ *gateway.Config, b *gateway.Binding) {
			b.Report = func(context.Context, gateway.Call) error {
				mu.Lock()
				defer mu.Unlock()
				atReport = has.String()
				return errors.New("the report is lost") // which is no reason to lose the answer
			}
		})
		resp, err := http.DefaultClient.Do(r.ask(d.with("best", "pace 1", long)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		for buf := make([]byte, 64); ; {
			n, err := resp.Body.Read(buf)
			mu.Lock()
			has.Write(buf[:n])
			mu.Unlock()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		all := has.String()
		if all != r.upstream.last() {
			t.Errorf("the agent has %d bytes of %d", len(all), len(r.upstream.last()))
		}
		if atReport == all {
			t.Error("the agent had everything before the call was reported")
		}
		for _, end := range []string{"message_stop", "response.completed", "[DONE]", "finishReason"} {
			if d.stream && strings.Contains(atReport, end) {
				t.Errorf("the agent had %s before the call was reported", end)
			}
		}
	})
}

func TestCallsAtATimeAreBounded(t *testing.T) {
	t.Parallel()
	in, out := make(chan struct{}), make(chan struct{})
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		in <- struct{}{}
		<-out
		io.WriteString(w, `{"usage":{"input_tokens":1,"output_tokens":1}}`)
	}), func(_ *gateway.Config, b *gateway.Binding) { b.MaxCalls = 2 })
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { r.do(r.ask(dialects[0].with("best", "say hi"))) })
		<-in
	}
	resp, _ := r.do(r.ask(dialects[0].with("best", "say hi")))
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("one too many: %d %v, want 429", resp.StatusCode, resp.Header)
	}
	close(out)
	wg.Wait()
	if n := len(r.reported()); n != 2 {
		t.Errorf("%d calls, want 2", n)
	}
}

func TestManyStreamsAtATime(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, nil)
	var wg sync.WaitGroup
	const each = 3
	for _, d := range dialects {
		for i := range each {
			wg.Go(func() {
				path, body := d.with("best", fmt.Sprintf("usage 1000 %d", 10+i), "pace 1", long)
				resp, err := http.DefaultClient.Do(r.ask(path, body))
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				if got, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 || len(got) == 0 {
					t.Errorf("%s: %d %v", d.name, resp.StatusCode, err)
				}
			})
		}
	}
	wg.Wait()
	var in, out int64
	for _, c := range r.reported() {
		in, out = in+c.InputTokens, out+c.OutputTokens
		if c.Failure != "" || c.Estimated {
			t.Errorf("%+v", c)
		}
	}
	if n := int64(len(dialects)); in != 1000*each*n || out != (10+11+12)*n {
		t.Errorf("%d in and %d out for %d calls", in, out, each*n)
	}
}

// TestChatUsageIsAskedForInTheAgentsPlace: the agent has its answer without the part
// that it has not asked for.
func TestChatUsageIsAskedForInTheAgentsPlace(t *testing.T) {
	t.Parallel()
	count := func(c *gateway.Config, _ *gateway.Binding) { c.CountChatUsage = true }
	ask := func(r *rig, more string) (string, gateway.Call) {
		_, body := r.do(r.ask("/model/openai/v1/chat/completions",
			`{"model":"best","stream":true`+more+`,"messages":[{"role":"user","content":"@mock usage 70 9\n@mock say hello"}] } `))
		return body, r.only()
	}
	r := newRig(t, nil, count)
	body, c := ask(r, "")
	sent := r.upstream.last()
	if c.InputTokens != 70 || c.OutputTokens != 9 || c.Estimated {
		t.Errorf("%+v: want what the provider counted", c)
	}
	var want strings.Builder
	for event := range strings.SplitAfterSeq(sent, "\n\n") {
		if !strings.Contains(event, `"usage"`) {
			want.WriteString(event)
		}
	}
	if body != want.String() || body == sent {
		t.Errorf("the agent has\n%s\nwant\n%s", body, want.String())
	}
	got := string(r.mock.Records()[0].Body)
	if want := `\n@mock say hello"}] ,"stream_options":{"include_usage":true}} `; !strings.HasSuffix(got, want) {
		t.Errorf("the provider got %s, want it to end in %s", got, want)
	}

	r = newRig(t, nil, count) // an agent that has its own options is left alone
	body, c = ask(r, `,"stream_options":{"include_usage":true}`)
	if body != r.upstream.last() || c.InputTokens != 70 || strings.Count(string(r.mock.Records()[0].Body), "stream_options") != 1 {
		t.Errorf("%+v: the agent's own options", c)
	}
	r = newRig(t, nil, nil) // and without the setting so is everybody
	body, c = ask(r, "")
	if body != r.upstream.last() || !c.Estimated || c.OutputTokens != 2 {
		t.Errorf("%+v: want an estimate", c)
	}
}
