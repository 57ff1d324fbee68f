package gateway_test

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/gateway"
)

// TestCallsThatCostNothingDoNotFillTheLog: an agent can make them in a loop, for months.
func TestCallsThatCostNothingDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	bad := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, `{"error":"no"}`, http.StatusBadRequest) })
	began := time.Now()
	var passed atomic.Int64
	r := newRig(t, bad, func(c *gateway.Config, _ *gateway.Binding) {
		c.Now = func() time.Time { return began.Add(time.Duration(passed.Load())) }
	})
	call := func(times int) {
		for range times {
			resp, err := http.DefaultClient.Do(r.ask("/model/openai/v1/chat/completions", `{"model":"best","messages":[]}`))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body) // so that the connection is used again
			resp.Body.Close()
			if resp.StatusCode != http.StatusBadRequest {
				t.Fatalf("status %s", resp.Status)
			}
		}
	}
	call(300)
	if n := len(r.reported()); n != 200 {
		t.Errorf("%d of 300 failures at once were reported, want 200", n)
	}
	passed.Store(int64(time.Minute))
	call(20)
	if n := len(r.reported()); n != 206 {
		t.Errorf("%d reports a minute later, want 6 more", n)
	}
}
