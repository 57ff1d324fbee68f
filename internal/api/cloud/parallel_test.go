package cloud_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// TestParallelCallsWithOneKeyAreOneCall makes 50 calls at the same moment.
func TestParallelCallsWithOneKeyAreOneCall(t *testing.T) {
	s := servertest.Start(t, servertest.Config{})
	var made struct{ Session struct{ ID string } }
	for id := range parallel(t, s, "POST", "/v1/sessions", `{"title":"one"}`, &made, func() string { return made.Session.ID }) {
		if id != made.Session.ID {
			t.Errorf("the sessions are %s and %s, want one", id, made.Session.ID)
		}
	}
	var list struct{ Sessions []any }
	if s.Must("GET", "/v1/sessions", nil, &list); len(list.Sessions) != 1 {
		t.Errorf("%d sessions were made, want one", len(list.Sessions))
	}
	session := "/v1/sessions/" + made.Session.ID
	var submitted struct{ Turn struct{ ID string } }
	for id := range parallel(t, s, "POST", session+"/turns", `{"input":"hello"}`, &submitted, func() string { return submitted.Turn.ID }) {
		if id != submitted.Turn.ID {
			t.Errorf("the turns are %s and %s, want one", id, submitted.Turn.ID)
		}
	}
	var ignored any
	parallel(t, s, "PUT", session+"/workspace", ``, &ignored, func() string { return "" })
	if made := len(s.Fake.Created()); made != 1 {
		t.Errorf("%d sandboxes were made, want one", made)
	}
}

// parallel makes 50 calls that must succeed and returns the ids that they made.
func parallel(t *testing.T, s *servertest.Server, method, path, body string, into any, id func() string) map[string]bool {
	t.Helper()
	var calls sync.WaitGroup
	answers := make([][]byte, 50)
	for i := range answers {
		calls.Go(func() {
			r, err := http.NewRequest(method, s.URL+path, bytes.NewReader([]byte(body)))
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set("Authorization", "Bearer "+servertest.AdminKey)
			r.Header.Set("Idempotency-Key", method+path)
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			answers[i], err = io.ReadAll(res.Body)
			if err != nil || res.StatusCode > 299 {
				t.Errorf("%s %s: %s %s %v", method, path, res.Status, answers[i], err)
			}
		})
	}
	calls.Wait()
	ids := map[string]bool{}
	for _, a := range answers {
		if err := json.Unmarshal(a, into); err != nil {
			t.Fatalf("%s: %v", a, err)
		}
		ids[id()] = true
	}
	return ids
}
