package cloud

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

func TestEveryCodeHasAReply(t *testing.T) {
	if missing := contract.Missing(); len(missing) > 0 {
		t.Errorf("codes without a reply: %v", missing)
	}
	if len(replies) != len(sojourn.Codes) {
		t.Errorf("%d replies for %d codes", len(replies), len(sojourn.Codes))
	}
}

func TestRepliesAreWhatWasPublished(t *testing.T) {
	var b bytes.Buffer
	for _, code := range sojourn.Codes {
		r := replies[code]
		fmt.Fprintf(&b, "%-24s %d  %s", code, r.Status, r.Code)
		if r.RetryAfter > 0 {
			fmt.Fprintf(&b, "  Retry-After: %d", int(r.RetryAfter.Seconds()))
		}
		b.WriteByte('\n')
	}
	golden(t, "testdata/replies.golden", b.Bytes())
}

// The table of the document, word for word.
func TestComputeErrorsAreAsDocumented(t *testing.T) {
	for _, c := range []struct {
		code       sojourn.Code
		status     int
		wire       string
		retryAfter string
	}{
		{sojourn.CodeWorkspaceStarting, 503, "cloud_workspace_starting", "2"},
		{sojourn.CodeWorkspaceUnavailable, 503, "cloud_workspace_unavailable", ""},
		{sojourn.CodeWorkspaceExpired, 409, "cloud_workspace_expired", ""},
		{sojourn.CodeWorkspaceExpiring, 409, "cloud_workspace_expiring", ""},
		{sojourn.CodeResumeUnavailable, 409, "cloud_resume_unavailable", ""},
		{sojourn.CodeExecutionLost, 409, "cloud_turn_execution_lost", ""},
		{sojourn.CodeComputeOutdated, 409, "cloud_compute_outdated", ""},
	} {
		e := &stub{err: sojourn.Errorf(c.code, "Why.")}
		res := serve(e, "PUT", "/v1/sessions/s/workspace", "admin")
		if res.Code != c.status || errorCode(t, res) != c.wire || res.Header().Get("Retry-After") != c.retryAfter {
			t.Errorf("%s: %d %s, Retry-After %q; want %d %s, %q", c.code, res.Code, res.Body, res.Header().Get("Retry-After"), c.status, c.wire, c.retryAfter)
		}
		// "for these codes Retry-After is a header only"
		if bytes.Contains(res.Body.Bytes(), []byte("retryAfterSeconds")) {
			t.Errorf("%s has the hint in its body: %s", c.code, res.Body)
		}
	}
}

// "while a 429 rate-limit response carries retryAfterSeconds in the body as well"
func TestRateLimitHasTheHintInTheBodyToo(t *testing.T) {
	h := New(&stub{}, doorman{}, Config{Settings: api.Settings{Rate: api.Rate{PerSecond: 0.1, Burst: 1}}})
	for _, want := range []int{200, 429} {
		r := httptest.NewRequest("GET", "/v1/capabilities", nil)
		r.Header.Set("Authorization", "Bearer admin")
		res := httptest.NewRecorder()
		h.ServeHTTP(res, r)
		if res.Code != want {
			t.Fatalf("%d %s, want %d", res.Code, res.Body, want)
		}
		if want == 429 && (res.Header().Get("Retry-After") != "10" || !bytes.Contains(res.Body.Bytes(), []byte(`"retryAfterSeconds":10`)) ||
			errorCode(t, res) != "cloud_rate_limited") {
			t.Errorf("Retry-After %q, %s; want 10 in both", res.Header().Get("Retry-After"), res.Body)
		}
	}
}

// waiting is an engine whose workspace takes longer than anybody waits.
type waiting struct {
	stub
	waited time.Duration
}

func (w *waiting) EnsureWorkspace(_ context.Context, r engineRef, wait time.Duration) (sojourn.Facts, error) {
	w.waited = wait
	return sojourn.Facts{}, sojourn.Errorf(sojourn.CodeWorkspaceStarting, "A sandbox is coming up.")
}

func TestEnsureWorkspaceWaitsTwentySeconds(t *testing.T) {
	w := &waiting{}
	if res := serve(w, "PUT", "/v1/sessions/s/workspace", "admin"); res.Code != http.StatusServiceUnavailable || w.waited != 20*time.Second {
		t.Errorf("%d after %v, want 503 after 20s", res.Code, w.waited)
	}
}

func TestInternalErrorsSayNothing(t *testing.T) {
	res := serve(&stub{err: fmt.Errorf("open /var/lib/sojourn/db: %w", context.DeadlineExceeded)}, "GET", "/v1/sessions/s", "admin")
	if res.Code != 500 || errorCode(t, res) != "cloud_internal" || bytes.Contains(res.Body.Bytes(), []byte("/var/lib")) {
		t.Errorf("%d %s, want cloud_internal and nothing of the cause", res.Code, res.Body)
	}
}
