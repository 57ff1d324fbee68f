package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/gateway"
)

// long is more than the events before a fault.
const long = "say one two three four five six seven eight nine ten eleven twelve thirteen"

func TestCutStreamIsCutForTheAgentAndReported(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		r := newRig(t, nil, nil)
		resp, err := http.DefaultClient.Do(r.ask(d.with("best", "cut", "think hmm hmm hmm hmm hmm hmm hmm hmm hmm hmm", long)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("the agent read to the end of a cut answer: %s", body)
		}
		counts := d.stream && !strings.HasPrefix(d.name, "responses") // which had no text yet
		if c := r.only(); c.Failure != sojourn.ModelCut || !c.Estimated || c.InputTokens == 0 || counts && c.OutputTokens == 0 || c.CostMicroCents == 0 {
			t.Errorf("%+v: want a cut call with estimated tokens", c)
		}
	})
}

func TestStreamWithoutItsEndIsReportedAsCut(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		if !d.stream {
			t.Skip("a whole answer has no last event")
		}
		r := newRig(t, nil, nil)
		_, body := r.do(r.ask(d.with("best", "short", long)))
		if c := r.only(); c.Failure != sojourn.ModelCut || body != r.upstream.last() {
			t.Errorf("%+v: want a cut call, and the bytes that came", c)
		}
	})
}

// TestErrorInsideASuccessIsAFailure: the status was 200, and agents say end_turn.
func TestErrorInsideASuccessIsAFailure(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		r := newRig(t, nil, nil)
		_, body := r.do(r.ask(d.with("best", "fail the service is full", "think hmm hmm hmm hmm hmm hmm hmm hmm hmm hmm", long)))
		if c := r.only(); c.Failure != sojourn.ModelErrorEvent || c.Error != "the service is full" || c.Status != 200 || body != r.upstream.last() {
			t.Errorf("%+v: want the error that came in the stream", c)
		}
	})
}

func TestRefusalsOfTheProviderArePassedOn(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		r := newRig(t, nil, nil)
		for _, status := range []int{400, 403, 429, 500, 503, 529} {
			path, body := d.with("best", "retry 17", fmt.Sprintf("error %d", status), "say hi")
			resp, got := r.do(r.ask(path, body))
			if resp.StatusCode != status || resp.Header.Get("Retry-After") != "17" || got != r.upstream.last() {
				t.Errorf("%d %v %s: want %d with Retry-After and the provider's body", resp.StatusCode, resp.Header, got, status)
			}
			calls := r.reported()
			c := calls[len(calls)-1]
			if c.Failure != sojourn.ModelStatus || c.Status != status || c.Error != fmt.Sprintf("mock: status %d as asked", status) || c.InputTokens+c.OutputTokens != 0 {
				t.Errorf("%+v: want a call that failed with %d and used nothing", c, status)
			}
		}
	})
}

// TestWrongKeyIsReportedAndNotShown: the model server answers with the key in its
// error, as some providers do.
func TestWrongKeyIsReportedAndNotShown(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		r := newRig(t, nil, nil)
		r.mock.Key = "another"
		resp, body := r.do(r.ask(d.with("best", "say hi")))
		if resp.StatusCode != 401 || strings.Contains(body, "mock") || !strings.Contains(body, "installation's key") {
			t.Errorf("%d %s: want our own words", resp.StatusCode, body)
		}
		if !strings.Contains(r.upstream.last(), realKey) {
			t.Error("the provider did not show the key: this test says nothing")
		}
		if c := r.only(); c.Status != 401 || c.Failure != sojourn.ModelStatus {
			t.Errorf("%+v: want a failure with 401", c)
		}
	})
}

// TestKeyIsMaskedWhereverItComesBack: in fields, in errors, and in pieces of a stream.
func TestKeyIsMaskedWhereverItComesBack(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 418} {
		r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			key := req.Header.Get("X-Api-Key")
			w.Header().Set("X-Debug", "key="+key)
			w.Header().Set("Set-Cookie", "a=b")
			w.Header().Set("Request-Id", "for "+key)
			w.WriteHeader(status)
			for _, piece := range []string{`{"a":"sk-`, key[3:], `","b":"`, key, key[:8]} {
				io.WriteString(w, piece)
				http.NewResponseController(w).Flush()
			}
		}), nil)
		resp, body := r.do(r.ask(dialects[0].with("best", "say hi")))
		stars := strings.Repeat("*", len(realKey))
		if want := `{"a":"` + stars + `","b":"` + stars + realKey[:8]; body != want {
			t.Errorf("%d: %s, want %s", status, body, want)
		}
		if resp.Header.Get("X-Debug") != "key="+stars || resp.Header.Get("Set-Cookie") != "" {
			t.Errorf("%d: fields %v", status, resp.Header)
		}
		if c := r.only(); c.RequestID != "for "+stars {
			t.Errorf("request id %q", c.RequestID)
		}
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the request went elsewhere") }))
	defer elsewhere.Close()
	r := newRig(t, http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect), nil)
	resp, body := r.do(r.ask(dialects[0].with("best", "say hi")))
	if resp.StatusCode != 502 || resp.Header.Get("Location") != "" || strings.Contains(body, elsewhere.URL) {
		t.Errorf("%d %v %s: want 502 and no address", resp.StatusCode, resp.Header, body)
	}
	if c := r.only(); c.Status != 307 || c.Failure != sojourn.ModelStatus {
		t.Errorf("%+v", c)
	}
}

func TestProviderThatIsNotThere(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(nil)
	gone.Close()
	r := newRig(t, nil, func(c *gateway.Config, _ *gateway.Binding) { c.Providers[0].BaseURL = gone.URL })
	resp, body := r.do(r.ask(dialects[0].with("best", "say hi")))
	if resp.StatusCode != 502 || strings.Contains(body, "127.0.0.1") {
		t.Errorf("%d %s: want 502 and no address", resp.StatusCode, body)
	}
	if c := r.only(); c.Failure != sojourn.ModelUnreachable || c.Status != 0 || c.InputTokens != 0 {
		t.Errorf("%+v: want an unreachable provider and nothing used", c)
	}
}

// TestFirstEventIsThereBeforeTheSecondIsSent: nothing is kept back on the way.
func TestFirstEventIsThereBeforeTheSecondIsSent(t *testing.T) {
	t.Parallel()
	for _, count := range []bool{false, true} { // with and without our own request for the usage
		seen := make(chan struct{})
		r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for range 3 {
				io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}]}\n\n")
				http.NewResponseController(w).Flush()
				select {
				case <-seen:
				case <-req.Context().Done():
					return
				}
			}
			io.WriteString(w, "data: [DONE]\n\n")
		}), func(c *gateway.Config, _ *gateway.Binding) { c.CountChatUsage = count })
		req := r.ask("/model/openai/v1/chat/completions", `{"model":"best","stream":true,"messages":[]}`)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewReader(resp.Body)
		for range 3 {
			for line := ""; line != "\n"; {
				if line, err = lines.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			seen <- struct{}{}
		}
		if rest, err := io.ReadAll(lines); err != nil || string(rest) != "data: [DONE]\n\n" {
			t.Errorf("the rest is %q, %v", rest, err)
		}
		if c := r.only(); c.Failure != "" || !c.Estimated || c.OutputTokens != 3 {
			t.Errorf("%+v: want a whole answer of three estimated tokens", c)
		}
	}
}

func TestAgentThatGoesAwayEndsTheCall(t *testing.T) {
	t.Parallel()
	for _, begun := range []bool{false, true} {
		arrived, ended := make(chan struct{}), make(chan struct{})
		reported := make(chan gateway.Call, 2)
		r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.ReadAll(req.Body) // the client may be gone
			if begun {
				w.Header().Set("Content-Type", "text/event-stream")
				io.WriteString(w, "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":50,\"output_tokens\":1}}}\n\n"+
					"data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"eight by\"}}\n\n")
				http.NewResponseController(w).Flush()
			} else {
				close(arrived)
			}
			<-req.Context().Done()
			close(ended)
		}), func(_ *gateway.Config, b *gateway.Binding) {
			b.Report = func(ctx context.Context, c gateway.Call) error {
				reported <- c
				return ctx.Err()
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		req := r.ask(dialects[0].with("best", "say hi")).WithContext(ctx)
		if begun {
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(resp.Body, make([]byte, 150)); err != nil {
				t.Fatal(err)
			}
			cancel()
			resp.Body.Close()
		} else {
			go func() { <-arrived; cancel() }()
			if _, err := http.DefaultClient.Do(req); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		<-ended
		c := <-reported
		if c.Failure != sojourn.ModelCancelled || !c.Estimated {
			t.Errorf("%+v: want a cancelled call with an estimate", c)
		}
		if begun && (c.InputTokens != 50 || c.OutputTokens != 2) || !begun && c.InputTokens == 0 {
			t.Errorf("%+v: want what was used until then", c)
		}
	}
}

func TestPatienceEnds(t *testing.T) {
	t.Parallel()
	for _, begun := range []bool{false, true} {
		r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.ReadAll(req.Body) // the client may be gone
			if begun {
				w.Header().Set("Content-Type", "text/event-stream")
				io.WriteString(w, ": wait\n\n")
				http.NewResponseController(w).Flush()
			}
			<-req.Context().Done()
		}), func(c *gateway.Config, _ *gateway.Binding) { c.Patience = time.Second })
		resp, err := http.DefaultClient.Do(r.ask(dialects[0].with("best", "say hi")))
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		if begun && (resp.StatusCode != 200 || err == nil) || !begun && (resp.StatusCode != 504 || err != nil) {
			t.Errorf("begun %v: %d, %v: want 504, or a cut answer", begun, resp.StatusCode, err)
		}
		if c := r.only(); c.Failure != sojourn.ModelTimeout || c.InputTokens == 0 {
			t.Errorf("%+v: want a timeout", c)
		}
	}
}
