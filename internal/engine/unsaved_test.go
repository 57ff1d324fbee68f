package engine_test

import (
	"archive/tar"
	"bytes"
	"net/http"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// copyIn puts a file into the session's sandbox as "sojourn session cp" does.
func (s *story) copyIn(name, text string) {
	s.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
	if err == nil {
		_, err = w.Write([]byte(text))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		s.Fatal(err)
	}
	req, err := http.NewRequestWithContext(s.Context(), http.MethodPut, s.URL+s.operator("/files?path=."), &b)
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+servertest.AdminKey)
	req.Header.Set("Content-Type", "application/x-tar")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		s.Fatalf("copy in: %s", res.Status)
	}
}

// TestFilesPutIntoASandboxSurviveIt: what somebody has put into a sandbox outside a
// run is captured before the sandbox goes, whichever way it goes (G6).
func TestFilesPutIntoASandboxSurviveIt(t *testing.T) {
	hold := sojourn.Terms{Hold: shortHold}
	expires := func(s *story) {
		s.until("the hold to run out", func() bool { return s.session().Workspace.State == "expired" })
	}
	for name, c := range map[string]struct {
		terms  sojourn.Terms
		worked bool
		ends   func(*story)
		state  string
		reason string
	}{
		"its hold runs out":                  {terms: hold, ends: expires, state: "expired", reason: "idle_hold"},
		"its hold runs out, after a run":     {terms: hold, worked: true, ends: expires, state: "expired", reason: "idle_hold"},
		"it dies":                            {ends: func(s *story) { s.Fake.Kill(s.id) }, state: "lost", reason: "sandbox_ended"},
		"it dies, after a run":               {worked: true, ends: func(s *story) { s.Fake.Kill(s.id) }, state: "lost", reason: "sandbox_ended"},
		"it dies while there is no server":   {ends: func(s *story) { s.Stop(); s.Fake.Kill(s.id); s.Start() }, state: "lost", reason: "sandbox_ended"},
		"its hold runs out without a server": {terms: hold, ends: func(s *story) { s.Stop(); time.Sleep(hold.Hold); s.Start() }, state: "expired", reason: "idle_hold"},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, servertest.Config{Terms: c.terms})
			if c.worked {
				s.completes("@remember a b")
			}
			s.copyIn("f", "put here")
			c.ends(s)
			s.until("the sandbox to be given back", func() bool { return s.sandboxes() == 0 })
			f := s.facts()
			s.want("lease", f.Session.Lease.State, c.state)
			s.want("reason of its end", f.Session.Lease.EndReason, c.reason)
			s.want("continuation", f.Session.Continuation.State, "restorable")
			s.want("reason", f.Session.Continuation.Reason, "")
			said := s.said(s.completes("@cat f", "@recall a"))
			s.want("the file", said[0], "put here")
			if c.worked {
				s.want("recalled", said[1], "b")
			}
			s.oneEnd()
		})
	}
}

// TestUseAtTheEndOfAHoldLosesNoFiles: the first use after the hold has run out comes
// before, while or after the lease is tended to; it finds the files each time.
func TestUseAtTheEndOfAHoldLosesNoFiles(t *testing.T) {
	s := begin(t, servertest.Config{Terms: sojourn.Terms{Hold: shortHold}})
	for range 3 {
		s.id = s.create()
		s.copyIn("f", "put here")
		time.Sleep(time.Until(s.session().Workspace.ExpiresAt)) // the moment itself is what is tested
		s.want("the file", s.said(s.completes("@cat f"))[0], "put here")
	}
}

// TestUnusedSandboxLeavesNoCheckpoint: where nothing was put, nothing is captured.
func TestUnusedSandboxLeavesNoCheckpoint(t *testing.T) {
	s := begin(t, servertest.Config{Terms: sojourn.Terms{Hold: shortHold}})
	s.Must(http.MethodPut, s.path("/workspace"), nil, nil)
	s.until("the sandbox to be given back", func() bool { return s.sandboxes() == 0 })
	s.want("continuation", s.session().Continuation.State, "fresh")
	s.want("checkpoints", s.count("wamp.checkpoint.sealed"), 0)
	s.completes("@say hi")
}
