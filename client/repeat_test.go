package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"
)

// flaky answers the calls behind the first so many, whose connections it cuts.
// keys are the idempotency keys of all calls so far.
func flaky(t *testing.T, cut int, then http.HandlerFunc) (url string, keys func() []string) {
	t.Helper()
	var mu sync.Mutex
	var seen []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.Header.Get("Idempotency-Key"))
		n := len(seen)
		mu.Unlock()
		if n <= cut {
			if n%2 == 0 { // in the middle of an answer
				w.Header().Set("Content-Length", "100")
				w.Write([]byte("{"))
				http.NewResponseController(w).Flush()
			}
			panic(http.ErrAbortHandler)
		}
		then(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

func TestLostCommandIsRepeatedUnderItsKey(t *testing.T) {
	url, keys := flaky(t, 3, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		w.Write([]byte(`{"run":{"id":"r1"}}`))
	})
	c, err := New(Config{URL: url, Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	made, err := c.SubmitTurn(t.Context(), "s", TurnInput{Input: Text("x")})
	if err != nil || made.Run.ID != "r1" {
		t.Fatalf("submit = %+v, %v", made, err)
	}
	if len(keys()) != 4 {
		t.Fatalf("%d calls, want 4", len(keys()))
	}
	for _, k := range keys() {
		if k == "" || k != keys()[0] {
			t.Errorf("the keys are %q, want one and the same", keys())
		}
	}
}

func TestAnsweredCommandIsNotRepeated(t *testing.T) {
	url, keys := flaky(t, 0, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	c, err := New(Config{URL: url, Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.SubmitTurn(t.Context(), "s", TurnInput{Input: Text("x")})
	if e, ok := errors.AsType[*Error](err); !ok || e.Status != http.StatusServiceUnavailable || len(keys()) != 1 {
		t.Errorf("submit = %v after %d calls", err, len(keys()))
	}
}

func TestLostForGoodIsSaid(t *testing.T) {
	url, _ := flaky(t, 1<<30, nil)
	c, err := New(Config{URL: url, Key: "k", Patience: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.SubmitTurn(t.Context(), "s", TurnInput{Input: Text("x")}); !errors.Is(err, ErrLost) {
		t.Errorf("submit = %v, want ErrLost", err)
	}
}

func TestUnmadeConnectionIsNotRepeated(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	c, err := New(Config{URL: "http://" + l.Addr().String(), Key: "k", Patience: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Status(t.Context()); err == nil || errors.Is(err, ErrLost) {
		t.Errorf("status = %v, want the connection's error", err)
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	url, _ := flaky(t, 1<<30, nil)
	c, err := New(Config{URL: url, Key: "k", Patience: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Status(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("status = %v, want the context's error", err)
	}
}
