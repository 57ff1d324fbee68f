package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestRefusalsHaveTheirExitCodes(t *testing.T) {
	f := newFake(t)
	for _, tt := range []struct{ status, code int }{
		{401, 4}, {403, 4}, {409, 4}, {404, 3}, {422, 2}, {400, 2}, {413, 2}, {429, 1}, {500, 1}, {503, 1},
	} {
		f.status, f.refuse = tt.status, &object{"code": "some_code", "message": "A sentence.", "requestId": "req-1"}
		got := f.run(t, "session", "list")
		if got.code != tt.code || !strings.Contains(got.err, "A sentence.") || strings.Count(got.err, "\n") != 1 || got.out != "" {
			t.Errorf("%d: code %d, want %d; output %q, errors %q", tt.status, got.code, tt.code, got.out, got.err)
		}
	}
}

func TestNoServerIsUnreachable(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, args := range [][]string{
		{"session", "list"},
		{"session", "turn", "abcdef", "x"},
		{"session", "events", "abcdef", "--follow"},
		{"interaction", "list", "last"},
		{"keys", "list"},
	} {
		got := runLine(t.Context(), "", append(args, "--url", gone.URL)...)
		if got.code != exitUnreachable || !strings.Contains(got.err, "no server answers at "+gone.URL) {
			t.Errorf("%q: code %d, errors %q", args, got.code, got.err)
		}
	}
}

func TestAnotherServerIsNotTakenForOurs(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("<html>hello</html>")) }))
	defer other.Close()
	got := runLine(t.Context(), "", "session", "list", "--url", other.URL)
	if got.code != exitFailure || got.out != "" || got.err == "" {
		t.Errorf("code %d, output %q, errors %q", got.code, got.out, got.err)
	}
}

func TestWordsThatAreOff(t *testing.T) {
	f := newFake(t)
	f.interactions = []object{{
		"id": fakeAsk, "sessionId": fakeSession, "runId": fakeRun, "kind": "permission", "state": "open", "requestedAt": fakeTime,
		"options": []object{
			{"optionId": "a", "name": "A", "kind": "allow_once"},
			{"optionId": "b", "name": "B", "kind": "allow_once"},
			{"optionId": "c", "name": "C", "kind": "reject_once"},
		},
	}}
	for _, args := range []string{
		"session", "session bogus", "session list extra", "session list --bogus", "session show", "session show a b",
		"session turn " + fakeSession, "session create extra", "session create --metadata x", "session create --metadata a=1 --metadata a=2",
		"session events " + fakeSession + " --after x", "session cancel", "session cancel a b c", "session watch", "session watch a b c", "session list --limit -1",
		"session list --url localhost:1", "session list --url ftp://x", "session list --url http://",
		"interaction", "interaction answer " + fakeSession + " " + fakeAsk, "interaction answer " + fakeSession + " " + fakeAsk + " c --text t",
		"interaction answer " + fakeSession + " " + fakeAsk + " allow_once", "interaction answer " + fakeSession + " " + fakeAsk + " nope",
		"keys", "keys revoke", "keys create --kind", "nonsense", "session list -x",
	} {
		got := f.run(t, strings.Fields(args)...)
		if got.code != exitUsage || got.err == "" || got.out != "" {
			t.Errorf("%s: code %d, output %q, errors %q", args, got.code, got.out, got.err)
		}
	}
	if len(f.bodies) > 0 {
		t.Errorf("something was sent: %v", f.bodies)
	}
}

func TestFlagsStandAnywhere(t *testing.T) {
	f := newFake(t)
	t.Setenv("SOJOURN_URL", "http://127.0.0.1:1")
	for _, args := range [][]string{
		{"session", "--url", f.URL, "--json", "show", fakeSession},
		{"session", "show", "--url=" + f.URL, "--json", fakeSession},
		{"session", "show", fakeSession, "-url", f.URL, "-json"},
		{"session", "show", "--json", "--url", f.URL, "--", fakeSession},
	} {
		got := runLine(t.Context(), "", args...)
		if got.code != 0 || !json.Valid([]byte(got.out)) {
			t.Errorf("%q: code %d, output %q, errors %q", args, got.code, got.out, got.err)
		}
	}
	got := runLine(t.Context(), "", "session", "turn", "--url", f.URL, "--no-follow", fakeSession, "--", "--json", "-x")
	if text := f.bodies[len(f.bodies)-1]; got.code != 0 || !strings.Contains(toJSON(t, text), `--json -x`) {
		t.Errorf("code %d, errors %q, submitted %v", got.code, got.err, text)
	}
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestIdsMayBeShort(t *testing.T) {
	f := newFake(t)
	f.sessions = []object{
		sessionObject("01f0aaaa-0000-7000-8000-00000000a009"),
		sessionObject("01f0aaaa-0000-7000-8000-0000000aa001"),
		sessionObject(fakeSession),
	}
	for i := range 300 {
		f.sessions = append(f.sessions, sessionObject("01f0bbbb-0000-7000-8000-0000001"+toJSON(t, 10000+i)))
	}
	for _, tt := range []struct {
		word string
		code int
		want string
	}{
		{"last", 0, "a009"},
		{fakeSession, 0, fakeSession},
		{"01f0aaaa-0000-7000-8000-0000000aa", 0, "aa001"},
		{"00a009", 0, "a009"},
		{"110299", 0, "110299"}, // on the second page
		{"01f0aaaa", exitUsage, ""},
		{"a009", exitNotFound, ""}, // too short
		{"nothing-like-it", exitNotFound, ""},
		{"", exitNotFound, ""},
		{"../keys", exitNotFound, ""},
		{"x?y#z", exitNotFound, ""},
	} {
		got := f.run(t, "session", "show", tt.word, "--json")
		if got.code != tt.code || !strings.Contains(got.out, tt.want) {
			t.Errorf("show %q: code %d, want %d; output %q, errors %q", tt.word, got.code, tt.code, got.out, got.err)
		}
	}
	f.sessions = nil
	if got := f.run(t, "session", "show", "last"); got.code != exitNotFound {
		t.Errorf("show last of none: code %d, errors %q", got.code, got.err)
	}
}

func TestAnswerNamesAnOption(t *testing.T) {
	f := newFake(t)
	f.interactions = []object{
		{
			"id": fakeAsk, "sessionId": fakeSession, "runId": fakeRun, "kind": "permission", "state": "open", "requestedAt": fakeTime,
			"options": []object{
				{"optionId": "id-1", "name": "Yes", "kind": "allow_once"},
				{"optionId": "id-2", "name": "No", "kind": "reject_once"},
			},
		},
		{"id": "gone", "sessionId": fakeSession, "runId": fakeRun, "kind": "question", "state": "expired", "requestedAt": fakeTime},
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"last", "allow_once"}, `{"optionId":"id-1"}`},
		{[]string{fakeAsk, "id-2"}, `{"optionId":"id-2"}`},
		{[]string{"00d001", "--text", "in words"}, `{"text":"in words"}`},
	} {
		f.interactions[0]["state"] = "open"
		got := f.run(t, append([]string{"interaction", "answer", fakeSession}, tt.args...)...)
		if got.code != 0 {
			t.Errorf("%q: code %d, errors %q", tt.args, got.code, got.err)
			continue
		}
		if text := toJSON(t, f.bodies[len(f.bodies)-1]); text != tt.want {
			t.Errorf("%q sent %s, want %s", tt.args, text, tt.want)
		}
	}
}

func TestEverythingIsAlsoJSON(t *testing.T) {
	f := newFake(t)
	f.sessions[0]["activeRun"] = runObject(fakeRun, "active")
	f.interactions = []object{{"id": fakeAsk, "sessionId": fakeSession, "runId": fakeRun, "kind": "question", "state": "open", "requestedAt": fakeTime}}
	f.keys = []object{{"id": fakeKey, "kind": "app", "hint": "abcd", "createdAt": fakeTime}}
	for _, args := range []string{
		"session create --title x --runtime script --metadata a=b --turn hello", "session list", "session list --archived --contract cloud",
		"session show last", "session turn last --no-follow x", "session cancel last", "session archive last",
		"interaction list last", "interaction answer last last --text t",
		"keys create --kind app --name n --scope s1 --scope s2", "keys list", "keys revoke " + fakeKey,
	} {
		f.interactions[0]["state"] = "open"
		got := f.run(t, append(strings.Fields(args), "--json")...)
		if got.code != 0 || !json.Valid([]byte(got.out)) || got.err != "" {
			t.Errorf("%s --json: code %d, output %q, errors %q", args, got.code, got.out, got.err)
		}
		f.interactions[0]["state"] = "open"
		if got := f.run(t, strings.Fields(args)...); got.code != 0 || got.out == "" {
			t.Errorf("%s: code %d, output %q, errors %q", args, got.code, got.out, got.err)
		}
	}
}
