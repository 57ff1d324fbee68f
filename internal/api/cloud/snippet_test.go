package cloud_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// TestDocumentedSnippetRuns runs the snippet of "Reading it before you act",
// which testdata/read-session.sh holds word for word; only host and key differ.
func TestDocumentedSnippetRuns(t *testing.T) {
	for _, program := range []string{"bash", "curl", "jq"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIPPED: the documented snippet needs %s, which this machine does not have", program)
		}
	}
	s := servertest.Start(t, servertest.Config{})
	var made struct {
		Session struct{ ID string }
		Run     struct{ ID string }
	}
	s.Must("POST", "/v1/sessions", map[string]any{}, &made)
	compare(t, "fresh", snippet(t, s, made.Session.ID), map[string]any{
		"workspace": map[string]any{"state": "unavailable"}, "canContinue": true, "carriesPreviousWork": false,
		"reason": "no_prior_work", "state": "fresh", "conversation": "none", "files": "none", "busy": false,
	})

	s.Must("POST", "/v1/sessions/"+made.Session.ID+"/turns", map[string]any{"input": "@ask May I?"}, &made)
	await(t, s, made.Session.ID, "run.active")
	if got := snippet(t, s, made.Session.ID); got["busy"] != true {
		t.Errorf("with a run: %v, want it busy", got)
	}
	s.Must("POST", "/v1/sessions/"+made.Session.ID+"/runs/"+made.Run.ID+"/cancel", nil, nil)
	await(t, s, made.Session.ID, "run.cancelled")
	got := snippet(t, s, made.Session.ID)
	if got["busy"] != false || got["carriesPreviousWork"] != true || got["reason"] != nil || got["state"] != "live" {
		t.Errorf("after the run: %v, want a live session that carries its work", got)
	}
}

// await follows the session's log until it has an event of the type.
func await(t *testing.T, s *servertest.Server, session, kind string) {
	t.Helper()
	c, err := client.New(client.Config{URL: s.URL, Key: servertest.AdminKey})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Follow(t.Context(), client.Follow{Session: session}, func(e client.Event) (bool, error) {
		return e.Type != kind, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// snippet runs the documented snippet on a session.
func snippet(t *testing.T, s *servertest.Server, session string) (out map[string]any) {
	t.Helper()
	text, err := os.ReadFile("testdata/read-session.sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", string(text))
	cmd.Env = append(os.Environ(), "WAMP_API="+s.URL, "SESSION_ID="+session, "WAMP_TOKEN="+servertest.AdminKey)
	got, err := cmd.Output()
	if err != nil {
		t.Fatalf("the snippet failed: %v\n%s", err, got)
	}
	if err := json.Unmarshal(got, &out); err != nil {
		t.Fatalf("the snippet printed %s: %v", got, err)
	}
	return out
}

func compare(t *testing.T, what string, got, want map[string]any) {
	t.Helper()
	g, _ := json.Marshal(got) // both are plain maps
	w, _ := json.Marshal(want)
	if string(g) != string(w) {
		t.Errorf("%s:\n got %s\nwant %s", what, g, w)
	}
}
